//! The token authenticator, as EKS has one: the API server asks it who a bearer token is.
//!
//! So requests carry userInfo with uid and extra as aws-iam-authenticator writes them, which impersonation could not
//! give (it has no uid, and lower-cases the keys of extra).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::Result;
use axum::{Json, Router, extract::State, routing::post};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus, UserInfo};

use crate::https::Https;

/// Whom each token speaks for. Grows while the cluster runs; nothing is ever taken away, because the API server caches
/// answers for two minutes and would not notice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens(Arc<RwLock<HashMap<String, UserInfo>>>);

impl Tokens {
    pub(crate) async fn serve(&self) -> Result<Https> {
        Https::serve(Router::new().route("/authenticate", post(authenticate)).with_state(self.clone())).await
    }

    /// A new token for this user.
    pub(crate) fn issue(&self, name: &str, user: UserInfo) -> String {
        let random = || RandomState::new().hash_one(name);
        let token = format!("k8s-aws-v1.{name}.{:016x}{:016x}", random(), random());
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(token.clone(), user);
        token
    }

    fn review(&self, token: &str) -> TokenReviewStatus {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned();
        TokenReviewStatus { authenticated: Some(known.is_some()), user: known, ..TokenReviewStatus::default() }
    }
}

async fn authenticate(State(tokens): State<Tokens>, Json(review): Json<TokenReview>) -> Json<TokenReview> {
    let status = tokens.review(review.spec.token.as_deref().unwrap_or_default());
    Json(TokenReview { status: Some(status), ..review })
}
