//! Every definition of the cluster has an object here that goes through the gate: by server-side apply, and by update
//! through each version that is served. Somebody else's attempts are refused, by the gate and not by RBAC.
//!
//! Prints what was asked and answered:
//!
//! ```text
//! cargo test --workspace --test kinds definitions -- --nocapture
//! ```

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use cluster::{Cluster, Identity, Kind, TEAM_A, manifests, until};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::{
    Api, Client, Error,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{SAMPLES, cluster, object, template};

type Edit = Box<dyn Fn(&mut Value, u64)>;

/// An object of a kind, and who may write it.
struct Sample {
    /// Group and kind.
    of: (String, &'static str),
    object: Value,
    /// Each number makes another object, in something that the gate is asked about.
    edit: Edit,
    by: fn(&Cluster) -> &Identity,
    not_by: fn(&Cluster) -> &Identity,
}

fn member(cluster: &Cluster) -> &Identity {
    &cluster.people.alice
}

fn lead(cluster: &Cluster) -> &Identity {
    &cluster.people.amir
}

/// RBAC lets him write everywhere, see `lets_bob_in`.
fn member_of_another_team(cluster: &Cluster) -> &Identity {
    &cluster.people.bob
}

fn admin(cluster: &Cluster) -> &Identity {
    &cluster.people.admin
}

fn task_governance(cluster: &Cluster) -> &Identity {
    &cluster.callers.service_linked_role
}

fn queue(cluster: &Cluster) -> &Identity {
    &cluster.callers.kueue
}

#[tokio::test]
async fn an_object_of_each_goes_through() {
    let samples = samples();
    every_kind_has_a_sample(&samples);
    let_bob_in().await;
    let mut table = Table::default();
    for sample in &samples {
        let (group, kind) = &sample.of;
        let kind = cluster().kinds().iter().find(|found| found.group == *group && found.kind == *kind);
        let kind = kind.unwrap_or_else(|| unreachable!("{} {}", group, sample.of.1));
        Attempt { sample, kind, table: &mut table }.run().await;
    }
    table.print();
    assert_eq!(table.unexpected, Vec::<String>::new());
}

fn every_kind_has_a_sample(samples: &[Sample]) {
    let named = |group: &str, kind: &str| format!("{group}/{kind}");
    let defined: BTreeSet<_> = cluster().kinds().iter().map(|kind| named(&kind.group, &kind.kind)).collect();
    let sampled: BTreeSet<_> = samples.iter().map(|sample| named(&sample.of.0, sample.of.1)).collect();
    assert_eq!(defined, sampled, "left: what tests/data/crds and the stand-ins define; right: what has an object here");
}

/// Everywhere, so that he reaches what is in no namespace as well: a mistake in RBAC.
async fn let_bob_in() {
    let root = cluster().callers.root.client().await.expect("connects");
    let bob = &cluster().people.bob;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "bob-everywhere" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "team-member" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": bob.username() }],
    }))
    .expect("a binding");
    Api::all(root).create(&PostParams::default(), &binding).await.expect("is created");
    let question = ["auth", "can-i", "create", "clusterqueues.kueue.x-k8s.io"];
    until("bob can", async || {
        let answer = cluster().kubectl(bob, &question, "").await.ok()?;
        (answer.code == 0).then_some(())
    })
    .await
    .expect("RBAC knows of it");
}

struct Attempt<'a> {
    sample: &'a Sample,
    kind: &'a Kind,
    table: &'a mut Table,
}

