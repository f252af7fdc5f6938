//! Keeps the webhook configurations at what the Teams say, and tells each Team where it stands.
//!
//! Every replica does the same and writes the same; what makes that safe is that each write is made against the version it
//! was read at, so that the slower of two reads again. A configuration that is missing is not made: it is being installed or
//! removed by whoever owns it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::config::Config;
use futures::{StreamExt, pin_mut, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{Api, DynamicObject, ObjectMeta, PartialObjectMeta, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::index::GovernedTeam;
use super::policy_report::{self, Announced};
use super::publish::State;
use super::team_object::{self, GovernedNamespace, TeamStatus, condition};
use super::webhooks::{self, Live, Target, Wanted};
use super::{ApiServer, chain};
use crate::Readiness;
use crate::policy_directory::Standing;

/// Our name in `managedFields`.
pub const FIELD_MANAGER: &str = "cedargate";

/// Also without news: what somebody changed by hand is put right.
const RESYNC_EVERY: Duration = Duration::from_secs(60);

/// News comes in bursts: a chart brings its Teams together, and our own writes come back to us.
const COALESCE: Duration = Duration::from_millis(250);

/// After a write that failed or lost.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// How long both configurations must have held a namespace before it counts as governed: each API server hears of the
/// change by a watch, and what it lets in before is older than the gate.
const HELD_FOR: SignedDuration = SignedDuration::from_secs(3);

/// How long the gate must have been ready before it fills empty configurations behind a Service: two readiness probes of
/// kubelet, and the endpoint's way to the API servers. Filled before, they would refuse what nobody answers for.
const READY_BEFORE_FILLING: Duration = Duration::from_secs(12);

/// What the governor is told.
#[derive(Debug)]
pub struct Governor {
    pub api_server: ApiServer,
    pub config: Arc<Config>,
    pub target: Target,
    pub state: Arc<State>,
    pub readiness: Readiness,
    /// Whom the API server must trust; `None` until it is known.
    pub trust: watch::Receiver<Option<Trust>>,
    /// How the policies stand that this replica decides by.
    pub policies: watch::Receiver<Standing>,
    pub reports: Arc<Reports>,
}

/// Whom the API server must trust to call the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// PEM, during a rotation of more than one authority.
    Bundle(String),
    /// Whom its system trusts.
    System,
}

/// What the governor tells: plain numbers, and the bundle that both configurations hold.
#[derive(Debug)]
pub struct Reports {
    pub applied: AtomicU64,
    pub failed: AtomicU64,
    pub statuses: AtomicU64,
    pub governed_namespaces: AtomicU64,
    bundle: watch::Sender<Option<String>>,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            applied: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            statuses: AtomicU64::new(0),
            governed_namespaces: AtomicU64::new(0),
            bundle: watch::Sender::new(None),
        }
    }
}

impl Reports {
    /// The bundle that API servers trust now.
    pub fn bundle(&self) -> Option<String> {
        self.bundle.borrow().clone()
    }
}

/// A round that must be made again.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    #[error("webhook configuration `{}` of kind {kind} is not installed, or is being removed", webhooks::NAME)]
    Missing { kind: &'static str },
    /// Another replica, or a person, wrote in between: read again.
    #[error("somebody else was faster")]
    Lost,
    #[error("cannot {what}")]
    Api { what: &'static str, source: Box<kube::Error> },
}

/// What is remembered from one round to the next.
#[derive(Debug, Default)]
struct Memory {
    holding: Holding,
    announced: Announced,
    ready_since: Option<Instant>,
    /// Said once, not every two seconds.
    complained: Option<String>,
}

/// Which namespaces both configurations hold, as this replica saw it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Holding {
    /// Since when.
    since: BTreeMap<String, Timestamp>,
    /// When each was last seen not to be held: what was created then came past the gate, and whatever time was known before
    /// counts no more.
    lapsed: BTreeMap<String, Timestamp>,
}

/// When to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    OnNews,
    After(Duration),
}

