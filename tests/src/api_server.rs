//! What stands in for an API server: it sends a review to `/mutate`, applies the patch, completes the object as the
//! registry would, sends it to `/validate`, and keeps what was admitted. On the way it holds every answer to what the
//! API server's source demands of one (`apiserver/pkg/admission/plugin/webhook`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use base64::Engine as _;
use engine::cluster::Cluster;
use engine::offline::State;
use engine::quota::Ledger;
use engine::snapshot::Snapshot;
use serde_json::{Value, json};
use server::decide::{Content, Decide, Endpoint, Line};
use server::decider::Decider;
use server::ledger::InMemory;

use crate::case::patched;
use crate::world::World;

/// A cluster with a gate in front of it: by default ours, as it decides in production.
#[derive(Debug)]
pub struct ApiServer<D = Decider<InMemory>, L = Arc<InMemory>> {
    pub gate: D,
    snapshot: Arc<ArcSwap<Snapshot>>,
    ledgers: L,
    runtime: tokio::runtime::Runtime,
    /// What exists, in the order in which it came.
    pub objects: Vec<Value>,
}

/// What a gate has reserved so far.
pub trait Ledgers {
    fn of(&self, team: &str) -> Ledger;
}

impl Ledgers for Arc<InMemory> {
    fn of(&self, team: &str) -> Ledger {
        self.peek(team)
    }
}

/// What became of a request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// `/mutate` first.
    pub answers: Vec<Answer>,
    /// The object as it was sent, and as the patch leaves it.
    pub object: Option<Value>,
    pub patched: Option<Value>,
    pub operations: Vec<Value>,
    /// As `/validate` saw it.
    pub admitted: Option<Value>,
    /// By team, before and after.
    pub ledgers: BTreeMap<String, (Ledger, Ledger)>,
    /// What no answer may do, whatever it says.
    pub violations: Vec<String>,
}

/// One answer, read back from its bytes.
#[derive(Debug, Clone)]
pub struct Answer {
    pub endpoint: Endpoint,
    pub status: u16,
    /// The body as text: the sentence, where it is no review.
    pub text: String,
    /// The review's `response`.
    pub response: Value,
    /// The line of the decision log, as it was written and read back.
    pub line: String,
    pub record: Value,
}

const DEADLINE: Duration = Duration::from_secs(30);

impl ApiServer {
    pub fn new(world: &World, state: &State) -> Result<Self> {
        let World { config, teams, policies, time } = world.clone();
        let snapshot = Snapshot { config, teams, policies, cluster: Arc::new(state.cluster()) };
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot));
        let ledgers = Arc::new(InMemory::new(state.ledgers()));
        let mut decider = Decider::new(Arc::clone(&snapshot), Arc::clone(&ledgers));
        decider.set_time(time);
        Ok(Self { objects: state.objects.clone(), ..Self::before(decider, snapshot, ledgers)? })
    }

    /// The same cluster, with other teams or policies, or at another time, from now on.
    pub fn reload(&mut self, world: &World) {
        let World { config, teams, policies, time } = world.clone();
        self.gate.set_time(time);
        let cluster = Arc::clone(&self.snapshot.load().cluster);
        self.snapshot.store(Arc::new(Snapshot { config, teams, policies, cluster }));
    }
}

