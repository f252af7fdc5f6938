//! Kinds that run pods and whose arithmetic is said in configuration: where their templates stand and how many pods each
//! makes. Most operators' kinds are written so (`config/kinds.yaml`), and a site adds its own beside them without a build.
//!
//! ```text
//! KindEntry (typed) --embedded kinds put in their place--> Kind --read--> Workload
//! ```
//!
//! A kind is told by group and plural: all served versions are views of the same objects, and where two versions keep
//! something in different places, a list of patterns names both.

mod number;
mod pattern;
mod read;

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

pub use number::Number;
pub(super) use number::{percent, share_rounded_up};
pub use pattern::Pattern;
pub(super) use read::read;

use super::{KindRef, READERS};
use crate::vocabulary::Class;

/// The kinds that are configured in every gate.
pub const DEFAULT_KINDS: &str = include_str!("../../config/kinds.yaml");

/// Every configured kind: the site's, and those that come with the gate.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Vec<KindEntry>")]
pub struct Kinds(Vec<Kind>);

/// A kind that runs pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Kind {
    pub group: String,
    pub plural: String,
    pub kind: String,
    class: Class,
    pods: Vec<Pods>,
    suspend: Vec<Condition>,
    scale: Option<Pattern>,
    /// Kueue queues it by a label of its own.
    pub queue: bool,
    /// Its children reserve, each for itself.
    pub reserves: bool,
    service_account: Vec<Pattern>,
    priority_class: Vec<Pattern>,
    claim_templates: Vec<Pattern>,
    fields: Vec<Fields>,
    surge: Option<Surge>,
    /// Service accounts that make what stands below it, `namespace/name`.
    pub controllers: Vec<String>,
}

/// A kind as it is typed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindEntry {
    group: String,
    plural: String,
    kind: String,
    /// What it is for, as policies see it.
    #[serde(default = "other")]
    class: Class,
    pods: Vec<PodsEntry>,
    /// Nothing runs while one of these holds.
    #[serde(default)]
    suspend: Vec<Condition>,
    /// The number that the `scale` subresource sets, if there is one.
    scale: Option<Pattern>,
    #[serde(default)]
    queue: bool,
    #[serde(default = "yes")]
    reserves: bool,
    /// Templates in the object itself that must name the team's service account already.
    #[serde(default)]
    service_account: Vec<Pattern>,
    /// Priority classes named outside the templates.
    #[serde(default)]
    priority_class: Vec<Pattern>,
    /// Names of claims that come with the object.
    #[serde(default)]
    claim_templates: Vec<Pattern>,
    /// Places in which a field that is not listed is reported as unknown.
    #[serde(default)]
    fields: Vec<Fields>,
    surge: Option<Surge>,
    #[serde(default)]
    controllers: Vec<String>,
}

const fn other() -> Class {
    Class::Other
}

const fn yes() -> bool {
    true
}

/// Pods of one template, or of another kind that stands in this one; as typed.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PodsEntry {
    /// What holds `metadata` and `spec`. Of several the first that is there.
    template: Option<OneOrMore>,
    /// A container without a pod spec around it: the operator writes that.
    container: Option<ContainerAt>,
    /// A part of a pod spec that is laid over one which stands elsewhere.
    fragment: Option<Pattern>,
    /// `group/Kind`, the spec of which stands at `at`.
    embeds: Option<String>,
    at: Option<Pattern>,
    replicas: Option<Number>,
    maximum: Option<Number>,
    maximum_when: Vec<Condition>,
    unbounded: Option<String>,
    required: Vec<Pattern>,
    unknown: Option<String>,
    suspend: Vec<Condition>,
    surge: Option<Number>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(Pattern),
    More(Vec<Pattern>),
}

/// Pods of one template.
#[derive(Debug, Clone, PartialEq)]
struct Pods {
    source: Source,
    /// How many run now; one if absent.
    replicas: Option<Number>,
    /// How many may run without another admission; those that run now if absent.
    maximum: Option<Number>,
    /// The maximum counts only while all of these hold.
    maximum_when: Vec<Condition>,
    /// What to say where the maximum is not said.
    unbounded: Option<String>,
    /// Fields without which nobody knows the size.
    required: Vec<Pattern>,
    /// What to say where one of them is absent.
    unknown: Option<String>,
    suspend: Vec<Condition>,
    /// Pods beside these while they are replaced.
    surge: Option<Number>,
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    Template(Vec<Pattern>),
    Container(ContainerAt),
    Fragment(Pattern),
}

