//! A played server for any client: it answers every call in one way, which is allowed but may be odd, and the client has
//! to take it for what it is.
//!
//! A way is a line in `answers.cases`. The client needs nothing but one of the cases of the API, which has to pass.

use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
};
use ttrpc::prost::Message;

use super::client_cases::server_bytes;
use crate::{
    conformance::{Chunk, GenerateRequest},
    wire::{Frame, REQUEST, Request},
};

/// The ways that are written out.
const LINES: &str = include_str!("answers.cases");

/// A way to answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its name.
    pub name: &'static str,
    /// The case of the client that has to pass.
    pub case: &'static str,
    steps: Vec<&'static str>,
}

impl Answer {
    /// All ways.
    pub fn all() -> Vec<Answer> {
        let lines = LINES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let answers = lines.map(|line| {
            let (name, text) = line.split_once('=').unwrap_or((line, ""));
            let mut steps = text.split(';').map(str::trim);
            let case = steps.next().unwrap_or_default();
            Answer { name: name.trim(), case, steps: steps.collect() }
        });
        answers.collect()
    }

    /// What is sent on this stream.
    ///
    /// # Errors
    /// What is wrong with a step.
    fn bytes(&self, id: u32, request: &Request) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for step in &self.steps {
            match *step {
                "messages" => bytes.extend(messages(id, request)?),
                step => bytes.extend(server_bytes(&step.replace('#', &id.to_string()))?),
            }
        }
        Ok(bytes)
    }

    /// Answers whoever connects, until this is dropped.
    ///
    /// # Errors
    /// Those of the listener.
    pub async fn serve(&self, listener: UnixListener) -> io::Result<()> {
        loop {
            let (socket, _) = listener.accept().await?;
            let answer = self.clone();
            tokio::spawn(async move {
                // A client that goes away, or sends what no client sends, sees to its own case.
                let _ = answer.converse(socket).await;
            });
        }
    }

    async fn converse(&self, mut socket: UnixStream) -> io::Result<()> {
        loop {
            let mut head = [0; 10];
            socket.read_exact(&mut head).await?;
            let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
            let mut data = vec![0; word(0) as usize];
            socket.read_exact(&mut data).await?;
            if head[8] == REQUEST {
                let request = Request::decode(&data[..])?;
                let bytes = self.bytes(word(4), &request).map_err(io::Error::other)?;
                socket.write_all(&bytes).await?;
            }
        }
    }
}

/// The messages that the method Generate streams.
fn messages(id: u32, request: &Request) -> Result<Vec<u8>, String> {
    let asked = GenerateRequest::decode(&request.payload[..]).map_err(|error| error.to_string())?;
    let chunk = |sequence| Chunk { sequence, payload: vec![0; asked.size as usize] };
    Ok((0..asked.count).flat_map(|number| Frame::message(id, &chunk(number)).to_bytes()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance_suite::{all_cases, run_case, trial};

    #[tokio::test]
    async fn our_client_takes_every_answer_for_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for answer in Answer::all() {
            let path = folder.path().join(answer.name);
            let listener = UnixListener::bind(&path).unwrap();
            let server = tokio::spawn({
                let answer = answer.clone();
                async move { answer.serve(listener).await }
            });
            let cases = all_cases();
            let case = cases.iter().find(|case| case.name == answer.case).unwrap();
            let trial = trial(path.to_str().unwrap(), true);
            let row = run_case(case, &trial, std::time::Duration::from_secs(1200)).await;
            assert!(row.has_passed(), "{}: {row}", answer.name);
            server.abort();
        }
    }
}
