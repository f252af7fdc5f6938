//! What a case expects of an outcome. What it does not say must not be there: a warning, a change, a policy error.

use std::collections::{BTreeMap, BTreeSet};

use engine::quota::Balance;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_server::{Answer, Outcome};
use crate::difference::difference;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Teams, configuration or policies must not load; parts of the sentence that says why.
    pub loading: Option<Says>,
    /// No review comes back, but this status; `message` is the sentence.
    pub http: Option<u16>,
    pub allowed: Option<bool>,
    /// The endpoint that refuses: `mutate` or `validate`.
    pub at: Option<String>,
    /// Of a refusal. Default: 403.
    pub code: Option<u64>,
    /// Reason codes of a refusal, exactly.
    #[serde(default)]
    pub reasons: BTreeSet<String>,
    /// The policies that decided, exactly: permits of an allow, forbids of a refusal. Must be said for every review.
    pub policies: Option<BTreeSet<String>>,
    /// Policies that could not be evaluated.
    #[serde(default)]
    pub errors: usize,
    #[serde(default)]
    pub message: Says,
    /// A part of each warning, in their order; there are no others.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// All that the patch changes, by JSON pointer; `null` is taken away. Nothing else may differ.
    #[serde(default)]
    pub changes: BTreeMap<String, Value>,
    /// The object that the patch leaves, whole.
    pub patched: Option<Value>,
    /// Operations of the patch in their order, as `op /pointer`.
    pub operations: Option<Vec<String>>,
    pub gpus: Option<Gpus>,
    /// Fields of the last line of the decision log; objects are compared by the fields that stand here, lists whole.
    pub log: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Says {
    pub contains: Vec<String>,
    pub lacks: Vec<String>,
}

/// `nvidia.com/gpu`, of the namespace's team.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpus {
    /// As the line says.
    pub requested: Option<u64>,
    /// By which the ledger grew.
    pub delta: Option<u64>,
    /// In the ledger afterwards.
    pub used: Option<u64>,
}

const GPU: &str = "nvidia.com/gpu";

impl Expect {
    /// Everything that is not as expected; empty is good.
    pub fn failures(&self, outcome: &Outcome) -> Vec<String> {
        let mut failures = outcome.violations.clone();
        match self.http {
            Some(status) => failures.extend(outcome.answers.iter().flat_map(|answer| self.no_review(status, answer))),
            None => failures.extend(self.review(outcome)),
        }
        failures
    }

    fn no_review(&self, status: u16, answer: &Answer) -> Vec<String> {
        let mut failures = Vec::new();
        differs("status", json!(status), json!(answer.status), &mut failures);
        failures.extend(self.message.failures("the sentence", &answer.text));
        failures
    }

    fn review(&self, outcome: &Outcome) -> Vec<String> {
        let Some(last) = outcome.answers.last() else { return vec!["no answer".to_owned()] };
        let mut failures = Vec::new();
        match (last.status, self.allowed) {
            (200, Some(allowed)) if allowed == last.is_allowed() => {}
            _ => failures.push(format!("allowed must be {:?}: {} {}", self.allowed, last.endpoint(), last.text)),
        }
        failures.extend(self.decision(last));
        failures.extend(self.words(outcome, last));
        failures.extend(self.patch(outcome, last.is_allowed()));
        failures.extend(self.usage(outcome, last));
        failures.extend(self.log.iter().flat_map(|log| subset("log", log, &last.record)));
        failures
    }

