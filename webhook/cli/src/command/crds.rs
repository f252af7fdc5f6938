//! `cedargate crds`: the definitions of the gate's own resources, for `kubectl apply --server-side -f -`.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(Arguments {}: Arguments) -> Result<ExitCode> {
    for definition in server::cluster::definitions() {
        line("---")?;
        line(serde_saphyr::to_string(&definition)?.trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}
