//! What every part of the measurements works with.

use std::io;

use crate::{
    build::Programs,
    goals,
    plan::{Contender, Pace},
    process::{Client, Figures, Server},
    report::Report,
};

pub(crate) struct Bench {
    pub(crate) contenders: Vec<&'static Contender>,
    pub(crate) pace: Pace,
    pub(crate) programs: Programs,
    pub(crate) report: Report,
    pub(crate) goals: goals::Figures,
}

impl Bench {
    /// The contenders that have a curve of their own.
    pub(crate) fn drawn(&self) -> Vec<&'static Contender> {
        self.contenders.iter().copied().filter(|contender| contender.is_drawn).collect()
    }

    /// Runs a client against a server of its own, with several threads each.
    pub(crate) fn run(
        &self,
        contender: &Contender,
        options: &[&str],
    ) -> io::Result<Option<Figures>> {
        let program = self.programs.peer(contender);
        let server = Server::start(&program, contender, false, &[])?;
        Client::new(&program, contender, options).run(&server)
    }

    /// The same, so many times.
    pub(crate) fn runs(
        &self,
        rounds: usize,
        contender: &Contender,
        options: &[&str],
    ) -> io::Result<Vec<Figures>> {
        let runs = (0..rounds).map(|_| self.run(contender, options));
        runs.filter_map(Result::transpose).collect()
    }
}
