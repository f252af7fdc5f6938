//! What the subcommands read: policies, teams, configuration and state from files, or the embedded defaults.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use engine::config::Config;
use engine::offline::State;
use engine::policies::{Policies, SourceFile, starter_files, starter_schema};
use engine::snapshot::Snapshot;
use engine::team::Teams;
use server::policy_directory::PolicyDirectory;

/// The embedded team files: the ones that the demonstration uses.
pub(crate) const STARTER_TEAMS: [(&str, &str); 3] = [
    ("policies/teams/team-a.yaml", include_str!("../../../policies/teams/team-a.yaml")),
    ("policies/teams/team-b.yaml", include_str!("../../../policies/teams/team-b.yaml")),
    ("policies/teams/platform.yaml", include_str!("../../../policies/teams/platform.yaml")),
];

/// The account of the embedded teams and identities.
const STARTER_CONFIG: &str = "accounts: [\"111122223333\"]\n";

/// Where a subcommand finds what it decides with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Inputs {
    /// Directory of *.cedar files. Default: the embedded starter policies.
    #[arg(long, value_name = "DIR")]
    pub(crate) policies: Option<PathBuf>,
    /// Schema of the policies. Default: the embedded one, which is the one that the gate fills.
    #[arg(long, value_name = "FILE")]
    pub(crate) schema: Option<PathBuf>,
    /// Directory of Team files (*.yaml). Default: the embedded example teams.
    #[arg(long, value_name = "DIR")]
    pub(crate) teams: Option<PathBuf>,
    /// Configuration: accounts, trusted controllers, time zone. Default: the example account.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// State of the cluster: objects, and what is used. Default: empty.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
}

/// Everything read and checked.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) snapshot: Snapshot,
    pub(crate) state: State,
}

impl Inputs {
    /// Everything embedded.
    pub(crate) fn defaults() -> Self {
        Self { policies: None, schema: None, teams: None, config: None, state: None }
    }

    /// Reads everything. Parsing Cedar recurses deeply, so this runs on a thread with a stack that is large enough.
    pub(crate) fn load(&self) -> Result<Loaded> {
        let inputs = self.clone();
        std::thread::Builder::new()
            .stack_size(64 << 20)
            .spawn(move || inputs.load_here())
            .context("no thread for reading policies")?
            .join()
            .map_err(|_| anyhow!("reading the inputs failed"))?
    }

    /// Where the policies come from, unless they are the embedded ones.
    pub(crate) fn policy_directory(&self) -> Result<Option<PolicyDirectory>> {
        let Some(directory) = self.policies.clone() else { return Ok(None) };
        let schema = self.schema.as_deref().map_or_else(|| Ok(starter_schema()), source)?;
        Ok(Some(PolicyDirectory { directory, schema }))
    }

    fn load_here(&self) -> Result<Loaded> {
        let Self { policies: _, schema, teams, config, state } = self;
        let (schema, files) = match self.policy_directory()? {
            Some(directory) => {
                let files = directory.read()?;
                (directory.schema, files)
            }
            None => (schema.as_deref().map_or_else(|| Ok(starter_schema()), source)?, starter_files()),
        };
        let policies = Policies::load(&schema, &files)?;
        let teams = match teams {
            Some(directory) => read_teams(directory)?,
            None => parse_teams(&STARTER_TEAMS)?,
        };
        let config = match config {
            Some(path) => Config::parse(&read(path)?).with_context(|| path.display().to_string())?,
            None => Config::parse(STARTER_CONFIG)?,
        };
        config.check_against(|namespace| teams.of_namespace(namespace).map(|team| team.name.as_str()))?;
        let state: State = match state {
            Some(path) => serde_saphyr::from_str(&read(path)?).with_context(|| path.display().to_string())?,
            None => State::default(),
        };
        let snapshot = Snapshot {
            config: Arc::new(config),
            teams: Arc::new(teams),
            policies: Arc::new(policies),
            cluster: Arc::new(state.cluster()),
        };
        Ok(Loaded { snapshot, state })
    }
}

fn read_teams(directory: &Path) -> Result<Teams> {
    let files = sources(directory, &["yaml", "yml"])?;
    let files: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
    parse_teams(&files)
}

fn parse_teams(files: &[(&str, &str)]) -> Result<Teams> {
    Teams::parse(files.iter().copied()).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        anyhow!("{}", lines.join("\n"))
    })
}

/// Files of a directory with one of these extensions, in the order of their names.
fn sources(directory: &Path, extensions: &[&str]) -> Result<Vec<SourceFile>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|found| extensions.iter().any(|wanted| found == *wanted)));
    paths.sort();
    if paths.is_empty() {
        bail!("{}: no *.{} file", directory.display(), extensions.join(" or *."));
    }
    paths.iter().map(|path| source(path)).collect()
}

fn source(path: &Path) -> Result<SourceFile> {
    Ok(SourceFile { path: path.display().to_string(), text: read(path)? })
}

/// Reads a text file; the error names it.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}