/// Governs for ever.
pub async fn govern(mut governor: Governor) {
    let mut memory = Memory::default();
    let news = configurations_changed(&governor.api_server.client());
    pin_mut!(news);
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = governor.state.governance_changed() => {}
            Some(()) = news.next() => {}
            Ok(()) = governor.trust.changed() => {}
            Ok(()) = governor.policies.changed() => {}
        }
        tokio::time::sleep(COALESCE).await;
        wait = match governor.round(&mut memory).await {
            Ok(Next::OnNews) => {
                memory.complained = None;
                RESYNC_EVERY
            }
            Ok(Next::After(wait)) => wait,
            Err(RoundError::Lost) => COALESCE,
            Err(error) => {
                governor.reports.failed.fetch_add(1, Ordering::Relaxed);
                memory.complain(&error);
                RETRY_EVERY
            }
        };
    }
}

impl Memory {
    fn complain(&mut self, error: &RoundError) {
        let text = chain(error);
        if self.complained.as_ref() != Some(&text) {
            tracing::warn!(error = text, "the cluster does not hold what the Teams say");
            self.complained = Some(text);
        }
    }

    /// How much longer to wait before an empty configuration is filled.
    fn until_filling(&mut self, target: &Target, is_empty: bool) -> Option<Duration> {
        let since = *self.ready_since.get_or_insert_with(Instant::now);
        match target {
            Target::Service { .. } if is_empty => READY_BEFORE_FILLING.checked_sub(since.elapsed()),
            Target::Service { .. } | Target::Url(_) => None,
        }
    }
}

impl Governor {
    async fn round(&mut self, memory: &mut Memory) -> Result<Next, RoundError> {
        if !self.readiness.is_ready() {
            memory.ready_since = None;
            return Ok(Next::After(RETRY_EVERY));
        }
        let Some(trust) = self.trust.borrow_and_update().clone() else { return Ok(Next::After(RETRY_EVERY)) };
        let governance = self.state.index().governance();
        let (mutating, validating) = (self.mutating(), self.validating());
        let live = match self.live(&mutating, &validating).await {
            Err(error @ RoundError::Missing { .. }) => {
                memory.holding.look(&governance.namespaces, &BTreeSet::new(), Timestamp::now());
                self.tell(&governance.teams, memory).await?;
                return Err(error);
            }
            live => live?,
        };
        // Before it is repaired: what is missing now has been missing.
        memory.holding.look(&governance.namespaces, &held_by_both(&live), Timestamp::now());
        let is_empty = live.iter().all(|live| live.is_empty);
        if let Some(left) = memory.until_filling(&self.target, is_empty).filter(|left| !left.is_zero()) {
            return Ok(Next::After(left));
        }
        let newest = live.iter().max_by_key(|live| live.teams_version).cloned().unwrap_or_default();
        let wanted = webhooks::settle(&governance, &newest);
        let held = self.apply(&wanted, &trust, [mutating, validating], &live).await?;
        self.report(&held, &trust);
        memory.holding.hold(&held, Timestamp::now());
        self.tell(&governance.teams, memory).await
    }

    /// Applies both, and says which namespaces both hold now.
    async fn apply(
        &self,
        wanted: &Wanted,
        trust: &Trust,
        [mutating, validating]: [Api<DynamicObject>; 2],
        [live_mutating, live_validating]: &[Live; 2],
    ) -> Result<BTreeSet<String>, RoundError> {
        let bundle = match trust {
            Trust::Bundle(pem) => Some(pem.as_str()),
            Trust::System => None,
        };
        let (new_mutating, new_validating) = webhooks::render(wanted, &self.config, bundle, &self.target);
        // Judging first: a namespace whose pods were completed and not judged would look governed.
        let validating = apply(&validating, new_validating, live_validating).await?;
        let mutating = apply(&mutating, new_mutating, live_mutating).await?;
        self.reports.applied.fetch_add(1, Ordering::Relaxed);
        Ok(held_by_both(&[mutating, validating]))
    }

    async fn live(
        &self,
        mutating: &Api<DynamicObject>,
        validating: &Api<DynamicObject>,
    ) -> Result<[Live; 2], RoundError> {
        let mutating = read(mutating, "MutatingWebhookConfiguration").await?;
        Ok([mutating, read(validating, "ValidatingWebhookConfiguration").await?])
    }

