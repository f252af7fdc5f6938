//! Three replicas under a steady load of creates, while one after the other is ended and started, policies are swapped,
//! and certificate and authority are renewed: no request fails, and none is answered wrongly.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use certs::{
    Authority, Names, UnixTime,
    rotation::{self, AuthorityPem, Step},
};
use cluster::{
    CERTIFICATE, Cluster, GATE, GATE_NAME, Replicas, TEAM_A, TEAM_B,
    manifests::{in_namespace, job_that, pod_that},
    mount, starter_policies, until,
};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        batch::v1::Job,
        core::v1::{Pod, Secret},
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::sleep};

/// The load's bound: however long a step takes, there are no more creates than this.
const MOST: u64 = 1200;

/// Between two rounds; each is one request that is right and one that is not.
const PAUSE: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_slips_while_replicas_policies_and_certificates_change() {
    let cluster = Cluster::start().expect("the cluster starts");
    // RBAC errs, so that it is the gate that must refuse bob; the intruder may create anywhere already.
    cluster.grant(&cluster.people.bob, TEAM_A).await.expect("binds");
    let mut replicas = Replicas::start(&cluster, 3).await.expect("the gate starts");
    let load = Load::start(&cluster).await;

    load.some().await;
    load.phase("undisturbed").faultless();

    for index in 0..replicas.count() {
        assert!(replicas.terminate(index).await, "it leaves by itself: {}", replicas.log(index));
        replicas.start_one(index).expect("starts");
        replicas.ready(index).await.expect("is back");
    }
    load.some().await;
    load.phase("each replica drained (SIGTERM) and started").faultless();

    policies_are_swapped(&replicas, &cluster, &load).await;
    load.phase("policies swapped").faultless();

    certificate_and_authority_rotate(&replicas, &cluster).await;
    load.some().await;
    load.phase("certificate and authority rotated").faultless();

    for index in 0..replicas.count() {
        replicas.kill(index);
        load.some().await;
        replicas.start_one(index).expect("starts");
        replicas.ready(index).await.expect("is back");
    }
    let killed = load.phase("each replica killed (SIGKILL) and started");
    killed.no_wrong_answer();
    load.some().await;
    load.phase("undisturbed again").faultless();
    load.stop().await;
    shares(&replicas);
}

/// API servers keep their connections: who starts anew is asked once they make others.
#[expect(clippy::print_stdout, reason = "counts are what this scenario is asked for")]
fn shares(replicas: &Replicas) {
    let shares: Vec<_> = (0..replicas.count()).map(|index| replicas.decisions(index)).collect();
    println!("reviews answered by each replica: {shares:?}");
    assert!(shares.iter().all(|share| *share > 0));
}

/// A set with one more rule, and back: each replica takes up both.
async fn policies_are_swapped(replicas: &Replicas, cluster: &Cluster, load: &Load) {
    let starter = starter_policies().expect("are read");
    let rule = r#"
        @id("no-blocked-images")
        @message("This image is not run.")
        @hint("Take another one.")
        forbid (principal, action == Action::"run", resource)
        when { resource.repository == "blocked" };
    "#;
    let stricter: Vec<_> = starter.iter().cloned().chain([("stricter.cedar".to_owned(), rule.to_owned())]).collect();
    let alice = cluster.people.alice.client().await.expect("connects");
    let replaced = |index| replicas.log(index).matches("policies replaced").count();
    for (files, refused) in [(&stricter, true), (&starter, false)] {
        let before: Vec<_> = (0..replicas.count()).map(replaced).collect();
        mount(&replicas.policies(), files).expect("is mounted");
        until("all replicas have taken up the new policies", async || {
            (0..replicas.count()).all(|index| replaced(index) > before[index]).then_some(())
        })
        .await
        .expect("are taken up");
        let mut manifest = in_namespace(pod_that("dry", &["train"]), TEAM_A);
        manifest["spec"]["containers"][0]["image"] = json!("example.com/blocked:1");
        let dry = PostParams { dry_run: true, field_manager: None };
        let pods: Api<Pod> = Api::namespaced(alice.clone(), TEAM_A);
        let answer = pods.create(&dry, &serde_json::from_value(manifest).expect("a pod")).await;
        assert_eq!(answer.is_err(), refused, "{answer:?}");
    }
    load.some().await;
}

