//! To come.
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub struct Arguments {}
pub fn run(_: Arguments) -> anyhow::Result<ExitCode> { Ok(ExitCode::SUCCESS) }
