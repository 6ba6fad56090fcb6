//! Generates messages and service; protox spares the user protoc.

use trapeze_codegen::TtrpcServiceGenerator;

fn main() {
    println!("cargo:rerun-if-changed=../../proto/echo.proto");
    let files = protox::compile(["../../proto/echo.proto"], ["../../proto"]);
    prost_build::Config::new()
        .service_generator(Box::new(TtrpcServiceGenerator))
        .compile_fds(files.expect("the file is valid"))
        .expect("the file compiles");
}
