//! The kinds that teams submit: published CustomResourceDefinitions of `tests/data/crds`, and stand-ins of our own
//! for those that are not public.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use axum::http::{
    Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use futures_util::future::try_join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Client, ResourceExt,
    core::{ApiResource, GroupVersionKind},
};

use crate::wait::until;

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/crds");
const STAND_INS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/stand-ins");

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// They are up to a megabyte and a half each: nobody needs them back.
const NAME_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// What a definition adds to the cluster.
#[derive(Debug, Clone)]
pub struct Kind {
    pub group: String,
    pub kind: String,
    pub plural: String,
    pub namespaced: bool,
    /// Those that are served, as the definition lists them.
    pub versions: Vec<String>,
}

impl Kind {
    /// As a client asks for it in one of its versions.
    pub fn served_as(&self, version: &str) -> ApiResource {
        let kind = GroupVersionKind::gvk(&self.group, version, &self.kind);
        ApiResource::from_gvk_with_plural(&kind, &self.plural)
    }
}

/// Ready to be sent.
#[derive(Debug)]
pub(crate) struct Definition {
    name: String,
    body: Vec<u8>,
    kind: Kind,
}

/// All of them. That is ten megabytes of YAML: read them while something else starts.
pub(crate) fn read() -> Result<Vec<Definition>> {
    let mut definitions = read_folder(Path::new(PUBLISHED))?;
    definitions.extend(read_folder(Path::new(STAND_INS))?);
    Ok(definitions)
}

/// Creates them, all at once, and waits until they are served. The API server is busy with that for some seconds, and
/// quicker than with one after the other: it publishes its schemas anew for each.
pub(crate) async fn install(root: &Client, definitions: Vec<Definition>) -> Result<Vec<Kind>> {
    try_join_all(definitions.into_iter().map(|definition| create(root, definition))).await
}

async fn create(root: &Client, definition: Definition) -> Result<Kind> {
    let Definition { name, body, kind } = definition;
    let request = Request::post(DEFINITIONS).header(CONTENT_TYPE, "application/json").header(ACCEPT, NAME_ONLY);
    root.request_text(request.body(body)?).await.with_context(|| name.clone())?;
    for version in &kind.versions {
        let path = format!("/apis/{}/{version}/{}?limit=1", kind.group, kind.plural);
        until(&format!("{name} is served"), async || {
            let request = Request::get(&path).body(Vec::new()).ok()?;
            root.request_text(request).await.ok().map(drop)
        })
        .await?;
    }
    Ok(kind)
}

fn read_folder(folder: &Path) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            definitions.push(prepare(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(definitions)
}

/// As published, less what needs its operator: with a conversion webhook that nobody answers, every read of another
/// version than the stored one would fail. Fields that versions do not share are lost instead, which tests here can
/// bear.
fn prepare(path: &Path) -> Result<Definition> {
    let mut definition: CustomResourceDefinition = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    definition.spec.conversion = None;
    definition.annotations_mut().retain(|_, value| !value.contains("{{")); // the chart's template, not a value
    let body = serde_json::to_vec(&definition)?;
    let spec = &definition.spec;
    let served = spec.versions.iter().filter(|version| version.served);
    let kind = Kind {
        group: spec.group.clone(),
        kind: spec.names.kind.clone(),
        plural: spec.names.plural.clone(),
        namespaced: spec.scope == "Namespaced",
        versions: served.map(|version| version.name.clone()).collect(),
    };
    Ok(Definition { name: definition.name_any(), body, kind })
}
