//! `cedargate demo`: the real server on loopback, with throwaway certificates and the embedded defaults. The demonstration
//! plays the API server: it sends each object through `/mutate`, applies the patch, sends what comes of it through
//! `/validate`, and lets what is admitted exist, so that controllers can make its pods.

mod cast;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{ContentArrangement, Table, presets};

use cast::{Scene, scenes};
use stage::{Outcome, Stage};

use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Keep serving afterwards, and print a curl line that works.
    #[arg(long)]
    serve: bool,
    /// Where certificates and the decision log go. Default: a new directory among the temporary ones.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(crate) fn run(Arguments { serve, directory }: Arguments) -> Result<ExitCode> {
    let directory = match directory {
        Some(directory) => directory,
        // Kept: the decision log in it is what the reader is sent to.
        None => tempfile::Builder::new().prefix("cedargate-demo-").tempdir()?.keep(),
    };
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    server::runtime::build()?.block_on(async {
        let (stage, running) = Stage::open(&directory).await?;
        let mut played = Vec::new();
        for scene in scenes()? {
            let outcome = stage.play(&scene).await?;
            played.push((scene, outcome));
        }
        show(&played)?;
        let review = stage.keep_a_review(&directory)?;
        line(&format!("Decision log: {} (one JSON line an answer)", stage.log().display()))?;
        if serve {
            line(&format!(
                "Serving on {}. Ask it yourself (Ctrl-C ends it):\n\n  curl --cacert {} -H 'content-type: application/json' \
                 --data @{} {}/validate\n",
                stage.url(),
                stage.authority().display(),
                review.display(),
                stage.url()
            ))?;
            server::runtime::shutdown_signal()?.await;
        }
        running.end(Duration::from_secs(5)).await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn show(played: &[(Scene, Outcome)]) -> Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Dynamic)
        // Wide enough for a row of the README, narrow enough for a laptop.
        .set_width(140)
        .set_header(["who", "what", "decision", "injected", "GPUs"]);
    for (scene, outcome) in played {
        let Outcome { decision, injected, gpus, .. } = outcome;
        table.add_row([scene.who.clone(), scene.what.clone(), decision.clone(), injected.clone(), gpus.clone()]);
    }
    line(&table.to_string())?;
    let refused = played.iter().find(|(scene, outcome)| scene.shown_in_full && outcome.message.is_some());
    if let Some((scene, Outcome { message: Some(message), .. })) = refused {
        line(&format!("\nA refusal, as {} reads it:\n\n{message}\n", scene.who))?;
    }
    Ok(())
}
