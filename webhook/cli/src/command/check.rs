//! `cedargate check`: everything that would keep the gate from starting, before it does.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;

use crate::inputs::Inputs;
use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
}

pub(crate) fn run(Arguments { inputs }: Arguments) -> Result<ExitCode> {
    let loaded = inputs.load()?;
    let snapshot = &loaded.snapshot;
    let groups: BTreeSet<String> = snapshot.teams.all_groups().map(|group| group.name.clone()).collect();
    let unknown = snapshot.policies.unknown_groups(&groups);
    for problem in &unknown {
        let engine::policies::UnknownLiteral { policy, file, line: at, literal } = problem;
        line(&format!("{file}:{at}: {literal} is in no team file [{policy}]"))?;
    }
    line(&format!(
        "{} policies ({}), {} teams ({})",
        snapshot.policies.infos().len(),
        snapshot.policies.revision(),
        snapshot.teams.iter().count(),
        snapshot.teams.revision()
    ))?;
    Ok(if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
