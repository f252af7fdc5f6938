//! `cedargate crds`: the definitions of the gate's own resources, for `kubectl apply --server-side -f -`.

use std::process::ExitCode;

use anyhow::Result;

use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(Arguments {}: Arguments) -> Result<ExitCode> {
    line(text()?.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

fn text() -> Result<String> {
    let definitions = server::cluster::definitions();
    let documents = definitions.iter().map(|definition| Ok(format!("---\n{}", serde_saphyr::to_string(definition)?)));
    documents.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo run -- crds >charts/cedargate/crds/cedargate.dev.yaml` makes it so again.
    #[test]
    fn the_chart_installs_them() {
        let chart = include_str!("../../../../charts/cedargate/crds/cedargate.dev.yaml");
        assert_eq!(chart, text().expect("definitions are YAML"));
    }
}