impl<D: Decide, L: Ledgers> ApiServer<D, L> {
    /// An empty cluster before a gate that decides on this snapshot.
    pub fn before(gate: D, snapshot: Arc<ArcSwap<Snapshot>>, ledgers: L) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().context("a runtime")?;
        Ok(Self { gate, snapshot, ledgers, runtime, objects: Vec::new() })
    }

    /// What the gate sees now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Sends bytes to both endpoints, as somebody would who is no API server.
    pub fn send(&self, body: &str) -> Result<Outcome> {
        let answers = Endpoint::ALL.map(|endpoint| self.ask(endpoint, body.as_bytes()));
        let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(Outcome { answers, ..Outcome::default() })
    }

    /// Admits a review: mutate, then validate. Stops at the first refusal.
    pub fn admit(&mut self, review: &Value) -> Result<Outcome> {
        let before = self.peek();
        let mut outcome = self.judge(review)?;
        let after = self.peek();
        let teams = before.into_iter().map(|(team, ledger)| {
            let now = after.get(&team).cloned().unwrap_or_default();
            (team, (ledger, now))
        });
        outcome.ledgers = teams.collect();
        Ok(outcome)
    }

    fn judge(&mut self, review: &Value) -> Result<Outcome> {
        let object = Some(review["request"]["object"].clone()).filter(|object| !object.is_null());
        let mut outcome = Outcome { object: object.clone(), ..Outcome::default() };
        let mutate = self.ask(Endpoint::Mutate, review.to_string().as_bytes())?;
        outcome.violations.extend(violations(&mutate, review));
        let allowed = mutate.is_allowed();
        let operations = mutate.patch();
        outcome.answers.push(mutate);
        if !allowed {
            return Ok(outcome);
        }
        if let Some(object) = &object {
            match patched(object, &json!(operations)) {
                Ok(patched) => outcome.patched = Some(patched),
                Err(error) => outcome.violations.push(format!("the patch does not apply: {error}")),
            }
        }
        outcome.operations = operations;
        let Some(patched) = outcome.patched.clone().or(object.is_none().then_some(Value::Null)) else {
            return Ok(outcome);
        };
        outcome.violations.extend(self.not_twice(review, &patched)?);
        let review = completed(review, patched);
        let validate = self.ask(Endpoint::Validate, review.to_string().as_bytes())?;
        outcome.violations.extend(violations(&validate, &review));
        outcome.admitted = Some(review["request"]["object"].clone()).filter(|object| !object.is_null());
        if validate.is_allowed() {
            self.persist(&review);
        }
        outcome.answers.push(validate);
        Ok(outcome)
    }

    /// Called again on what it returned (`reinvocationPolicy: IfNeeded`), `/mutate` has nothing to add.
    fn not_twice(&self, review: &Value, patched: &Value) -> Result<Option<String>> {
        let mut again = review.clone();
        again["request"]["object"] = patched.clone();
        let again = self.ask(Endpoint::Mutate, again.to_string().as_bytes())?;
        let idle = again.is_allowed() && again.patch().is_empty() && again.response.get("patchType").is_none();
        Ok((!idle).then(|| format!("called twice, /mutate answers {}, patch {}", again.response, json!(again.patch()))))
    }

    fn ask(&self, endpoint: Endpoint, body: &[u8]) -> Result<Answer> {
        let answered = self.runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + DEADLINE;
            self.gate.decide(endpoint, body.to_vec().into(), deadline).await
        });
        let text = String::from_utf8(answered.body).context("an answer that is no text")?;
        let review: Value = match answered.content {
            Content::Json => serde_json::from_str(&text).context("an answer that is no JSON")?,
            Content::Text => Value::Null,
        };
        let line = match answered.line {
            Line::Required(line) | Line::Optional(line) => line,
            Line::None => String::new(),
        };
        let record = if line.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&line).context("a line that is no JSON")?
        };
        Ok(Answer {
            endpoint,
            status: answered.status.as_u16(),
            text,
            response: review["response"].clone(),
            line,
            record,
        })
    }

    fn peek(&self) -> BTreeMap<String, Ledger> {
        let teams = &self.snapshot.load().teams;
        teams.iter().map(|team| (team.name.clone(), self.ledgers.of(&team.name))).collect()
    }

    /// Keeps what was admitted, unless it was a rehearsal.
    fn persist(&mut self, review: &Value) {
        let request = &review["request"];
        let is_subresource = request["subResource"].as_str().is_some_and(|name| !name.is_empty());
        if is_subresource || request["dryRun"] == json!(true) {
            return;
        }
        let uid = |object: &Value| object["metadata"]["uid"].clone();
        let subject = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
        self.objects.retain(|object| uid(object) != uid(subject));
        if !request["object"].is_null() {
            self.objects.push(request["object"].clone());
        }
        self.show();
    }

    /// Puts an object into the cluster as if it had slipped past the gate.
    pub fn store(&mut self, object: Value) {
        self.objects.push(object);
        self.show();
    }

    fn show(&self) {
        let mut cluster = Cluster::default();
        self.objects.iter().for_each(|object| cluster.insert(object.clone()));
        let snapshot = Snapshot { cluster: Arc::new(cluster), ..Snapshot::clone(&self.snapshot.load()) };
        self.snapshot.store(Arc::new(snapshot));
    }
}

/// On CREATE the registry fills in uid, name and time after mutating admission; `request.name` stays as it came.
fn completed(review: &Value, object: Value) -> Value {
    let mut review = review.clone();
    let (uid, operation) = (review["request"]["uid"].clone(), review["request"]["operation"].clone());
    review["request"]["object"] = object;
    let object = &mut review["request"]["object"];
    let is_root = object.get("metadata").is_some() && review["request"].get("subResource").is_none_or(Value::is_null);
    if operation == "CREATE" && is_root {
        let metadata = &mut review["request"]["object"]["metadata"];
        // No two requests get the same name.
        let own: String = uid.as_str().map(|uid| uid.chars().rev().take(5).collect()).unwrap_or_default();
        fill(metadata, "uid", uid);
        fill(metadata, "creationTimestamp", json!("2026-01-16T09:00:00Z"));
        let generated = metadata["generateName"].as_str().map(|prefix| json!(format!("{prefix}{own}")));
        fill(metadata, "name", generated.unwrap_or_default());
    }
    review
}

fn fill(metadata: &mut Value, key: &str, value: Value) {
    if metadata.get(key).is_none_or(Value::is_null) && !value.is_null() {
        metadata[key] = value;
    }
}

impl Answer {
    pub fn is_allowed(&self) -> bool {
        self.response["allowed"] == json!(true)
    }