/// Where the parts of such a container stand.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ContainerAt {
    at: Pattern,
    name: String,
    resources: Option<Pattern>,
    #[serde(default = "env")]
    env: String,
}

fn env() -> String {
    "env".to_owned()
}

/// A flag that is set, or a field that has one of these values.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Condition {
    Flag(Pattern),
    Is { path: Pattern, is: Vec<Value> },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    at: Pattern,
    known: Vec<String>,
}

/// All of it runs again beside itself while it is replaced.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Surge {
    #[serde(default)]
    copies: u64,
    unless: Option<Condition>,
    /// What to do where the team has no room for it.
    hint: String,
}

static DEFAULTS: LazyLock<Kinds> =
    LazyLock::new(|| Kinds::beside_the_defaults(Vec::new()).expect("the embedded list is read by a test"));

impl Default for Kinds {
    fn default() -> Self {
        DEFAULTS.clone()
    }
}

impl Kinds {
    /// Those that come with the gate.
    pub fn defaults() -> &'static Self {
        &DEFAULTS
    }

    pub(super) fn find(&self, kind: &KindRef<'_>) -> Option<&Kind> {
        self.0.iter().find(|known| kind.is(&known.group, &known.plural, &known.kind))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter()
    }

    pub fn named(&self, group: &str, kind: &str) -> Option<&Kind> {
        self.0.iter().find(|known| known.group == group && known.kind.eq_ignore_ascii_case(kind))
    }

    pub fn of_resource(&self, group: &str, plural: &str) -> Option<&Kind> {
        self.0.iter().find(|known| known.group == group && known.plural == plural)
    }

    /// Whether an owner of this kind reserves for what stands below it. CronJobs and their like do not: each Job does.
    pub fn reserves(&self, group: &str, kind: &str) -> bool {
        let of_batch = !(group == "batch" && kind == "CronJob");
        self.named(group, kind).map_or(of_batch, |kind| kind.reserves)
    }

    /// Kinds that Kueue (0.19) queues itself, in the configuration that task governance ships.
    pub fn has_queue(&self, group: &str, kind: &str) -> bool {
        match self.named(group, kind) {
            Some(kind) => kind.queue,
            None => QUEUED.contains(&(group, kind)),
        }
    }

    /// Whether the root itself carries the queue's label: operators hand it down, or Kueue reads it there. Elsewhere it would
    /// say something to nobody.
    pub fn labels_queue(&self, group: &str, kind: &str) -> bool {
        self.has_queue(group, kind) || READERS.iter().any(|(known, _, name, _)| *known == group && *name == kind)
    }

    /// The field that the `scale` subresource sets.
    pub fn scaled_field(&self, group: &str, plural: &str) -> Vec<String> {
        scaled_field(self.of_resource(group, plural))
    }

    pub fn scaled_field_of(&self, group: &str, kind: &str) -> Vec<String> {
        scaled_field(self.named(group, kind))
    }

    fn beside_the_defaults(own: Vec<KindEntry>) -> Result<Self, String> {
        let mut entries = own;
        let defaults: Vec<KindEntry> = serde_saphyr::from_str(DEFAULT_KINDS).map_err(|error| error.to_string())?;
        for default in defaults {
            // A site may say it better.
            if !entries.iter().any(|entry| entry.is(&default.group, &default.plural)) {
                entries.push(default);
            }
        }
        entries.iter().map(|entry| entry.kind(&entries)).collect::<Result<_, _>>().map(Self)
    }
}

/// Kubernetes' own kinds all have the same.
fn scaled_field(kind: Option<&Kind>) -> Vec<String> {
    let scale = kind.and_then(|kind| kind.scale.as_ref());
    scale.and_then(Pattern::tokens).unwrap_or_else(|| ["spec", "replicas"].map(str::to_owned).into())
}

