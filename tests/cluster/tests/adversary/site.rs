//! What is to be attacked: two clusters that are alike, but for the gate.

use std::{collections::BTreeMap, thread};

use axum::http::{Request, header::CONTENT_TYPE};
use cluster::{Cluster, Event, Gate, Identity, TEAM_A, TEAM_B, manifests, until};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::attempts::RESTRICTED;
use crate::calls::{Call, MERGE_PATCH, collection, create, text, with};
use crate::{
    Attempt,
    Who::{self, Alice, Amir, Bob, Eve, Inside, Minted},
};

/// A cluster, everybody's clients, and the objects that attempts name.
pub(crate) struct Site {
    cluster: Cluster,
    clients: BTreeMap<Who, Client>,
    admin: Client,
    gate: Option<Gate>,
}

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) message: String,
    audit_id: String,
}

/// Whoever else refuses.
pub(crate) const RBAC: &str = "(RBAC)";
pub(crate) const LET_IN: &str = "(let in)";

impl Site {
    pub(crate) async fn start(gated: bool) -> Self {
        let starting = thread::spawn(move || {
            let cluster = Cluster::start().expect("the cluster starts");
            let gate = gated.then(|| Gate::start(&cluster).expect("the gate starts"));
            (cluster, gate)
        });
        let (cluster, gate) = starting.join().expect("starts");
        let people = &cluster.people;
        let admin = client(&people.admin).await;
        let clients = BTreeMap::from([
            (Alice, client(&people.alice).await),
            (Amir, client(&people.amir).await),
            (Bob, client(&people.bob).await),
            (Eve, client(&people.intruder).await),
        ]);
        let mut site = Self { cluster, clients, admin, gate };
        site.lay_out().await;
        site
    }

    /// Rights that nobody should have, and what belongs to people and the platform.
    async fn lay_out(&mut self) {
        let people = self.cluster.people.clone();
        for namespace in [TEAM_B, "default"] {
            self.cluster.grant(&people.alice, namespace).await.expect("binds");
        }
        for object in of_the_platform(&people.alice, &people.intruder) {
            make(&self.admin, &object).await;
        }
        make(&client(&self.cluster.callers.kueue).await, &of_the_queue()).await;
        for (whose, objects) in [(Alice, of_alice()), (Amir, of_amir()), (Bob, of_bob())] {
            for object in objects {
                make(&self.clients[&whose], &object).await;
            }
        }
        if self.gate.is_some() {
            self.hold_team_b_to_more().await;
        }
        let pod = self.read(&format!("/api/v1/namespaces/{TEAM_A}/pods/alices-pod")).await;
        let pod = serde_json::from_value(pod).expect("a pod");
        for (who, pod) in [(Inside, Some(&pod)), (Minted, None)] {
            let identity = self.cluster.service_account(TEAM_A, "team-a", pod).await.expect("a token");
            self.cluster.grant(&identity, TEAM_A).await.expect("binds");
            self.can(&identity, TEAM_A, "create", "secrets").await;
            self.clients.insert(who, client(&identity).await);
        }
        for namespace in [TEAM_B, "default"] {
            self.can(&people.alice, namespace, "create", "secrets").await;
        }
        self.can(&people.alice, TEAM_A, "create", "namespaces").await;
        self.can(&people.intruder, TEAM_A, "impersonate", "users").await;
    }

