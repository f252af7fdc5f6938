//! The two explorations, and the shortening of what they find.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use super::setup::{Action, Ask, Budget, Mutant, Setup, efa, gpus};
use super::world::World;
use crate::amounts::Amounts;

/// A law that was broken, and how.
pub(super) struct Found {
    pub(super) seed: u64,
    pub(super) setup: Setup,
    pub(super) trace: Vec<Action>,
    pub(super) why: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { replicas, limits, patience, .. } = &self.setup;
        writeln!(f, "{}", self.why)?;
        writeln!(f, "seed {}: {replicas} replicas, limits {}, patience {patience}", self.seed, shown(limits))?;
        for (at, ask) in self.setup.script.iter().enumerate() {
            writeln!(f, "  ask {at}: {ask:?}")?;
        }
        self.trace.iter().try_for_each(|action| writeln!(f, "  {action:?}"))
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn shown(limits: &[Amounts]) -> String {
    limits.iter().map(|limit| serde_json::to_string(limit).unwrap_or_default()).collect::<Vec<_>>().join(", then ")
}

/// The same numbers for the same seed, everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit.max(1)
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("small")
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.below(chance) == 0
    }
}

fn large(dice: &mut Dice, mutant: Option<Mutant>) -> Setup {
    let mut script: Vec<Ask> = Vec::new();
    let with_strays = dice.one_in(4);
    for _ in 0..6 + dice.below(25) {
        let roots: Vec<usize> = (0..script.len()).filter(|at| matches!(script[*at], Ask::Root { .. })).collect();
        let root = (!roots.is_empty() && !dice.one_in(3)).then(|| roots[dice.index(roots.len())]);
        let name = u8::try_from(dice.below(16)).expect("small");
        let mut amounts = gpus(1 + dice.below(3) / 2);
        if dice.one_in(4) {
            amounts = amounts.saturating_add(&efa(1 + dice.below(2)));
        }
        script.push(match (dice.below(10), root) {
            (0..=1, _) => Ask::Root { name: name % 2, floor: gpus(1 + dice.below(4)), has_generation: !dice.one_in(3) },
            (2, Some(root)) => Ask::Raise { root, floor: gpus(2 + dice.below(4)), by_scale: dice.one_in(3) },
            (3, _) if with_strays => Ask::Stray { root, name, amounts },
            (4, _) if dice.one_in(3) => Ask::Pod { root, name, amounts, dry_run: true },
            _ => Ask::Pod { root, name, amounts, dry_run: false },
        });
    }
    let limit = gpus(3 + dice.below(8)).saturating_add(&efa(2 + dice.below(3)));
    let mut limits = vec![limit];
    if dice.one_in(4) {
        limits.push(gpus(2 + dice.below(3)).saturating_add(&efa(1)));
    }
    let mut some = |most: u64| u8::try_from(dice.below(most + 1)).expect("small");
    let budget = Budget {
        time: 50,
        ticks: 80,
        crashes: some(2),
        relists: some(3),
        lost: some(3),
        failures: some(5),
        retries: some(15),
        redeliveries: some(2),
        ends: some(12),
        ledger_losses: some(8) / 8,
    };
    let policies = if dice.one_in(3) { 2 } else { 1 };
    let replicas = 1 + dice.index(3);
    Setup { replicas, limits, policies, script, patience: 4 + dice.below(3), budget, mutant }
}

/// How likely it is that this comes next.
fn weight(action: Action) -> u64 {
    match action {
        Action::Work(_) => 40,
        Action::Send(..) => 6,
        Action::Store(_) => 30,
        Action::Show(..) | Action::ShowLedger(_) => 6,
        Action::Tick(_) | Action::Retry(_) | Action::Redeliver(..) => 3,
        Action::Pass => 8,
        Action::WorkUnanswered(..) => 6,
        Action::Restart(_) => 4,
        Action::LearnPolicies(_) | Action::LearnTeam(_) => 3,
        Action::Fail(_) | Action::Terminate(_) | Action::Finish(_) | Action::Delete(_) | Action::ScaleDown(_) => 2,
        Action::Relist(_) | Action::Crash(_) | Action::Publish | Action::ChangeTeam | Action::LoseLedger => 1,
    }
}

fn choose(dice: &mut Dice, actions: &[Action]) -> Option<Action> {
    let total: u64 = actions.iter().map(|action| weight(*action)).sum();
    let mut left = dice.below(total);
    actions.iter().copied().find(|action| {
        let found = left < weight(*action);
        left = left.saturating_sub(weight(*action));
        found
    })
}

