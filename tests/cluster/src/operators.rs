//! Stand-ins for the operators of Spaces and endpoints: each makes a Deployment of its object, under the real
//! operator's name, which is all that admission sees of it.
//!
//! Like the real ones they try again what was refused, and write what they made again whenever its pod template differs
//! from what they want. Whoever changes their objects in admission gets an endless exchange, and a scenario that counts
//! writes shows it.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::PersistentVolumeClaim};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Map, Value, json};
use tokio::{task::JoinHandle, time::sleep};

use crate::kubeconfig::Identity;

/// They look at everything again and again: over a restart of the API server, and whatever was refused. A watch would
/// be quicker and need a queue.
const PAUSE: Duration = Duration::from_millis(300);

/// Makes `workspace-<name>` and its claim, and copies all labels and annotations of the Workspace to the Deployment
/// and its pods, as jupyter-k8s does. Works while it is held.
#[derive(Debug)]
pub struct SpaceOperator {
    _operator: Operator,
}

/// Makes a Deployment of an InferenceEndpointConfig's worker. Which labels the real operator copies is not public: this
/// one copies none. Works while it is held.
#[derive(Debug)]
pub struct EndpointOperator {
    _operator: Operator,
}

impl SpaceOperator {
    pub(crate) async fn start(identity: &Identity) -> Result<Self> {
        let kind = GroupVersionKind::gvk("workspace.jupyter.org", "v1alpha1", "Workspace");
        Ok(Self { _operator: Operator::start(identity, &kind, space).await? })
    }
}

impl EndpointOperator {
    pub(crate) async fn start(identity: &Identity) -> Result<Self> {
        let kind = GroupVersionKind::gvk("inference.sagemaker.aws.amazon.com", "v1", "InferenceEndpointConfig");
        Ok(Self { _operator: Operator::start(identity, &kind, endpoint).await? })
    }
}

/// What an operator wants to be there for one object.
struct Wanted {
    claim: Option<PersistentVolumeClaim>,
    deployment: Deployment,
}

type Want = fn(&DynamicObject) -> Result<Wanted>;

fn space(workspace: &DynamicObject) -> Result<Wanted> {
    let name = workspace.name_any();
    let spec = &workspace.data["spec"];
    let own = BTreeMap::from([
        ("app".to_owned(), "jupyter".to_owned()),
        ("workspace.jupyter.org/workspace-name".to_owned(), name.clone()),
    ]);
    let mut labels = own.clone();
    labels.extend(workspace.labels().clone());
    let storage = "workspace-storage";
    let claim_name = format!("workspace-{name}-pvc");
    let mut volumes = vec![json!({ "name": storage, "persistentVolumeClaim": { "claimName": claim_name } })];
    let mut mounts = vec![json!({ "name": storage, "mountPath": "/home/sagemaker-user" })];
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        volumes.push(json!({
            "name": volume["name"],
            "persistentVolumeClaim": { "claimName": volume["persistentVolumeClaimName"] },
        }));
        mounts.push(json!({ "name": volume["name"], "mountPath": volume["mountPath"] }));
    }
    let container = json!({
        "name": "workspace",
        "image": spec["image"].as_str().unwrap_or("public.ecr.aws/sagemaker/sagemaker-distribution:latest-cpu"),
        "resources": spec["resources"],
        "env": spec["env"],
        "volumeMounts": mounts,
        "ports": [{ "name": "http", "containerPort": 8888 }],
    });
    let pod = json!({
        "containers": [without_nulls(container)],
        "volumes": volumes,
        "nodeSelector": spec["nodeSelector"],
        "tolerations": spec["tolerations"],
        "serviceAccountName": spec["serviceAccountName"],
        "securityContext": spec["podSecurityContext"],
    });
    let metadata = json!({ "labels": labels, "annotations": workspace.annotations() });
    let claim = json!({
        "metadata": owned(workspace, &claim_name, json!({ "labels": labels }))?,
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": spec["storage"]["size"].as_str().unwrap_or("10Gi") } },
        },
    });
    let deployment = json!({
        "metadata": owned(workspace, &format!("workspace-{name}"), metadata.clone())?,
        "spec": {
            "replicas": if spec["desiredStatus"] == "Stopped" { 0 } else { 1 },
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": own },
            "template": { "metadata": metadata, "spec": without_nulls(pod) },
        },
    });
    Ok(Wanted { claim: Some(serde_json::from_value(claim)?), deployment: serde_json::from_value(deployment)? })
}