impl Attempt<'_> {
    async fn run(&mut self) {
        let (by, not_by) = ((self.sample.by)(cluster()), (self.sample.not_by)(cluster()));
        let (ours, theirs) = (by.client().await.expect("connects"), not_by.client().await.expect("connects"));
        for version in &self.kind.versions {
            let answer = self.apply(&theirs, version, 0).await;
            self.table.refused(self.kind, version, not_by, "apply, new", answer);
        }
        // Not in a later one of the list: of two versions with no conversion between them, an API server does not go on in the
        // one that has more fields with what was applied through the other ("field not declared in schema").
        let made_in = self.kind.versions.first().expect("a version");
        let answer = self.apply(&ours, made_in, 1).await;
        self.table.let_in(self.kind, made_in, by, "apply, new", answer);
        for (turn, version) in (1_u64..).zip(&self.kind.versions) {
            let answer = self.apply(&ours, version, 2 * turn).await;
            self.table.let_in(self.kind, version, by, "apply", answer);
            let answer = self.replace(&ours, version, 2 * turn + 1).await;
            self.table.let_in(self.kind, version, by, "update", answer);
            let answer = self.replace(&theirs, version, 2 * turn + 2).await;
            self.table.refused(self.kind, version, not_by, "update", answer);
        }
        let deleted = self.api(&ours, made_in).delete(self.name(), &DeleteParams::default()).await;
        assert!(deleted.is_ok(), "{}: {deleted:?}", self.kind.kind);
    }

    fn name(&self) -> &str {
        self.sample.object["metadata"]["name"].as_str().expect("a name")
    }

    fn api(&self, client: &Client, version: &str) -> Api<DynamicObject> {
        let resource = self.kind.served_as(version);
        match self.kind.namespaced {
            true => Api::namespaced_with(client.clone(), TEAM_A, &resource),
            false => Api::all_with(client.clone(), &resource),
        }
    }

    async fn apply(&self, client: &Client, version: &str, number: u64) -> Answer {
        let mut object = self.sample.object.clone();
        object["apiVersion"] = format!("{}/{version}", self.kind.group).into();
        (self.sample.edit)(&mut object, number);
        let how = PatchParams { force: true, ..PatchParams::apply("definitions") };
        self.api(client, version).patch(self.name(), &how, &Patch::Apply(object)).await
    }

    /// As `kubectl edit` does it.
    async fn replace(&self, client: &Client, version: &str, number: u64) -> Answer {
        let api = self.api(client, version);
        let found = api.get(self.name()).await?;
        let mut object = serde_json::to_value(found).expect("JSON");
        (self.sample.edit)(&mut object, number);
        let object = serde_json::from_value(object).expect("an object");
        api.replace(self.name(), &PostParams::default(), &object).await
    }
}

/// Of an answer, in the table.
const LONGEST: usize = 120;

type Answer = Result<DynamicObject, Error>;

/// What was asked and answered, for whoever reads the test's output.
#[derive(Default)]
struct Table {
    rows: String,
    unexpected: Vec<String>,
}

impl Table {
    fn let_in(&mut self, kind: &Kind, version: &str, who: &Identity, what: &str, answer: Answer) {
        let (expected, text) = match answer {
            Ok(object) => (is_stamped(&object, who), "let in".to_owned()),
            Err(error) => (false, text_of(error).1),
        };
        self.add(kind, version, who, what, &text, expected);
    }

    fn refused(&mut self, kind: &Kind, version: &str, who: &Identity, what: &str, answer: Answer) {
        let (expected, text) = match answer {
            Ok(_) => (false, "let in".to_owned()),
            Err(error) => {
                let (code, text) = text_of(error);
                (code == 403 && text.contains("cedargate.dev\" denied the request"), text)
            }
        };
        self.add(kind, version, who, what, &text, expected);
    }

    fn add(&mut self, kind: &Kind, version: &str, who: &Identity, what: &str, answer: &str, expected: bool) {
        let answer = answer.lines().collect::<Vec<_>>().join(" ");
        let why = answer.split_once(":   - ").map_or(answer.as_str(), |(_, why)| why); // the first of its sentences
        let shown: String = why.chars().take(LONGEST).collect();
        let row = format!("{:<30} {version:<9} {:<20} {what:<11} {shown}", kind.kind, who.name());
        writeln!(self.rows, "{row}").expect("text");
        if !expected {
            self.unexpected.push(format!("{} {version}, {} by {}: {answer}", kind.kind, what, who.name()));
        }
    }

    #[expect(clippy::print_stdout, reason = "the table is what a reader of the test is after")]
    fn print(&self) {
        println!("{:<30} {:<9} {:<20} {:<11} answer\n{}", "kind", "version", "who", "what", self.rows);
    }
}

/// What a person makes in a team's namespace says who it was; what parts of the cluster and the platform make, need not.
fn is_stamped(object: &DynamicObject, who: &Identity) -> bool {
    let annotations = object.metadata.annotations.clone().unwrap_or_default();
    let stamp = annotations.get("cedargate.dev/submitted-by").cloned().unwrap_or_default();
    !["alice", "amir"].contains(&who.name()) || stamp.contains(&format!("\"person\":\"{}", who.name()))
}

fn text_of(error: Error) -> (u16, String) {
    let Error::Api(status) = error else { return (0, error.to_string()) };
    (status.code, status.message)
}

fn samples() -> Vec<Sample> {
    let mut samples = of_operators();
    samples.extend(of_endpoints());
    samples.extend(of_spaces());
    samples.extend(of_the_queue());
    samples
}