    fn report(&self, held: &BTreeSet<String>, trust: &Trust) {
        self.reports.governed_namespaces.store(held.len() as u64, Ordering::Relaxed);
        let bundle = match trust {
            Trust::Bundle(pem) => Some(pem.clone()),
            Trust::System => None,
        };
        self.reports.bundle.send_replace(bundle);
    }

    /// Writes the status of each Team that has news.
    async fn tell(&mut self, teams: &[GovernedTeam], memory: &mut Memory) -> Result<Next, RoundError> {
        let policies = self.policies.borrow_and_update().clone();
        memory.announced.look(&policies);
        let now = Timestamp::now();
        let mut next = Next::OnNews;
        for team in teams {
            let told = status(team, &memory.holding, &policies, now);
            if memory.holding.waits_for(team, now) {
                next = Next::After(Duration::from_secs(1));
            }
            if said_by_us(&told) == said_by_us(&team.status) {
                continue;
            }
            match self.write(team, &told).await? {
                Some(written) => self.announce(&written, team, &told, memory).await,
                // The watch will say.
                None => next = Next::After(Duration::from_secs(1)),
            }
        }
        Ok(next)
    }

    /// `None`: another replica was faster, or the Team is gone.
    async fn write(&self, team: &GovernedTeam, told: &TeamStatus) -> Result<Option<DynamicObject>, RoundError> {
        let api: Api<DynamicObject> = Api::all_with(self.api_server.client(), &team_object::resource());
        let patch = json!({
            "apiVersion": team_object::resource().api_version,
            "kind": team_object::KIND,
            "metadata": {"name": team.name, "resourceVersion": team.resource_version},
            "status": said_by_us(told),
        });
        match api.patch_status(&team.name, &forced(), &Patch::Apply(patch)).await {
            Ok(written) => {
                self.reports.statuses.fetch_add(1, Ordering::Relaxed);
                Ok(Some(written))
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => Ok(None),
            Err(error) => Err(failed("write the status of a Team", error)),
        }
    }

    /// The status says it already: an Event that is lost is told in the log alone.
    async fn announce(&self, written: &DynamicObject, team: &GovernedTeam, told: &TeamStatus, memory: &mut Memory) {
        let client = self.api_server.client();
        let (before, after) = (&team.status.conditions, &told.conditions);
        if let Err(error) = memory.announced.announce(&client, written, before, after).await {
            tracing::warn!(team = team.name, error = chain(&error), "cannot write an Event about a Team");
        }
    }

    fn mutating(&self) -> Api<DynamicObject> {
        Api::all_with(self.api_server.client(), &kube::api::ApiResource::erase::<MutatingWebhookConfiguration>(&()))
    }

    fn validating(&self) -> Api<DynamicObject> {
        Api::all_with(self.api_server.client(), &kube::api::ApiResource::erase::<ValidatingWebhookConfiguration>(&()))
    }
}

impl Holding {
    /// Takes up what was found before anything is repaired.
    fn look(&mut self, governed: &BTreeSet<String>, held: &BTreeSet<String>, now: Timestamp) {
        self.since.retain(|namespace, _| held.contains(namespace));
        for namespace in governed.difference(held) {
            self.lapsed.insert(namespace.clone(), now);
        }
        self.lapsed.retain(|namespace, _| governed.contains(namespace));
    }

    fn hold(&mut self, held: &BTreeSet<String>, now: Timestamp) {
        for namespace in held {
            self.since.entry(namespace.clone()).or_insert(now);
        }
    }

    /// Since when a namespace has been governed: as it was known, or from now on.
    fn governed_since(&self, team: &GovernedTeam, namespace: &str, now: Timestamp) -> Option<Timestamp> {
        let held = self.since.get(namespace)?;
        match self.known(team, namespace) {
            Some(since) => Some(since),
            None if now.duration_since(*held) >= HELD_FOR => Some(whole_seconds(now)),
            None => None,
        }
    }

    fn known(&self, team: &GovernedTeam, namespace: &str) -> Option<Timestamp> {
        let lapsed = self.lapsed.get(namespace);
        team.governed.get(namespace).copied().filter(|since| lapsed.is_none_or(|lapsed| since > lapsed))
    }