/// Time does it in production; here the Secret is given the age at which the gate acts, and the gate does the rest:
/// rotates, promotes, drops the old authority.
async fn certificate_and_authority_rotate(replicas: &Replicas, cluster: &Cluster) {
    let root = cluster.callers.root.client().await.expect("connects");
    let names = Names::parse([replicas.host()]).expect("a name");
    let then =
        UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs() - 2 * rotation::OVERLAP.as_secs()));
    let before = secret(&root).await;

    // A second authority, made two hours ago: trusted by all once they have looked, and then promoted.
    let held = held(&before).after(Step::RotateAuthority, &names, then).expect("a second authority");
    let next = held.next.expect("a second authority");
    write(&root, json!({ "ca-next.crt": bytes(&next.certificate), "ca-next.key": bytes(&next.key) })).await;
    until("the second authority signs", async || {
        (text(&secret(&root).await, "ca.crt") == next.certificate).then_some(())
    })
    .await
    .expect("is promoted");
    let promoted = secret(&root).await;
    assert_eq!(text(&promoted, "ca-old.crt"), text(&before, "ca.crt"), "still trusted");
    assert_ne!(text(&promoted, "tls.crt"), text(&before, "tls.crt"));
    bundles(&root, 2).await;
    all_serve_with(replicas, &promoted).await;

    // Its leaf has grown two hours old: nobody can hold the first one's any more.
    let authority = Authority::from_pem(&next.certificate, &next.key).expect("an authority");
    let leaf = authority.issue(&names, rotation::LEAF_LIFETIME, then).expect("a leaf");
    write(&root, json!({ "tls.crt": bytes(&leaf.chain_pem), "tls.key": bytes(&leaf.key_pem) })).await;
    bundles(&root, 1).await;

    // And close to its end the leaf alone is renewed.
    let aged = UnixTime::since_unix_epoch(Duration::from_secs(
        UnixTime::now().as_secs() - (rotation::LEAF_LIFETIME - rotation::RENEW_BEFORE / 2).as_secs(),
    ));
    let leaf = authority.issue(&names, rotation::LEAF_LIFETIME, aged).expect("a leaf");
    write(&root, json!({ "tls.crt": bytes(&leaf.chain_pem), "tls.key": bytes(&leaf.key_pem) })).await;
    until("the leaf is renewed", async || (text(&secret(&root).await, "tls.crt") != leaf.chain_pem).then_some(()))
        .await
        .expect("is renewed");
    all_serve_with(replicas, &secret(&root).await).await;
}

/// Each looks in its own time; an hour is what they have for it in production.
async fn all_serve_with(replicas: &Replicas, secret: &Secret) {
    let leaf = certs::Certificate::from_pem(text(secret, "tls.crt").as_bytes(), text(secret, "tls.key").as_bytes());
    let leaf = leaf.expect("a certificate").leaf().to_vec();
    until("all replicas serve with the certificate of the Secret", async || {
        let serving = |index| replicas.readiness(index).map(|readiness| readiness.certificate);
        (0..replicas.count()).all(|index| serving(index).as_ref() == Some(&leaf)).then_some(())
    })
    .await
    .expect("take it up");
}

/// Waits until both configurations trust so many authorities.
async fn bundles(root: &Client, count: usize) {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(root.clone());
    until(&format!("API servers trust {count} authorities"), async || {
        let webhooks = configurations.get_opt(GATE_NAME).await.ok()??.webhooks?;
        let counted = webhooks.iter().all(|webhook| {
            let bundle = webhook.client_config.ca_bundle.as_ref().map(|bundle| String::from_utf8_lossy(&bundle.0));
            bundle.is_some_and(|bundle| bundle.matches("BEGIN CERTIFICATE").count() == count)
        });
        counted.then_some(())
    })
    .await
    .expect("are told");
}

async fn secret(root: &Client) -> Secret {
    let secrets: Api<Secret> = Api::namespaced(root.clone(), GATE);
    secrets.get(CERTIFICATE).await.expect("the gate has made it")
}

async fn write(root: &Client, data: Value) {
    let secrets: Api<Secret> = Api::namespaced(root.clone(), GATE);
    let patch = Patch::Merge(json!({ "data": data }));
    secrets.patch(CERTIFICATE, &PatchParams::default(), &patch).await.expect("is written");
}