    fn decision(&self, last: &Answer) -> Vec<String> {
        let mut failures = Vec::new();
        if !last.is_allowed() {
            let code = &last.response["status"]["code"];
            differs("code", json!(self.code.unwrap_or(403)), code.clone(), &mut failures);
            let refusals = last.record["refusals"].as_array().into_iter().flatten();
            let reasons: BTreeSet<&str> = refusals.filter_map(|refusal| refusal["reason"].as_str()).collect();
            differs("reasons", json!(self.reasons), json!(reasons), &mut failures);
        }
        if let Some(at) = &self.at {
            differs("refused at", json!(at), json!(last.endpoint()), &mut failures);
        }
        let questions = || last.record["questions"].as_array().into_iter().flatten();
        let decided = questions().filter(|question| question["allowed"] == json!(last.is_allowed()));
        let policies: BTreeSet<&str> = decided
            .flat_map(|question| question["policies"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        match &self.policies {
            Some(expected) => differs("policies", json!(expected), json!(policies), &mut failures),
            None => failures.push(format!("say which policies decide: {}", json!(policies))),
        }
        let errors = questions().flat_map(|question| question["errors"].as_array().into_iter().flatten()).count();
        differs("policy errors", json!(self.errors), json!(errors), &mut failures);
        failures
    }

    fn words(&self, outcome: &Outcome, last: &Answer) -> Vec<String> {
        let mut failures = self.message.failures("the message", last.message());
        let mut warnings: Vec<&str> = Vec::new();
        for warning in outcome.answers.iter().flat_map(Answer::warnings) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        let as_expected = warnings.len() == self.warnings.len()
            && warnings.iter().zip(&self.warnings).all(|(warning, part)| warning.contains(part.as_str()));
        if !as_expected {
            failures.push(format!("warnings must be {}, not {}", json!(self.warnings), json!(warnings)));
        }
        failures
    }

    fn patch(&self, outcome: &Outcome, allowed: bool) -> Vec<String> {
        let mut failures = Vec::new();
        // A request that is refused leaves nothing behind, so only what the case names is looked at.
        let Some((object, patched)) = outcome.object.as_ref().zip(outcome.patched.as_ref()) else {
            return self.changes.keys().map(|path| format!("nothing was patched, so not {path}")).collect();
        };
        if allowed || !self.changes.is_empty() {
            let found = difference(object, patched);
            for (path, value) in found.iter().filter(|(path, value)| self.changes.get(*path) != Some(*value)) {
                failures.push(format!("changed: {path}: {value}"));
            }
            for (path, value) in self.changes.iter().filter(|(path, value)| found.get(*path) != Some(*value)) {
                failures.push(format!("not changed: {path}: {value}"));
            }
        }
        if let Some(expected) = &self.patched {
            differs("patched", expected.clone(), patched.clone(), &mut failures);
        }
        if let Some(expected) = &self.operations {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let operations: Vec<String> = outcome
                .operations
                .iter()
                .map(|operation| format!("{} {}", text(&operation["op"]), text(&operation["path"])))
                .collect();
            differs("operations", json!(expected), json!(operations), &mut failures);
        }
        failures
    }

    fn usage(&self, outcome: &Outcome, last: &Answer) -> Vec<String> {
        let mut failures = Vec::new();
        let rehearsal = last.record["dryRun"] == json!(true);
        for (team, (before, after)) in outcome.ledgers.iter().filter(|(_, (before, after))| before != after) {
            if !last.is_allowed() || rehearsal || last.record["who"]["namespaceTeam"] != json!(team) {
                failures.push(format!("the ledger of {team} changed: {} -> {}", json!(before), json!(after)));
            }
        }
        let Some(Gpus { requested, delta, used }) = &self.gpus else { return failures };
        let team = last.record["who"]["namespaceTeam"].as_str().unwrap_or_default();
        let (before, after) = outcome.ledgers.get(team).cloned().unwrap_or_default();
        let [before, after] = [before, after].map(|ledger| Balance::from(ledger).used().get(GPU));
        let lines = last.record["quota"].as_array().into_iter().flatten();
        let asked =
            lines.filter(|line| line["resource"] == GPU).find_map(|line| line["requested"].as_u64()).unwrap_or(0);
        let mut same = |what, expected: &Option<u64>, found: u64| {
            if let Some(expected) = expected {
                differs(what, json!(expected), json!(found), &mut failures);
            }
        };
        same("GPUs requested", requested, asked);
        same("GPUs more", delta, after.saturating_sub(before));
        same("GPUs used", used, after);
        failures
    }
}

impl Says {
    /// What a text must say and does not, and the other way round.
    pub fn failures(&self, what: &str, text: &str) -> Vec<String> {
        let missing = self.contains.iter().filter(|part| !text.contains(part.as_str()));
        let told = self.lacks.iter().filter(|part| text.contains(part.as_str()));
        let missing = missing.map(|part| format!("{what} lacks `{part}`: {text}"));
        missing.chain(told.map(|part| format!("{what} must not say `{part}`: {text}"))).collect()
    }
}

fn differs(what: &str, expected: Value, found: Value, failures: &mut Vec<String>) {
    if expected != found {
        failures.push(format!("{what} must be {expected}, not {found}"));
    }
}

/// Objects by the fields that stand in `expected`, of which `null` must be absent; anything else whole.
fn subset(path: &str, expected: &Value, found: &Value) -> Vec<String> {
    match expected.as_object() {
        Some(map) => map.iter().flat_map(|(key, value)| subset(&format!("{path}.{key}"), value, &found[key])).collect(),
        None if expected == found => Vec::new(),
        None => vec![format!("{path} must be {expected}, not {found}")],
    }
}
