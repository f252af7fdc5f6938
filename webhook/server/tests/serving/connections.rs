//! Connections: how many, how long, and with which certificate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reqwest::Version;
use server::listen::Bounds;
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::harness::{Setup, pair, read};

const SHORT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewing_the_certificate_every_50_ms_fails_no_request() {
    let served = Arc::new(Setup::default().serve().await);
    let done = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = [(Version::HTTP_11, 0), (Version::HTTP_11, usize::MAX), (Version::HTTP_2, usize::MAX)]
        .into_iter()
        .map(|(version, kept_connections)| {
            let (served, done) = (Arc::clone(&served), Arc::clone(&done));
            tokio::spawn(async move {
                let client = served.client_builder().pool_max_idle_per_host(kept_connections);
                let client = if version == Version::HTTP_11 { client.http1_only() } else { client };
                let client = client.build().expect("builds");
                let mut answered = 0;
                while !done.load(Ordering::Relaxed) || answered == 0 {
                    let response = served.review(&client, "/validate", "u1", "").send().await.expect("answers");
                    assert_eq!(read(response).await, pair("u1", "/validate"));
                    answered += 1;
                }
            })
        })
        .collect();
    let first = served.resolver.current().leaf().to_vec();
    for _ in 0..20 {
        served.renew();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_ne!(served.resolver.current().leaf(), first);
    done.store(true, Ordering::Relaxed);
    for client in load {
        client.await.expect("every request was answered");
    }
}

#[tokio::test]
async fn a_stranger_who_never_shakes_hands_is_hung_up_on() {
    let bounds = Bounds { handshake: SHORT, ..Bounds::default() };
    let served = Setup { bounds, ..Setup::default() }.serve().await;
    let mut stranger = TcpStream::connect(served.address).await.expect("connects");
    assert_eq!(stranger.read(&mut [0; 1]).await.expect("is closed"), 0);
}

#[tokio::test]
async fn beyond_the_limit_a_connection_waits_for_a_slot() {
    let bounds = Bounds { connections: 1, handshake: SHORT, ..Bounds::default() };
    let served = Setup { bounds, ..Setup::default() }.serve().await;
    let _stranger = TcpStream::connect(served.address).await.expect("connects");
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate", "u1", "").send().await.expect("answers after its wait");
    assert_eq!(read(response).await, pair("u1", "/validate"));
}

#[tokio::test]
async fn an_old_connection_is_ended_with_its_next_answer() {
    let bounds = Bounds { age: Some(Duration::ZERO), ..Bounds::default() };
    let served = Setup { bounds, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_11);
    for uid in ["u1", "u2"] {
        let response = served.review(&client, "/validate", uid, "").send().await.expect("answers");
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(read(response).await, pair(uid, "/validate"));
    }
}

#[tokio::test]
async fn an_old_http2_connection_finishes_what_is_under_way() {
    let bounds = Bounds { age: Some(SHORT), ..Bounds::default() };
    let served = Setup { bounds, ..Setup::default() }.serve().await;
    let client = served.client(Version::HTTP_2);
    for uid in ["u1", "u2"] {
        let answer = tokio::spawn(served.review(&client, "/validate", uid, "wait").send());
        served.arrived(1).await;
        tokio::time::sleep(SHORT * 2).await;
        served.release(1);
        let response = answer.await.expect("does not panic").expect("answers");
        assert_eq!(read(response).await, pair(uid, "/validate"));
    }
}

#[tokio::test]
async fn a_young_connection_is_kept() {
    let served = Setup::default().serve().await;
    let client = served.client(Version::HTTP_11);
    let response = served.review(&client, "/validate", "u1", "").send().await.expect("answers");
    assert!(!response.headers().contains_key("connection"));
}

#[tokio::test]
async fn a_caller_who_shakes_hands_and_says_nothing_is_hung_up_on() {
    let bounds = Bounds { idle: SHORT, ..Bounds::default() };
    let served = Setup { bounds, ..Setup::default() }.serve().await;
    let mut silent = served.shake_hands().await;
    // Without a farewell: there was no request to answer.
    assert!(silent.read(&mut [0; 1]).await.is_err());
}

#[tokio::test]
async fn silence_does_not_hold_up_the_drain() {
    let mut served = Setup::default().serve().await;
    let mut silent = served.shake_hands().await;
    served.ask_to_stop();
    assert_eq!(silent.read(&mut [0; 1]).await.expect("is closed"), 0);
    assert_eq!(served.stopped().await, 0);
}
