//! Every transcript in `docs/operate/cli.md` is run, and its output compared.
//!
//! In a block that is called `console figures`, figures with their units may differ, and where threads wait. With
//! `UPDATE_TRANSCRIPTS=1` the page is written anew instead.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use ttrpc_reflection::{Health, Reflection, proto};

use crate::{common::*, greeter, kernel};

/// Ends the output of a command.
const MARK: char = '\u{1}';

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn greeter_proto() -> PathBuf {
    repository().join("examples/proto/greeter.proto")
}

/// Where the commands run: with a greeter, and with the state directory of a containerd.
struct Stage {
    greeter: Served,
    shim: Served,
    stopped: Child,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A stopped process is killed all the same.
        let _ = self.stopped.kill();
        let _ = self.stopped.wait();
    }
}

impl Stage {
    fn new() -> Self {
        let mut compiler = protox::Compiler::new([greeter_proto().parent().unwrap()]).unwrap();
        compiler.include_imports(true).include_source_info(true);
        compiler.open_file(greeter_proto()).unwrap();
        let set = compiler.encode_file_descriptor_set();
        let reflection = Reflection::new(set).unwrap();
        let reflection = reflection.and(proto::health::FILE_DESCRIPTOR_SET).unwrap();
        let reflection = reflection.and(proto::debug::FILE_DESCRIPTOR_SET).unwrap();
        let greeter = serve(|builder| {
            builder
                .add_service(greeter::Greeter)
                .add_service(reflection)
                .add_service(Health::new().service())
        });
        let folder = greeter.folder.path();
        fs::rename(&greeter.address, folder.join("greeter.sock")).unwrap();
        fs::copy(greeter_proto(), folder.join("greeter.proto")).unwrap();

        let shim = only(greeter::Shim);
        let stopped = stopped_proxy(&folder.join("hanging.sock"), &shim);
        for (id, socket) in
            [("web", &*shim.address), ("db", &*folder.join("hanging.sock").display().to_string())]
        {
            let bundle = folder.join("state/io.containerd.runtime.v2.task/default").join(id);
            fs::create_dir_all(&bundle).unwrap();
            let bootstrap = serde_json::json!({ "version": 3, "address": format!("unix://{socket}"), "protocol": "ttrpc" });
            fs::write(bundle.join("bootstrap.json"), bootstrap.to_string()).unwrap();
        }
        Stage { greeter, shim, stopped }
    }

    /// Waits until no client of the block before is seen any more.
    fn settle(&self) {
        self.greeter.settle();
        self.shim.settle();
    }

