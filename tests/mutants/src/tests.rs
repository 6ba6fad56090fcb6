//! Runs tests: each by itself, to see which mutants it reaches, and then for each mutant those that reach it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A test, in its binary.
#[derive(Clone)]
struct Test {
    binary: String,
    name: String,
    seconds: f64,
}

/// Tests that take longer are for mutants that survive the others.
const SLOW: f64 = 1.0;

/// Which tests are run.
#[derive(Clone, Copy, PartialEq)]
pub enum Pass {
    Quick,
    Slow,
}

/// How a run of tests ended.
#[derive(PartialEq)]
enum Ended {
    Passed,
    Failed(String),
    TimedOut,
}

/// What a line says that a test binary prints.
enum Line {
    Progress,
    Failed(String),
    Passed,
}

fn command(binary: &str) -> Command {
    // DIRECTORY=PATH, as cargo runs it.
    let (directory, path) = binary.split_once('=').unwrap();
    let mut command = Command::new(path);
    command
        .current_dir(directory)
        .env("CARGO_MANIFEST_DIR", directory)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Ends the process, and the programs that its tests have started.
fn end(child: &mut Child) {
    let group = format!("-{}", child.id());
    // Nothing may be left of the group.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    child.wait().unwrap();
}

/// For each of `0..count`, on so many threads.
fn each(count: usize, jobs: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    work(index);
                }
            });
        }
    });
}

/// Writes for each test how long it takes and which mutants it reaches.
pub fn reach(out: &Path, jobs: usize, binaries: &[&str]) {
    let mut tests = Vec::new();
    for binary in binaries {
        let list = command(binary).args(["--list", "--format", "terse"]).output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        tests.extend(
            list.lines()
                .filter_map(|line| line.strip_suffix(": test"))
                .map(|name| (binary.to_string(), name.to_owned())),
        );
    }
    let lines = Mutex::new(Vec::new());
    each(tests.len(), jobs, |index| {
        let (binary, name) = &tests[index];
        let notes = out.with_extension(format!("{index}.notes"));
        let _ = fs::remove_file(&notes);
        let begun = Instant::now();
        let status = command(binary)
            .args(["--exact", name, "--test-threads", "1"])
            .env("TTRPC_MUTANTS_REACHED", &notes)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        if !status.success() {
            println!("{name} fails by itself, and is left out");
            return;
        }
        let reached: HashSet<String> =
            fs::read_to_string(&notes).unwrap_or_default().lines().map(str::to_owned).collect();
        let reached: Vec<String> = reached.into_iter().collect();
        lines
            .lock()
            .unwrap()
            .push(format!("{binary}\t{name}\t{seconds:.3}\t{}\n", reached.join(" ")));
        let _ = fs::remove_file(&notes);
    });
    let mut lines = lines.into_inner().unwrap();
    lines.sort();
    println!("{} tests", lines.len());
    fs::write(out, lines.concat()).unwrap();
}

/// Runs tests of one binary in one process with this mutant, until one fails.
fn run_tests(number: usize, tests: &[&Test], limit: Duration) -> Ended {
    let mut child = command(&tests[0].binary)
        .args(["--exact", "--test-threads", "4"])
        .args(tests.iter().map(|test| &test.name))
        .env("TTRPC_MUTANT", number.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            if let Some(name) =
                line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"))
            {
                let _ = sender.send(Line::Failed(name.to_owned()));
                return;
            }
            let line =
                if line.starts_with("test result: ok") { Line::Passed } else { Line::Progress };
            let _ = sender.send(line);
        }
    });
    // Each test that ends gives the others the time anew.
    let ended = loop {
        match receiver.recv_timeout(limit) {
            Ok(Line::Progress) => {}
            Ok(Line::Failed(name)) => break Ok(Some(name)),
            Ok(Line::Passed) => break Ok(None),
            Err(error) => break Err(error),
        }
    };
    // When all have passed, the process ends by itself.
    let has_passed = matches!(ended, Ok(None)) && child.wait().unwrap().success();
    end(&mut child);
    match ended {
        Ok(Some(name)) => Ended::Failed(name),
        Ok(None) if has_passed => Ended::Passed,
        Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            Ended::Failed("the process".to_owned())
        }
        Err(mpsc::RecvTimeoutError::Timeout) => Ended::TimedOut,
    }
}