/// One world at random.
pub(super) fn wander(seed: u64, mutant: Option<Mutant>) -> Result<World, Box<Found>> {
    let mut dice = Dice(seed);
    let setup = large(&mut dice, mutant);
    let steps = 60 + dice.below(260);
    let mut world = World::new(&setup);
    let mut trace = Vec::new();
    for _ in 0..steps {
        let Some(action) = choose(&mut dice, &world.actions(&setup)) else { break };
        trace.push(action);
        if let Err(why) = world.apply(&setup, action) {
            return Err(Box::new(Found { seed, setup, trace, why }));
        }
    }
    match world.check_end(&setup) {
        Ok(()) => Ok(world),
        Err(why) => Err(Box::new(Found { seed, setup, trace, why })),
    }
}

/// The first that breaks this law, or any.
pub(super) fn explore_at_random(mut seeds: Range<u64>, law: &str, mutant: Option<Mutant>) -> Option<Found> {
    seeds
        .find_map(|seed| wander(seed, mutant).err().filter(|found| found.why.starts_with(law)))
        .map(|found| found.shortened())
}

/// Follows a trace, leaving out what cannot be done any more.
fn follow(setup: &Setup, trace: &[Action]) -> Option<(Vec<Action>, String)> {
    let mut world = World::new(setup);
    let mut done = Vec::new();
    for action in trace {
        if !world.actions(setup).contains(action) {
            continue;
        }
        done.push(*action);
        if let Err(why) = world.apply(setup, *action) {
            return Some((done, why));
        }
    }
    world.check_end(setup).err().map(|why| (done, why))
}

impl Found {
    /// Leaves out whatever can be left out.
    pub(super) fn shortened(mut self) -> Self {
        let law = |why: &str| why.get(..5).map(str::to_owned);
        let mut size = self.trace.len();
        while size > 0 {
            let before = self.trace.len();
            let mut at = 0;
            while at < self.trace.len() {
                let mut shorter = self.trace.clone();
                shorter.drain(at..(at + size).min(self.trace.len()));
                match follow(&self.setup, &shorter).filter(|(_, why)| law(why) == law(&self.why)) {
                    Some((trace, why)) => self = Self { trace, why, ..self },
                    None => at += size,
                }
            }
            if size > 1 || self.trace.len() == before {
                size /= 2;
            }
        }
        self
    }

    /// Whether the same trace is as bad without the mutant.
    pub(super) fn is_found_anyway(&self) -> bool {
        follow(&Setup { mutant: None, ..self.setup.clone() }, &self.trace).is_some()
    }
}

/// What was explored whole.
#[derive(Debug, Default)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) steps: usize,
    /// Every state that can be reached was.
    pub(super) whole: bool,
}

/// Every order of everything, breadth first. One state in so many is also brought to rest.
pub(super) fn explore(setup: &Setup, most: usize, one_in: u64) -> Result<Explored, Box<Found>> {
    let mut explored = Explored { whole: true, ..Explored::default() };
    let mut seen: HashSet<u64> = HashSet::new();
    let mut came_by: Vec<(usize, Action)> = vec![(0, Action::Pass)];
    let mut ahead = VecDeque::from([(World::new(setup), 0)]);
    while let Some((world, from)) = ahead.pop_front() {
        explored.states += 1;
        let found = |why: String, mut trace: Vec<Action>, came_by: &[(usize, Action)]| {
            let mut at = from;
            while at != 0 {
                trace.push(came_by[at].1);
                at = came_by[at].0;
            }
            trace.reverse();
            Box::new(Found { seed: 0, setup: setup.clone(), trace, why })
        };
        for action in world.actions(setup) {
            explored.steps += 1;
            let mut next = world.clone();
            next.apply(setup, action).map_err(|why| found(why, vec![action], &came_by))?;
            let mark = fingerprint(&next);
            if !seen.insert(mark) {
                continue;
            }
            if mark.is_multiple_of(one_in) {
                next.check_end(setup).map_err(|why| found(why, vec![action], &came_by))?;
            }
            if seen.len() > most {
                explored.whole = false;
                continue;
            }
            came_by.push((from, action));
            ahead.push_back((next, came_by.len() - 1));
        }
    }
    Ok(explored)
}

/// Replicas are alike: which of them it is makes no difference.
fn fingerprint(world: &World) -> u64 {
    let mut replicas: Vec<u64> = world.replicas.iter().map(hashed).collect();
    replicas.sort_unstable();
    hashed(&(replicas, hashed(&World { replicas: Vec::new(), ..world.clone() })))
}

fn hashed(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
