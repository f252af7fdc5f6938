//! Runs every case file. `CASE=O01 cargo test -p tests --test cases` runs those whose file name holds `O01`.

use tests::run::{Failures, files, run};

/// Cedar reads policies by recursion, and frames of a debug build are large.
const STACK_BYTES: usize = 64 << 20;

#[test]
fn field() {
    hold("cases/field");
}

#[test]
fn attribution() {
    hold("cases/attribution");
}

/// One file for each kind that runs pods.
#[test]
fn kinds() {
    hold("cases/kinds");
}

/// Attempts that once succeeded.
#[test]
fn breaks() {
    hold("cases/breaks");
}

/// Quotas as policies, the shipped ones and the examples.
#[test]
fn quota() {
    hold("cases/quota");
}

/// The exceptions of `policies/examples`, before and after their day.
#[test]
fn exceptions() {
    hold("cases/exceptions");
}

/// The two levels, and what is mounted how.
#[test]
fn levels() {
    hold("cases/levels");
}

/// Teams whose work task governance queues.
#[test]
fn kueue() {
    hold("cases/kueue");
}

fn hold(directory: &'static str) {
    let run = move || run_all(directory);
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a thread");
    let failures = thread.join().expect("no panic");
    let failed: Vec<_> = failures.iter().filter(|(_, failures)| !failures.is_empty()).collect();
    let report: String =
        failed.iter().map(|(name, failures)| format!("\n{name}\n  - {}\n", failures.join("\n  - "))).collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n{report}", failed.len(), failures.len());
}

fn run_all(directory: &str) -> Failures {
    let wanted = std::env::var("CASE").unwrap_or_default();
    let paths = files(directory).expect("the directory of cases");
    let unusable = |error| vec![("a case that cannot be run".to_owned(), vec![format!("{error:#}")])];
    let wanted = paths.iter().filter(|path| path.to_string_lossy().contains(&wanted));
    wanted.flat_map(|path| run(path).unwrap_or_else(unusable)).collect()
}
