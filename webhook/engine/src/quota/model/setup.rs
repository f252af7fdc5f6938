//! What a model is given before anything happens, and what can happen in it. One [`Action`] is the smallest step after which
//! somebody else may act.

use std::fmt;

use crate::amounts::{Amounts, ResourceName};

/// What is given before anything happens.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) replicas: usize,
    /// Of the Team, by generation: more than one where it is changed.
    pub(super) limits: Vec<Amounts>,
    /// Revisions of the policies, in their order.
    pub(super) policies: usize,
    pub(super) script: Vec<Ask>,
    pub(super) patience: u64,
    pub(super) budget: Budget,
    pub(super) mutant: Option<Mutant>,
}

/// How often what goes wrong may go wrong, and how much time there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Budget {
    pub(super) time: u8,
    pub(super) ticks: u8,
    pub(super) crashes: u8,
    pub(super) relists: u8,
    /// Swaps whose answer is lost.
    pub(super) lost: u8,
    /// Requests that another webhook refuses, or whose client gives up.
    pub(super) failures: u8,
    pub(super) retries: u8,
    pub(super) redeliveries: u8,
    /// Pods and roots that are deleted or finish, roots that are scaled down.
    pub(super) ends: u8,
    pub(super) ledger_losses: u8,
}

/// The algorithm, broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    AnswersBeforeTheSwap,
    SwapsBlindly,
    RefusesByOldNews,
    WaitsForNothing,
    BelievesAbsenceUnproved,
    CountsTerminatingAsGone,
    NeverLooks,
    IgnoresTheFence,
    SettlesUnseen,
    ForgetsAPod,
    BelievesAStuckWatch,
}

/// What somebody asks for; each once, or again where it failed.
#[derive(Clone)]
pub(super) enum Ask {
    /// Below the root that another ask makes, or bare.
    Pod {
        root: Option<usize>,
        name: u8,
        amounts: Amounts,
        dry_run: bool,
    },
    Root {
        name: u8,
        floor: Amounts,
        has_generation: bool,
    },
    /// The root's size grows; through `scale` nobody says of which generation.
    Raise {
        root: usize,
        floor: Amounts,
        by_scale: bool,
    },
    /// Made while no gate looked.
    Stray {
        root: Option<usize>,
        name: u8,
        amounts: Amounts,
    },
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |amounts: &Amounts| serde_json::to_string(amounts).unwrap_or_default();
        match self {
            Self::Pod { root, name, amounts, dry_run } => {
                write!(f, "pod-{name} below {root:?} with {}, dry run {dry_run}", shown(amounts))
            }
            Self::Root { name, floor, has_generation } => {
                write!(f, "root-{name} keeps {}, generations {has_generation}", shown(floor))
            }
            Self::Raise { root, floor, by_scale } => {
                write!(f, "raises {root} to {}, by scale {by_scale}", shown(floor))
            }
            Self::Stray { root, name, amounts } => write!(f, "stray pod-{name} below {root:?} with {}", shown(amounts)),
        }
    }
}

/// Which ask, and which attempt at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Uid(pub(super) usize, pub(super) u8);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Uid {
    pub(super) fn parse(text: &str) -> Self {
        let (ask, attempt) = text.split_once('.').expect("ours");
        Self(ask.parse().expect("a number"), attempt.parse().expect("a number"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Send(usize, usize),
    /// The connection broke, and the same review goes to another replica.
    Redeliver(usize, usize),
    /// The replica takes its next step.
    Work(usize),
    /// Its swap gets no answer; it was written or not.
    WorkUnanswered(usize, bool),
    Tick(usize),
    Store(usize),
    Fail(usize),
    Retry(usize),
    Terminate(Uid),
    Finish(Uid),
    Delete(Uid),
    /// To so much of its floor, in halves.
    ScaleDown(Uid),
    Show(usize, Uid),
    ShowLedger(usize),
    Relist(usize),
    Crash(usize),
    Restart(usize),
    Pass,
    Publish,
    LearnPolicies(usize),
    ChangeTeam,
    LearnTeam(usize),
    LoseLedger,
}

pub(super) fn gpus(amount: u64) -> Amounts {
    Amounts::of(ResourceName::new("nvidia.com/gpu"), amount)
}

pub(super) fn efa(amount: u64) -> Amounts {
    Amounts::of(ResourceName::new("vpc.amazonaws.com/efa"), amount)
}
