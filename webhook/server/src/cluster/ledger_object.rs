//! The `QuotaLedger` custom resource: its definition, generated from the type that the engine reads.

use engine::quota::Ledger;
use engine::team::API_VERSION;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::discovery::ApiResource;
use serde_json::{Value, json};

use super::resources;
use super::team_object::{GROUP, VERSION, schema_of};
use crate::ledger::{Stored, Version, Versioned};

pub const KIND: &str = "QuotaLedger";
pub const PLURAL: &str = "quotaledgers";

/// How to reach ledgers.
pub fn resource() -> ApiResource {
    resources::resource(GROUP, VERSION, KIND, PLURAL)
}

/// The definition that `cedargate crds` prints and the chart installs.
pub fn definition() -> CustomResourceDefinition {
    let column = |name: &str, path: &str, kind: &str| json!({"name": name, "jsonPath": path, "type": kind});
    let definition = json!({
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": KIND, "plural": PLURAL, "singular": "quotaledger"},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Settling", ".status.settling", "boolean"),
                    column("Fence", ".status.fence.number", "integer"),
                    column("Age", ".metadata.creationTimestamp", "date"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "What the team of this name holds of its quota. Only the gate writes it; one that is deleted \
                                    is made anew, and nothing is admitted meanwhile.",
                    "properties": {"status": schema_of::<Ledger>()},
                }},
            }],
        },
    });
    serde_json::from_value(definition).expect("the definition has the fields of its type")
}

/// A ledger as the API server has it. An error says why it cannot be read: then nothing is admitted by it.
pub(super) fn read(object: &Value) -> Result<Stored, String> {
    let text = |key: &str| engine::json::text(object, &["metadata", key]).unwrap_or_default().to_owned();
    let version = Version { uid: text("uid"), resource_version: text("resourceVersion") };
    match object.get("status").filter(|status| status.get("entries").is_some()) {
        None => Ok(Stored::Unbuilt(version)),
        Some(status) => match serde_json::from_value(status.clone()) {
            Ok(ledger) => Ok(Stored::Built(Versioned { ledger, version })),
            Err(error) => Err(format!("it cannot be read ({error}); delete it, and it is made anew")),
        },
    }
}

/// What to write in place of `version`.
pub(super) fn written(team: &str, Version { uid, resource_version }: &Version, ledger: &Ledger) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": team, "uid": uid, "resourceVersion": resource_version},
        "status": ledger,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition() {
        insta::assert_json_snapshot!(definition());
    }

    #[test]
    fn what_is_written_is_read_again() {
        let version = Version { uid: "u".to_owned(), resource_version: "7".to_owned() };
        let ledger = Ledger { settling: true, ..Ledger::default() };
        let object = written("a", &version, &ledger);
        assert_eq!(read(&object), Ok(Stored::Built(Versioned { ledger, version: version.clone() })));
        let unbuilt = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
        assert_eq!(read(&unbuilt), Ok(Stored::Unbuilt(version)));
        let garbage = json!({"metadata": {"uid": "u"}, "status": {"entries": [1]}});
        assert!(read(&garbage).is_err_and(|problem| problem.contains("delete it")));
    }
}
