//! One actor for each team: whoever needs a reservation waits there, and one round answers all who wait. So a replica never
//! races against itself, and a burst costs few writes.
//!
//! Between requests the actor lets go of what has ended, enters what came past the gate, and makes a ledger that is missing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use engine::cluster::{Cluster, is_finished};
use engine::pipeline::{Consumption, Evaluation};
use engine::quota::{
    Balance, Doubt, Fence, Known, Ledger, Memory, Moment, Observed, PodSight, Reservation, Revision, RootSight, Round,
    Stray, View, Waiter, Why, Word, complete, needs, rebuilt, round,
};
use engine::review::Review;
use engine::snapshot::Snapshot;
use engine::team::{QuotaMode, Team};
use futures::future::join_all;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{LedgerStore, Stored, Swap, Unavailable, Version, Versioned};
use crate::cluster::lookup::{Lookup, Wanted, WantedKind};

/// How often an actor looks whether something has ended, give or take a half, so that replicas do not write at once.
const LOOK_EVERY: Duration = Duration::from_millis(600);

/// Without any news: what was missing may have been missing long enough.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// How long a lost race is slept over, at most.
const BACK_OFF: Duration = Duration::from_millis(10);

/// A quorum read in the background.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Waiters of one round.
const MOST_WAITERS: usize = 256;

/// etcd takes 1.5 MiB, and the API server's own fields need room.
const LARGEST: usize = 1_200_000;

/// Asks for one reservation.
#[derive(Debug, Clone)]
pub struct Ask {
    pub review: Arc<Review>,
    pub evaluation: Arc<Evaluation>,
    pub snapshot: Arc<Snapshot>,
    pub team: Arc<Team>,
    /// When the answer must be here.
    pub deadline: Instant,
}

/// What became of it.
#[derive(Debug, Clone)]
pub enum Told {
    /// It is written.
    Held(Consumption),
    Refused(Consumption),
    /// Policies or the Team have changed meanwhile: evaluate again.
    Behind,
    /// The ledger was lost and is being made anew: so long.
    Settling(Duration),
    /// Not now, and why.
    Busy(String),
}

/// What the actors have done: plain numbers for whoever shows them.
#[derive(Debug, Default)]
pub struct Counters {
    pub rounds: AtomicU64,
    /// Who waited, in all rounds.
    pub waiters: AtomicU64,
    pub writes: AtomicU64,
    pub conflicts: AtomicU64,
    pub quorum_reads: AtomicU64,
    /// Pods that ended.
    pub released: AtomicU64,
    /// Of these, reservations whose object never came to exist.
    pub leaked: AtomicU64,
    /// Pods that came past the gate and were entered.
    pub adopted: AtomicU64,
    /// Ledgers that were made, or made anew.
    pub built: AtomicU64,
    /// Answers that no time was left for.
    pub busy: AtomicU64,
    /// Answers for which another replica knew more.
    pub behind: AtomicU64,
}

/// The ledgers of all teams.
pub struct Ledgers<S> {
    shared: Arc<Shared<S>>,
    actors: Mutex<BTreeMap<String, mpsc::Sender<Waiting>>>,
}

struct Shared<S> {
    store: Arc<S>,
    snapshots: Arc<ArcSwap<Snapshot>>,
    /// Absent where there is no cluster: then nothing is let go, and nothing comes past the gate.
    lookup: OnceLock<Arc<dyn Lookup>>,
    counters: Arc<Counters>,
    began: Instant,
}

impl<S> fmt::Debug for Ledgers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledgers").finish_non_exhaustive()
    }
}

impl<S: LedgerStore> Ledgers<S> {
    pub fn new(store: Arc<S>, snapshots: Arc<ArcSwap<Snapshot>>) -> Self {
        let shared =
            Shared { store, snapshots, lookup: OnceLock::new(), counters: Arc::default(), began: Instant::now() };
        Self { shared: Arc::new(shared), actors: Mutex::default() }
    }

