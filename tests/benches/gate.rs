//! What a decision costs, in one run, as ratios to a floor measured beside it: `make bench`.
//!
//! The floor of the engine is reading the envelope and answering allow. The floor of the handler is the same server, with
//! TLS, doing just that. Absolute times are this machine's; the ratios are what to compare.

#![expect(clippy::print_stdout, reason = "the figures are the result")]
#![expect(clippy::expect_used, reason = "a benchmark that cannot run has nothing to say")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::body::Bytes;
use engine::attribution::Phase;
use engine::config::Config;
use engine::offline::review_of;
use engine::pipeline;
use engine::policies::{Policies, SourceFile, starter_files, starter_schema};
use engine::quota::Balance;
use engine::review::{Operation, Review, UserInfo};
use engine::snapshot::Snapshot;
use engine::team::Teams;
use engine::verdict::{Answer, Verdict};
use serde_json::{Value, json};
use server::decide::Line;
use server::decider::Decider;
use server::ledger::InMemory;
use server::{Answered, Decide, Endpoint, Gate, Readiness, Refusal, Server, listen};

const TEAM: &str = include_str!("../../policies/teams/team-a.yaml");
/// Long enough for a stable median on a busy machine, short enough for one run of everything.
const ROUND: Duration = Duration::from_millis(1500);

fn main() {
    server::runtime::install_crypto();
    // Cedar reads 10,000 policies recursively.
    let run = std::thread::Builder::new().stack_size(64 << 20).spawn(run).expect("a thread");
    run.join().expect("the benchmark ran");
}

