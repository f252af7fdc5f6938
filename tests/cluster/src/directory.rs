//! The temporary directory of a cluster: keys, kubeconfigs, logs, etcd's data.
//!
//! Like a process ([`crate::process`]) it goes when we go: a small shell removes it when our end of a pipe closes.
//! `CLUSTER_KEEP=1` keeps it.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};

/// Processes may still be writing while they are killed, hence more than one try.
const SWEEP: &str = r#"
read -r _
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$0" 2>/dev/null && exit; sleep 0.2; done
"#;

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    sweeper: Option<Child>,
}

impl Directory {
    /// Readable by us alone: it holds tokens and keys.
    pub(crate) fn create() -> Result<Self> {
        let path = tempfile::Builder::new().prefix("cedargate-cluster-").tempdir()?.keep();
        let sweeper = match std::env::var_os("CLUSTER_KEEP") {
            Some(_) => None,
            None => Some(sweeper(&path)?),
        };
        Ok(Self { path, sweeper })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory: something went wrong that a person will want to look into.
    pub(crate) fn keep(&mut self) {
        if let Some(mut sweeper) = self.sweeper.take() {
            let _ended = sweeper.kill().and_then(|()| sweeper.wait());
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Some(mut sweeper) = self.sweeper.take() {
            drop(sweeper.stdin.take());
            let _swept = sweeper.wait();
        }
    }
}

fn sweeper(path: &Path) -> Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", SWEEP])
        .arg(path)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the sweeper")
}
