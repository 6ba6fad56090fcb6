//! A .proto file becomes an error with a sentence, or code that is Rust.
#![no_main]

use std::{fs, path::Path};

use libfuzzer_sys::fuzz_target;

fn generate(text: &[u8], folder: &Path) {
    let proto = folder.join("fuzzed.proto");
    let out = folder.join("out");
    fs::create_dir(&out).expect("the folder is new");
    fs::write(&proto, text).expect("the folder can be written");
    let generated = ttrpc_codegen::configure().out_dir(&out).compile_protos(&[&proto], &[folder]);
    if let Err(error) = generated {
        assert!(!error.to_string().is_empty());
        return;
    }
    for file in fs::read_dir(&out).expect("the folder is there") {
        let path = file.expect("an entry of the folder").path();
        let code = fs::read_to_string(&path).expect("the code is text");
        if let Err(error) = syn::parse_file(&code) {
            panic!("not Rust: {error}\n{code}");
        }
    }
}

fuzz_target!(|text: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder for files that last a moment");
    generate(text, folder.path());
});