    async fn hold_team_b_to_more(&self) {
        let level = json!({ "spec": { "level": "restricted" } });
        let team =
            Call { content_type: MERGE_PATCH, ..Call::of("PATCH", "/apis/cedargate.dev/v1alpha1/teams/team-b", level) };
        assert_eq!(send(&self.admin, &team).await.code, 200);
        let mut lax = manifests::in_namespace(manifests::pod("lax"), TEAM_B);
        lax["spec"]["containers"][0]["securityContext"] = RESTRICTED.clone();
        lax["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = true.into();
        let lax = create(&lax).rehearsed();
        let refused = async || {
            let reply = send(&self.clients[&Bob], &lax).await;
            reply.message.contains("[restricted-no-escalation]").then_some(())
        };
        until("team B is held to the stricter level", refused).await.expect("is refused");
    }

    async fn can(&self, who: &Identity, namespace: &str, verb: &str, resource: &str) {
        let question = ["auth", "can-i", verb, resource, "-n", namespace];
        let asked = until("RBAC knows of it", async || {
            let answer = self.cluster.kubectl(who, &question, "").await.ok()?;
            (answer.code == 0).then_some(())
        });
        asked.await.expect("RBAC knows of it");
    }

    async fn read(&self, path: &str) -> Value {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        self.admin.request(request).await.expect(path)
    }

    /// References name their owner by uid.
    async fn completed(&self, mut call: Call) -> Call {
        if let Some(owner) = call.body.pointer("/metadata/ownerReferences/0").cloned() {
            let kind = collection(text(&owner["apiVersion"]), text(&owner["kind"]), Some(TEAM_A));
            let found = self.read(&format!("{kind}/{}", text(&owner["name"]))).await;
            call.body["metadata"]["ownerReferences"][0]["uid"] = found["metadata"]["uid"].clone();
        }
        call
    }

    pub(crate) async fn try_it(&self, attempt: &Attempt) -> Reply {
        send(&self.clients[&attempt.who], &self.completed(attempt.call.clone()).await).await
    }

    /// As the platform's administrator, whom RBAC refuses nothing.
    pub(crate) async fn try_as_admin(&self, attempt: &Attempt) -> Reply {
        send(&self.admin, &self.completed(attempt.call.clone()).await).await
    }

    /// Which policies refused, as the API server's own audit log has them; or who else.
    pub(crate) async fn answers(&self, replies: &[(&Attempt, Reply)]) -> Vec<String> {
        let audit = self.cluster.audit();
        let found = until("the audit log has all refusals", async || {
            let events = audit.events().into_iter().map(|event| (event.audit_id.clone(), event));
            let events: BTreeMap<String, Event> = events.collect();
            let mut refusals = replies.iter().filter(|(_, reply)| reply.is_the_gates());
            refusals.all(|(_, reply)| events.contains_key(&reply.audit_id)).then_some(events)
        });
        let events = found.await.expect("all refusals are in the audit log");
        replies.iter().map(|(attempt, reply)| reply.answer(&attempt.call, events.get(&reply.audit_id))).collect()
    }
}

impl Reply {
    /// Nobody listens behind a pod here, and every pod is bound already: what gets as far as that has passed admission.
    pub(crate) fn passed(&self, call: &Call) -> bool {
        let connects = ["/exec", "/attach", "/portforward", "/proxy"].iter().any(|way| call.path.contains(way));
        let refused = self.message.contains("is forbidden") || self.is_the_gates();
        match self.code {
            200..=299 => true,
            409 => self.message.contains("already assigned to node"),
            404 => false,
            _ => connects && !refused,
        }
    }

    fn is_the_gates(&self) -> bool {
        self.message.contains("cedargate.dev\" denied the request")
    }