fn text(secret: &Secret, key: &str) -> String {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    data.map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default()
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

fn held(secret: &Secret) -> rotation::Held {
    rotation::Held {
        authority: AuthorityPem { certificate: text(secret, "ca.crt"), key: text(secret, "ca.key") },
        next: None,
        old_pem: None,
        leaf: certs::Issued { chain_pem: text(secret, "tls.crt"), key_pem: text(secret, "tls.key") },
    }
}

/// Creates, one right and one wrong a round, until it is told to stop or has made its number.
struct Load {
    tally: Arc<Mutex<Tally>>,
    rounds: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    submitting: Vec<JoinHandle<()>>,
}

/// What became of them.
#[derive(Debug, Default)]
struct Tally {
    /// Rightly, each.
    allowed: usize,
    refused: usize,
    /// Wrongly.
    slipped: Vec<String>,
    mistaken: Vec<String>,
    /// Without the gate's answer, and therefore refused.
    failed: Vec<String>,
}

impl Load {
    async fn start(cluster: &Cluster) -> Self {
        let load = Self { tally: Arc::default(), rounds: Arc::default(), stop: Arc::default(), submitting: Vec::new() };
        let made = Arc::new(AtomicU64::new(0));
        let mut submitting = Vec::new();
        for right in [true, false] {
            let people = &cluster.people;
            let clients = match right {
                true => [(&people.alice, TEAM_A), (&people.bob, TEAM_B), (&people.amir, TEAM_A)],
                false => [(&people.bob, TEAM_A), (&people.intruder, TEAM_A), (&people.alice, TEAM_A)],
            };
            let mut callers = Vec::new();
            for (who, namespace) in clients {
                callers.push((who.name().to_owned(), who.client().await.expect("connects"), namespace));
            }
            let (tally, rounds, stop, made) =
                (Arc::clone(&load.tally), Arc::clone(&load.rounds), Arc::clone(&load.stop), Arc::clone(&made));
            submitting.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let number = made.fetch_add(1, Ordering::Relaxed);
                    if number >= MOST {
                        break;
                    }
                    let (name, client, namespace) = &callers[number as usize / 2 % callers.len()];
                    let answer = submit(client, name, namespace, number, right).await;
                    let which = format!("{number} of {name}");
                    tally.lock().unwrap_or_else(PoisonError::into_inner).count(which, right, answer);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    sleep(PAUSE).await;
                }
            }));
        }
        Self { submitting, ..load }
    }

    /// Waits for a few rounds.
    async fn some(&self) {
        let until_then = self.rounds.load(Ordering::Relaxed) + 16;
        until("some more is submitted", async || {
            let ended = self.submitting.iter().all(JoinHandle::is_finished);
            (ended || self.rounds.load(Ordering::Relaxed) >= until_then).then_some(())
        })
        .await
        .expect("goes on");
    }

    /// What has been counted since the last call, printed.
    #[expect(clippy::print_stdout, reason = "counts are what this scenario is asked for")]
    fn phase(&self, what: &str) -> Tally {
        let tally = std::mem::take(&mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner));
        let Tally { allowed, refused, slipped, mistaken, failed } = &tally;
        println!(
            "{what}: {allowed} allowed, {refused} refused, {} failed, {} wrongly allowed, {} wrongly refused",
            failed.len(),
            slipped.len(),
            mistaken.len()
        );
        for failed in failed {
            println!("    {failed}");
        }
        tally
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for submitting in self.submitting {
            submitting.await.expect("no panic");
        }
    }
}

impl Tally {
    fn count(&mut self, which: String, right: bool, answer: Result<(), kube::Error>) {
        match (right, answer) {
            (true, Ok(())) => self.allowed += 1,
            (false, Ok(())) => self.slipped.push(which),
            (_, Err(kube::Error::Api(status))) if status.message.contains("denied the request") => match right {
                true => self.mistaken.push(format!("{which}: {}", status.message)),
                false => self.refused += 1,
            },
            (_, Err(error)) => self.failed.push(format!("{which}: {error}")),
        }
    }

    fn no_wrong_answer(&self) {
        assert_eq!((&self.slipped, &self.mistaken), (&Vec::new(), &Vec::new()));
    }

    fn faultless(&self) {
        self.no_wrong_answer();
        assert_eq!(self.failed, Vec::<String>::new());
        assert!(self.allowed > 0 && self.refused > 0, "both kinds were asked: {self:?}");
    }
}

/// A Job that is suspended, or a pod. What is wrong is so by who asks; of alice, by what she asks for.
async fn submit(client: &Client, who: &str, namespace: &str, number: u64, right: bool) -> Result<(), kube::Error> {
    let mut manifest = match number % 4 {
        0 | 1 => in_namespace(job_that(&format!("load-{number}"), &["train"]), namespace),
        _ => in_namespace(pod_that(&format!("load-{number}"), &["train"]), namespace),
    };
    let is_job = manifest["kind"] == "Job";
    if is_job {
        manifest["spec"]["suspend"] = json!(true);
    }
    if !right && who == "alice" {
        let spec = if is_job { &mut manifest["spec"]["template"]["spec"] } else { &mut manifest["spec"] };
        spec["hostNetwork"] = json!(true);
    }
    let post = PostParams::default();
    if is_job {
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
        jobs.create(&post, &serde_json::from_value(manifest).expect("a Job")).await.map(drop)
    } else {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        pods.create(&post, &serde_json::from_value(manifest).expect("a pod")).await.map(drop)
    }
}
