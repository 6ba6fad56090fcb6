//! Stub.
/// A
#[derive(Debug, clap::Args)]
pub struct Arguments {}
pub async fn run(_: Arguments, _: bool) -> Result<(), crate::failure::Failure> {
    Ok(())
}
/// A
#[derive(Debug, clap::Args)]
pub struct ShowArguments {}
pub fn show(_: ShowArguments, _: bool) -> Result<(), crate::failure::Failure> {
    Ok(())
}
