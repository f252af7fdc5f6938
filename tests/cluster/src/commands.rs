//! kubectl and helm, as a person would type them.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use crate::{kubeconfig::Identity, wait::PATIENCE};

/// What a command left behind.
#[derive(Debug, Clone)]
pub struct Output {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

impl Output {
    /// What it printed, if it succeeded; what it complained about otherwise.
    pub fn success(self) -> Result<String> {
        ensure!(self.code == 0, "exit code {}: {}", self.code, self.stderr);
        Ok(self.stdout)
    }
}

/// Runs a client program as `identity`. Its home is in the cluster's directory: nothing of yours is read or changed.
pub(crate) async fn run(
    program: &Path,
    identity: &Identity,
    directory: &Path,
    arguments: &[&str],
    stdin: &str,
) -> Result<Output> {
    let home = home(directory, identity)?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", &home)
        .env("KUBECONFIG", identity.kubeconfig())
        .current_dir(&home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut input = child.stdin.take().context("stdin is a pipe")?;
    let write = async {
        let _closed = input.write_all(stdin.as_bytes()).await; // who reads none of it may close the pipe
        drop(input);
    };
    let (ended, ()) = timeout(PATIENCE, async { tokio::join!(child.wait_with_output(), write) })
        .await
        .with_context(|| format!("{} {} does not end", program.display(), arguments.join(" ")))?;
    let output = ended?;
    Ok(Output {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code().unwrap_or(-1),
    })
}

fn home(directory: &Path, identity: &Identity) -> Result<PathBuf> {
    let home = directory.join("home").join(identity.name());
    std::fs::create_dir_all(&home)?;
    Ok(home)
}