    /// Runs the commands of a block, which wait so long for what hangs, and returns what each wrote.
    fn run(&self, commands: &[&str], timeout: &str) -> Vec<String> {
        let mut script = String::new();
        for command in commands {
            script.push_str(&match command.strip_suffix('&') {
                Some(command) => format!(
                    ": >background; {} >background 2>&1 &\n{}\ntrue",
                    patient(command, timeout),
                    wait_for("are shown")
                ),
                None if command.starts_with("kill -INT") => {
                    "kill -INT $!; wait $!; cat background".to_owned()
                }
                None => patient(command, timeout),
            });
            // Keeps the exit code for `echo $?`.
            script.push_str("\nstatus=$?; printf '\\001'; (exit $status)\n");
        }
        let program = Path::new(env!("CARGO_BIN_EXE_ttrpc"));
        let path = format!(
            "{}:{}",
            program.parent().unwrap().display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut shell = Command::new("sh");
        as_in_a_shell(&mut shell);
        let output = shell
            .args(["-c", &format!("exec 2>&1\n{script}")])
            .current_dir(self.greeter.folder.path())
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let mut outputs: Vec<String> = text.split(MARK).map(str::to_owned).collect();
        outputs.pop();
        outputs
    }
}

/// Waits in the shell until the command in the background has written this, as [`eventually`] does.
fn wait_for(text: &str) -> String {
    let pauses = PATIENCE.as_millis() / 10;
    format!(
        "left={pauses}
        until grep -q '{text}' background; do
            left=$((left - 1))
            if [ $left = 0 ]; then echo 'in time, `{text}` is written'; cat background; break; fi
            sleep 0.01
        done"
    )
}

fn is_update() -> bool {
    std::env::var_os("UPDATE_TRANSCRIPTS").is_some()
}

/// The command as it is run: it waits for answers however long the machine takes, and for what hangs for this time.
fn patient(command: &str, timeout: &str) -> String {
    let words: Vec<_> = command.split_whitespace().skip_while(|word| *word != "ttrpc").collect();
    match words.get(1) {
        _ if is_update() => command.to_owned(),
        Some(&("list" | "describe" | "schema" | "call")) => format!("{command} --timeout {LONG}"),
        Some(&"load") => format!("{command} --timeout {LONG} --duration {LONG}"),
        Some(&"trace") => format!("{command} --pending {LONG} --timeout {LONG}"),
        Some(&"shims") if command.contains("--timeout 5s") => command.replace("5s", timeout),
        Some(&"shims") => format!("{command} --timeout {LONG}"),
        _ => command.to_owned(),
    }
}

/// A process that would answer as the server does, and is stopped.
fn stopped_proxy(socket: &Path, server: &Served) -> Child {
    let addresses = ["--listen", socket.to_str().unwrap(), "--upstream", &server.address];
    let mut child = ttrpc(&[&["trace"], &addresses[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("are shown") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).unwrap(), 0);
    }
    // It asked the server for its schema. Were it stopped before that connection is closed, the server would
    // see it for ever.
    server.settle();
    stop(&child);
    child
}

/// A text without where threads wait, for which each kernel has names of its own.
fn without_places(text: &str) -> String {
    let mut parts = text.split("threads: ");
    let before = parts.next().unwrap_or_default().to_owned();
    parts.fold(before, |text, part| {
        let (_, behind) = part.split_once(';').unwrap_or(("", part));
        format!("{text}threads: PLACES;{behind}")
    })
}

/// A text without what differs from run to run: figures, their units, bars, and the space between.
fn without_figures(text: &str) -> String {
    let text = without_places(text);
    let plain = |word: &str| -> Option<String> {
        if !word.contains(|c: char| c.is_ascii_digit()) {
            let is_unit = ["ns", "µs", "ms", "s", "B", "KiB", "MiB", "B/s", "KiB/s", "MiB/s", "≤"]
                .contains(&word.trim_end_matches([',', ';', '.', ')']));
            return (!is_unit && !word.contains('█')).then(|| word.to_owned());
        }
        let rest: String =
            word.chars().filter(|c| !c.is_ascii_digit() && !"./%(),:;#".contains(*c)).collect();
        let is_figure = ["", "ns", "µs", "ms", "s"].contains(&&*rest);
        Some(if is_figure { "0".to_owned() } else { word.to_owned() })
    };
    let lines =
        text.lines().map(|line| line.split_whitespace().filter_map(plain).collect::<Vec<_>>());
    lines.map(|words| words.join(" ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_transcript_is_what_the_program_prints() {
    let path = repository().join("docs/operate/cli.md");
    let page = fs::read_to_string(&path).unwrap();
    let stage = Stage::new();
    let mut written = String::new();
    let mut lines = page.lines();
    let mut blocks = 0;
    while let Some(line) = lines.next() {
        written.push_str(&format!("{line}\n"));
        let Some(kind) = line.strip_prefix("```console") else { continue };
        blocks += 1;
        let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        let commands: Vec<_> = block.iter().filter_map(|line| line.strip_prefix("$ ")).collect();
        let mut timeouts = doubled(Duration::from_secs(5));
        let outputs = loop {
            stage.settle();
            let outputs = stage.run(&commands, &timeouts.next().unwrap());
            // The one that is stopped, and the one for which the machine was too slow.
            if !outputs.iter().any(|output| output.contains("2 did not answer")) {
                break outputs;
            }
        };
        assert_eq!(outputs.len(), commands.len(), "{commands:?}");
        let mut told = String::new();
        for (command, output) in commands.iter().zip(&outputs) {
            told.push_str(&format!("$ {command}\n{output}"));
        }
        let expected: String = block.iter().map(|line| format!("{line}\n")).collect();
        let (told_plain, expected_plain) = match kind.trim() {
            "figures" => (without_figures(&told), without_figures(&expected)),
            _ => (told.clone(), expected),
        };
        let is_of_sockets = block.iter().any(|line| line.contains("not accepted"));
        let is_known = !is_of_sockets || kernel::lists_sockets("the transcript of `ttrpc shims`");
        if !is_update() && is_known {
            assert_eq!(told_plain, expected_plain);
        }
        written.push_str(&format!("{told}```\n"));
    }
    assert!(blocks > 10, "the page has transcripts");
    if is_update() {
        fs::write(path, written).unwrap();
    }
}
