//! A process of ours that never outlives us.
//!
//! Dropping it kills it with all that it started. Should we be killed ourselves, or leave by `exit` with a static
//! cluster, no destructor runs: so above each process stands a small shell that ends it when our end of a pipe closes.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::{Instant, sleep};

/// `$0` is where the process id goes, `$@` what to run. The process gets neither the pipe nor our terminal.
const GUARD: &str = r#"
exec 3<&0
"$@" 3<&- </dev/null &
child=$!
echo "$child" >"$0"
{ read -r _ <&3; kill -KILL "$child"; } 2>/dev/null &
exec 3<&-
wait "$child"
"#;

/// How much of a log is worth a look when something failed.
const TAIL_LINES: usize = 20;

#[derive(Debug)]
pub struct Process {
    name: String,
    guard: Child,
    id_file: PathBuf,
    log: PathBuf,
}

impl Process {
    /// Runs `program`, with nothing of our environment but `PATH`. What it prints goes to `<name>.log` in `directory`,
    /// after what an earlier process of that name left there.
    pub fn start<I>(name: &str, directory: &Path, program: &Path, arguments: I) -> Result<Self>
    where
        I: IntoIterator<Item = String>,
    {
        let id_file = directory.join(format!("{name}.pid"));
        let log = directory.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).context("cannot open the log")?;
        remove_if_there(&id_file)?;
        let guard = Command::new("/bin/sh")
            .args(["-c", GUARD])
            .arg(&id_file)
            .arg(program)
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", directory)
            .current_dir(directory)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), guard, id_file, log })
    }

    /// Its exit status, once it has one.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.guard.try_wait().ok().flatten()
    }

    /// Asks it to stop, and kills it when it has not after `grace`, as kubelet would.
    pub async fn terminate(&mut self, grace: Duration) {
        if let Some(id) = self.id() {
            let _gone = kill_process(id, Signal::TERM);
        }
        let deadline = Instant::now() + grace;
        while self.ended().is_none() && Instant::now() < deadline {
            sleep(Duration::from_millis(50)).await;
        }
        self.kill();
    }

    /// No farewell: what a lost node looks like. The shell comes first, since it reaps what it kills.
    pub fn kill(&mut self) {
        drop(self.guard.stdin.take());
        let _reaped = self.guard.wait();
        if let Some(group) = i32::try_from(self.guard.id()).ok().and_then(Pid::from_raw) {
            let _gone = kill_process_group(group, Signal::KILL);
        }
    }

    /// The process itself, not the shell above it. None until that has started it.
    pub fn id(&self) -> Option<Pid> {
        fs::read_to_string(&self.id_file).ok().and_then(|id| id.trim().parse().ok()).and_then(Pid::from_raw)
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The end of its log, under its name.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.len().saturating_sub(TAIL_LINES);
        format!("--- {} ({})\n{}\n", self.name, self.log.display(), lines[last..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PATIENCE, until};

    fn shell(directory: &Path, script: &str) -> Process {
        Process::start("shell", directory, Path::new("/bin/sh"), ["-c".to_owned(), script.to_owned()]).expect("starts")
    }

    async fn alive(process: &Process) -> Pid {
        until("the process has started", async || process.id()).await.expect("starts")
    }

    fn exists(id: Pid) -> bool {
        rustix::process::test_kill_process(id).is_ok()
    }

    #[tokio::test]
    async fn dies_when_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let process = shell(directory.path(), "sleep 1000");
        let id = alive(&process).await;
        drop(process);
        until("it is gone", async || (!exists(id)).then_some(())).await.expect("is killed");
    }

    #[tokio::test]
    async fn dies_when_our_end_of_the_pipe_closes() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = shell(directory.path(), "exec sleep 1000");
        alive(&process).await;
        drop(process.guard.stdin.take());
        until("it is gone", async || process.ended()).await.expect("is killed");
    }

    #[tokio::test]
    async fn is_asked_before_it_is_killed_and_its_log_tells() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "trap 'echo farewell; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
        let mut process = shell(directory.path(), script);
        until("it is ready", async || process.tail().contains("ready").then_some(())).await.expect("starts");
        process.terminate(PATIENCE).await;
        assert_eq!(process.ended().and_then(|status| status.code()), Some(3));
        assert!(process.tail().contains("farewell"), "{}", process.tail());
    }
}
