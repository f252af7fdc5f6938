//! The world of a case: teams, configuration, policies and state, from `data/` with what the case changes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use engine::config::Config;
use engine::policies::{Policies, SourceFile, examples, starter_files, starter_schema};
use engine::team::Teams;
use serde_json::{Map, Value, json};

use crate::case::{self, Case, merged};

/// What a case decides with, beside its state.
#[derive(Debug, Clone)]
pub struct World {
    pub config: Arc<Config>,
    pub teams: Arc<Teams>,
    pub policies: Arc<Policies>,
    /// Stands still; `None` is the clock of the machine.
    pub time: Option<jiff::Timestamp>,
}

/// What the files of a world say, before it is built: variants change it further.
#[derive(Debug, Clone)]
pub struct Plan {
    /// By name.
    teams: Map<String, Value>,
    config: Value,
    policies: case::Policies,
    time: Option<jiff::Timestamp>,
    /// Objects that overlays bring, beside those of the state.
    objects: Vec<Value>,
}

/// A file below this package.
pub fn path_of(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

pub fn read(relative: &str) -> Result<String> {
    let path = path_of(relative);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn yaml(relative: &str) -> Result<Value> {
    serde_saphyr::from_str(&read(relative)?).with_context(|| relative.to_owned())
}

impl Plan {
    /// The teams and the configuration of the cases' own table.
    pub fn of_data() -> Result<Self> {
        let named = |name: &str| Ok((name.to_owned(), yaml(&format!("data/teams/{name}.yaml"))?));
        Ok(Self {
            teams: ["platform", "team-a", "team-b"].into_iter().map(named).collect::<Result<_>>()?,
            config: yaml("data/config.yaml")?,
            policies: case::Policies::default(),
            time: None,
            objects: Vec::new(),
        })
    }

    /// With what a case, or a variant of one, changes.
    pub fn with(&self, case: &Case) -> Result<Self> {
        let mut plan = self.clone();
        for overlay in &case.with {
            let overlay = yaml(&format!("data/with/{overlay}.yaml"))?;
            plan.change(&overlay["teams"], &overlay["config"]);
            plan.objects.extend(overlay["objects"].as_array().into_iter().flatten().cloned());
        }
        plan.change(&case.teams, &case.config);
        plan.time = case.time.or(plan.time);
        if case.policies != case::Policies::default() {
            plan.policies = case.policies.clone();
        }
        Ok(plan)
    }

    fn change(&mut self, teams: &Value, config: &Value) {
        self.config = if config.is_null() { self.config.clone() } else { merged(&self.config, config) };
        for (name, patch) in teams.as_object().into_iter().flatten() {
            match (patch, self.teams.get(name)) {
                (Value::Null, _) => {
                    self.teams.remove(name);
                }
                (patch, before) => {
                    let before = before.cloned().unwrap_or_else(|| blank_team(name));
                    self.teams.insert(name.clone(), merged(&before, patch));
                }
            }
        }
    }

    /// What exists beside the state's own objects.
    pub fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// Builds it, with the checks that every program of ours makes at start.
    pub fn build(&self) -> Result<World> {
        let config = Config::parse(&self.config.to_string())?;
        let files: Vec<(&str, String)> =
            self.teams.iter().map(|(name, team)| (name.as_str(), team.to_string())).collect();
        let teams = Teams::parse(files.iter().map(|(name, text)| (*name, text.as_str())))
            .map_err(|errors| anyhow!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
        config.check_against(|namespace| teams.of_namespace(namespace).map(|team| team.name.as_str()))?;
        let policies = policies(&self.policies)?;
        Ok(World { config: Arc::new(config), teams: Arc::new(teams), policies, time: self.time })
    }
}

fn blank_team(name: &str) -> Value {
    json!({"apiVersion": engine::team::API_VERSION, "kind": "Team", "metadata": {"name": name}, "spec": {}})
}

/// Reading policies takes longer than any case, so each set is read once.
fn policies(choice: &case::Policies) -> Result<Arc<Policies>> {
    static READ: LazyLock<Mutex<HashMap<case::Policies, Arc<Policies>>>> = LazyLock::new(Mutex::default);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(policies) = read.get(choice) {
        return Ok(Arc::clone(policies));
    }
    let mut files = starter_files();
    for id in &choice.omit {
        omit(&mut files, id)?;
    }
    for name in &choice.examples {
        let path = format!("examples/{name}.cedar");
        let example = examples().into_iter().find(|file| file.path == path);
        files.push(example.with_context(|| format!("there is no policies/{path}"))?);
    }
    if !choice.add.is_empty() {
        files.push(SourceFile::new("added-by-the-case.cedar", choice.add.clone()));
    }
    let policies = Arc::new(Policies::load(&starter_schema(), &files)?);
    read.insert(choice.clone(), Arc::clone(&policies));
    Ok(policies)
}

fn omit(files: &mut [SourceFile], id: &str) -> Result<()> {
    for file in files {
        let set: cedar_policy::PolicySet = file.text.parse()?;
        let (out, rest): (Vec<_>, Vec<_>) = set.policies().partition(|policy| policy.annotation("id") == Some(id));
        if !out.is_empty() {
            let texts: Vec<String> = rest.iter().filter_map(|policy| policy.to_cedar()).collect();
            file.text = texts.join("\n");
            return Ok(());
        }
    }
    bail!("no starter policy has the id `{id}`")
}
