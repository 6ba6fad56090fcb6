//! Generates messages and service; protox spares the user protoc.

fn main() {
    println!("cargo:rerun-if-changed=../../proto/echo.proto");
    let files = protox::compile(["../../proto/echo.proto"], ["../../proto"]);
    tonic_prost_build::configure()
        .compile_fds(files.expect("the file is valid"))
        .expect("the file compiles");
}
