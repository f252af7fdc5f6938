//! `cedargate check`: everything that would keep the gate from starting, before it does.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;

use crate::inputs::Inputs;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    inputs: Inputs,
}

#[expect(clippy::print_stdout, reason = "the result is for whoever typed the command")]
pub fn run(Arguments { inputs }: Arguments) -> Result<ExitCode> {
    let loaded = inputs.load()?;
    let snapshot = &loaded.snapshot;
    let groups: BTreeSet<String> = snapshot.teams.all_groups().map(|group| group.name.clone()).collect();
    let unknown = snapshot.policies.unknown_groups(&groups);
    for problem in &unknown {
        println!("{}:{}: {} is in no team file [{}]", problem.file, problem.line, problem.literal, problem.policy);
    }
    println!(
        "{} policies ({}), {} teams ({})",
        snapshot.policies.infos().len(),
        snapshot.policies.revision(),
        snapshot.teams.iter().count(),
        snapshot.teams.revision()
    );
    Ok(if unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