/// Training and Ray: those of `SAMPLES`, which says how they grow.
fn of_operators() -> Vec<Sample> {
    let sampled = SAMPLES.iter().map(|(versions, kind, _, spec)| {
        let version = versions.first().expect("a version");
        let name = format!("defined-{}", kind.to_lowercase());
        sample(object(version, kind, &name, spec(1)), kind, move |object, n| {
            let wanted = spec(1 + n % 2);
            json_merge(&mut object["spec"], &wanted);
        })
    });
    let training = object(
        "sagemaker.amazonaws.com/v1",
        "HyperPodPyTorchJob",
        "defined-hyperpodpytorchjob",
        json!({ "replicaSpecs": [{ "name": "worker", "replicas": 1, "template": template() }] }),
    );
    let training = sample(training, "HyperPodPyTorchJob", |object, n| {
        object["spec"]["replicaSpecs"][0]["replicas"] = (1 + n % 2).into();
    });
    sampled.chain([training]).collect()
}

fn of_endpoints() -> Vec<Sample> {
    let endpoint = adapted(
        "sghe-inferenceendpointconfig-fsx",
        json!({ "spec": { "modelSourceConfig": { "fsxStorage": { "fileSystemId": "fs-0123456789abcdef0" } } } }),
    );
    let model = adapted(
        "ado-jumpstartmodel-queue-labels",
        json!({
            "metadata": { "labels": { "kueue.x-k8s.io/queue-name": "hyperpod-ns-team-a-localqueue" } },
            "spec": { "tlsConfig": { "tlsCertificateOutputS3Uri": "s3://team-a-tls" } },
        }),
    );
    let gateway = object(
        "inference.sagemaker.aws.amazon.com/v1alpha1",
        "InferenceGatewayConfig",
        "defined-gateway",
        json!({
            "schedulers": [{ "name": "a", "modelName": "chat" }],
            "auth": { "jwt": { "issuer": "https://login.example.com" } },
            "podDefaults": { "resources": { "limits": { "cpu": "1" } } },
        }),
    );
    let role = |object: &mut Value, n: u64| object["spec"]["restApiId"] = format!("a1b2c3d4e{n}").into();
    vec![
        sample(endpoint, "InferenceEndpointConfig", |object, n| object["spec"]["replicas"] = (1 + n % 2).into()),
        sample(model, "JumpStartModel", |object, n| {
            object["spec"]["autoScalingSpec"]["maxReplicaCount"] = (4 + n % 2).into();
        }),
        // It hands a role to SageMaker.
        Sample {
            by: admin,
            not_by: member,
            ..sample(registration("defined-registration"), "SageMakerEndpointRegistration", role)
        },
        sample(gateway, "InferenceGatewayConfig", |object, n| {
            object["spec"]["podDefaults"]["resources"]["limits"]["cpu"] = (1 + n).to_string().into();
        }),
    ]
}

/// Names what the operator knows of the cluster, and its role.
pub(crate) fn registration(name: &str) -> Value {
    object(
        "inference.sagemaker.aws.amazon.com/v1",
        "SageMakerEndpointRegistration",
        name,
        json!({
            "name": "chat",
            "executionRole": "arn:aws:iam::111122223333:role/inference-operator",
            "imageUri": manifests::IMAGE,
            "instanceType": "ml.g5.8xlarge",
            "loadBalancerHostName": "internal-chat.us-west-2.elb.amazonaws.com",
            "restApiId": "a1b2c3d4e5",
            "eksClusterDetails": {
                "arn": "arn:aws:eks:us-west-2:111122223333:cluster/hyperpod", "name": "hyperpod", "vpcId": "vpc-1",
                "clusterSecurityGroupId": "sg-1", "securityGroupIds": ["sg-1"], "subnetIds": ["subnet-1"],
            },
            "tlsConfig": { "tlsCertificateOutputS3Bucket": "team-a-tls", "tlsCertificateS3Keys": ["chat"] },
        }),
    )
}