    /// Asks there for the proof that something exists. Once, before the first reservation.
    pub fn look_up_in(&self, lookup: Arc<dyn Lookup>) {
        // A second one changes nothing.
        let _ = self.shared.lookup.set(lookup);
    }

    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.shared.counters)
    }

    /// Reserves, or says why not. Call it within a runtime.
    pub async fn reserve(&self, ask: Ask) -> Told {
        let (answer, told) = oneshot::channel();
        let (team, deadline) = (ask.team.name.clone(), ask.deadline);
        let revision = self.shared.revision(&ask.team, &ask.snapshot);
        let Some(reservation) = ask.evaluation.reservation.clone() else { return Told::Held(Consumption::default()) };
        let waiting = Waiting { ask, reservation, revision, consumption: Consumption::default(), answer };
        let told = async {
            if self.actor(&team).send(waiting).await.is_err() {
                return Told::Busy("its keeper has ended".to_owned());
            }
            told.await.unwrap_or_else(|_| Told::Busy("its keeper has ended".to_owned()))
        };
        timeout_at(deadline, told).await.unwrap_or_else(|_| {
            self.shared.counters.busy.fetch_add(1, Ordering::Relaxed);
            Told::Busy("too many ask at once".to_owned())
        })
    }

    /// Keeps an actor for each team whose quota is kept here, whether anybody asks or not. Never ends.
    pub async fn follow_teams(&self) {
        loop {
            let snapshot = self.shared.snapshots.load_full();
            for team in snapshot.teams.iter().filter(|team| team.quota_mode() == QuotaMode::Ledger) {
                drop(self.actor(&team.name));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn actor(&self, team: &str) -> mpsc::Sender<Waiting> {
        let mut actors = self.actors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(actor) = actors.get(team).filter(|actor| !actor.is_closed()) {
            return actor.clone();
        }
        let (actor, inbox) = mpsc::channel(MOST_WAITERS);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(
            Actor { team: team.to_owned(), shared, inbox, memory: Memory::default(), has_known: false, fence: None }
                .run(),
        );
        actors.insert(team.to_owned(), actor.clone());
        actor
    }
}

impl<S> Shared<S> {
    /// One replica alone needs no fence.
    fn revision(&self, team: &Team, snapshot: &Snapshot) -> Option<Revision> {
        self.lookup.get().map(|_| team.quota_revision(snapshot.policies.revision()))
    }
}

/// Somebody who waits.
struct Waiting {
    ask: Ask,
    reservation: Reservation,
    revision: Option<Revision>,
    /// Of the last round.
    consumption: Consumption,
    answer: oneshot::Sender<Told>,
}

impl Waiter for Waiting {
    fn reservation(&self) -> &Reservation {
        &self.reservation
    }

    fn revision(&self) -> Option<&Revision> {
        self.revision.as_ref()
    }

    fn is_dry_run(&self) -> bool {
        self.ask.review.dry_run
    }

    fn may(&mut self, balance: &Balance) -> bool {
        let Ask { review, evaluation, snapshot, .. } = &self.ask;
        self.consumption = evaluation.consume(review, snapshot, balance);
        self.consumption.is_permitted()
    }
}

impl Waiting {
    /// Nobody listens any more, or there is no time to write and to answer.
    fn is_over(&self) -> bool {
        self.answer.is_closed() || Instant::now() >= self.ask.deadline
    }

    fn tell(self, told: Told) {
        // Whoever gave up waiting has answered already.
        let _ = self.answer.send(told);
    }
}

struct Actor<S> {
    team: String,
    shared: Arc<Shared<S>>,
    inbox: mpsc::Receiver<Waiting>,
    memory: Memory,
    /// A ledger of this team has been seen: if there is none now, it was lost.
    has_known: bool,
    /// The last fence that was seen: a ledger that is made anew goes on from it.
    fence: Option<Fence>,
}

/// What the last look in the background saw: without news there is nothing to do.
#[derive(Default)]
struct Looked {
    cluster: Option<Arc<Cluster>>,
    version: Option<Version>,
    at: Option<Instant>,
}

impl<S: LedgerStore> Actor<S> {
    async fn run(mut self) {
        let mut looked = Looked::default();
        loop {
            let pause = LOOK_EVERY / 2 + LOOK_EVERY.mul_f64(fastrand::f64());
            let mut waiting = Vec::new();
            match tokio::time::timeout(pause, self.inbox.recv_many(&mut waiting, MOST_WAITERS)).await {
                // Nobody can ask any more.
                Ok(0) => return,
                Ok(_) => self.answer(waiting).await,
                Err(_) if self.has_news(&mut looked) => self.answer(Vec::new()).await,
                Err(_) => {}
            }
        }
    }

    /// For a look in the background.
    fn has_news(&self, looked: &mut Looked) -> bool {
        let snapshot = self.shared.snapshots.load();
        if self.shared.lookup.get().is_none() || snapshot.teams.named(&self.team).is_none() {
            return false;
        }
        let version = match self.shared.store.known(&self.team) {
            Some(Stored::Built(Versioned { version, .. }) | Stored::Unbuilt(version)) => Some(version),
            Some(Stored::Absent) | None => None,
        };
        let same_cluster = looked.cluster.as_ref().is_some_and(|cluster| Arc::ptr_eq(cluster, &snapshot.cluster));
        let recent = looked.at.is_some_and(|at| at.elapsed() < LOOK_AT_LEAST_EVERY);
        if same_cluster && recent && version.is_some() && looked.version == version {
            return false;
        }
        *looked = Looked { cluster: Some(Arc::clone(&snapshot.cluster)), version, at: Some(Instant::now()) };
        true
    }

    /// Holds rounds until everybody who waits is told.
    async fn answer(&mut self, mut waiting: Vec<Waiting>) {
        let mut read = self.shared.store.known(&self.team).map(|stored| (stored, false));
        let in_background = waiting.is_empty();
        loop {
            waiting.retain(|waiting| !waiting.is_over());
            if waiting.is_empty() && !in_background {
                return;
            }
            let (stored, fresh) = match read.take() {
                Some(read) => read,
                None => match self.read().await {
                    Ok(stored) => (stored, true),
                    Err(error) => return tell_all(waiting, &Told::Busy(error.to_string())),
                },
            };
            let versioned = match stored {
                Stored::Built(versioned) => versioned,
                Stored::Absent | Stored::Unbuilt(_) if fresh => match self.build(&stored).await {
                    Ok(Some(versioned)) => versioned,
                    Ok(None) => continue,
                    Err(error) => return tell_all(waiting, &Told::Busy(error.to_string())),
                },
                Stored::Absent | Stored::Unbuilt(_) => continue,
            };
            self.has_known = true;
            self.fence.clone_from(&versioned.ledger.fence);
            match self.settled(&versioned).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => return tell_all(waiting, &Told::Busy(error.to_string())),
            }
            let Versioned { ledger, version } = versioned;
            let mut round = self.round(Known { ledger, fresh }, &mut waiting);
            let doubts = std::mem::take(&mut round.doubts);
            if round.read_again {
                match self.settle(doubts).await {
                    Ok(()) => continue,
                    Err(error) => return tell_all(waiting, &Told::Busy(error.to_string())),
                }
            }
            match self.write(&round, &version).await {
                Ok(Swap::Done) => {
                    self.count(&round);
                    self.tell(waiting, round.words, &version);
                    // Nobody waits for these.
                    let _ = self.settle(doubts).await;
                    return;
                }
                Ok(Swap::Lost) => {
                    self.shared.counters.conflicts.fetch_add(1, Ordering::Relaxed);
                    if in_background {
                        return;
                    }
                    tokio::time::sleep(BACK_OFF.mul_f64(fastrand::f64())).await;
                }
                // It may be written or not: reading tells.
                Err(Unavailable(_)) if !in_background => tokio::time::sleep(BACK_OFF).await,
                Err(error) => {
                    tracing::debug!(team = self.team, %error, "cannot write the ledger");
                    return;
                }
            }
        }
    }

    async fn read(&self) -> Result<Stored, Unavailable> {
        self.shared.counters.quorum_reads.fetch_add(1, Ordering::Relaxed);
        self.shared.store.read(&self.team).await
    }

    fn round(&mut self, known: Known, waiting: &mut [Waiting]) -> Round {
        let snapshot = self.shared.snapshots.load_full();
        let team = snapshot.teams.named(&self.team);
        let observed = team.filter(|_| self.shared.lookup.get().is_some());
        let view = match observed {
            Some(team) => Seen::Cluster(Observed { cluster: &snapshot.cluster, team, kinds: &snapshot.config.kinds }),
            None => Seen::Nothing,
        };
        let mine = team.and_then(|team| self.shared.revision(team, &snapshot));
        let moment =
            Moment { now: self.shared.began.elapsed(), patience: snapshot.config.patience(), mine: mine.as_ref() };
        round(&known, &view, &mut self.memory, &moment, waiting)
    }

    /// Writes what the round came to, if anything.
    async fn write(&self, round: &Round, version: &Version) -> Result<Swap, Unavailable> {
        let Some(ledger) = &round.write else { return Ok(Swap::Done) };
        self.swap(version, ledger).await
    }

    async fn swap(&self, version: &Version, ledger: &Ledger) -> Result<Swap, Unavailable> {
        if serde_json::to_vec(ledger).map_or(0, |bytes| bytes.len()) > LARGEST {
            return Err(Unavailable(format!("it holds more than {LARGEST} bytes of entries")));
        }
        let swapped = self.shared.store.swap(&self.team, version, ledger).await;
        if swapped == Ok(Swap::Done) {
            self.shared.counters.writes.fetch_add(1, Ordering::Relaxed);
        }
        swapped
    }

    fn count(&self, round: &Round) {
        let Counters { rounds, waiters, released, leaked, adopted, .. } = &*self.shared.counters;
        let add = |counter: &AtomicU64, count: usize| counter.fetch_add(count as u64, Ordering::Relaxed);
        add(rounds, 1);
        add(waiters, round.words.len());
        add(released, round.released);
        add(leaked, round.leaked);
        add(adopted, round.adopted);
        if round.adopted > 0 {
            tracing::warn!(team = self.team, pods = round.adopted, "pods came past the gate and are counted now");
        }
    }

    fn tell(&mut self, waiting: Vec<Waiting>, words: Vec<Word>, version: &Version) {
        for (mut waiting, word) in waiting.into_iter().zip(words) {
            let consumption = std::mem::take(&mut waiting.consumption);
            waiting.tell(match word {
                Word::Held => Told::Held(consumption),
                Word::Refused => Told::Refused(consumption),
                Word::Later(Why::Settling) => Told::Settling(self.settles_for(version)),
                Word::Later(Why::Behind) => {
                    self.shared.counters.behind.fetch_add(1, Ordering::Relaxed);
                    Told::Behind
                }
            });
        }
    }

    fn settles_for(&mut self, version: &Version) -> Duration {
        let patience = self.shared.snapshots.load().config.patience();
        self.memory.settles_for(&version.uid, patience, self.shared.began.elapsed())
    }

    /// Asks the API server about what only it can know.
    async fn settle(&mut self, doubts: Vec<Doubt>) -> Result<(), Unavailable> {
        let Some(lookup) = self.shared.lookup.get().filter(|_| !doubts.is_empty()) else { return Ok(()) };
        let asked = doubts.iter().map(|doubt| {
            let wanted = wanted(doubt);
            async move { tokio::time::timeout(READ_WITHIN, lookup.fetch(&wanted)).await }
        });
        let found = join_all(asked).await;
        for (doubt, found) in doubts.iter().zip(found) {
            match found {
                Ok(Ok(Some(object))) if !is_finished(&object) => self.learn(doubt, object),
                Ok(Ok(_)) => self.memory.learn(&doubt.uid, false, doubt.is_stray),
                Ok(Err(error)) => return Err(Unavailable(error.to_string())),
                Err(_) => return Err(Unavailable("no answer in time".to_owned())),
            }
        }
        Ok(())
    }

    /// Something runs; of a root the size as it is stored is worth more than what a watch shows.
    fn learn(&mut self, doubt: &Doubt, object: Value) {
        let snapshot = self.shared.snapshots.load();
        match snapshot.teams.named(&self.team).filter(|_| doubt.kind != "Pod") {
            Some(team) => self.memory.learn_floor(&doubt.uid, needs(object, team, &snapshot.config.kinds)),
            None => self.memory.learn(&doubt.uid, true, doubt.is_stray),
        }
    }

    /// Whether the ledger may be drawn on; ends its settling when the time has come.
    async fn settled(&mut self, Versioned { ledger, version }: &Versioned) -> Result<bool, Unavailable> {
        if !ledger.settling || !self.settles_for(version).is_zero() {
            return Ok(true);
        }
        // What the lost ledger had let in has been stored by now, or never will be.
        let snapshot = self.shared.snapshots.load_full();
        let Some(team) = snapshot.teams.named(&self.team) else { return Ok(true) };
        let cluster = self.with_pods_of(team, &snapshot.cluster).await?;
        let mut settled = ledger.clone();
        complete(&mut settled, &Observed { cluster: &cluster, team, kinds: &snapshot.config.kinds });
        settled.settling = false;
        self.swap(version, &settled).await?;
        tracing::info!(team = self.team, "its ledger has settled");
        Ok(false)
    }

    /// Makes the ledger from what is stored. `None`: somebody else has, or is about to.
    async fn build(&mut self, stored: &Stored) -> Result<Option<Versioned>, Unavailable> {
        let snapshot = self.shared.snapshots.load_full();
        let Some(team) = snapshot.teams.named(&self.team) else {
            return Err(Unavailable("its Team is gone".to_owned()));
        };
        let version = match stored {
            Stored::Unbuilt(version) => version,
            Stored::Absent => {
                self.shared.store.create(&self.team).await?;
                return Ok(None);
            }
            Stored::Built(versioned) => return Ok(Some(versioned.clone())),
        };
        let cluster = self.with_pods_of(team, &snapshot.cluster).await?;
        let mut ledger = rebuilt(&Observed { cluster: &cluster, team, kinds: &snapshot.config.kinds });
        // Where the gate has let nothing in yet, nothing can be under way.
        ledger.settling = self.has_known || team.is_governed();
        ledger.fence.clone_from(&self.fence);
        if self.swap(version, &ledger).await? == Swap::Done {
            self.shared.counters.built.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                team = self.team,
                settling = ledger.settling,
                roots = ledger.entries.len(),
                "made its ledger"
            );
        }
        Ok(None)
    }

    /// The cluster with the team's pods as a quorum read shows them.
    async fn with_pods_of(&self, team: &Team, cluster: &Cluster) -> Result<Cluster, Unavailable> {
        let Some(lookup) = self.shared.lookup.get() else { return Ok(cluster.clone()) };
        let mut current = cluster.clone();
        for namespace in &team.spec.namespaces {
            let listing = tokio::time::timeout(READ_WITHIN, lookup.pods(namespace)).await;
            let pods = listing
                .map_err(|_| Unavailable("no list of pods in time".to_owned()))?
                .map_err(|error| Unavailable(error.to_string()))?;
            current.replace_pods(namespace, pods);
        }
        Ok(current)
    }
}

fn tell_all(waiting: Vec<Waiting>, told: &Told) {
    waiting.into_iter().for_each(|waiting| waiting.tell(told.clone()));
}

fn wanted(Doubt { uid, group, kind, namespace, name, is_stray: _ }: &Doubt) -> Wanted {
    Wanted {
        group: group.clone(),
        kind: WantedKind::Kind(kind.clone()),
        namespace: namespace.clone(),
        name: name.clone(),
        uid: Some(uid.clone()),
    }
}

/// Where there is no cluster, nothing is seen.
enum Seen<'a> {
    Cluster(Observed<'a>),
    Nothing,
}

impl View for Seen<'_> {
    fn pod(&self, uid: &str) -> PodSight {
        match self {
            Self::Cluster(observed) => observed.pod(uid),
            Self::Nothing => PodSight::Unknown,
        }
    }

    fn root(&self, uid: &str) -> RootSight {
        match self {
            Self::Cluster(observed) => observed.root(uid),
            Self::Nothing => RootSight::Unknown,
        }
    }

    fn strays(&self, ledger: &Ledger) -> Vec<Stray> {
        match self {
            Self::Cluster(observed) => observed.strays(ledger),
            Self::Nothing => Vec::new(),
        }
    }
}
