//! A line is handed over before its answer is sent, and what cannot be recorded is not answered.

use std::time::Duration;

use reqwest::Version;
use server::{
    Readiness,
    decision_log::{self, Bounds, Counts},
};

use crate::harness::{Setup, pair, read};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn each_answer_has_its_line_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("decisions.jsonl");
    let file = decision_log::file(&path).expect("opens");
    let (log, writer) = decision_log::start(file, Bounds::default(), Readiness::requiring([])).expect("starts");
    let mut served = Setup { log: Some(log), ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    for (uid, script) in [("u1", ""), ("u2", "panic"), ("u3", "")] {
        served.review(&client, "/validate", uid, script).send().await.expect("answers");
    }
    served.ask_to_stop();
    served.stopped().await;
    let counts = tokio::task::spawn_blocking(move || writer.close(LIMIT)).await.expect("does not panic");
    assert_eq!(counts.expect("closes"), Counts { written: 3, refused: 0, failed_writes: 0, lost: 0 });
    let lines = std::fs::read_to_string(&path).expect("reads");
    assert_eq!(lines, "{\"uid\":\"u1\"}\n{\"refused\":\"u2\"}\n{\"uid\":\"u3\"}\n");
}

#[tokio::test]
async fn with_the_queue_full_a_decision_is_refused_and_a_refusal_is_sent() {
    let always_full = Bounds { lines: 1, bytes: 0 };
    let (log, _writer) = decision_log::start(std::io::sink(), always_full, Readiness::requiring([])).expect("starts");
    let served = Setup { log: Some(log.clone()), ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate", "u1", "").send().await.expect("answers");
    assert_eq!(read(response).await, pair("u1", "LogFull"));
    let response = served.review(&client, "/validate", "u2", "panic").send().await.expect("answers");
    assert_eq!(read(response).await, pair("u2", "Internal"));
    assert_eq!(log.counts(), Counts { written: 0, refused: 2, failed_writes: 0, lost: 0 });
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_no_decision_without_its_line() {
    let (log, _writer) =
        decision_log::start(std::io::sink(), Bounds::default(), Readiness::requiring([])).expect("starts");
    let served = Setup { log: Some(log.clone()), ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let caller = tokio::spawn(served.review(&client, "/validate", "u1", "wait").send());
    served.arrived(1).await;
    caller.abort();
    assert!(caller.await.is_err_and(|error| error.is_cancelled()));
    served.release(1);
    let written = async {
        while log.counts().written == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, written).await.expect("the line is written all the same");
}