/// Read by the gate itself, and queued.
const QUEUED: &[(&str, &str)] =
    &[("", "Pod"), ("batch", "Job"), ("batch", "CronJob"), ("apps", "Deployment"), ("apps", "StatefulSet")];

impl TryFrom<Vec<KindEntry>> for Kinds {
    type Error = String;

    fn try_from(entries: Vec<KindEntry>) -> Result<Self, String> {
        for (index, entry) in entries.iter().enumerate() {
            let KindEntry { group, plural, .. } = entry;
            if READERS.iter().any(|(known, name, ..)| known == group && name == plural) {
                return Err(format!("kinds: `{plural}` of `{group}` is read by the gate itself"));
            }
            if entries.iter().take(index).any(|other| other.is(group, plural)) {
                return Err(format!("kinds: `{plural}` of `{group}` stands there twice"));
            }
        }
        Self::beside_the_defaults(entries)
    }
}

impl Kind {
    /// Where the team's service account is put into the root: what holds the pod spec.
    pub fn service_accounts(&self) -> impl Iterator<Item = Vec<String>> + '_ {
        self.service_account.iter().filter_map(Pattern::tokens)
    }

    pub fn has_scale(&self) -> bool {
        self.scale.is_some()
    }
}

impl KindEntry {
    fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    fn kind(&self, all: &[Self]) -> Result<Kind, String> {
        let Self { group, plural, kind, class, queue, reserves, surge, controllers, scale, .. } = self;
        let wrong = |problem: String| format!("kinds: {kind} of `{group}`: {problem}");
        if group.is_empty() || plural.is_empty() || kind.is_empty() {
            return Err(wrong("needs a group, a plural and a kind".to_owned()));
        }
        if scale.as_ref().is_some_and(Pattern::has_each) {
            return Err(wrong("scale sets one number, so its path has no `*`".to_owned()));
        }
        if controllers.iter().any(|name| name.split('/').count() != 2) {
            return Err(wrong("controllers are service accounts, `namespace/name`".to_owned()));
        }
        let parts = self.parts(all, MAX_EMBEDDED).map_err(wrong)?;
        Ok(Kind {
            group: group.clone(),
            plural: plural.clone(),
            kind: kind.clone(),
            class: *class,
            pods: parts.pods,
            suspend: self.suspend.clone(),
            scale: scale.clone(),
            queue: *queue,
            reserves: *reserves,
            service_account: parts.service_account,
            priority_class: parts.priority_class,
            claim_templates: parts.claim_templates,
            fields: parts.fields,
            surge: surge.clone(),
            controllers: controllers.clone(),
        })
    }

    /// Its own parts, and those of the kinds that stand in it, at their place.
    fn parts(&self, all: &[Self], depth: usize) -> Result<Parts, String> {
        let mut parts = Parts {
            pods: Vec::new(),
            service_account: self.service_account.clone(),
            priority_class: self.priority_class.clone(),
            claim_templates: self.claim_templates.clone(),
            fields: self.fields.clone(),
        };
        for entry in &self.pods {
            match (&entry.embeds, &entry.at) {
                (Some(embedded), Some(at)) => parts.extend(entry.embedded(embedded, at, all, depth)?),
                (None, None) => parts.pods.push(entry.pods()?),
                _ => return Err("embeds and at go together".to_owned()),
            }
        }
        Ok(parts)
    }
}

/// RayCronJob holds a RayJob, which holds a RayCluster.
const MAX_EMBEDDED: usize = 4;

/// What one kind takes over from another that stands in it.
struct Parts {
    pods: Vec<Pods>,
    service_account: Vec<Pattern>,
    priority_class: Vec<Pattern>,
    claim_templates: Vec<Pattern>,
    fields: Vec<Fields>,
}

impl Parts {
    fn extend(&mut self, other: Self) {
        let Self { pods, service_account, priority_class, claim_templates, fields } = other;
        self.pods.extend(pods);
        self.service_account.extend(service_account);
        self.priority_class.extend(priority_class);
        self.claim_templates.extend(claim_templates);
        self.fields.extend(fields);
    }

