//! `cedargate explain`: the engine that the server runs, offline. On a manifest it makes the reviews that an API server
//! would make, mutate then validate; a recorded review is judged as it is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use engine::attribution::Phase;
use engine::offline::review_of;
use engine::patch::Operation as PatchOperation;
use engine::pipeline;
use engine::quota::Ledger;
use engine::record::Record;
use engine::review::{Operation, Review, UserInfo};
use engine::snapshot::Snapshot;
use engine::verdict::{Answer, Verdict};
use serde::Serialize;
use serde_json::Value;

use crate::inputs::{Inputs, read};
use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Manifests (YAML or JSON, any number of documents) or recorded AdmissionReviews.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Who asks: a `userInfo` as JSON. Not needed for recorded reviews, which carry their own.
    #[arg(long = "as", value_name = "IDENTITY.json")]
    identity: Option<PathBuf>,
    /// What is asked of a manifest.
    #[arg(long, value_enum, default_value_t = Asked::Create)]
    operation: Asked,
    /// Namespace of objects that name none.
    #[arg(long, short = 'n', value_name = "NAME")]
    namespace: Option<String>,
    /// The time to decide at (RFC 3339). Default: now.
    #[arg(long, value_name = "TIME")]
    at: Option<jiff::Timestamp>,
    #[arg(long, short = 'o', value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    inputs: Inputs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Asked {
    Create,
    /// The object as it was is the one of its name in --state.
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For a person.
    Text,
    /// The decision record and the patch, one line for each object.
    Json,
}

