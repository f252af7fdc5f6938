//! Who may ask in a case: a name of `data/identities/`, or a service account as `namespace/name`.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::world::read;

/// The `userInfo` of a caller.
pub fn named(name: &str) -> Result<Value> {
    match name.split_once('/') {
        Some((namespace, account)) => Ok(service_account(namespace, account)),
        None => {
            let text = read(&format!("data/identities/{name}.yaml"))?;
            serde_saphyr::from_str(&text).with_context(|| format!("identity `{name}`"))
        }
    }
}

/// As a token of its own, which no pod is bound to.
fn service_account(namespace: &str, name: &str) -> Value {
    json!({
        "username": format!("system:serviceaccount:{namespace}:{name}"),
        "uid": "eca1943f-c2d5-4afc-aa52-c69553f1010c",
        "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}"), "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=7f4ff047-c1d7-4efc-862f-dd106fea883e"]},
    })
}
