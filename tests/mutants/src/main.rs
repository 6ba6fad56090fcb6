//! Builds every mutant that cargo-mutants knows of the library into one set of test binaries, each behind a switch, and
//! runs for each the tests that reach it: see `run`.
#![forbid(unsafe_code)]

mod schema;
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use proc_macro2::LineColumn;
use serde_json::Value;

/// A change that cargo-mutants would make.
pub struct Mutant {
    pub number: usize,
    pub name: String,
    pub file: String,
    pub genre: String,
    pub replacement: String,
    pub start: LineColumn,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["build", list, tree, out, folder] => {
            build(Path::new(list), Path::new(tree), Path::new(out), folder)
        }
        ["reach", out, jobs, ref binaries @ ..] => {
            tests::reach(Path::new(out), jobs.parse().unwrap(), binaries)
        }
        ["run", out, jobs, ref files @ ..] => {
            for pass in [tests::Pass::Quick, tests::Pass::Slow] {
                tests::run(Path::new(out), jobs.parse().unwrap(), pass, files);
            }
        }
        _ => panic!("arguments: see `run`"),
    }
}

fn load(list: &Path) -> Vec<Mutant> {
    let list: Value = serde_json::from_slice(&fs::read(list).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let list = list.as_array().unwrap().iter();
    list.enumerate()
        .map(|(index, mutant)| Mutant {
            number: index + 1,
            name: text(&mutant["name"]),
            file: text(&mutant["file"]),
            genre: text(&mutant["genre"]),
            replacement: text(&mutant["replacement"]),
            start: LineColumn {
                line: mutant["span"]["start"]["line"].as_u64().unwrap() as usize,
                column: mutant["span"]["start"]["column"].as_u64().unwrap() as usize - 1,
            },
        })
        .collect()
}

/// Puts the mutants into the sources under `tree`, and takes those out again that do not compile.
fn build(list: &Path, tree: &Path, out: &Path, folder: &str) {
    let mutants = load(list);
    let mut unviable = BTreeMap::<usize, String>::new();
    let files: BTreeSet<_> = mutants.iter().map(|mutant| mutant.file.clone()).collect();
    let originals: BTreeMap<_, _> = files
        .iter()
        .map(|file| (file.clone(), fs::read_to_string(tree.join(file)).unwrap()))
        .collect();
    let root = format!("{folder}/src/lib.rs");
    let root_text = originals
        .get(&root)
        .cloned()
        .unwrap_or_else(|| fs::read_to_string(tree.join(&root)).unwrap());
    fs::write(tree.join(folder).join("src/mutation.rs"), schema::SWITCH).unwrap();
    let mut placed = BTreeSet::new();
    loop {
        placed.clear();
        let mut texts = originals.clone();
        texts.entry(root.clone()).or_insert_with(|| root_text.clone());
        for (file, text) in &mut texts {
            // Its programs are crates of their own.
            if file.contains("/bin/") {
                continue;
            }
            let of_file: Vec<_> = mutants
                .iter()
                .filter(|mutant| mutant.file == *file && !unviable.contains_key(&mutant.number))
                .collect();
            let (instrumented, numbers, wrong) = schema::instrument(text, &of_file);
            placed.extend(numbers);
            unviable.extend(wrong.into_iter().map(|number| (number, "E0004".to_owned())));
            *text = instrumented;
            if *file == root {
                text.push_str("\n/// See its text.\nmod mutation;\n");
            }
            fs::write(tree.join(file), text).unwrap();
        }
        let failed = errors(tree, folder, &texts);
        println!("{} mutants are built in, {} of them do not compile", placed.len(), failed.len());
        if failed.is_empty() {
            break;
        }
        unviable.extend(failed);
    }
    let mut lines = String::new();
    for mutant in &mutants {
        let state = match unviable.get(&mutant.number) {
            Some(code) if code == "E0015" => "const",
            Some(_) => "unviable",
            None if placed.contains(&mutant.number) => "built",
            None => "not-built",
        };
        let code = unviable.get(&mutant.number).map_or("", String::as_str);
        lines += &format!("{}\t{state}\t{code}\t{}\t{}\n", mutant.number, mutant.file, mutant.name);
    }
    fs::write(out, lines).unwrap();
}

/// The mutants in which the compiler finds errors, with their codes.
fn errors(tree: &Path, folder: &str, texts: &BTreeMap<String, String>) -> BTreeMap<usize, String> {
    let output = Command::new("cargo")
        .args(["check", "--lib", "--message-format=json", "--manifest-path"])
        .arg(format!("{folder}/Cargo.toml"))
        .current_dir(tree)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let mut found = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let message = &line["message"];
        if line["reason"] != "compiler-message" || message["level"] != "error" {
            continue;
        }
        let code = message["code"]["code"].as_str().unwrap_or("").to_owned();
        let before = found.len();
        let spans = message["spans"].as_array().unwrap().clone();
        let primary: Vec<_> =
            spans.iter().filter(|span| span["is_primary"] == true).cloned().collect();
        let blamed = primary.clone();
        let mut known = false;
        // Some errors are blamed on what is around a mutant, and name it besides.
        for spans in [primary, spans] {
            for mut span in spans {
                loop {
                    if let Some(number) = marked(&span, texts) {
                        found.insert(number, code.clone());
                        known = true;
                    }
                    let next = span["expansion"]["span"].clone();
                    if next.is_null() {
                        break;
                    }
                    span = next;
                }
            }
            if known {
                break;
            }
        }
        // Or only the line is known: then it is the last replacement of an operator, or what is returned instead.
        for span in blamed.iter().filter(|_| !known) {
            if let Some(number) = beside(span, texts) {
                found.insert(number, code.clone());
            }
        }
        if !known && before == found.len() && !message["spans"].as_array().unwrap().is_empty() {
            eprintln!("no mutant for this: {}", message["rendered"].as_str().unwrap_or(""));
        }
    }
    assert!(output.status.success() || !found.is_empty(), "errors that belong to no mutant");
    found
}