/// Adds a line to `results` for each mutant of these files that has none: caught, missed, timeout or unreached.
pub fn run(out: &Path, jobs: usize, pass: Pass, files: &[&str]) {
    let mut tests = Vec::new();
    let mut reached_by = HashMap::<usize, Vec<usize>>::new();
    for line in fs::read_to_string(out.join("reach.tsv")).unwrap().lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let test = Test {
            binary: fields[0].to_owned(),
            name: fields[1].to_owned(),
            seconds: fields[2].parse().unwrap(),
        };
        for number in fields[3].split_whitespace() {
            reached_by.entry(number.parse().unwrap()).or_default().push(tests.len());
        }
        tests.push(test);
    }
    let results = out.join("results.tsv");
    let mut verdicts = HashMap::<usize, String>::new();
    for line in fs::read_to_string(&results).unwrap_or_default().lines() {
        let (number, rest) = line.split_once('\t').unwrap();
        verdicts.insert(number.parse().unwrap(), rest.split('\t').next().unwrap().to_owned());
    }
    let is_due = |number: &usize| match verdicts.get(number).map(String::as_str) {
        None => pass == Pass::Quick,
        Some("survived") => pass == Pass::Slow,
        Some(_) => false,
    };
    let list = fs::read_to_string(out.join("mutants.tsv")).unwrap();
    let mut mutants: Vec<(usize, usize, &str)> = list
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let number = fields[0].parse().unwrap();
            let place = if files.is_empty() {
                0
            } else {
                files.iter().position(|file| fields[4].starts_with(file))?
            };
            (fields[1] == "built" && is_due(&number)).then_some((place, number, fields[4]))
        })
        .collect();
    mutants.sort();
    let file = Mutex::new(fs::OpenOptions::new().append(true).create(true).open(&results).unwrap());
    each(mutants.len(), jobs, |index| {
        let (_, number, name) = mutants[index];
        let begun = Instant::now();
        let mut reaching: Vec<&Test> =
            reached_by.get(&number).into_iter().flatten().map(|index| &tests[*index]).collect();
        reaching.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let (verdict, by) = judge(number, &reaching, pass);
        let line =
            format!("{number}\t{verdict}\t{:.1}\t{by}\t{name}\n", begun.elapsed().as_secs_f64());
        file.lock().unwrap().write_all(line.as_bytes()).unwrap();
    });
}

/// How long these take, one after the other.
fn seconds(tests: &[&Test]) -> f64 {
    tests.iter().map(|test| test.seconds).sum()
}

fn judge(number: usize, tests: &[&Test], pass: Pass) -> (&'static str, String) {
    if tests.is_empty() {
        return ("unreached", String::new());
    }
    let mut groups = BTreeMap::<&str, Vec<&Test>>::new();
    for test in tests.iter().filter(|test| (test.seconds > SLOW) == (pass == Pass::Slow)) {
        groups.entry(&test.binary).or_default().push(test);
    }
    // The unit tests, mostly, come first: what has others hang makes them fail.
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    for group in &groups {
        let longest = group.iter().map(|test| test.seconds).fold(0.0, f64::max);
        match run_tests(number, group, Duration::from_secs_f64(20.0 + 5.0 * longest)) {
            Ended::Passed => {}
            Ended::Failed(name) => return ("caught", name),
            Ended::TimedOut => return ("timeout", String::new()),
        }
    }
    match pass {
        Pass::Quick => ("survived", String::new()),
        Pass::Slow => ("missed", String::new()),
    }
}