    /// As it stands in another kind, which suspends it with itself.
    fn within(self, at: &Pattern, suspend: &[Condition]) -> Result<Self, String> {
        let Self { pods, service_account, priority_class, claim_templates, fields } = self;
        let all = |patterns: Vec<Pattern>| patterns.iter().map(|pattern| pattern.within(at)).collect();
        let suspended = |pods: Pods| Pods { suspend: [pods.suspend, suspend.to_vec()].concat(), ..pods };
        let outside = service_account.iter().chain(&priority_class).chain(&claim_templates).find(|p| !p.is_in_spec());
        if let Some(pattern) = outside {
            return Err(format!("`{pattern}` is outside the spec, which alone stands in another kind"));
        }
        Ok(Self {
            pods: pods.into_iter().map(|pods| suspended(pods).map(&|pattern| pattern.within(at))).collect(),
            service_account: all(service_account),
            priority_class: all(priority_class),
            claim_templates: all(claim_templates),
            fields: fields
                .into_iter()
                .map(|Fields { at: place, known }| Fields { at: place.within(at), known })
                .collect(),
        })
    }
}

impl PodsEntry {
    fn embedded(&self, name: &str, at: &Pattern, all: &[KindEntry], depth: usize) -> Result<Parts, String> {
        let alone = Self { embeds: self.embeds.clone(), at: self.at.clone(), ..Self::default() };
        if *self != alone {
            return Err(format!("what embeds {name} has its sizes from there, and says no more than `at`"));
        }
        if depth == 0 {
            return Err(format!("{name} stands in itself"));
        }
        let entry = all.iter().find(|entry| format!("{}/{}", entry.group, entry.kind) == name);
        let entry = entry.ok_or_else(|| format!("embeds `{name}`, which is no configured kind"))?;
        entry.parts(all, depth - 1)?.within(at, &entry.suspend)
    }

    fn pods(&self) -> Result<Pods, String> {
        let Self { template, container, fragment, embeds: _, at: _, replicas, maximum, .. } = self;
        let template = template.clone().map(|template| match template {
            OneOrMore::One(pattern) => vec![pattern],
            OneOrMore::More(patterns) => patterns,
        });
        let mut sources = [
            template.map(Source::Template),
            container.clone().map(Source::Container),
            fragment.clone().map(Source::Fragment),
        ]
        .into_iter()
        .flatten();
        let (Some(source), None) = (sources.next(), sources.next()) else {
            return Err("pods come from one of template, container, fragment and embeds".to_owned());
        };
        if !self.required.is_empty() && self.unknown.is_none() {
            return Err("what is required needs an `unknown`: what to say where it is absent".to_owned());
        }
        if let (Source::Fragment(pattern), true) = (&source, replicas.is_some() || maximum.is_some()) {
            return Err(format!("`{pattern}` is laid over other pods, and has no number of its own"));
        }
        Ok(Pods {
            source,
            replicas: replicas.clone(),
            maximum: maximum.clone(),
            maximum_when: self.maximum_when.clone(),
            unbounded: self.unbounded.clone(),
            required: self.required.clone(),
            unknown: self.unknown.clone(),
            suspend: self.suspend.clone(),
            surge: self.surge.clone(),
        })
    }
}

impl Pods {
    /// Every pattern in it changed.
    fn map(&self, change: &dyn Fn(&Pattern) -> Pattern) -> Self {
        let all = |patterns: &[Pattern]| patterns.iter().map(change).collect();
        let conditions = |conditions: &[Condition]| conditions.iter().map(|condition| condition.map(change)).collect();
        let number = |number: &Option<Number>| number.as_ref().map(|number| number.map(change));
        Self {
            source: match &self.source {
                Source::Template(patterns) => Source::Template(all(patterns)),
                Source::Fragment(pattern) => Source::Fragment(change(pattern)),
                Source::Container(ContainerAt { at, name, resources, env }) => Source::Container(ContainerAt {
                    at: change(at),
                    name: name.clone(),
                    resources: resources.as_ref().map(change),
                    env: env.clone(),
                }),
            },
            replicas: number(&self.replicas),
            maximum: number(&self.maximum),
            maximum_when: conditions(&self.maximum_when),
            unbounded: self.unbounded.clone(),
            required: all(&self.required),
            unknown: self.unknown.clone(),
            suspend: conditions(&self.suspend),
            surge: number(&self.surge),
        }
    }
}

