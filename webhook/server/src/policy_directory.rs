//! Follows the mounted policies: reads all of them again, compares, loads strictly, and swaps the whole set. What does not
//! load changes nothing: the last good set goes on deciding, and readiness, log and counters say so.
//!
//! It looks at intervals rather than being told. Kubelet itself brings a changed ConfigMap within a minute or two, and a
//! look cannot miss a change as a file watch can that sits on the wrong side of the symlink. A look reads a few hundred
//! kilobytes at most; only what differs is parsed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::policies::{LoadError, Policies, SourceFile};
use engine::snapshot::Snapshot;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::cluster::chain;
use crate::{Check, Readiness};

/// How often to look; small beside kubelet's own delay, and beside what somebody who tries a policy out has patience for.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The most that a ConfigMap can hold; whatever is longer is not what was meant to be mounted here.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// Kubelet replaces what is mounted by pointing this symlink at another directory.
const DATA_LINK: &str = "..data";

/// How often a directory is read again that was swapped while it was read; who swaps it faster than it can be read is told so.
const READS: usize = 3;

/// What people are shown of a problem: an Event holds a kilobyte.
const SHOWN_CHARACTERS: usize = 500;

/// Cedar parses by recursion; loading refuses text that would need more.
const LOADING_STACK_BYTES: usize = 64 * 1024 * 1024;

/// Why the set was not replaced. The one at hand stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than the {FILE_LIMIT_BYTES} bytes a ConfigMap can hold", path.display())]
    TooLarge { path: PathBuf },
    /// An empty directory refuses everything; it is more likely a mount that went wrong.
    #[error("{}: no *.cedar file", path.display())]
    Empty { path: PathBuf },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no thread for loading policies")]
    Thread(#[source] io::Error),
    #[error("loading the policies ended in a panic")]
    Panicked,
}

impl ReloadError {
    /// For machines, as conditions and Events have it.
    fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::TooLarge { .. } | Self::Empty { .. } => "PoliciesUnreadable",
            Self::Load(_) => "PoliciesInvalid",
            Self::Thread(_) | Self::Panicked => "PoliciesNotLoaded",
        }
    }
}

/// How the policies that decide stand to those in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// They are the same, since this was found.
    Current { since: Timestamp },
    /// What is there does not load.
    Stale(Problem),
}

impl Standing {
    pub fn current() -> Self {
        Self::Current { since: Timestamp::now() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    /// A sentence for whoever wrote the policies.
    pub message: String,
}

/// Who is told how the policies stand.
#[derive(Debug, Clone)]
pub struct Audience {
    pub readiness: Readiness,
    pub counters: Arc<Counters>,
    pub standing: watch::Sender<Standing>,
}

/// Plain numbers for whoever shows them.
#[derive(Debug, Default)]
pub struct Counters {
    pub reloaded: AtomicU64,
    pub refused: AtomicU64,
    /// 1 while the directory holds something that does not load.
    pub stale: AtomicU64,
    /// Unix seconds of the last swap; 0 before the first.
    pub reloaded_at_unix_seconds: AtomicU64,
}

/// Reads a directory of policies and the schema that they are checked against.
#[derive(Debug, Clone)]
pub struct PolicyDirectory {
    pub directory: PathBuf,
    pub schema: SourceFile,
}

impl PolicyDirectory {
    /// All files, of one generation: were they read through the symlink one after the other, a change between them would
    /// mix two sets.
    pub fn read(&self) -> Result<Vec<SourceFile>, ReloadError> {
        let mut generation = self.generation();
        for _ in 1..READS {
            let read = self.read_generation(&generation);
            // Kubelet removes what it has replaced, also under whoever reads it.
            let now = self.generation();
            if read.is_ok() || now == generation {
                return read;
            }
            generation = now;
        }
        self.read_generation(&generation)
    }

    fn generation(&self) -> PathBuf {
        let link = self.directory.join(DATA_LINK);
        // Between finding out where it leads and looking there, kubelet may have replaced it.
        (0..READS).find_map(|_| link.canonicalize().ok()).unwrap_or_else(|| self.directory.clone())
    }

    fn read_generation(&self, generation: &Path) -> Result<Vec<SourceFile>, ReloadError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| ReloadError::Read { path, source }
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(generation).map_err(failed(&self.directory))? {
            let path = entry.map_err(failed(&self.directory))?.path();
            if path.extension().is_some_and(|extension| extension == "cedar") {
                names.extend(path.file_name().map(ToOwned::to_owned));
            }
        }
        if names.is_empty() {
            return Err(ReloadError::Empty { path: self.directory.clone() });
        }
        names.sort();
        let file = |name| {
            // Shown as it was configured, not as the generation of the moment is called.
            let shown = self.directory.join(&name);
            contents(&generation.join(name), &shown).map(|text| SourceFile::new(shown.display().to_string(), text))
        };
        names.into_iter().map(file).collect()
    }

    /// On a thread of its own, with a stack for it.
    pub fn load(&self, files: Vec<SourceFile>) -> Result<Policies, ReloadError> {
        let schema = self.schema.clone();
        let loading = std::thread::Builder::new()
            .name("policies".to_owned())
            .stack_size(LOADING_STACK_BYTES)
            .spawn(move || Policies::load(&schema, &files))
            .map_err(ReloadError::Thread)?;
        Ok(loading.join().map_err(|_| ReloadError::Panicked)??)
    }
}

fn contents(path: &Path, shown: &Path) -> Result<String, ReloadError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(FILE_LIMIT_BYTES + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > FILE_LIMIT_BYTES => Err(ReloadError::TooLarge { path: shown.to_owned() }),
        Ok(_) => Ok(text),
        Err(source) => Err(ReloadError::Read { path: shown.to_owned(), source }),
    }
}