fn endpoint(config: &DynamicObject) -> Result<Wanted> {
    let name = config.name_any();
    let spec = &config.data["spec"];
    let labels = json!({ "app": name, "deploying-service": "hyperpod-inference" });
    let worker = &spec["worker"];
    let container = json!({
        "name": name,
        "image": worker["image"],
        "resources": worker["resources"],
        "args": worker["args"],
        "env": worker["environmentVariables"],
    });
    let sidecar = json!({ "name": "sidecar-reverse-proxy", "image": "stand-in/reverse-proxy:1" });
    let pod = json!({
        "containers": [without_nulls(container), sidecar],
        "nodeSelector": { "node.kubernetes.io/instance-type": spec["instanceType"] },
        "serviceAccountName": spec["kubernetes"]["serviceAccountName"],
    });
    let deployment = json!({
        "metadata": owned(config, &name, json!({ "labels": labels }))?,
        "spec": {
            "replicas": spec["replicas"].as_i64().unwrap_or(1),
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": without_nulls(pod) },
        },
    });
    Ok(Wanted { claim: None, deployment: serde_json::from_value(deployment)? })
}

/// Metadata with this name and the object as controller.
fn owned(owner: &DynamicObject, name: &str, mut metadata: Value) -> Result<Value> {
    let types = owner.types.as_ref().context("an object has a kind")?;
    metadata["name"] = name.into();
    metadata["ownerReferences"] = json!([{
        "apiVersion": types.api_version,
        "kind": types.kind,
        "name": owner.name_any(),
        "uid": owner.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
    Ok(metadata)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>().into(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => other,
    }
}

#[derive(Debug)]
struct Operator {
    working: JoinHandle<()>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.working.abort();
    }
}

impl Operator {
    /// On the current runtime.
    async fn start(identity: &Identity, kind: &GroupVersionKind, want: Want) -> Result<Self> {
        let client = identity.client().await?;
        let resource = ApiResource::from_gvk(kind);
        Ok(Self { working: tokio::spawn(work(client, resource, want)) })
    }
}

async fn work(client: Client, resource: ApiResource, want: Want) {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    loop {
        let objects = all.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        for mut object in objects.into_iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
            object.types = Some(kube::core::TypeMeta {
                // a list does not repeat the kind
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            let _again = reconcile(&client, &object, want).await; // refused or overtaken: the next round tries again
        }
        sleep(PAUSE).await;
    }
}

async fn reconcile(client: &Client, object: &DynamicObject, want: Want) -> Result<()> {
    let namespace = object.namespace().context("these kinds are namespaced")?;
    let Wanted { claim, deployment } = want(object)?;
    if let Some(claim) = claim {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        if claims.get_opt(&claim.name_any()).await?.is_none() {
            claims.create(&PostParams::default(), &claim).await?;
        }
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    match deployments.get_opt(&deployment.name_any()).await? {
        None => drop(deployments.create(&PostParams::default(), &deployment).await?),
        Some(found) if differs(&found, &deployment)? => {
            let name = deployment.name_any();
            let replacement = Deployment { metadata: found.metadata, ..deployment };
            drop(deployments.replace(&name, &PostParams::default(), &replacement).await?);
        }
        Some(_) => {}
    }
    Ok(())
}

/// Template labels and annotations must be exactly ours. Of the rest, only what we set: the API server fills in
/// defaults.
fn differs(found: &Deployment, wanted: &Deployment) -> Result<bool> {
    let (found, wanted) = (serde_json::to_value(&found.spec)?, serde_json::to_value(&wanted.spec)?);
    let exactly = ["labels", "annotations"];
    let metadata = |spec: &Value, field: &str| spec["template"]["metadata"][field].clone();
    Ok(exactly.iter().any(|field| metadata(&found, field) != metadata(&wanted, field)) || !contains(&found, &wanted))
}

fn contains(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| found.get(key).is_some_and(|found| contains(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(found, wanted)| contains(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}
