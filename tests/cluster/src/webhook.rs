//! An admission webhook that a scenario scripts, and that remembers what it was asked.
//!
//! For what the API server really sends, and for neighbours of the gate: a mutating webhook that adds a sidecar after
//! us, one that is slow, one that refuses.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::{Json, Router, extract::State, routing::post};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};

use crate::https::Https;

/// What to answer, less the uid.
#[derive(Debug, Clone)]
pub enum Answer {
    Allow,
    /// 403 with this message.
    Deny(String),
    /// JSON Patch operations.
    Patch(Value),
    /// The `response` itself, for what the others cannot say.
    Raw(Value),
}

/// Ends, and refuses connections, when dropped.
#[derive(Debug)]
pub struct Webhook {
    https: Https,
    script: Arc<Script>,
}

type Handler = dyn Fn(&Value) -> Answer + Send + Sync;

struct Script {
    handler: Box<Handler>,
    requests: Mutex<Vec<Value>>,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("requests", &self.requests).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Serves on a free port of loopback, at every path. `handler` is given the review's `request`.
    pub async fn serve(handler: impl Fn(&Value) -> Answer + Send + Sync + 'static) -> Result<Self> {
        let script = Arc::new(Script { handler: Box::new(handler), requests: Mutex::default() });
        let app = Router::new().fallback(post(review)).with_state(Arc::clone(&script));
        Ok(Self { https: Https::serve(app).await?, script })
    }

    pub fn url(&self) -> String {
        self.https.url("/")
    }

    /// As `clientConfig.caBundle` wants it.
    pub fn ca_bundle(&self) -> String {
        BASE64.encode(self.https.authority_pem())
    }

    /// `clientConfig` of a webhook configuration.
    pub fn client_config(&self) -> Value {
        json!({ "url": self.url(), "caBundle": self.ca_bundle() })
    }

    /// Every `request` so far, in the order of asking.
    pub fn requests(&self) -> Vec<Value> {
        self.script.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn review(State(script): State<Arc<Script>>, Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    script.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
    let mut response = match (script.handler)(request) {
        Answer::Allow => json!({ "allowed": true }),
        Answer::Deny(message) => json!({ "allowed": false, "status": { "code": 403, "message": message } }),
        Answer::Patch(operations) => {
            let patch = BASE64.encode(operations.to_string());
            json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })
        }
        Answer::Raw(response) => response,
    };
    response["uid"] = request["uid"].clone();
    Json(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}