/// What was found at the last look.
#[derive(Debug, Default)]
struct Seen {
    files: Option<Vec<SourceFile>>,
    /// They do not load.
    refused: bool,
    /// The problem that is said already.
    problem: Option<String>,
}

/// Keeps the snapshot at what lies in the directory. Never ends: drop it, or abort its task.
pub async fn follow(policies: PolicyDirectory, snapshots: Arc<ArcSwap<Snapshot>>, audience: Audience, every: Duration) {
    let mut seen = Seen::default();
    loop {
        let (looking, swapped) = (policies.clone(), Arc::clone(&snapshots));
        let look = tokio::task::spawn_blocking(move || {
            let outcome = look(&looking, &swapped, &mut seen);
            (outcome, seen)
        });
        match look.await {
            Ok((outcome, now_seen)) => {
                seen = now_seen;
                audience.tell(outcome, &mut seen, &snapshots);
            }
            Err(_panicked) => {
                tracing::error!("looking for new policies ended in a panic");
                seen = Seen::default();
            }
        }
        tokio::time::sleep(every).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reload {
    None,
    Swapped,
    /// What is there is what did not load before.
    StillRefused,
}

fn look(policies: &PolicyDirectory, snapshots: &ArcSwap<Snapshot>, seen: &mut Seen) -> Result<Reload, ReloadError> {
    let files = policies.read()?;
    if seen.files.as_ref() == Some(&files) {
        return Ok(if seen.refused { Reload::StillRefused } else { Reload::None });
    }
    let loaded = policies.load(files.clone());
    seen.files = Some(files);
    seen.refused = loaded.is_err();
    let loaded = loaded?;
    let current = snapshots.load();
    if (loaded.revision(), loaded.schema_revision())
        == (current.policies.revision(), current.policies.schema_revision())
    {
        return Ok(Reload::None);
    }
    let loaded = Arc::new(loaded);
    // The cluster is published by another task: neither may undo the other.
    snapshots.rcu(|current| Snapshot { policies: Arc::clone(&loaded), ..Snapshot::clone(current) });
    Ok(Reload::Swapped)
}

impl Audience {
    fn tell(&self, outcome: Result<Reload, ReloadError>, seen: &mut Seen, snapshots: &ArcSwap<Snapshot>) {
        let revision = snapshots.load().policies.revision().to_owned();
        match outcome {
            Ok(Reload::StillRefused) => {}
            Ok(reload) => {
                if reload == Reload::Swapped {
                    tracing::info!(revision, "policies replaced");
                    self.counters.reloaded.fetch_add(1, Ordering::Relaxed);
                    self.counters.reloaded_at_unix_seconds.store(certs::UnixTime::now().as_secs(), Ordering::Relaxed);
                }
                self.well(seen);
            }
            Err(error) => self.ill(&error, seen, &revision),
        }
    }

    fn well(&self, seen: &mut Seen) {
        self.counters.stale.store(0, Ordering::Relaxed);
        self.readiness.pass(Check::Policies);
        if seen.problem.take().is_some() {
            self.standing.send_replace(Standing::current());
        }
    }

    /// Each problem once, however often it is met.
    fn ill(&self, error: &ReloadError, seen: &mut Seen, revision: &str) {
        let problem = chain(error);
        self.counters.stale.store(1, Ordering::Relaxed);
        if seen.problem.as_ref() == Some(&problem) {
            return;
        }
        tracing::error!(error = error as &dyn std::error::Error, revision, "policies not replaced");
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        let first = problem.lines().take(2).collect::<Vec<_>>().join(" ");
        self.readiness.pass_with(Check::Policies, format!("{revision} goes on deciding: {first}"));
        let message = first.chars().take(SHOWN_CHARACTERS).collect();
        self.standing.send_replace(Standing::Stale(Problem { reason: error.reason(), message }));
        seen.problem = Some(problem);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use engine::policies::{starter_files, starter_schema};

    use super::*;

    /// A ConfigMap as kubelet mounts it: a change is a new directory and a symlink that is moved to it.
    struct Mount {
        directory: tempfile::TempDir,
        generation: u32,
    }

    impl Mount {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().expect("a directory"), generation: 0 }
        }

        fn put(&mut self, files: &[SourceFile]) {
            let path = self.directory.path();
            let before = fs::read_link(path.join(DATA_LINK)).ok();
            self.generation += 1;
            let name = format!("..generation_{}", self.generation);
            fs::create_dir(path.join(&name)).expect("makes a generation");
            for file in files {
                let file_name = file.path.rsplit('/').next().expect("has a name");
                fs::write(path.join(&name).join(file_name), &file.text).expect("writes");
                if path.join(file_name).symlink_metadata().is_err() {
                    symlink(Path::new(DATA_LINK).join(file_name), path.join(file_name)).expect("links");
                }
            }
            symlink(name, path.join("..data_tmp")).expect("links");
            fs::rename(path.join("..data_tmp"), path.join(DATA_LINK)).expect("swaps");
            if let Some(before) = before {
                fs::remove_dir_all(path.join(before)).expect("removes the generation before");
            }
        }

        fn policies(&self) -> PolicyDirectory {
            PolicyDirectory { directory: self.directory.path().to_owned(), schema: starter_schema() }
        }
    }

    fn with(text: &str) -> Vec<SourceFile> {
        let mut files = starter_files();
        files.push(SourceFile::new("site.cedar", text));
        files
    }

    const OF_THE_SITE: &str = r#"
        @id("of-the-site") @message("Nobody deletes at this site.") @hint("Ask the platform team.")
        forbid (principal, action == Action::"delete", resource is Workload) when { resource.class == Class::"space" };
    "#;

    struct Followed {
        mount: Mount,
        snapshots: Arc<ArcSwap<Snapshot>>,
        audience: Audience,
        seen: Seen,
    }

    impl Followed {
        fn new() -> Self {
            let mut mount = Mount::new();
            mount.put(&starter_files());
            let policies = mount.policies();
            let loaded = policies.load(policies.read().expect("reads")).expect("loads");
            let snapshot = Snapshot {
                config: Arc::default(),
                teams: Arc::default(),
                policies: Arc::new(loaded),
                cluster: Arc::default(),
            };
            Self {
                mount,
                snapshots: Arc::new(ArcSwap::from_pointee(snapshot)),
                audience: Audience {
                    readiness: Readiness::requiring([Check::Policies]),
                    counters: Arc::default(),
                    standing: watch::Sender::new(Standing::current()),
                },
                seen: Seen::default(),
            }
        }

        fn look(&mut self) {
            let outcome = look(&self.mount.policies(), &self.snapshots, &mut self.seen);
            self.audience.tell(outcome, &mut self.seen, &self.snapshots);
        }

        fn counts(&self) -> (u64, u64, u64) {
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let Counters { reloaded, refused, stale, .. } = &*self.audience.counters;
            (read(reloaded), read(refused), read(stale))
        }

        fn report(&self) -> String {
            self.audience.readiness.report().to_string()
        }

        /// The reason and the message.
        fn problem(&self) -> Option<(&'static str, String)> {
            match &*self.audience.standing.borrow() {
                Standing::Current { .. } => None,
                Standing::Stale(Problem { reason, message }) => Some((reason, message.clone())),
            }
        }

        fn holds(&self, id: &str) -> bool {
            self.snapshots.load().policies.infos().iter().any(|info| info.id == id)
        }
    }

    #[test]
    fn each_swap_is_seen_and_what_does_not_load_changes_nothing() {
        let mut followed = Followed::new();
        followed.look();
        assert_eq!(followed.counts(), (0, 0, 0), "the same files are no news");
        assert!(followed.audience.readiness.is_ready());

        followed.mount.put(&with(OF_THE_SITE));
        followed.look();
        assert_eq!(followed.counts(), (1, 0, 0));
        assert!(followed.holds("of-the-site"));

        followed.mount.put(&with("permit (principal, action, resource) when { resource.nosuch };"));
        followed.look();
        followed.look();
        assert_eq!(followed.counts(), (1, 1, 1), "said once");
        assert!(followed.holds("of-the-site"), "the last good set goes on deciding");
        let report = followed.report();
        assert!(
            report.contains("[+]policies ok: sha256:") && report.contains("goes on deciding: no policy was loaded"),
            "{report}"
        );
        assert!(followed.audience.readiness.is_ready());
        let (reason, message) = followed.problem().expect("is told");
        assert!(reason == "PoliciesInvalid" && message.contains("no policy was loaded"), "{reason}: {message}");

        followed.mount.put(&starter_files());
        followed.look();
        assert_eq!(followed.problem(), None);
        assert_eq!(followed.counts(), (2, 1, 0));
        assert!(!followed.holds("of-the-site"));
        assert!(followed.report().contains("[+]policies ok\n"));
    }

    #[test]
    fn a_directory_that_is_gone_or_empty_changes_nothing() {
        let mut followed = Followed::new();
        followed.mount.put(&[]);
        followed.look();
        assert_eq!(followed.counts(), (0, 1, 1));
        assert!(followed.report().contains("no *.cedar file"));
        let empty = followed.problem().expect("is told");
        assert_eq!(empty.0, "PoliciesUnreadable");
        fs::remove_dir_all(followed.mount.directory.path()).expect("removes");
        followed.look();
        assert_eq!(followed.counts(), (0, 2, 1), "another problem is said, too");
        let gone = followed.problem().expect("is told");
        assert!(gone != empty && gone.1.contains("No such file"), "with its cause: {gone:?}");
        assert!(followed.holds(&followed.snapshots.load().policies.infos()[0].id));
    }

    #[test]
    fn what_is_put_back_as_it_was_is_well_again() {
        let mut followed = Followed::new();
        followed.look();
        followed.mount.put(&[]);
        followed.look();
        followed.mount.put(&starter_files());
        followed.look();
        assert_eq!(followed.counts(), (0, 1, 0));
        assert!(followed.report().contains("[+]policies ok\n"));
    }
    /// Also the first time, when a mixture would decide until the next look.
    #[test]
    fn a_read_is_of_one_generation_while_they_change() {
        let set = |number: u32| -> Vec<SourceFile> {
            (0..20).map(|file| SourceFile::new(format!("{file}.cedar"), format!("// {number}"))).collect()
        };
        let mut mount = Mount::new();
        mount.put(&set(0));
        let policies = mount.policies();
        let changing = std::thread::spawn(move || {
            // Kubelet changes it once a minute: a reader on a busy machine must have time for one read between two changes.
            for number in 1..40 {
                mount.put(&set(number));
                std::thread::sleep(Duration::from_millis(20));
            }
            mount
        });
        let mut seen = std::collections::BTreeSet::new();
        while !changing.is_finished() {
            let files = policies.read().expect("is read again when it is taken away");
            let texts: std::collections::BTreeSet<String> = files.into_iter().map(|file| file.text).collect();
            assert_eq!(texts.len(), 1, "{texts:?}");
            seen.extend(texts);
        }
        assert!(seen.len() > 1, "it changed meanwhile: {seen:?}");
    }
}