impl Condition {
    fn map(&self, change: &dyn Fn(&Pattern) -> Pattern) -> Self {
        match self {
            Self::Flag(path) => Self::Flag(change(path)),
            Self::Is { path, is } => Self::Is { path: change(path), is: is.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Result<Kinds, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_embedded_kinds_are_whole() {
        let entries: Vec<KindEntry> = serde_saphyr::from_str(DEFAULT_KINDS).expect("a list of kinds");
        assert!(Kinds::try_from(entries).is_ok());
        let kinds = Kinds::default();
        let ray = kinds.named("ray.io", "RayCronJob").expect("is configured");
        let patterns: Vec<_> = ray.service_account.iter().map(ToString::to_string).collect();
        assert_eq!(patterns, ["/spec/jobTemplate/rayClusterSpec/headGroupSpec/template"]);
        assert!(!kinds.reserves("ray.io", "RayCronJob") && kinds.reserves("ray.io", "RayJob"));
        assert!(!kinds.reserves("batch", "CronJob") && kinds.reserves("apps", "Deployment"));
        assert!(!kinds.has_queue("ray.io", "RayCronJob") && kinds.has_queue("kubeflow.org", "PyTorchJob"));
        assert_eq!(
            kinds.scaled_field("kubeflow.org", "pytorchjobs").join("/"),
            "spec/pytorchReplicaSpecs/Worker/replicas"
        );
        assert_eq!(kinds.scaled_field("apps", "deployments").join("/"), "spec/replicas");
    }

    #[test]
    fn a_site_adds_its_own_and_replaces_ours() {
        let text = "
- {group: example.org, plural: trainings, kind: Training, pods: [{template: /spec/template}]}
- {group: ray.io, plural: rayclusters, kind: RayCluster, queue: true, pods: [{template: /spec/headGroupSpec/template}]}";
        let kinds = kinds(text).expect("two kinds");
        assert!(kinds.named("example.org", "training").is_some());
        assert_eq!(kinds.iter().filter(|kind| kind.kind == "RayCluster").count(), 1);
        let job = kinds.named("ray.io", "RayJob").expect("is configured");
        assert_eq!(job.pods.len(), 2, "the site's RayCluster stands in it");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let kind = |rest: &str| format!("[{{group: example.org, plural: things, kind: Thing, {rest}}}]");
        for (text, problem) in [
            (kind("pods: [{}]"), "one of template"),
            (kind("pods: [{template: /spec/a, fragment: /spec/b}]"), "one of template"),
            (kind("pods: [{template: spec}]"), ""),
            (kind("pods: [{embeds: ray.io/RayCluster}]"), "go together"),
            (kind("pods: [{embeds: ray.io/Nothing, at: /spec/a}]"), "no configured kind"),
            (kind("pods: [{embeds: ray.io/RayCluster, at: /spec/a, replicas: 2}]"), "has its sizes from there"),
            (kind("pods: [{embeds: example.org/Thing, at: /spec/a}]"), "stands in itself"),
            (kind("pods: [{template: /spec/a, required: [/spec/b]}]"), "needs an `unknown`"),
            (kind("pods: [{fragment: /spec/a, replicas: 1}]"), "no number of its own"),
            (kind("pods: [], scale: /spec/*/replicas"), "no `*`"),
            (kind("pods: [], controllers: [operator]"), "namespace/name"),
            (kind("pods: [], replica: 1"), "replica"),
            ("[{group: apps, plural: deployments, kind: Deployment, pods: []}]".to_owned(), "by the gate itself"),
            (
                "[{group: a, plural: bs, kind: B, pods: []}, {group: a, plural: bs, kind: B, pods: []}]".to_owned(),
                "twice",
            ),
        ] {
            let error = kinds(&text).expect_err(&text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
