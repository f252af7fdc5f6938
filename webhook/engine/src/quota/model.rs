//! The model test of the ledger: replicas, watches that lag, requests that are lost, pods that come and go, around the same
//! [`round`](super::round()) that the server holds.
//!
//! ```text
//!  world: what is stored, what can happen     replica: the actor, step by step     laws: what must never happen
//! ```
//!
//! It is explored in two ways: small worlds whole, every order of everything that can happen; large ones at random, from
//! numbered seeds. What is found is made as short as it can be and printed. Algorithms that are broken on purpose prove that
//! the laws can be broken.
//!
//! The laws:
//! 1. What was admitted and lives is never more than the limit, and nobody is told that something is held before it is.
//! 2. In the end the ledger holds what lives and nothing else; floors are what stored roots need; what fits is let in.
//! 3. Nobody is refused who would have fitted when the ledger was read, after he had asked, beside what the ledger held then.
//!    What has ended and no watch of that replica has shown counts; that is how far a refusal can err.
//! 4. Once somebody has decided by newer policies or a newer Team, nobody holds anything by older ones. A replica that has
//!    just begun is believed to have read the newest: that is not checked before its first write. A ledger that is lost takes
//!    the fence with it: who is further behind than it takes to settle holds by what he knows, until the next round.

mod laws;
mod replica;
mod search;
mod setup;
mod world;

pub(super) use laws::charged;
use search::{Explored, explore, explore_at_random, wander};
use setup::{Ask, Budget, Mutant, Setup, gpus};

/// Large worlds in every test run. `MODEL_SEEDS=100000` looks longer.
const SEEDS: u64 = 600;

/// More states than this and a small world is not small.
const MOST_STATES: usize = 60_000;

