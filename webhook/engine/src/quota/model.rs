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

mod laws;
mod replica;
mod search;
mod world;

use search::{Found, explore, explore_at_random, wander};
use world::{Ask, Budget, Mutant, Setup, efa, gpus};

fn quiet() -> Budget {
    Budget { time: 3, ticks: 2, ..Budget::default() }
}

fn pod(root: Option<usize>, name: u8, amount: u64) -> Ask {
    Ask::Pod { root, name, amounts: gpus(amount), dry_run: false }
}

fn small(script: Vec<Ask>, limit: u64, budget: Budget) -> Setup {
    Setup { replicas: 2, limits: vec![gpus(limit)], policies: 1, script, patience: 2, budget, mutant: None }
}

const SEEDS: u64 = 400;

#[test]
fn nothing_breaks_a_law_in_large_worlds() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    let mut laws: std::collections::BTreeMap<String, (usize, Found)> = std::collections::BTreeMap::new();
    for seed in 0..seeds {
        if let Err(found) = wander(seed, None) {
            let law: String = found.why.chars().filter(|c| !c.is_ascii_digit()).take(26).collect();
            let best = laws.remove(&law);
            let count = best.as_ref().map_or(0, |best| best.0);
            let best = match best {
                Some((_, b)) if b.trace.len() <= found.trace.len() => b,
                _ => found,
            };
            laws.insert(law, (count + 1, best));
        }
    }
    for (law, (count, found)) in laws {
        println!("##### {count} times {law}\n{}", search::shortened(found));
    }
    let found = explore_at_random(0..seeds, None);
    assert!(found.is_none(), "{}", found.expect("some"));
}

#[test]
fn each_broken_algorithm_is_found() {
    use Mutant::*;
    let mutants = [
        (AnswersBeforeTheSwap, "law 1"),
        (SwapsBlindly, "law 1"),
        (RefusesByOldNews, "law 3"),
        (WaitsForNothing, "law 1"),
        (BelievesAbsenceUnproved, "law 1"),
        (CountsTerminatingAsGone, "law 1"),
        (NeverLooks, "law 2"),
        (IgnoresTheFence, "law 4"),
        (SettlesUnseen, "law"),
        (ForgetsItsPods, "law"),
    ];
    for (mutant, law) in mutants {
        let found = explore_at_random(0..5_000, Some(mutant)).unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert!(found.why.starts_with(law), "{mutant:?}: {found}");
    }
}