fn of_spaces() -> Vec<Sample> {
    let space = adapted("jk8s-workspace-serviceaccount", json!({ "spec": { "serviceAccountName": "team-a" } }));
    let template = adapted("jk8s-workspacetemplate-production", json!({}));
    let jupyter = "workspace.jupyter.org/v1alpha1";
    let pod = json!({ "additionalContainers": [{ "name": "side", "image": manifests::IMAGE }] });
    let modifications = json!({ "podModifications": pod });
    let strategy = json!({
        "displayName": "Behind the site's door",
        "accessResourceTemplates": [
            { "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "namePrefix": "space", "template": "spec: {}" },
        ],
        "deploymentModifications": modifications,
    });
    let integration = json!({
        "displayName": "Ray",
        "resourceRefs": [
            { "name": "ray", "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": { "name": "shared" } },
        ],
        "deploymentModifications": modifications,
    });
    let strategy = object(jupyter, "WorkspaceAccessStrategy", "defined-strategy", strategy);
    let integration = object(jupyter, "WorkspaceIntegrationTemplate", "defined-integration", integration);
    let image = |object: &mut Value, n: u64| {
        let container = "/spec/deploymentModifications/podModifications/additionalContainers/0";
        object.pointer_mut(container).expect("a container")["image"] = format!("{}{n}", manifests::IMAGE).into();
    };
    vec![
        sample(space, "Workspace", |object, n| {
            object["spec"]["containerConfig"]["args"] = json!(["-c", format!("start-notebook.sh --port={n}")]);
        }),
        Sample {
            by: lead,
            not_by: member,
            ..sample(template, "WorkspaceTemplate", |object, n| {
                object["spec"]["defaultImage"] = format!("jk8s-application-jupyter-uv:{n}").into();
            })
        },
        // What everybody's Spaces get is the platform's, whoever leads a team.
        Sample { by: admin, not_by: lead, ..sample(strategy, "WorkspaceAccessStrategy", image) },
        Sample { by: admin, not_by: lead, ..sample(integration, "WorkspaceIntegrationTemplate", image) },
    ]
}

fn of_the_queue() -> Vec<Sample> {
    let kueue = |kind: &str, spec: Value| {
        let mut object = object("kueue.x-k8s.io/v1beta1", kind, &format!("defined-{}", kind.to_lowercase()), spec);
        object["metadata"]["labels"] = json!({});
        if !["LocalQueue", "Workload"].contains(&kind) {
            object["metadata"].as_object_mut().expect("metadata").remove("namespace");
        }
        object
    };
    let groups = |n: u64| {
        let quota = json!({ "name": "nvidia.com/gpu", "nominalQuota": n.to_string() });
        let flavors = json!([{ "name": "ml.p5.48xlarge", "resources": [quota] }]);
        json!([{ "coveredResources": ["nvidia.com/gpu"], "flavors": flavors }])
    };
    let quota = move |object: &mut Value, n: u64| object["spec"]["resourceGroups"] = groups(n);
    let mut priority = kueue("WorkloadPriorityClass", Value::Null);
    priority.as_object_mut().expect("an object").remove("spec");
    priority["value"] = 100.into();
    let record = json!({
        "queueName": "defined-localqueue",
        "podSets": [{ "name": "main", "count": 1, "template": template() }],
    });
    let made = vec![
        Sample {
            by: task_governance,
            ..sample(kueue("ClusterQueue", json!({ "namespaceSelector": {} })), "ClusterQueue", quota)
        },
        Sample { by: task_governance, ..sample(kueue("Cohort", json!({})), "Cohort", quota) },
        Sample {
            by: task_governance,
            not_by: member,
            ..sample(kueue("LocalQueue", json!({ "clusterQueue": "defined" })), "LocalQueue", |object, n| {
                object["spec"]["stopPolicy"] = if n.is_multiple_of(2) { "Hold" } else { "None" }.into();
            })
        },
        Sample {
            by: task_governance,
            ..sample(kueue("ResourceFlavor", json!({})), "ResourceFlavor", |object, n| {
                object["spec"]["nodeLabels"] = json!({ "example.com/flavor": n.to_string() });
            })
        },
        // Its levels stay as they are.
        Sample {
            by: admin,
            ..sample(
                kueue("Topology", json!({ "levels": [{ "nodeLabel": "kubernetes.io/hostname" }] })),
                "Topology",
                |object, n| object["metadata"]["labels"]["example.com/block"] = n.to_string().into(),
            )
        },
        Sample {
            by: admin,
            ..sample(priority, "WorkloadPriorityClass", |object, n| object["value"] = (100 + n).into())
        },
        Sample {
            by: queue,
            not_by: member,
            ..sample(kueue("Workload", record), "Workload", |object, n| object["spec"]["priority"] = (100 + n).into())
        },
    ];
    made
}

/// Of a member, and refused to a member of another team.
fn sample(object: Value, kind: &'static str, edit: impl Fn(&mut Value, u64) + 'static) -> Sample {
    let group = object["apiVersion"].as_str().and_then(|version| version.split('/').next()).expect("a group");
    let of = (group.to_owned(), kind);
    Sample { of, object, edit: Box::new(edit), by: member, not_by: member_of_another_team }
}

/// A published manifest, in team A's namespace and with what is team A's in place of its own.
fn adapted(manifest: &str, change: Value) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../webhook/engine/testdata/manifests");
    let text = fs::read_to_string(folder.join(format!("{manifest}.yaml"))).expect("a manifest");
    let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
    object["metadata"]["namespace"] = TEAM_A.into();
    json_merge(&mut object, &change);
    object
}

/// RFC 7396, less what takes away.
fn json_merge(target: &mut Value, change: &Value) {
    match (target, change) {
        (Value::Object(target), Value::Object(change)) => {
            for (key, value) in change {
                json_merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (target, change) => *target = change.clone(),
    }
}