/// The outcome for one object.
#[derive(Debug, Serialize)]
struct Explained {
    #[serde(flatten)]
    record: Record,
    patch: Vec<PatchOperation>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let loaded = arguments.inputs.load()?;
    let now = arguments.at.unwrap_or_else(jiff::Timestamp::now);
    let identity = arguments.identity.as_deref().map(read_identity).transpose()?;
    let mut ledgers = loaded.state.ledgers();
    let mut refused = false;
    for path in &arguments.files {
        for document in documents(path)? {
            let bodies = arguments.reviews(document, identity.as_ref(), &loaded.snapshot)?;
            let explained =
                explain(bodies, &loaded.snapshot, &mut ledgers, now).with_context(|| path.display().to_string())?;
            refused |= explained.record.verdict != Verdict::Allow;
            print(&explained, arguments.output)?;
        }
    }
    Ok(if refused { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

impl Arguments {
    /// The review to judge: a manifest's is made, a recorded one is taken as it is.
    fn reviews(&self, document: Value, identity: Option<&UserInfo>, snapshot: &Snapshot) -> Result<Value> {
        if document.get("kind").and_then(Value::as_str) == Some("AdmissionReview") {
            return Ok(document);
        }
        let Some(identity) = identity else { bail!("a manifest needs --as IDENTITY.json") };
        let mut document = document;
        let unplaced = engine::json::text(&document, &["metadata", "namespace"]).is_none();
        if let (Some(namespace), true, Some(metadata)) =
            (&self.namespace, unplaced, document.get_mut("metadata").and_then(Value::as_object_mut))
        {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        let (operation, old) = match self.operation {
            Asked::Create => (Operation::Create, None),
            Asked::Update => (Operation::Update, Some(stored(&document, snapshot)?)),
            Asked::Delete => (Operation::Delete, None),
        };
        Ok(review_of(&document, old.as_ref(), identity, operation, false))
    }
}

/// What the state file has under the name of this object.
fn stored(document: &Value, snapshot: &Snapshot) -> Result<Value> {
    let text = |keys: &[&str]| engine::json::text(document, keys).unwrap_or_default();
    let (group, _) = engine::cluster::group_version(text(&["apiVersion"]));
    let (kind, namespace, name) = (text(&["kind"]), text(&["metadata", "namespace"]), text(&["metadata", "name"]));
    let found = snapshot.cluster.named(group, kind, namespace, name);
    let found =
        found.with_context(|| format!("{kind} {namespace}/{name} is not in --state, so there is nothing to update"))?;
    Ok(found.object.clone())
}

/// Mutate, then validate what the patch leaves, as an API server does.
fn explain(
    body: Value,
    snapshot: &Snapshot,
    ledgers: &mut std::collections::BTreeMap<String, Ledger>,
    now: jiff::Timestamp,
) -> Result<Explained> {
    let review = Review::parse(body.to_string().as_bytes())?;
    let evaluation = pipeline::evaluate(&review, Phase::Mutate, snapshot, now);
    let patch = evaluation.patch.clone();
    let patched = evaluation.patched.clone();
    if evaluation.is_refused() {
        let (_, record) = evaluation.conclude(&review, None);
        return Ok(Explained { record, patch: Vec::new() });
    }
    let final_review = Review { object: patched.or_else(|| review.object.clone()), ..review };
    let (_, record) = validate(&final_review, snapshot, ledgers, now);
    let patch = if record.verdict == Verdict::Allow { patch } else { Vec::new() };
    let injected = patch.iter().map(|operation| operation.path().to_owned()).collect();
    Ok(Explained { record: Record { injected, ..record }, patch })
}

fn validate(
    review: &Review,
    snapshot: &Snapshot,
    ledgers: &mut std::collections::BTreeMap<String, Ledger>,
    now: jiff::Timestamp,
) -> (Answer, Record) {
    let evaluation = pipeline::evaluate(review, Phase::Validate, snapshot, now);
    let (Some(team), false) = (evaluation.team.clone(), evaluation.is_refused()) else {
        return evaluation.conclude(review, None);
    };
    let ledger = ledgers.entry(team.name.clone()).or_default();
    let consumption = evaluation.consume_alone(review, snapshot, ledger);
    evaluation.conclude(review, Some(consumption))
}

fn print(explained: &Explained, output: Output) -> Result<()> {
    match output {
        Output::Json => line(&serde_json::to_string(explained)?)?,
        Output::Text => line(&text(explained))?,
    }
    Ok(())
}

fn text(Explained { record, patch }: &Explained) -> String {
    let mut lines = vec![format!(
        "{} {} {}{}",
        match &record.verdict {
            Verdict::Allow => "ALLOWED",
            Verdict::Deny { .. } => "REFUSED",
            Verdict::RetryLater { .. } => "LATER",
        },
        record.operation.map(|operation| operation.to_string()).unwrap_or_default(),
        record.kind.as_ref().map(|kind| kind.kind.as_str()).unwrap_or_default(),
        format_args!(" `{}` in {}", record.name, record.namespace.as_deref().unwrap_or("the cluster")),
    )];
    let who = &record.who;
    let person = who.person.as_deref().unwrap_or("nobody known");
    let team = who.team.as_deref().unwrap_or("none");
    lines.push(format!("  who       {} (person {person}, team {team}, by {})", who.name, who.established));
    for question in &record.questions {
        let answer = if question.allowed { "yes" } else { "NO" };
        let policies = question.policies.join(", ");
        lines.push(format!("  {answer:<3} {:<9} {} [{policies}]", question.action, question.subject));
        for exemption in &question.exempted {
            lines.push(format!("        exempt  {} by {}", exemption.policy, exemption.by.join(", ")));
        }
    }
    for quota in &record.quota {
        let usage = &quota.usage;
        lines.push(format!(
            "  quota     {}: used {}, asked {}, limit {}, ceiling {}",
            usage.resource, usage.used, quota.requested, quota.limit, quota.ceiling
        ));
    }
    for operation in patch {
        lines.push(format!("  patch     {}", serde_json::to_string(operation).unwrap_or_default()));
    }
    lines.extend(record.warnings.iter().map(|warning| format!("  warning   {warning}")));
    lines.extend(record.message.iter().map(|message| format!("  message   {message}")));
    lines.join("\n")
}

fn read_identity(path: &std::path::Path) -> Result<UserInfo> {
    serde_json::from_str(&read(path)?).with_context(|| format!("{}: not a userInfo", path.display()))
}

/// The documents of a file; `null` documents are the blanks between two `---`.
pub(crate) fn documents(path: &std::path::Path) -> Result<Vec<Value>> {
    let text = read(path)?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("{}: not YAML or JSON", path.display()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}