    /// A namespace that is held, and not long enough yet.
    fn waits_for(&self, team: &GovernedTeam, now: Timestamp) -> bool {
        team.namespaces.iter().any(|namespace| {
            let held = self.since.get(namespace);
            self.known(team, namespace).is_none() && held.is_some_and(|since| now.duration_since(*since) < HELD_FOR)
        })
    }
}

fn held_by_both([mutating, validating]: &[Live; 2]) -> BTreeSet<String> {
    validating.namespaces.intersection(&mutating.namespaces).cloned().collect()
}

/// What the configuration remembers of the time before this process began.
pub async fn remembered(client: &Client) -> kube::Result<Live> {
    let api: Api<DynamicObject> =
        Api::all_with(client.clone(), &kube::api::ApiResource::erase::<ValidatingWebhookConfiguration>(&()));
    let found = api.get_opt(webhooks::NAME).await?;
    let found = found.and_then(|found| serde_json::to_value(found).ok());
    Ok(found.map(|found| Live::read(&found)).unwrap_or_default())
}

/// Whoever edits or replaces a configuration is answered at once.
fn configurations_changed(client: &Client) -> impl stream::Stream<Item = ()> + Send + use<> {
    stream::select(changes::<MutatingWebhookConfiguration>(client), changes::<ValidatingWebhookConfiguration>(client))
}

fn changes<K>(client: &Client) -> impl stream::Stream<Item = ()> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    let only = watcher::Config::default().fields(&format!("metadata.name={}", webhooks::NAME));
    watcher(api, only).default_backoff().filter_map(|event| async move {
        match event {
            Ok(Event::Apply(_) | Event::Delete(_) | Event::InitApply(_)) => Some(()),
            Ok(Event::Init | Event::InitDone) | Err(_) => None,
        }
    })
}

async fn read(api: &Api<DynamicObject>, kind: &'static str) -> Result<Live, RoundError> {
    let found = api.get_opt(webhooks::NAME).await.map_err(|error| failed("read a webhook configuration", error))?;
    let found =
        found.filter(|found| found.metadata.deletion_timestamp.is_none()).ok_or(RoundError::Missing { kind })?;
    Ok(Live::read(&serde_json::to_value(found).unwrap_or_default()))
}

/// Against the version that was read: a configuration that was removed meanwhile does not come back.
async fn apply<K>(api: &Api<DynamicObject>, mut configuration: K, live: &Live) -> Result<Live, RoundError>
where
    K: Resource + Serialize + std::fmt::Debug,
{
    let metadata: &mut ObjectMeta = configuration.meta_mut();
    metadata.uid = Some(live.uid.clone());
    metadata.resource_version = Some(live.resource_version.clone());
    let applied = api.patch(webhooks::NAME, &forced(), &Patch::Apply(&configuration)).await;
    let lost = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 409);
    let applied = applied.map_err(|error| {
        if lost(&error) { RoundError::Lost } else { failed("apply a webhook configuration", error) }
    })?;
    Ok(Live::read(&serde_json::to_value(applied).unwrap_or_default()))
}

/// What the gate says is the gate's, whoever wrote it before.
fn forced() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

fn failed(what: &'static str, source: kube::Error) -> RoundError {
    RoundError::Api { what, source: Box::new(source) }
}

/// Where a Team stands. A namespace that is not held loses its time: what is created meanwhile comes past the gate.
pub fn status(team: &GovernedTeam, holding: &Holding, policies: &Standing, now: Timestamp) -> TeamStatus {
    let before = &team.status;
    let governed = |name: &String| {
        let governed_since = holding.governed_since(team, name, now)?;
        Some(GovernedNamespace { name: name.clone(), governed_since })
    };
    let namespaces: Vec<GovernedNamespace> = team.namespaces.iter().filter_map(governed).collect();
    let governed = namespaces.len() == team.namespaces.len() && team.unusable.is_none();
    let conditions =
        [governed_condition(team, &namespaces, governed), conflict_condition(team), unusable_condition(team)];
    let conditions = conditions.into_iter().flatten();
    let conditions = conditions.map(|(kind, holds, reason, message)| {
        condition(kind, holds, reason, message, &before.conditions, whole_seconds(now))
    });
    let policies = policy_report::condition(&before.conditions, policies, whole_seconds(now));
    TeamStatus {
        governed_since: namespaces.iter().map(|namespace| namespace.governed_since).max().filter(|_| governed),
        conditions: conditions.chain(policies).collect(),
        namespaces,
        limit: team.limit.clone(),
        used: before.used.clone(),
    }
}

