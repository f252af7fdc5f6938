//! The API server's audit log: who really asked for what, and what became of it.
//!
//! It holds every write with request and answer (the policy is in `control_plane`), in the order of answering.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Deserialize;
use serde_json::Value;

use crate::wait::until;

#[derive(Debug, Clone)]
pub struct Audit {
    log: PathBuf,
}

/// One request, as `audit.k8s.io/v1` has it, less what no scenario has asked for yet.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    #[serde(rename = "auditID")]
    pub audit_id: String,
    pub verb: String,
    pub user: UserInfo,
    pub impersonated_user: Option<UserInfo>,
    pub user_agent: Option<String>,
    pub object_ref: Option<ObjectReference>,
    pub response_status: Option<ResponseStatus>,
    pub request_object: Option<Value>,
    pub response_object: Option<Value>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    pub api_group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ResponseStatus {
    #[serde(default)]
    pub code: u16,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub details: Value,
}

impl Event {
    pub fn username(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }

    /// `jobs`, or `deployments/scale`.
    pub fn resource(&self) -> String {
        match &self.object_ref {
            Some(reference) if reference.subresource.is_empty() => reference.resource.clone(),
            Some(reference) => format!("{}/{}", reference.resource, reference.subresource),
            None => String::new(),
        }
    }

    /// Also where the name was generated, which the reference does not tell.
    pub fn name(&self) -> &str {
        match &self.object_ref {
            Some(reference) if !reference.name.is_empty() => &reference.name,
            _ => {
                self.response_object.as_ref().and_then(|object| object["metadata"]["name"].as_str()).unwrap_or_default()
            }
        }
    }

    pub fn namespace(&self) -> &str {
        self.object_ref.as_ref().map_or("", |reference| &reference.namespace)
    }

    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }
}

impl Audit {
    pub(crate) fn new(log: PathBuf) -> Self {
        Self { log }
    }

    /// All so far. A line that is still being written is not there yet.
    pub fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The events that are meant, as soon as there is one.
    pub async fn find(&self, what: &str, is_meant: impl Fn(&Event) -> bool) -> Result<Vec<Event>> {
        until(&format!("the audit log has {what}"), async || {
            let events: Vec<_> = self.events().into_iter().filter(|event| is_meant(event)).collect();
            (!events.is_empty()).then_some(events)
        })
        .await
    }

    /// The first object of this resource (`pods`) in this namespace that was really created and whose name begins so.
    pub async fn created(&self, namespace: &str, resource: &str, prefix: &str) -> Result<Event> {
        let is_meant = |event: &Event| {
            event.verb == "create"
                && event.code() == 201
                && (event.namespace(), event.resource().as_str()) == (namespace, resource)
                && event.name().starts_with(prefix)
        };
        let found = self.find(&format!("the creation of {resource} {prefix}*"), is_meant).await?;
        found.into_iter().next().context("what is found is not empty")
    }
}