/// The mutant whose text a span is in, or the first one that the span encloses.
fn marked(span: &Value, texts: &BTreeMap<String, String>) -> Option<usize> {
    let text = texts.get(span["file_name"].as_str()?)?;
    let (start, end) = (span["byte_start"].as_u64()? as usize, span["byte_end"].as_u64()? as usize);
    // A switch may stand where no function can be called.
    if let Some(switch) = text.get(start..end)?.strip_prefix("crate::mutation::on(") {
        return switch.strip_suffix(')')?.parse().ok();
    }
    let number = |text: &str| text.split("*/").next().and_then(|number| number.parse().ok());
    let mut enclosing = None;
    for (at, _) in text.get(..start)?.match_indices("/*<") {
        let Some(candidate) = number(&text[at + 3..]) else { continue };
        let candidate: usize = candidate;
        if text.find(&format!("/*{candidate}>*/")).is_some_and(|close| close >= end) {
            enclosing = Some(candidate);
        }
    }
    enclosing.or_else(|| {
        let inside = text.get(start..end)?;
        inside.find("/*<").and_then(|at| number(&inside[at + 3..]))
    })
}

/// The last mutant of the macro call that the span is in, or the last one before it on its line.
fn beside(span: &Value, texts: &BTreeMap<String, String>) -> Option<usize> {
    let text = texts.get(span["file_name"].as_str()?)?;
    let (start, end) = (span["byte_start"].as_u64()? as usize, span["byte_end"].as_u64()? as usize);
    let line = &text[end..].split('\n').next()?;
    let last = |text: &str| {
        text.rsplit("/*<").next().and_then(|number| number.split("*/").next()?.parse().ok())
    };
    let before = text[..start].rsplit('\n').next()?;
    if before.contains("binary!(") && line.contains(">*/)") {
        return last(&line[..line.find(">*/)")?]);
    }
    before.contains("/*<").then(|| last(before)).flatten()
}