type Said = Option<(&'static str, bool, &'static str, String)>;

fn governed_condition(team: &GovernedTeam, held: &[GovernedNamespace], governed: bool) -> Said {
    let waiting: Vec<&str> =
        team.namespaces.iter().filter(|name| held.iter().all(|held| held.name != **name)).map(String::as_str).collect();
    let message = match (governed, team.absent.as_slice()) {
        (true, []) => String::new(),
        (true, absent) => format!("these namespaces do not exist yet: {}", absent.join(", ")),
        (false, _) if team.unusable.is_some() => "the Team cannot be used".to_owned(),
        (false, _) => format!("not in both webhook configurations yet: {}", waiting.join(", ")),
    };
    let reason = if governed { "WebhooksHoldNamespaces" } else { "Waiting" };
    Some(("Governed", governed, reason, message))
}

/// Absent while there is nothing to say: most Teams never meet another.
fn conflict_condition(team: &GovernedTeam) -> Said {
    let had = team.status.conditions.iter().any(|condition| condition.kind == "Conflict");
    match team.conflicts.as_slice() {
        [] => had.then(|| ("Conflict", false, "NoOverlap", String::new())),
        conflicts => Some(("Conflict", true, "Overlap", conflicts.join("; "))),
    }
}

fn unusable_condition(team: &GovernedTeam) -> Said {
    let had = team.status.conditions.iter().any(|condition| condition.kind == "Unusable");
    match &team.unusable {
        None => had.then(|| ("Unusable", false, "Readable", String::new())),
        Some(problem) => Some(("Unusable", true, "Unreadable", problem.clone())),
    }
}

/// `used` is written by whoever keeps the ledger.
fn said_by_us(status: &TeamStatus) -> Value {
    let mut said = serde_json::to_value(status).unwrap_or_default();
    if let Some(fields) = said.as_object_mut() {
        fields.remove("used");
    }
    said
}

