//! Every snippet of the pages is compiled. Tests of single pages take some, block by block; of the others, sources have
//! each part word for word. A page whose snippets neither takes fails.

use std::{fs, path::Path};

use ttrpc::{Connection, server::ServerBuilder};

use super::guide::words;

/// Pages and fences that other tests take. Those with `no_run` are documentation tests, and `examples/shim/e2e/guide`
/// builds the shim of its page.
const TAKEN: [(&str, &str); 15] = [
    ("README.md", "rust"),
    ("docs/guide/start.md", "rust"),
    ("docs/guide/serving.md", "rust"),
    ("docs/guide/calling.md", "rust"),
    ("docs/guide/blocking.md", "rust"),
    ("docs/guide/codegen.md", "rust"),
    ("docs/guide/interceptors.md", "rust"),
    ("docs/guide/testing.md", "rust"),
    ("docs/guide/migration.md", "rust"),
    // Code for the other crate, which is no dependency here.
    ("docs/guide/migration.md", "rust,ignore"),
    ("docs/guide/nri.md", "rust,no_run"),
    ("docs/guide/shim.md", "rust"),
    ("docs/operate/limits.md", "rust"),
    ("ttrpc-containerd/README.md", "no_run"),
    ("ttrpc-nri/README.md", "rust,no_run"),
];

/// Pages and fences with the sources that have the snippets.
const FOUND: [(&str, &str, &[&str]); 10] = [
    (
        "docs/guide/upgrade.md",
        "rust,ignore",
        &["tests/tests/main/pages.rs", "shim-kit/examples/containerd-shim-plain-v1.rs"],
    ),
    ("docs/guide/nri.md", "rust,ignore", &["ttrpc-nri/examples/pinner.rs"]),
    ("docs/guide/shim.md", "text", &["shim-kit/src/runtime.rs"]),
    ("docs/operate/observing.md", "rust", &["ttrpc-telemetry/tests/telemetry/page.rs"]),
    ("ttrpc-telemetry/README.md", "rust", &["ttrpc-telemetry/tests/telemetry/page.rs"]),
    ("ttrpc-codegen/README.md", "rust", &["tests/tests/main/guide.rs"]),
    ("ttrpc-codegen/README.md", "rust,ignore", &["tests/tests/main/guide.rs"]),
    ("ttrpc-reflection/README.md", "rust,ignore", &["tests/tests/main/pages.rs"]),
    ("ttrpc/src/lib.rs", "ignore", &["tests/tests/main/pages.rs"]),
    ("ttrpc/README.md", "rust,ignore", &["tests/tests/main/pages.rs", "tests/tests/main/guide.rs"]),
];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it has one");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The pages for users, from the root of the repository.
fn pages() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it has one");
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs/guide", "docs/operate"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    for entry in fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if root.join(&name).join("Cargo.toml").exists()
            && root.join(&name).join("README.md").exists()
        {
            pages.push(format!("{name}/README.md"));
        }
    }
    pages
}

/// The fenced blocks of a page or of a module's documentation, each with what stands behind its fence.
fn fenced(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let line = line.strip_prefix("//! ").or(line.strip_prefix("//!")).unwrap_or(line);
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                found.push((language.to_owned(), String::new()));
            }
        } else if inside {
            let (_, block) = found.last_mut().expect("it was begun");
            block.push_str(line);
            block.push('\n');
        }
    }
    found
}

/// What a source has to have of a snippet: its parts between empty lines and `// …`, without what was before an upgrade.
/// Of signatures, each without its comment.
fn parts(language: &str, snippet: &str) -> Vec<String> {
    let snippet = snippet.split_once("// After\n").map_or(snippet, |(_, after)| after);
    let lines = snippet.lines().map(str::trim);
    let mut parts = vec![String::new()];
    for line in lines {
        if line.is_empty() || line.starts_with("// …") {
            parts.push(String::new());
        } else if language == "text" {
            parts.push(line.split("  //").next().expect("there is one").to_owned());
        } else {
            parts.last_mut().expect("there is one").push_str(line);
        }
    }
    parts.into_iter().map(|part| words(&part)).filter(|part| !part.is_empty()).collect()
}

