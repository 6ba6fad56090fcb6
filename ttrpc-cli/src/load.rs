//! Stub.
/// A
#[derive(Debug, clap::Args)]
pub struct Arguments {}
pub async fn run(_: Arguments, _: bool) -> Result<(), crate::failure::Failure> {
    Ok(())
}
