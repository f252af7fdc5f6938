//! Leaving loses no review.

use std::time::Duration;

use reqwest::Version;
use server::drain::Times;

use crate::harness::{Setup, pair, read, read_sentence};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn reviews_under_way_are_answered() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut served = Setup::default().serve().await;
        let client = served.client(version);
        let reviews: Vec<_> = (0..10)
            .map(|number| tokio::spawn(served.review(&client, "/validate", &format!("u{number}"), "wait").send()))
            .collect();
        served.arrived(10).await;
        served.ask_to_stop();
        // New connections are refused from here on, so the listener is closed and the connections are told.
        while tokio::net::TcpStream::connect(served.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        served.release(10);
        for (number, review) in reviews.into_iter().enumerate() {
            let response = review.await.expect("does not panic").expect("answers");
            if version == Version::HTTP_11 {
                assert_eq!(response.headers()["connection"], "close");
            }
            assert_eq!(read(response).await, pair(&format!("u{number}"), "/validate"));
        }
        assert_eq!(served.stopped().await, 0, "no connection was cut off");
    }
}

#[tokio::test]
async fn while_it_drains_it_serves_on_and_asks_each_connection_to_close() {
    let drain = Times { propagation: PATIENCE, finish: PATIENCE };
    let mut served = Setup { drain, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate", "before", "").send().await.expect("answers");
    assert!(!response.headers().contains_key("connection"));
    assert_eq!(read(response).await, pair("before", "/validate"));

    served.ask_to_stop();
    while served.readiness.report().to_string().contains("serving ok") {
        tokio::task::yield_now().await;
    }
    let response = client.get(served.url("/readyz")).send().await.expect("answers");
    let (status, report) = read_sentence(response).await;
    assert_eq!(status, 503);
    assert!(report.contains("[-]serving failed: shutting down"), "{report}");
    for uid in ["one", "two"] {
        let response = served.review(&client, "/validate", uid, "").send().await.expect("serves on");
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(read(response).await, pair(uid, "/validate"));
    }
    let response = served.review(&served.client(Version::HTTP_2), "/validate", "three", "").send().await;
    assert_eq!(read(response.expect("serves on")).await, pair("three", "/validate"));
}

#[tokio::test]
async fn idle_connections_do_not_hold_it_up() {
    let mut served = Setup::default().serve().await;
    let (one, two) = (served.client(Version::HTTP_11), served.client(Version::HTTP_2));
    for client in [&one, &two] {
        served.review(client, "/validate", "u1", "").send().await.expect("answers");
    }
    served.ask_to_stop();
    assert_eq!(served.stopped().await, 0);
}

#[tokio::test]
async fn what_does_not_finish_is_cut_off_and_counted() {
    let drain = Times { propagation: Duration::ZERO, finish: Duration::from_millis(50) };
    let mut served = Setup { drain, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    let review = tokio::spawn(served.review(&client, "/validate", "u1", "wait").send());
    served.arrived(1).await;
    served.ask_to_stop();
    assert_eq!(served.stopped().await, 1);
    review.await.expect("does not panic").expect_err("is cut off");
}