#[test]
#[expect(clippy::print_stdout, reason = "how much was explored")]
fn no_large_world_breaks_a_law() {
    let seeds = std::env::var("MODEL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let (mut full, mut stored) = (0, 0);
    for seed in 0..seeds {
        let world = wander(seed, None).map_err(|found| found.shortened()).expect("no law is broken");
        full += usize::from(world.objects.values().filter(|object| object.admitted && object.runs()).count() > 2);
        stored += world.objects.len();
    }
    println!("{seeds} large worlds, {stored} objects stored");
    assert!(full as u64 > seeds / 4, "in most worlds next to nothing happens: three pods live in {full} of {seeds}");
}

#[test]
#[expect(clippy::print_stdout, reason = "what was found")]
fn each_broken_algorithm_is_found() {
    use Mutant::{
        AnswersBeforeTheSwap, BelievesAbsenceUnproved, CountsTerminatingAsGone, ForgetsAPod, IgnoresTheFence,
        NeverLooks, RefusesByOldNews, SwapsBlindly, WaitsForNothing,
    };
    let mutants = [
        (AnswersBeforeTheSwap, "law 1"),
        (SwapsBlindly, "law 1"),
        (WaitsForNothing, "law 1"),
        (BelievesAbsenceUnproved, "law 1"),
        (CountsTerminatingAsGone, "law 1"),
        (ForgetsAPod, "law 1"),
        (NeverLooks, "law 2"),
        (RefusesByOldNews, "law 3"),
        (IgnoresTheFence, "law 4"),
    ];
    for (mutant, law) in mutants {
        let found = explore_at_random(0..20_000, law, Some(mutant));
        let found = found.unwrap_or_else(|| unreachable!("{mutant:?} breaks {law}, and nobody noticed"));
        println!("{mutant:?} breaks {law} in {} steps, seed {}", found.trace.len(), found.seed);
        assert!(!found.is_found_anyway(), "{mutant:?} is not what broke the law: {found}");
    }
}

fn pod(root: Option<usize>, name: u8) -> Ask {
    Ask::Pod { root, name, amounts: gpus(1), dry_run: false }
}

fn root(floor: u64) -> Ask {
    Ask::Root { name: 0, floor: gpus(floor), has_generation: true }
}

fn raise(floor: u64, by_scale: bool) -> Ask {
    Ask::Raise { root: 0, floor: gpus(floor), by_scale }
}

fn small(limit: u64, script: Vec<Ask>, budget: Budget) -> Setup {
    Setup { replicas: 2, limits: vec![gpus(limit)], policies: 1, script, patience: 2, budget, mutant: None }
}

#[expect(clippy::print_stdout, reason = "how much was explored")]
fn is_explored_whole(name: &str, setup: &Setup) {
    let Explored { states, steps, whole } = explore(setup, MOST_STATES, 32).expect(name);
    println!("{name}: {states} states, {steps} steps");
    assert!(whole, "{name}: more than {MOST_STATES} states");
}

const NO_TROUBLE: Budget = Budget {
    time: 0,
    ticks: 0,
    crashes: 0,
    relists: 0,
    lost: 0,
    failures: 0,
    retries: 0,
    redeliveries: 0,
    ends: 0,
    ledger_losses: 0,
};

#[test]
fn two_pods_of_which_one_fits() {
    let pods = || vec![pod(None, 0), pod(None, 1)];
    let worlds = [
        ("refused elsewhere", Budget { failures: 1, retries: 1, ..NO_TROUBLE }),
        ("crashes and lost swaps", Budget { crashes: 1, lost: 1, ..NO_TROUBLE }),
        ("ends", Budget { ends: 1, ..NO_TROUBLE }),
        ("delivered twice", Budget { redeliveries: 1, lost: 1, ..NO_TROUBLE }),
    ];
    for (name, budget) in worlds {
        is_explored_whole(name, &small(1, pods(), budget));
    }
}

#[test]
fn a_pod_that_leaks() {
    let budget = Budget { failures: 1, time: 2, ticks: 2, ..NO_TROUBLE };
    is_explored_whole("one leaks", &small(1, vec![pod(None, 0)], budget));
    let alone = Setup { replicas: 1, ..small(1, vec![pod(None, 0), pod(None, 1)], budget) };
    is_explored_whole("the other waits for it", &alone);
}

#[test]
fn three_pods_of_which_two_fit() {
    is_explored_whole("three pods", &small(2, vec![pod(None, 0), pod(None, 1), pod(None, 2)], NO_TROUBLE));
}

#[test]
fn a_root_and_its_pods() {
    is_explored_whole("root", &small(2, vec![root(1), pod(Some(0), 0), pod(None, 1)], NO_TROUBLE));
}

#[test]
fn a_root_that_grows_and_shrinks() {
    let budget = Budget { ends: 1, ..NO_TROUBLE };
    is_explored_whole("grows", &small(3, vec![root(2), raise(3, false)], budget));
    is_explored_whole("scaled", &small(3, vec![root(2), raise(3, true)], budget));
}

#[test]
fn policies_and_limits_that_change() {
    let pods = || vec![pod(None, 0), pod(None, 1)];
    is_explored_whole("policies", &Setup { policies: 2, ..small(1, pods(), NO_TROUBLE) });
    is_explored_whole("limit", &Setup { limits: vec![gpus(2), gpus(1)], ..small(2, pods(), NO_TROUBLE) });
}

#[test]
fn a_pod_past_the_gate() {
    let stray = Ask::Stray { root: None, name: 0, amounts: gpus(1) };
    is_explored_whole("stray", &small(1, vec![stray, pod(None, 1)], Budget { ends: 1, ..NO_TROUBLE }));
}

fn lost() -> Setup {
    let budget = Budget { ledger_losses: 1, time: 2, ticks: 3, ..NO_TROUBLE };
    Setup { replicas: 1, ..small(1, vec![pod(None, 0), pod(None, 1)], budget) }
}

fn stuck() -> Setup {
    let budget = Budget { time: 2, ticks: 3, ..NO_TROUBLE };
    Setup { replicas: 1, ..small(2, vec![root(1), raise(2, true)], budget) }
}

#[test]
fn a_ledger_that_is_lost() {
    is_explored_whole("lost", &lost());
}

#[test]
fn a_watch_that_is_stuck() {
    is_explored_whole("stuck", &stuck());
}

#[test]
fn rarely_broken_algorithms_are_found_too() {
    for (mutant, law, setup, one_in) in
        [(Mutant::SettlesUnseen, "law 1", lost(), 1024), (Mutant::BelievesAStuckWatch, "law 2", stuck(), 1)]
    {
        let found = explore(&Setup { mutant: Some(mutant), ..setup }, MOST_STATES, one_in);
        let found = found.expect_err("some order breaks a law");
        assert!(found.why.starts_with(law), "{mutant:?}: {found}");
        assert!(!found.is_found_anyway(), "{mutant:?} is not what broke the law: {found}");
    }
}
