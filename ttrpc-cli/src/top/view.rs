//! The live view: what is on the screen, and what keys do.

use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Color, Style, Stylize},
    text::{Line, Text},
    widgets::{Clear, Paragraph, Sparkline},
};

use super::{
    model::Server,
    table::{self, Tab},
};
use crate::output;

/// Servers that have a line of their own in the head.
const MAX_HEADS: usize = 6;

/// What somebody has chosen to see.
#[derive(Debug, Default)]
pub struct View {
    tab: Tab,
    order: usize,
    filter: String,
    is_filtering: bool,
    pub is_frozen: bool,
    selected: usize,
    is_expanded: bool,
    pub is_over: bool,
}

impl View {
    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.is_over = true;
            return;
        }
        if self.is_filtering {
            match key.code {
                KeyCode::Enter => self.is_filtering = false,
                KeyCode::Esc => (self.is_filtering, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => {}
            }
            self.selected = 0;
            return;
        }
        match key.code {
            KeyCode::Esc if self.is_expanded => self.is_expanded = false,
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Tab => self.show(self.tab.next()),
            KeyCode::Char('1') => self.show(Tab::Methods),
            KeyCode::Char('2') => self.show(Tab::Connections),
            KeyCode::Char('3') => self.show(Tab::Calls),
            KeyCode::Char('s') => self.order = (self.order + 1) % self.tab.orders().len(),
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Char(' ') => self.is_frozen = !self.is_frozen,
            KeyCode::Enter => self.is_expanded = !self.is_expanded,
            KeyCode::Down | KeyCode::Char('j') => self.selected = self.selected.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected = self.selected.saturating_add(10),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            _ => {}
        }
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.order, self.selected, self.is_expanded) = (tab, 0, 0, false);
    }

    /// Draws one screen.
    pub fn draw(&mut self, frame: &mut Frame<'_>, servers: &[Server]) {
        let heads = servers.len().min(MAX_HEADS) + usize::from(servers.len() > MAX_HEADS);
        let [head, pulse, body, foot] = Layout::vertical([
            Constraint::Length(heads as u16),
            Constraint::Length(2),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(heading(servers, head.width.into()), head);
        let width = usize::from(pulse.width);
        let data = history(servers, width);
        frame.render_widget(Sparkline::default().data(&data).style(Color::Green), pulse);
        let (names, rows) = table::rows(servers, self.tab, self.order, &self.filter);
        self.selected = self.selected.min(rows.len().saturating_sub(1));
        let room = usize::from(body.height).saturating_sub(1).max(1);
        let first = (self.selected + 1).saturating_sub(room);
        let shown = &rows[first..rows.len().min(first + room)];
        let mut cells = vec![names];
        cells.extend(shown.iter().map(|row| row.cells.clone()));
        let lines = output::table(&cells, Some(usize::from(body.width)));
        let lines = lines.iter().enumerate().map(|(at, line)| {
            let line = Line::from(anstream::adapter::strip_str(line).to_string());
            match at.checked_sub(1) {
                None => line.bold(),
                Some(at) if first + at == self.selected => line.reversed(),
                Some(at) if shown[at].is_bad => line.style(Style::from(Color::Red)),
                Some(_) => line,
            }
        });
        frame.render_widget(Text::from_iter(lines), body);
        frame.render_widget(Line::from(self.footer(rows.len(), foot.width.into())).dim(), foot);
        if let Some(row) = rows.get(self.selected).filter(|_| self.is_expanded) {
            let mut area = body;
            area.height = area.height.min(row.details.len() as u16);
            area.y = body.bottom().saturating_sub(area.height);
            frame.render_widget(Clear, area);
            let details = row.details.iter();
            let details = details.map(|line| output::beginning(line, area.width.into()));
            let details = Text::from_iter(details.map(Line::from));
            frame.render_widget(
                Paragraph::new(details).style(Style::new().bg(Color::DarkGray)),
                area,
            );
        }
    }

    fn footer(&self, rows: usize, width: usize) -> String {
        if self.is_filtering {
            return output::beginning(
                &format!("filter: {}_  (Enter keeps it, Esc takes it away)", self.filter),
                width,
            );
        }
        let frozen = if self.is_frozen { "FROZEN  " } else { "" };
        let filter = match self.filter.is_empty() {
            true => String::new(),
            false => format!(" with `{}`", self.filter),
        };
        let order = self.tab.orders()[self.order % self.tab.orders().len()];
        let text = format!(
            "{frozen}{rows} rows{filter} by {order}  q end  Tab 1 methods 2 connections 3 calls  s sort  / filter  Space freeze  Enter details"
        );
        output::beginning(&text, width)
    }
}

fn heading(servers: &[Server], width: usize) -> Text<'static> {
    let mut lines: Vec<_> = servers
        .iter()
        .take(MAX_HEADS)
        .map(|server| {
            let text = format!("{}: {}", output::plain_line(&server.address), server.summary());
            let line = Line::from(output::beginning(&text, width));
            if server.trouble.is_some() { line.style(Style::from(Color::Red)) } else { line }
        })
        .collect();
    if servers.len() > MAX_HEADS {
        let troubled =
            servers[MAX_HEADS..].iter().filter(|server| server.trouble.is_some()).count();
        let more = servers.len() - MAX_HEADS;
        lines.push(Line::from(format!("and {more} more, of which {troubled} do not answer")));
    }
    Text::from(lines)
}