    fn answer(&self, call: &Call, event: Option<&Event>) -> String {
        match (event.filter(|_| self.is_the_gates()), self.passed(call), self.code) {
            (Some(event), ..) => told(event),
            (None, true, _) => LET_IN.to_owned(),
            (None, false, 403) if self.message.contains(" cannot ") => RBAC.to_owned(),
            (None, false, code) => format!("({code})"),
        }
    }
}

/// Reason codes beside the usual one, then the policies.
fn told(event: &Event) -> String {
    let of_key = |key: &str| {
        let told = event.annotations.iter().find(|(name, _)| name.ends_with(&format!("cedargate.dev/{key}")));
        told.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let reasons = of_key("reasons").split(',').filter(|reason| *reason != "forbidden");
    let told = reasons.chain(of_key("policies").split(',')).filter(|word| !word.is_empty());
    told.collect::<Vec<_>>().join(", ")
}

async fn client(who: &Identity) -> Client {
    who.client().await.expect("connects")
}

async fn make(client: &Client, object: &Value) {
    let call = create(object);
    let reply = send(client, &call).await;
    assert!(matches!(reply.code, 200..=299 | 409), "{}: {} {}", call.path, reply.code, reply.message);
}

async fn send(client: &Client, call: &Call) -> Reply {
    let Call { method, path, content_type, body, headers } = call;
    let mut request = Request::builder().method(*method).uri(path).header(CONTENT_TYPE, *content_type);
    for (key, value) in headers {
        request = request.header(key, value);
    }
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let response =
        client.send(request.body(Body::from(body)).expect("a request")).await.expect("the API server answers");
    let code = response.status().as_u16();
    let audit_id = response.headers().get("audit-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let bytes = response.into_body().collect_bytes().await.expect("an answer");
    let status: Option<Value> = serde_json::from_slice(&bytes).ok();
    let message = status.and_then(|status| status["message"].as_str().map(str::to_owned));
    Reply { code, message: message.unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned()), audit_id }
}

fn of_the_platform(alice: &Identity, eve: &Identity) -> Vec<Value> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let user = |who: &str| json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who }]);
    let role = |kind: &str, name: &str, rules: Value| json!({ "apiVersion": rbac, "kind": kind, "metadata": { "name": name }, "rules": rules });
    let binding = |kind: &str, name: &str, who: &str| {
        let role =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind.trim_end_matches("Binding"), "name": name });
        json!({ "apiVersion": rbac, "kind": kind, "metadata": { "name": name }, "roleRef": role, "subjects": user(who) })
    };
    let too_wide = json!([
        { "apiGroups": [""], "resources": ["namespaces", "namespaces/status", "persistentvolumes"], "verbs": ["*"] },
    ]);
    let impersonates =
        json!([{ "apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"] }]);
    let reads_pods = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]);
    let account = |name: &str| json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name } });
    let priority = |name: &str| json!({ "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name }, "value": 1 });
    vec![
        role("ClusterRole", "too-wide", too_wide),
        binding("ClusterRoleBinding", "too-wide", alice.username()),
        role("ClusterRole", "impersonates", impersonates),
        binding("ClusterRoleBinding", "impersonates", eve.username()),
        role("Role", "harmless", reads_pods),
        binding("RoleBinding", "harmless", "somebody"),
        account("team-a"),
        account("other"),
        priority("experimentation-priority"),
        json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "other" }, "handler": "other" }),
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "somebodys" },
        }),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "platforms" },
            "spec": { "podSelector": {}, "policyTypes": ["Egress"] },
        }),
        json!({
            "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": { "name": "hyperpod-ns-team-a-localqueue" },
            "spec": { "clusterQueue": "hyperpod-ns-team-a-clusterqueue" },
        }),
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "aws-auth", "namespace": "kube-system" } }),
    ]
}

fn of_the_queue() -> Value {
    let template = json!({ "spec": manifests::pod("a")["spec"] });
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": { "name": "amirs-workload" },
        "spec": {
            "queueName": "hyperpod-ns-team-a-localqueue",
            "podSets": [{ "name": "main", "count": 1, "template": template }],
        },
    })
}

fn of_alice() -> Vec<Value> {
    let home = json!([{ "name": "home", "persistentVolumeClaim": { "claimName": "homes" } }]);
    let mount = json!([{ "name": "home", "mountPath": "/home/alice", "subPath": "alice" }]);
    let at_home = with(manifests::pod("alices-home"), "/spec/volumes", home);
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "alices-claim" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "gp3", "resources": { "requests": { "storage": "1Gi" } } },
    });
    vec![
        claim,
        manifests::deployment("alices"),
        manifests::stateful_set("alices-set"),
        manifests::job("alices-job"),
        with(manifests::cron_job("alices-nightly"), "/spec/suspend", true.into()),
        with(manifests::pod("alices-pod"), "/spec/serviceAccountName", "team-a".into()),
        with(at_home, "/spec/containers/0/volumeMounts", mount),
    ]
}

fn of_amir() -> Vec<Value> {
    let small = json!({ "requests": { "cpu": "10m" } });
    let held = json!([{ "name": "example.com/hold" }]); // what runs is resized by its node only, which is played here
    let worker = json!({ "replicas": 1, "restartPolicy": "Never", "template": { "spec": {
        "containers": [{ "name": "pytorch", "image": manifests::IMAGE }],
    } } });
    let training = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": { "name": "amirs-training", "labels": { "project": "p-7" } },
        "spec": { "pytorchReplicaSpecs": { "Worker": worker } },
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "amirs" },
        "spec": { "selector": { "app": "amirs" }, "ports": [{ "port": 80 }] },
    });
    vec![
        manifests::deployment("amirs"),
        manifests::stateful_set("amirs-set"),
        with(manifests::job("amirs-waiting"), "/spec/suspend", true.into()),
        manifests::pod("amirs-pod"),
        with(with(manifests::pod("amirs-held"), "/spec/containers/0/resources", small), "/spec/schedulingGates", held),
        manifests::pod("amirs-other-pod"),
        manifests::pod("amirs-third-pod"),
        manifests::space("amirs-space"),
        training,
        service,
    ]
}

fn of_bob() -> Vec<Value> {
    vec![manifests::in_namespace(manifests::pod("bobs-pod"), TEAM_B)]
}
