//! Runs case files: a case, what follows it, and its variants.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use engine::offline::State;
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::case::{Case, Request};
use crate::world::{Plan, path_of};

/// What was not as expected, under the name of its case.
pub type Failures = Vec<(String, Vec<String>)>;

/// The case files of a directory below this package, in the order of their names.
pub fn files(directory: &str) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path_of(directory)).with_context(|| directory.to_owned())?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    paths.sort();
    Ok(paths)
}

/// Runs a file. Reading policies recurses deeply: give the thread a stack of 8 MiB or more.
pub fn run(path: &std::path::Path) -> Result<Failures> {
    let case = Case::read(path)?;
    let start = Start { plan: Plan::of_data()?, state: json!({}), review: None, caller: None };
    let file = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut failures = Failures::new();
    // What was found before a step that cannot be run says most about why.
    if let Err(error) = start.run(&file, &case, &mut failures) {
        failures.push((format!("{file} cannot be run to its end"), vec![format!("{error:#}")]));
    }
    Ok(failures)
}

/// What a case starts from: what the case around it says.
struct Start {
    plan: Plan,
    state: Value,
    review: Option<Value>,
    caller: Option<String>,
}

impl Start {
    fn run(&self, name: &str, case: &Case, failures: &mut Failures) -> Result<()> {
        let plan = self.plan.with(case)?;
        let state = case.state(&self.state).with_context(|| case.case.clone())?;
        let mut review = None;
        match (plan.build(), &case.expect.loading) {
            (Err(error), Some(says)) => {
                failures.push((name.to_owned(), says.failures("the error", &format!("{error:#}"))))
            }
            (Ok(_), Some(_)) => failures.push((name.to_owned(), vec!["this must not load".to_owned()])),
            (world, None) => {
                let mut state: State =
                    serde_json::from_value(state.clone()).with_context(|| format!("{}: the state", case.case))?;
                state.objects.splice(..0, plan.objects().iter().cloned());
                let mut server = ApiServer::new(&world.with_context(|| case.case.clone())?, &state)?;
                review = self.step(name, case, &mut server, failures)?;
                self.follow(name, case, &plan, &mut server, review.clone(), failures)?;
            }
        }
        let (review, caller) = self.below(case, review);
        let start = Self { plan, state, review, caller };
        for variant in &case.variants {
            start.run(&format!("{name} / {}", variant.case), variant, failures)?;
        }
        Ok(())
    }

    fn step(&self, name: &str, case: &Case, server: &mut ApiServer, failures: &mut Failures) -> Result<Option<Value>> {
        let request = case
            .request(self.review.as_ref(), self.caller.as_deref(), &server.objects)
            .with_context(|| name.to_owned())?;
        let (outcome, review) = match request {
            Request::Review(review) if case.expect.http.is_some() => (server.send(&review.to_string())?, Some(review)),
            Request::Review(review) => (server.admit(&review)?, Some(review)),
            Request::Bytes(body) => (server.send(&body)?, None),
        };
        let found = case.expect.failures(&outcome);
        let found = match &case.pending {
            Some(gap) if found.is_empty() => vec![format!("no longer pending: {gap}")],
            Some(_) => Vec::new(),
            None => found,
        };
        failures.push((name.to_owned(), found));
        Ok(review)
    }

    /// What comes after, in the same cluster.
    fn follow(
        &self,
        name: &str,
        case: &Case,
        plan: &Plan,
        server: &mut ApiServer,
        review: Option<Value>,
        failures: &mut Failures,
    ) -> Result<()> {
        let mut plan = plan.clone();
        let (review, caller) = self.below(case, review);
        for next in &case.then {
            ensure!(
                next.state.is_null() && next.variants.is_empty(),
                "`{}`: what comes next has the state that there is",
                next.case
            );
            plan = plan.with(next)?;
            server.reload(&plan.build().with_context(|| next.case.clone())?);
            let name = format!("{name} > {}", next.case);
            let start = Self { plan: plan.clone(), state: Value::Null, review: review.clone(), caller: caller.clone() };
            start.step(&name, next, server, failures)?;
        }
        Ok(())
    }

    /// What a variant or a later step takes over.
    fn below(&self, case: &Case, review: Option<Value>) -> (Option<Value>, Option<String>) {
        (review.or_else(|| self.review.clone()), case.caller.clone().or_else(|| self.caller.clone()))
    }
}