/// A creationTimestamp has whole seconds: what is created in the second in which a namespace became governed is not older.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the policies are well.
    fn status(team: &GovernedTeam, holding: &Holding, now: Timestamp) -> TeamStatus {
        super::status(team, holding, &Standing::current(), now)
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + millis).expect("in range")
    }

    fn team(namespaces: &[&str]) -> GovernedTeam {
        GovernedTeam {
            name: "a".to_owned(),
            resource_version: "1".to_owned(),
            status: TeamStatus::default(),
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            governed: BTreeMap::new(),
            absent: Vec::new(),
            conflicts: Vec::new(),
            unusable: None,
            limit: Some("nvidia.com/gpu 16".to_owned()),
        }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn holding(held: &[&str], now: Timestamp) -> Holding {
        let mut holding = Holding::default();
        holding.look(&names(held), &names(held), now);
        holding.hold(&names(held), now);
        holding
    }

    fn stands(status: &TeamStatus, kind: &str) -> Option<(String, String)> {
        let found = status.conditions.iter().find(|condition| condition.kind == kind)?;
        Some((found.status.clone(), found.message.clone()))
    }

    /// The watch brings what was written.
    fn seen(team: &mut GovernedTeam, told: TeamStatus) {
        let times = told.namespaces.iter().map(|namespace| (namespace.name.clone(), namespace.governed_since));
        team.governed = times.collect();
        team.status = told;
    }

    #[test]
    fn is_governed_once_both_have_held_everything_for_a_while() {
        let mut holding = holding(&[], at(0));
        holding.look(&names(&["x", "y"]), &names(&[]), at(0));
        holding.hold(&names(&["x", "y"]), at(0));
        let mut team = team(&["x", "y"]);
        let early = status(&team, &holding, at(2_999));
        assert_eq!((early.governed_since, early.namespaces.len()), (None, 0));
        assert_eq!(
            stands(&early, "Governed"),
            Some(("False".to_owned(), "not in both webhook configurations yet: x, y".to_owned()))
        );
        assert!(holding.waits_for(&team, at(2_999)) && !holding.waits_for(&team, at(3_000)));

        let late = status(&team, &holding, at(3_700));
        assert_eq!(late.governed_since, Some(at(3_000)), "whole seconds, as a creationTimestamp has");
        assert_eq!(stands(&late, "Governed"), Some(("True".to_owned(), String::new())));

        // Again, or another replica, later, changes nothing.
        seen(&mut team, late.clone());
        assert_eq!(status(&team, &holding, at(80_000)), late);
        assert_eq!(status(&team, &self::holding(&["x", "y"], at(90_000)), at(90_000)), late);
    }

    #[test]
    fn a_namespace_that_joins_later_has_its_own_time() {
        let mut holding = holding(&["x"], at(0));
        let mut joined = team(&["x"]);
        let told = status(&joined, &holding, at(5_000));
        seen(&mut joined, told);
        joined.namespaces.push("y".to_owned());
        holding.look(&names(&["x", "y"]), &names(&["x"]), at(60_000));
        holding.hold(&names(&["x", "y"]), at(60_000));
        let later = status(&joined, &holding, at(64_000));
        let times: Vec<_> =
            later.namespaces.iter().map(|namespace| (namespace.name.as_str(), namespace.governed_since)).collect();
        assert_eq!(times, [("x", at(5_000)), ("y", at(64_000))]);
        assert_eq!(later.governed_since, Some(at(64_000)));
    }

    #[test]
    fn a_namespace_that_was_not_held_begins_anew() {
        let mut holding = holding(&["x"], at(0));
        let mut team = team(&["x"]);
        let told = status(&team, &holding, at(5_000));
        seen(&mut team, told);

        // The configurations are gone.
        holding.look(&names(&["x"]), &names(&[]), at(60_000));
        let without = status(&team, &holding, at(60_000));
        assert_eq!((without.namespaces.len(), without.governed_since), (0, None));
        assert_eq!(stands(&without, "Governed").map(|(status, _)| status).as_deref(), Some("False"));

        // They come back before anybody could write that down; a process that starts just then sees the same.
        for mut holding in [holding, Holding::default()] {
            holding.look(&names(&["x"]), &names(&[]), at(61_000));
            holding.hold(&names(&["x"]), at(61_000));
            assert_eq!(status(&team, &holding, at(62_000)).governed_since, None);
            assert_eq!(status(&team, &holding, at(64_000)).governed_since, Some(at(64_000)));
        }
    }

    #[test]
    fn conflicts_are_told_and_taken_back() {
        let mut team = team(&[]);
        let quiet = status(&team, &Holding::default(), at(0));
        assert_eq!(stands(&quiet, "Conflict"), None);
        assert_eq!(stands(&quiet, "Governed").map(|(status, _)| status).as_deref(), Some("True"), "nothing to hold");
        team.conflicts = vec!["namespace `x` is declared in Team b already".to_owned()];
        team.status = status(&team, &Holding::default(), at(0));
        assert_eq!(stands(&team.status, "Conflict").map(|(status, _)| status).as_deref(), Some("True"));
        team.conflicts.clear();
        let mended = status(&team, &Holding::default(), at(0));
        assert_eq!(stands(&mended, "Conflict"), Some(("False".to_owned(), String::new())));
    }

    #[test]
    fn what_the_ledger_writes_stays() {
        let mut team = team(&[]);
        team.status.used = Some("nvidia.com/gpu 3".to_owned());
        let told = status(&team, &Holding::default(), at(0));
        assert_eq!(told.used.as_deref(), Some("nvidia.com/gpu 3"));
        assert_eq!(said_by_us(&told).get("used"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn empty_configurations_behind_a_service_wait_for_its_endpoints() {
        let service = Target::Service { namespace: "n".to_owned(), name: "s".to_owned() };
        let mut memory = Memory::default();
        assert_eq!(memory.until_filling(&service, true), Some(READY_BEFORE_FILLING));
        assert_eq!(memory.until_filling(&service, false), None);
        assert_eq!(memory.until_filling(&Target::Url(String::new()), true), None);
        tokio::time::advance(READY_BEFORE_FILLING + Duration::from_secs(1)).await;
        assert_eq!(memory.until_filling(&service, true), None);
    }
}
