//! Every request gets an answer, and the right one.

use std::time::Duration;

use reqwest::{Method, Version};
use serde_json::json;
use server::{Check, http::Limits};

use crate::harness::{Setup, pair, read, read_sentence};

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];
/// Short for a person, and long enough for a busy machine to read a review in.
const SHORT: Duration = Duration::from_secs(1);
const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn both_endpoints_answer_over_both_versions() {
    let served = Setup::default().serve().await;
    for version in VERSIONS {
        let client = served.client(version);
        for path in ["/mutate", "/validate"] {
            let response = served.review(&client, path, "u1", "").send().await.expect("answers");
            assert_eq!(response.version(), version);
            assert_eq!(read(response).await, pair("u1", path));
        }
    }
}

#[tokio::test]
async fn what_is_no_review_gets_a_sentence() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let url = served.url("/validate");
    let unsupported = "a review is sent with content type `application/json`";

    let response = client.post(&url).body("{}").send().await.expect("answers");
    assert_eq!(read_sentence(response).await, (415, unsupported.to_owned()));
    let response = client.post(&url).header("content-type", "application/yaml").body("{}").send();
    assert_eq!(read_sentence(response.await.expect("answers")).await, (415, unsupported.to_owned()));
    let response = client.get(&url).send().await.expect("answers");
    assert_eq!(response.headers()["allow"], "POST");
    assert_eq!(read_sentence(response).await, (405, "`/validate` does not answer GET".to_owned()));
    let response = client.request(Method::POST, served.url("/readyz")).send().await.expect("answers");
    assert_eq!(read_sentence(response).await, (405, "`/readyz` does not answer POST".to_owned()));
    let response = client.get(served.url("/else")).send().await.expect("answers");
    assert_eq!(read_sentence(response).await, (404, "nothing is served at `/else`".to_owned()));
}

#[tokio::test]
async fn a_content_type_may_have_parameters() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let review = json!({ "request": { "uid": "u1" } }).to_string();
    let request = client.post(served.url("/mutate")).header("content-type", "Application/JSON; charset=utf-8");
    let response = request.body(review).send().await.expect("answers");
    assert_eq!(read(response).await, pair("u1", "/mutate"));
}

#[tokio::test]
async fn a_review_of_8_mib_is_read_and_a_larger_one_refused() {
    let served = Setup::default().serve().await;
    let review = |bytes: usize| {
        let frame = json!({ "request": { "uid": "u1", "padding": "" } }).to_string().len();
        json!({ "request": { "uid": "u1", "padding": "x".repeat(bytes - frame) } }).to_string()
    };
    for version in VERSIONS {
        let client = served.client(version);
        let send = |body: String| {
            client.post(served.url("/validate")).header("content-type", "application/json").body(body).send()
        };
        let response = send(review(8 * MIB)).await.expect("answers");
        assert_eq!(read(response).await, pair("u1", "/validate"), "{version:?}");
        for bytes in [8 * MIB + 1, 20 * MIB] {
            let response = send(review(bytes)).await.expect("answers instead of a reset");
            let sentence = "the review is larger than the 8388608 bytes that are read".to_owned();
            assert_eq!(read_sentence(response).await, (413, sentence), "{version:?}");
        }
    }
}

#[tokio::test]
async fn the_callers_timeout_bounds_the_decision() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate?timeout=1s", "late", "wait").send().await.expect("answers");
    assert_eq!(read(response).await, pair("late", "TooLate"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lateness_is_noticed_while_the_decision_computes() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let review = served.review(&client, "/validate?timeout=1s", "late", "compute");
    let response = review.send().await.expect("answers");
    assert_eq!(read(response).await, pair("late", "TooLate"));
    served.release(1);
}

#[tokio::test]
async fn our_timeout_bounds_the_decision() {
    let limits = Limits { timeout: SHORT, ..Setup::default().limits };
    let served = Setup { limits, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_2);
    let response = served.review(&client, "/mutate?timeout=30s", "late", "wait").send().await.expect("answers");
    assert_eq!(read(response).await, pair("late", "TooLate"));
}

#[tokio::test]
async fn a_late_decision_gives_its_turn_back() {
    let limits = Limits { concurrent_decisions: 1, ..Setup::default().limits };
    let served = Setup { limits, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate?timeout=1s", "late", "wait").send().await.expect("answers");
    assert_eq!(read(response).await, pair("late", "TooLate"));
    let response = served.review(&client, "/validate", "next", "").send().await.expect("answers");
    assert_eq!(read(response).await, pair("next", "/validate"));
}

#[tokio::test]
async fn beyond_the_turns_a_review_waits_and_is_refused_with_its_uid() {
    let limits = Limits { concurrent_decisions: 1, turn_wait: SHORT, ..Setup::default().limits };
    let served = Setup { limits, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let first = tokio::spawn(served.review(&client, "/validate", "first", "wait").send());
    served.arrived(1).await;

    let response = served.review(&client, "/validate", "second", "").send().await.expect("answers");
    assert_eq!(read(response).await, pair("second", "Overloaded"));

    served.release(1);
    let response = first.await.expect("does not panic").expect("answers");
    assert_eq!(read(response).await, pair("first", "/validate"));
    let response = served.review(&client, "/validate", "third", "").send().await.expect("answers");
    assert_eq!(read(response).await, pair("third", "/validate"));
}

#[tokio::test]
async fn beyond_the_memory_a_review_is_refused() {
    let limits = Limits { bodies_bytes: 10, ..Setup::default().limits };
    let served = Setup { limits, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate", "u1", "").send().await.expect("answers");
    assert_eq!(read_sentence(response).await, (503, "Overloaded".to_owned()));
}

#[tokio::test]
async fn a_panic_becomes_an_answer_with_the_uid() {
    let served = Setup::default().serve().await;
    for version in VERSIONS {
        let client = served.client(version);
        let response = served.review(&client, "/validate", "u1", "panic").send().await.expect("answers");
        assert_eq!(read(response).await, pair("u1", "Internal"));
        let response = served.review(&client, "/validate", "u2", "").send().await.expect("still serves");
        assert_eq!(read(response).await, pair("u2", "/validate"));
    }
}

#[tokio::test]
async fn even_a_panic_in_the_refusal_has_an_answer() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let review = json!({ "request": { "uid": "u1", "script": "panic", "script_of_refusal": "panic" } });
    let response = client.post(served.url("/validate")).json(&review).send().await.expect("answers");
    assert_eq!(read_sentence(response).await, (500, "the admission webhook failed to answer".to_owned()));
}

#[tokio::test]
async fn readiness_follows_its_checks_and_liveness_does_not() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let ask = async |path: &str| {
        let response = client.get(served.url(path)).send().await.expect("answers");
        read_sentence(response).await
    };
    let not_yet = "[-]policies failed: not yet\n[+]serving ok\nnot ready\n".to_owned();
    assert_eq!(ask("/readyz").await, (503, not_yet));
    served.readiness.pass(Check::Policies);
    assert_eq!(ask("/readyz").await, (200, "[+]policies ok\n[+]serving ok\nready\n".to_owned()));
    served.readiness.fail(Check::Policies, "expired");
    let expired = "[-]policies failed: expired\n[+]serving ok\nnot ready\n".to_owned();
    assert_eq!(ask("/readyz").await, (503, expired));
    assert_eq!(ask("/livez").await, (200, "ok\n".to_owned()));
}