fn run() {
    let pod = body(&pod());
    let job = body(&job());
    println!("bodies: pod {} KB, job {} KB\n", pod.len() / 1000, job.len() / 1000);
    println!("engine, one review = mutate + validate + ledger; floor = envelope read, allow answered");
    println!(
        "{:<28}{:>12}{:>12}{:>10}{:>12}{:>12}{:>10}",
        "", "pod us", "floor us", "ratio", "job us", "floor us", "ratio"
    );
    let (pod_floor, job_floor) = (median(|| floor(&pod)), median(|| floor(&job)));
    let starter = engine::policies::starter().infos().len();
    for policies in [starter + 10, 1_000, 10_000] {
        let snapshot = snapshot(policies - starter);
        let (pod, job) = (median(|| decide(&pod, &snapshot)), median(|| decide(&job, &snapshot)));
        println!(
            "{:<28}{:>12.1}{:>12.1}{:>10.1}{:>12.1}{:>12.1}{:>10.1}",
            format!("{policies} policies"),
            micros(pod),
            micros(pod_floor),
            ratio(pod, pod_floor),
            micros(job),
            micros(job_floor),
            ratio(job, job_floor)
        );
    }
    let runtime = server::runtime::build().expect("a runtime");
    runtime.block_on(over_tls(&pod));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn ratio(time: Duration, floor: Duration) -> f64 {
    time.as_secs_f64() / floor.as_secs_f64()
}

fn median(mut work: impl FnMut()) -> Duration {
    let end = Instant::now() + ROUND;
    let mut times = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        work();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

fn floor(body: &[u8]) {
    let uid = Review::parse_uid(black_box(body)).expect("a review");
    black_box(allow(&uid));
}

fn allow(uid: &str) -> Vec<u8> {
    let answer =
        Answer { verdict: Verdict::Allow, ..Answer::retry(uid, engine::verdict::ReasonCode::TooLate, "", None) };
    answer.response().to_string().into_bytes()
}

fn decide(body: &[u8], snapshot: &Snapshot) {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let review = Review::parse(black_box(body)).expect("a review");
    let mutated = pipeline::evaluate(&review, Phase::Mutate, snapshot, now);
    assert!(!mutated.is_refused(), "{:?}", mutated.refusals);
    let review = Review { object: mutated.patched.clone(), ..review };
    black_box(mutated.conclude(&review, None).0.response().to_string());
    let evaluation = pipeline::evaluate(&review, Phase::Validate, snapshot, now);
    let consumption = evaluation.consume(&review, snapshot, &Balance::default());
    let (answer, record) = evaluation.conclude(&review, Some(consumption));
    assert!(answer.is_allowed(), "{:?}", answer.message());
    black_box((answer.response().to_string(), record.line()));
}

/// The starter policies and so many more, ten for each of other teams' namespaces, as a large site would have.
fn snapshot(added: usize) -> Snapshot {
    let policy = |index: usize| {
        let namespace = index / 10;
        format!(
            "@id(\"site-{index}\")\n@message(\"The site refuses this.\")\n@hint(\"Ask the site.\")\n\
             forbid (principal, action in [Action::\"run\", Action::\"mount\", Action::\"schedule\"], \
             resource in Namespace::\"ns-{namespace}\")\nwhen {{ context has team && context.hour == {} }};\n",
            index % 24
        )
    };
    let site: String = (0..added).map(policy).collect();
    // A document of a size that the loader takes; as many as it needs.
    let mut files = starter_files();
    let policies: Vec<&str> = site.split_inclusive(";\n").collect();
    files.extend(
        policies
            .chunks(500)
            .enumerate()
            .map(|(index, chunk)| SourceFile { path: format!("site-{index}.cedar"), text: chunk.concat() }),
    );
    let teams = Teams::parse([("team-a.yaml", TEAM)]).expect("the example team");
    Snapshot {
        config: Arc::new(Config::parse("accounts: [\"111122223333\"]").expect("a configuration")),
        teams: Arc::new(teams),
        policies: Arc::new(Policies::load(&starter_schema(), &files).expect("the policies load")),
        cluster: Arc::default(),
    }
}

fn alice() -> UserInfo {
    let role = "AWSReservedSSO_TeamA_1234567890abcdef";
    let arn = format!("arn:aws:sts::111122223333:assumed-role/{role}/alice.martin@example.com");
    serde_json::from_value(json!({
        "username": arn.replace('@', "-"),
        "uid": "aws-iam-authenticator:111122223333:AROAEXAMPLE",
        "extra": {"arn": [arn], "canonicalArn": [format!("arn:aws:iam::111122223333:role/{role}")],
                  "sessionName": ["alice.martin@example.com"], "principalId": ["AROAEXAMPLE"]},
    }))
    .expect("an identity")
}

fn body(object: &Value) -> Vec<u8> {
    review_of(object, None, &alice(), Operation::Create, false).to_string().into_bytes()
}

fn container(index: usize, variables: usize) -> Value {
    let env: Vec<Value> =
        (0..variables).map(|n| json!({"name": format!("NCCL_VARIABLE_{n}"), "value": "x".repeat(40)})).collect();
    json!({
        "name": format!("trainer-{index}"),
        "image": "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.4",
        "command": ["torchrun", "--nnodes=2", "/fsx/train.py"],
        "env": env,
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1", "memory": "64Gi"}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "namespace": "hyperpod-ns-team-a", "uid": "pod-1", "labels": {"project": "p-1"}},
        "spec": {"containers": [container(0, 30), container(1, 30)],
                 "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]},
    })
}

fn job() -> Value {
    let containers: Vec<Value> = (0..50).map(|index| container(index, 50)).collect();
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "sweep", "namespace": "hyperpod-ns-team-a", "uid": "job-1", "labels": {"project": "p-1"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": containers,
                 "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}}},
    })
}

/// Answers allow without looking.
struct Floor;

impl Decide for Floor {
    async fn decide(&self, _: Endpoint, body: Bytes, _: tokio::time::Instant) -> Answered {
        Answered::review(allow(&Review::parse_uid(&body).unwrap_or_default()), Line::None)
    }

    fn refuse(&self, _: Endpoint, _: &[u8], _: Refusal) -> Answered {
        Answered::sentence(axum::http::StatusCode::SERVICE_UNAVAILABLE, "too much")
    }
}

async fn over_tls(body: &[u8]) {
    println!("\nhandler over TLS on loopback, client beside it; /mutate of the pod, 16 connections of HTTP/1.1");
    println!("{:<28}{:>14}{:>10}", "", "requests/s", "ratio");
    let floor = throughput(Floor, body).await;
    println!("{:<28}{:>14.0}{:>10.2}", "floor", floor, 1.0);
    let starter = engine::policies::starter().infos().len();
    for policies in [starter + 10, 10_000] {
        let snapshot = snapshot(policies - starter);
        let decider = Decider::new(Arc::new(ArcSwap::from_pointee(snapshot)), Arc::new(InMemory::default()));
        let rate = throughput(decider, body).await;
        println!("{:<28}{:>14.0}{:>10.2}", format!("{policies} policies"), rate, rate / floor);
    }
}

async fn throughput<D: Decide>(decider: D, body: &[u8]) -> f64 {
    let now = certs::UnixTime::now();
    let day = Duration::from_secs(86_400);
    let authority = certs::authority::Authority::create("benchmark", day, now).expect("an authority");
    let names = certs::issue::Names::parse(["localhost"]).expect("names");
    let certificate = authority.issue(&names, day, now).expect("issued").certificate().expect("a certificate");
    let resolver = Arc::new(certs::Resolver::new(certificate, now).expect("a resolver"));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://localhost:{}/mutate", listener.local_addr().expect("an address").port());
    let server = Server {
        listener,
        tls: listen::tls(resolver).expect("tls"),
        gate: Gate::new(Arc::new(decider), None, Readiness::requiring([]), Default::default()),
        bounds: Default::default(),
        drain: server::drain::Times { propagation: Duration::ZERO, finish: Duration::from_secs(1) },
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    let ca = reqwest::Certificate::from_pem(authority.certificate_pem().as_bytes()).expect("the authority");
    let client = reqwest::Client::builder().tls_certs_only([ca]).http1_only().build().expect("a client");
    let started = Instant::now();
    let end = started + 2 * ROUND;
    let loads: Vec<_> = (0..16)
        .map(|_| {
            let (client, url, body) = (client.clone(), url.clone(), body.to_vec());
            tokio::spawn(async move {
                let mut answered = 0_u32;
                while Instant::now() < end {
                    let request = client.post(&url).header("content-type", "application/json").body(body.clone());
                    let answer = request.send().await.expect("an answer");
                    let _ = answer.bytes().await.expect("a body");
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let mut answered = 0;
    for load in loads {
        answered += load.await.expect("the load ran");
    }
    let rate = f64::from(answered) / started.elapsed().as_secs_f64();
    let _ = stop.send(());
    let _ = serving.await;
    rate
}