/// Calls a second of all servers, the newest at the right.
fn history(servers: &[Server], width: usize) -> Vec<u64> {
    let mut sums = vec![0_u64; width];
    for server in servers {
        for (sum, rate) in sums.iter_mut().rev().zip(server.history.iter().rev()) {
            *sum = sum.saturating_add(*rate);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};
    use ttrpc_reflection::proto::debug::{
        Call, Connection, Fill, MethodStats, Sample, SnapshotResponse,
    };

    use super::{super::model::News, *};

    fn seconds(seconds: i64) -> Option<ttrpc::prost_types::Duration> {
        Some(ttrpc::prost_types::Duration { seconds, nanos: 0 })
    }

    /// A sample of a server that is so old.
    fn sample(uptime: i64, calls: usize) -> Sample {
        let method = |name: &str, begun, failed| MethodStats {
            service: "jobs.v1.Jobs".to_owned(),
            method: name.to_owned(),
            begun,
            ended: [(0, begun - failed), (5, failed)].into(),
            bytes_sent: 1000 * begun,
            durations: vec![0, begun - 1, 1],
            ..MethodStats::default()
        };
        let call = |stream| Call {
            stream_id: stream,
            service: "jobs.v1.Jobs".to_owned(),
            method: "Wait".to_owned(),
            age: seconds(i64::from(stream)),
            timeout: seconds(20_000),
            waits_for: "its handler, which runs".to_owned(),
            ..Call::default()
        };
        let connection = Connection {
            id: 7,
            age: seconds(100),
            peer_uid: Some(0),
            queue_bytes: 4096,
            max_queue_bytes: 8192,
            blocked: seconds(3),
            calls_in_flight: Some(Fill { used: calls as u64, limit: 50_000 }),
            calls: (1..=calls as u32).map(call).collect(),
            ..Connection::default()
        };
        Sample {
            uptime: seconds(uptime),
            methods: vec![
                method("Run", 100 * uptime as u64, 10 * uptime as u64),
                method("容器\u{1b}[2J", 2, 0),
            ],
            snapshot: Some(SnapshotResponse {
                pid: 4711,
                state: "serving".to_owned(),
                calls: calls as u64,
                max_calls: 50_000,
                connections: vec![connection],
                ..SnapshotResponse::default()
            }),
            bounds_nanos: vec![1_000, 1_000_000, 1_000_000_000],
        }
    }

    fn server() -> Server {
        let mut server = Server::new("/run/a.sock".to_owned());
        server.take(News::Sample(sample(10, 3)));
        server.take(News::Sample(sample(12, 3)));
        server
    }

    /// What is on a screen of this size.
    fn screen(view: &mut View, servers: &[Server], width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame, servers)).unwrap();
        let text = terminal.backend().to_string();
        assert!(!text.contains('\u{1b}'), "{text}");
        text
    }

    fn press(view: &mut View, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                key => KeyCode::Char(key),
            };
            view.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        let servers = [server(), server()];
        for width in (60..=200).step_by(7).chain([1, 2, 20]) {
            for height in [1, 2, 5, 24, 80] {
                for keys in ["1", "2", "3", "3\n"] {
                    let mut view = View::default();
                    press(&mut view, keys);
                    screen(&mut view, &servers, width, height);
                }
            }
        }
        let text = screen(&mut View::default(), &servers[..1], 60, 10);
        assert!(text.contains("Run") && text.contains("pid 4711"), "{text}");
    }

    #[test]
    fn rates_are_made_of_two_samples() {
        let text = screen(&mut View::default(), &[server()], 160, 12);
        let run = text.lines().find(|line| line.contains("Jobs/Run")).unwrap();
        // 200 calls in two seconds, of which 20 have failed.
        let words: Vec<_> = run.split_whitespace().collect();
        assert!(words.contains(&"100") && words.contains(&"10"), "{run}");
        assert!(run.contains("1.00 ms") && run.contains("NOT_FOUND 20"), "{run}");
    }

    #[test]
    fn who_is_stalled_and_which_call_is_oldest_stands_first() {
        let servers = [server()];
        let mut view = View::default();
        press(&mut view, "2");
        let text = screen(&mut view, &servers, 120, 12);
        assert!(text.contains("3.00 s by its client does not read"), "{text}");
        press(&mut view, "3");
        let text = screen(&mut view, &servers, 120, 12);
        let calls: Vec<_> = text.lines().filter(|line| line.contains("7#")).collect();
        assert!(calls[0].contains("7#3") && calls[2].contains("7#1"), "{text}");
        press(&mut view, "\n");
        assert!(screen(&mut view, &servers, 120, 12).contains("left of its deadline"));
    }

    #[test]
    fn ten_thousand_calls_are_sorted_filtered_and_scrolled() {
        let mut server = server();
        server.take(News::Sample(sample(13, 10_000)));
        let servers = [server];
        let mut view = View::default();
        press(&mut view, "3/7#77");
        assert!(screen(&mut view, &servers, 100, 20).contains("filter: 7#77_"));
        press(&mut view, "\n");
        let text = screen(&mut view, &servers, 100, 20);
        assert!(text.contains("111 rows with `7#77` by age"), "{text}");
        view.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        let text = screen(&mut view, &servers, 100, 20);
        assert!(text.contains("7#77 "), "the youngest is the last: {text}");
        press(&mut view, "s");
        assert!(screen(&mut view, &servers, 100, 20).contains("by deadline"));
    }

    #[test]
    fn a_server_that_goes_and_comes_back_is_told_and_its_rates_begin_anew() {
        let mut servers = [server()];
        servers[0].take(News::Trouble("nobody listens there".to_owned()));
        let text = screen(&mut View::default(), &servers, 100, 10);
        assert!(text.contains("nobody listens there") && !text.contains("Jobs/Run"), "{text}");
        servers[0].take(News::Sample(sample(1, 0)));
        assert_eq!(servers[0].methods()[0].seconds, None);
        servers[0].take(News::Sample(sample(2, 0)));
        assert_eq!(servers[0].methods()[0].ended, 100);
        assert!(screen(&mut View::default(), &servers, 100, 10).contains("pid 4711"));
    }

    #[test]
    fn a_server_without_counters_is_shown_with_its_snapshot() {
        let mut server = Server::new("a.sock".to_owned());
        server.take(News::Snapshot(Sample { methods: Vec::new(), ..sample(1, 2) }));
        let mut view = View::default();
        press(&mut view, "3");
        let text = screen(&mut view, &[server], 160, 10);
        assert!(text.contains("no counters") && text.contains("7#2"), "{text}");
    }
}