    pub fn message(&self) -> &str {
        self.response["status"]["message"].as_str().unwrap_or_default()
    }

    pub fn warnings(&self) -> Vec<&str> {
        self.response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    fn patch(&self) -> Vec<Value> {
        let bytes = self.response["patch"]
            .as_str()
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok());
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub fn endpoint(&self) -> &'static str {
        self.endpoint.path().trim_start_matches('/')
    }
}

/// What the API server would not take, and what a line must never hold.
fn violations(answer: &Answer, review: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut must = |holds: bool, rule: &str| {
        if !holds {
            found.push(format!("{}: {rule}: {} {}", answer.endpoint.path(), answer.text, answer.line));
        }
    };
    let request = &review["request"];
    let response = &answer.response;
    let envelope: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    must(answer.status == 200, "a review is answered with 200");
    must(envelope["apiVersion"] == review["apiVersion"] && envelope["kind"] == "AdmissionReview", "same version");
    must(response["uid"] == request["uid"], "same uid");
    let has = |key: &str| response.get(key).is_some();
    must(has("patch") == has("patchType"), "patch and patchType come together");
    must(!has("patch") || !answer.patch().is_empty(), "a patch has operations");
    must(!has("patchType") || response["patchType"] == "JSONPatch", "the one patch type");
    let patches = answer.endpoint == Endpoint::Mutate && answer.is_allowed() && !request["object"].is_null();
    let main = request.get("subResource").is_none_or(Value::is_null);
    must(!has("patch") || (patches && main && request["operation"] != "CONNECT"), "no patch here");
    let code = response["status"]["code"].as_u64();
    must(answer.is_allowed() || matches!(code, Some(403 | 429)), "a refusal has its code");
    must(answer.is_allowed() || !answer.message().is_empty(), "a refusal has its reason");
    must(answer.is_allowed() || has("status"), "a refusal has a status");
    let warnings = answer.warnings();
    let fits = |warning: &&str| warning.chars().count() <= 256 && !warning.chars().any(char::is_control);
    must(warnings.iter().all(fits), "warnings fit into headers");
    must(warnings.iter().map(|warning| warning.chars().count()).sum::<usize>() <= 4096, "warnings fit together");
    found.extend(violations_of_line(answer, review));
    found
}

fn violations_of_line(answer: &Answer, review: &Value) -> Vec<String> {
    let (request, record) = (&review["request"], &answer.record);
    let mut found = Vec::new();
    let mut must = |holds: bool, rule: &str| {
        if !holds {
            found.push(format!("the line of {}: {rule}: {}", answer.endpoint.path(), answer.line));
        }
    };
    must(!answer.line.is_empty() && !answer.line.contains('\n'), "one line");
    let null_is_absent = |key: &str| request.get(key).cloned().unwrap_or_default();
    must(record["uid"] == request["uid"] && record["endpoint"] == answer.endpoint(), "says which review");
    must(record["operation"] == request["operation"] && record["kind"] == request["kind"], "says what was asked");
    must(record["namespace"] == null_is_absent("namespace"), "names the namespace of the request");
    must(record["subresource"] == null_is_absent("subResource"), "names the subresource");
    must(record["name"].as_str().is_some_and(|name| !name.is_empty()), "names the object");
    must(record["dryRun"] == json!(request["dryRun"] == json!(true)), "says whether it was a rehearsal");
    must(record["verdict"] == (if answer.is_allowed() { "allow" } else { "deny" }), "says what was answered");
    must(record["took"].is_object(), "says how long it took");
    let mut secrets = Vec::new();
    env_values(request, &mut secrets);
    // A value that stands in the open as well (a name, an image) is no secret.
    let open = without_env(request).to_string();
    secrets.retain(|value| !open.contains(value));
    let keys = request["userInfo"]["extra"]["accessKeyId"].as_array().into_iter().flatten();
    secrets.extend(keys.filter_map(Value::as_str));
    let told = |secret: &&&str| answer.line.contains(**secret) || answer.text.contains(**secret);
    must(secrets.iter().find(told).is_none(), "holds no env value and no access key id");
    must(!holds_key(record, &["object", "oldObject", "spec", "containers", "extra"]), "holds no object");
    found
}

const ENV: [&str; 2] = ["env", "environmentVariables"];

fn without_env(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !ENV.contains(&key.as_str()));
            Value::Object(kept.map(|(key, value)| (key.clone(), without_env(value))).collect())
        }
        Value::Array(list) => list.iter().map(without_env).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Values of variables that are long enough to be told from other words.
fn env_values<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if ENV.contains(&key.as_str()) {
                    let values =
                        value.as_array().into_iter().flatten().filter_map(|variable| variable["value"].as_str());
                    found.extend(values.filter(|value| value.len() >= 8));
                }
                env_values(value, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| env_values(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn holds_key(value: &Value, keys: &[&str]) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(key, value)| keys.contains(&key.as_str()) || holds_key(value, keys)),
        Value::Array(list) => list.iter().any(|value| holds_key(value, keys)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
