//! Our envelope is our own; kube's types must read what we write, and we must read what kube's types accept.

use engine::patch::Operation;
use engine::review::Review;
use engine::verdict::{Answer, ReasonCode, Verdict};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};

fn review() -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "UPDATE", "name": "train", "namespace": "hyperpod-ns-team-a", "dryRun": true,
            "kind": {"group": "batch", "version": "v1", "kind": "Job"},
            "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
            "userInfo": {"username": "x", "uid": "y", "groups": ["g"], "extra": {"arn": ["a"]}},
            "object": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {}},
            "oldObject": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {}},
        }
    })
}

#[test]
fn both_read_a_request_alike() {
    let body = review().to_string();
    let ours = Review::parse(body.as_bytes()).expect("ours reads it");
    let theirs: AdmissionReview<DynamicObject> = serde_json::from_str(&body).expect("kube reads it");
    let theirs: AdmissionRequest<DynamicObject> = theirs.try_into().expect("a request");
    assert_eq!(ours.uid, theirs.uid);
    assert_eq!(ours.kind.kind, theirs.kind.kind);
    assert_eq!(ours.resource.resource, theirs.resource.resource);
    assert_eq!(Some(ours.user.username.as_str()), theirs.user_info.username.as_deref());
    assert_eq!((ours.name, ours.namespace), (Some(theirs.name), theirs.namespace));
    assert_eq!(ours.dry_run, theirs.dry_run);
}

fn answer(verdict: Verdict) -> Answer {
    let patch = vec![Operation::Add { path: "/metadata/labels".to_owned(), value: json!({"a": "b"}) }];
    let warnings = vec!["mind the gap".to_owned()];
    Answer { verdict, patch, warnings, ..Answer::retry("u-1", ReasonCode::TooLate, "", None) }
}

#[test]
fn kube_reads_our_answers() {
    let refusal = Answer::refusal("u-1", ReasonCode::Malformed, "no".to_owned());
    let refused = answer(refusal.verdict);
    let later = answer(Answer::retry("u-1", ReasonCode::LedgerBusy, "later", Some(1)).verdict);
    for (answer, code) in [(answer(Verdict::Allow), 0), (refused, 403), (later, 429)] {
        // kube types the patch as bytes in an array; base64 text is the API's, which Go writes and reads.
        let mut response = answer.response();
        let patch = response["response"].as_object_mut().and_then(|response| response.remove("patch"));
        assert_eq!(patch.is_some(), answer.is_allowed());
        // The API has `status` optional; kube's type wants it.
        let status = response["response"].as_object_mut().map(|response| response.entry("status").or_insert(json!({})));
        assert!(status.is_some());
        let theirs: AdmissionReview<DynamicObject> = serde_json::from_value(response).expect("kube reads it");
        let theirs: AdmissionResponse = theirs.response.expect("a response");
        assert_eq!((theirs.uid.as_str(), theirs.allowed), ("u-1", answer.is_allowed()));
        assert_eq!(i32::from(theirs.result.code), code);
        assert_eq!(theirs.warnings, Some(vec!["mind the gap".to_owned()]));
    }
}
