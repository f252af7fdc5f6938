//! The kinds that teams submit: published CustomResourceDefinitions of `tests/data/crds`, and a stand-in of our own
//! for the one that is not public.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use futures_util::{TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt, api::PostParams};

use crate::wait::until;

const PUBLISHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/crds");
const STAND_INS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/stand-ins");

/// How many the API server digests at once; the schemas are large, and it has two cores at most here.
const AT_ONCE: usize = 4;

/// All definitions. That is ten megabytes of YAML: read them while something else starts.
pub(crate) fn read() -> Result<Vec<CustomResourceDefinition>> {
    let mut definitions = read_folder(Path::new(PUBLISHED))?;
    definitions.extend(read_folder(Path::new(STAND_INS))?);
    Ok(definitions)
}

/// Creates them and waits until they are served.
pub(crate) async fn install(root: &Client, definitions: Vec<CustomResourceDefinition>) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(root.clone());
    stream::iter(definitions.into_iter().map(Ok))
        .try_for_each_concurrent(AT_ONCE, |definition| create(&crds, definition))
        .await
}

async fn create(crds: &Api<CustomResourceDefinition>, definition: CustomResourceDefinition) -> Result<()> {
    let name = definition.name_any();
    crds.create(&PostParams::default(), &definition).await.with_context(|| name.clone())?;
    until(&format!("{name} is served"), async || {
        let definition = crds.get_opt(&name).await.ok()??;
        is_established(&definition).then_some(())
    })
    .await
}

fn read_folder(folder: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let mut definitions = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            definitions.push(parse(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(definitions)
}

/// As published, less what needs its operator: with a conversion webhook that nobody answers, every read of another
/// version than the stored one would fail. Fields that versions do not share are lost instead, which tests here can
/// bear.
fn parse(path: &Path) -> Result<CustomResourceDefinition> {
    let mut definition: CustomResourceDefinition = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    definition.spec.conversion = None;
    definition.annotations_mut().retain(|_, value| !value.contains("{{")); // the chart's template, not a value
    Ok(definition)
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}