#[test]
fn no_page_has_a_snippet_that_no_test_takes() {
    for page in pages() {
        for (language, _) in fenced(&read(&page)) {
            if language.starts_with("rust") || language == "no_run" {
                let is_taken = TAKEN.contains(&(page.as_str(), language.as_str()));
                let is_found = FOUND.iter().any(|found| (found.0, found.1) == (&*page, &*language));
                assert!(is_taken || is_found, "nothing compiles `{language}` of {page}");
            }
        }
    }
}

#[test]
fn snippets_stand_in_sources_that_are_compiled() {
    for (page, language, sources) in FOUND {
        let compiled: Vec<_> = sources.iter().map(|path| words(&read(path))).collect();
        let snippets: Vec<_> =
            fenced(&read(page)).into_iter().filter(|(of, _)| of == language).collect();
        assert!(!snippets.is_empty(), "{page} has no `{language}`");
        // A page may have other text in such fences.
        let snippets = snippets.iter().filter(|(of, text)| of != "text" || text.contains("fn "));
        for part in snippets.flat_map(|(language, snippet)| parts(language, snippet)) {
            assert!(
                compiled.iter().any(|source| source.contains(&part)),
                "{page}: none of {sources:?} has\n{part}"
            );
        }
    }
}

/// What the upgrade page says of the generator's errors.
#[test]
fn an_error_of_the_generator_begins_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let text = "syntax = \"proto3\";\n\nmessage Message { N n = 1; }\n";
    fs::write(folder.path().join("a.proto"), text).unwrap();
    let builder = ttrpc_codegen::configure();
    let error = builder.out_dir(folder.path()).compile_protos(&["a.proto"], &[folder.path()]);
    let error = error.expect_err("there is no N");
    assert!(error.to_string().starts_with("a.proto:3:19: name 'N' is not defined"));
}

#[expect(dead_code, reason = "it is a page's")]
async fn serve_one(server: ServerBuilder, connection: Connection) -> Result<(), ttrpc::Error> {
    match server.connection(connection).serve().await {
        Err(ttrpc::Error::ConnectionFailed { .. }) => eprintln!("the peer broke off"),
        ended => ended?,
    }
    Ok(())
}

const DESCRIPTOR_SET: &[u8] = ttrpc_reflection::include_descriptor_set!("greeter");

#[expect(dead_code, reason = "it is a page's")]
fn reflect() -> Result<(), Box<dyn std::error::Error>> {
    let reflection = ttrpc_reflection::Reflection::new(DESCRIPTOR_SET)?;
    let server =
        ttrpc::Server::builder().add_service(reflection).bind("unix:///run/greeter.sock")?;
    drop(server);
    Ok(())
}

/// What the crate's own page begins with.
#[expect(unused_imports, reason = "it is a page's")]
mod crates_page {
    mod greeter {
        ttrpc::include_proto!("greeter.v1");
    }
    use greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
    use ttrpc::{Client, Context, Server, Status, async_trait};
}

/// A service as the crate's page has it: of one method.
#[expect(dead_code, reason = "it is a page's")]
mod crates_page_program {
    use std::time::Duration;

    mod greeter {
        include!(concat!(env!("OUT_DIR"), "/readme/greeter.v1.rs"));
    }
    use greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
    use ttrpc::{Client, Context, Server, Status, async_trait};

    struct MyGreeter;

    #[async_trait]
    impl Greeter for MyGreeter {
        async fn say_hello(
            &self,
            _ctx: &Context,
            request: HelloRequest,
        ) -> Result<HelloReply, Status> {
            Ok(HelloReply { message: format!("Hello, {}!", request.name) })
        }
    }

    async fn serve_and_call() -> Result<HelloReply, Box<dyn std::error::Error>> {
        // In the server:
        let server = Server::builder().add_service(GreeterServer::new(MyGreeter));
        server.bind("unix:///run/greeter.sock")?.serve().await?;
        // In the client:
        let greeter = GreeterClient::new(Client::connect("unix:///run/greeter.sock").await?);
        let request = HelloRequest { name: "Ann".into() };
        let reply = greeter.say_hello(request).timeout(Duration::from_secs(1)).await?;
        Ok(reply)
    }
}
