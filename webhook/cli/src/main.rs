//! `cedargate`: the gate, and the same engine offline. `main` parses and starts; each subcommand is one file.

mod command;
mod inputs;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::{check, crds, demo, explain, quota, serve};

/// The gate of a GPU cluster that several teams share.
#[derive(Debug, Parser)]
#[command(name = "cedargate", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the admission webhook.
    Serve(serve::Arguments),
    /// Show the main job on embedded defaults: a real server on loopback, real manifests, three people.
    Demo(demo::Arguments),
    /// Decide offline on a manifest or a recorded review, and say why.
    Explain(explain::Arguments),
    /// Read policies, teams and configuration, and report every problem.
    Check(check::Arguments),
    /// Show what each team holds of its quota, and which workloads hold it.
    Quota(quota::Arguments),
    /// Print the definitions of the gate's own resources.
    Crds(crds::Arguments),
}

fn main() -> ExitCode {
    server::runtime::install_crypto();
    let Arguments { command } = Arguments::parse();
    let outcome = match command {
        Command::Serve(arguments) => serve::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Quota(arguments) => quota::run(arguments),
        Command::Crds(arguments) => crds::run(arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "what went wrong is for whoever typed the command")]
            {
                eprintln!("cedargate: {error:#}");
            }
            // 1 is "refused" in explain; what could not be judged is 2 everywhere.
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_hold_together() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }
}
