//! The authority and the serving certificate in one Secret that all replicas share.
//!
//! Whoever finds that something is due does it and writes it against the version that was read; the one that loses reads
//! what the other wrote. So there is one authority, however many replicas start at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use certs::rotation::{AuthorityPem, Held, Step};
use certs::{Issued, Names, Resolver, UnixTime};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::sync::watch;

use super::governor::{FIELD_MANAGER, Reports, Trust};
use super::{ApiServer, chain};
use crate::{Check, Readiness};

/// How often to look; small beside [`certs::rotation::OVERLAP`].
pub const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How often a replica may lose in a row: each loss means that another has written.
const MAX_LOSSES: usize = 8;

const TYPE: &str = "kubernetes.io/tls";

/// Which Secret, and for which names the certificate speaks.
#[derive(Debug, Clone)]
pub struct SharedCertificate {
    pub api_server: ApiServer,
    pub namespace: String,
    pub name: String,
    pub names: Names,
}

/// Try again: while serving, the certificate at hand stays.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot {what} Secret `{name}`")]
    Api { what: &'static str, name: String, source: Box<kube::Error> },
    #[error("others were faster {MAX_LOSSES} times in a row")]
    Lost,
    #[error("cannot make a certificate")]
    Make(#[from] certs::Error),
}

impl SharedCertificate {
    /// What the replicas hold after whatever is due has been done.
    pub async fn look(&self, trusted: impl Fn(&str) -> bool, now: UnixTime) -> Result<Held, SecretError> {
        let api: Api<Secret> = Api::namespaced(self.api_server.client(), &self.namespace);
        for _ in 0..MAX_LOSSES {
            let found = api.get_opt(&self.name).await.map_err(|error| self.failed("read", error))?;
            let held = found.as_ref().and_then(|secret| held(secret.data.as_ref()?));
            let (step, next) = match &held {
                Some(held) => {
                    let step = held.step(&self.names, now, &trusted);
                    (step, held.after(step, &self.names, now)?)
                }
                // Absent, or there and empty, as a chart may install it.
                None => (Step::StartOver, Held::create(&self.names, now)?),
            };
            if step == Step::Keep || self.write(&api, found, &next).await? {
                if step != Step::Keep {
                    tracing::info!(?step, "certificate");
                }
                return Ok(next);
            }
        }
        Err(SecretError::Lost)
    }

    /// False: somebody else has written.
    async fn write(&self, api: &Api<Secret>, found: Option<Secret>, held: &Held) -> Result<bool, SecretError> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = match found {
            // With its resourceVersion.
            Some(secret) => api.replace(&self.name, &params, &Secret { data: Some(data(held)), ..secret }).await,
            None => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                let secret =
                    Secret { metadata, data: Some(data(held)), type_: Some(TYPE.to_owned()), ..Secret::default() };
                api.create(&params, &secret).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(self.failed("write", error)),
        }
    }

    fn failed(&self, what: &'static str, source: kube::Error) -> SecretError {
        SecretError::Api { what, name: format!("{}/{}", self.namespace, self.name), source: Box::new(source) }
    }
}

/// Keeps resolver and trust at what the Secret holds, and does what is due. Never ends: drop it, or abort its task.
pub async fn follow(
    shared: SharedCertificate,
    resolver: Arc<Resolver>,
    trust: watch::Sender<Option<Trust>>,
    reports: Arc<Reports>,
    readiness: Readiness,
) {
    loop {
        // What API servers trust is what the configurations hold.
        let applied = reports.bundle().unwrap_or_default();
        match shared.look(|pem| applied.contains(pem.trim_end()), UnixTime::now()).await {
            Ok(held) => take(&held, &resolver, &trust),
            // The one at hand goes on serving; when it expires, readiness says so.
            Err(error) => tracing::warn!(error = chain(&error), "certificate not looked after"),
        }
        match resolver.current().check(UnixTime::now()) {
            Ok(()) => readiness.pass(Check::Certificate),
            Err(error) => readiness.fail(Check::Certificate, error.to_string()),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn take(held: &Held, resolver: &Resolver, trust: &watch::Sender<Option<Trust>>) {
    let bundle = Trust::Bundle(held.bundle());
    trust.send_if_modified(|current| {
        let changed = current.as_ref() != Some(&bundle);
        if changed {
            *current = Some(bundle);
        }
        changed
    });
    let swapped = held.leaf.certificate().and_then(|next| {
        if next.leaf() == resolver.current().leaf() {
            return Ok(());
        }
        resolver.swap(next, UnixTime::now())
    });
    if let Err(error) = swapped {
        tracing::warn!(error = chain(&error), "certificate not taken up");
    }
}

const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: [&str; 2] = ["ca.crt", "ca.key"];
const NEXT: [&str; 2] = ["ca-next.crt", "ca-next.key"];
const OLD: &str = "ca-old.crt";

fn held(data: &BTreeMap<String, ByteString>) -> Option<Held> {
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok().filter(|text| !text.is_empty());
    let authority =
        |[certificate, key]: [&str; 2]| Some(AuthorityPem { certificate: text(certificate)?, key: text(key)? });
    Some(Held {
        authority: authority(AUTHORITY)?,
        next: authority(NEXT),
        old_pem: text(OLD),
        leaf: Issued { chain_pem: text(CHAIN)?, key_pem: text(KEY)? },
    })
}

fn data(held: &Held) -> BTreeMap<String, ByteString> {
    let Held { authority, next, old_pem, leaf: Issued { chain_pem, key_pem } } = held;
    let pair = |[certificate, key]: [&'static str; 2], pem: &AuthorityPem| {
        [(certificate, pem.certificate.clone()), (key, pem.key.clone())]
    };
    [(CHAIN, chain_pem.clone()), (KEY, key_pem.clone())]
        .into_iter()
        .chain(pair(AUTHORITY, authority))
        .chain(next.iter().flat_map(|next| pair(NEXT, next)))
        .chain(old_pem.iter().map(|old| (OLD, old.clone())))
        .map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back_from_the_secret_at_every_step() {
        let names = Names::parse(["cedargate.cedargate-system.svc"]).expect("parses");
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
        let mut state = Held::create(&names, now).expect("creates");
        for step in [Step::RotateAuthority, Step::Promote, Step::DropOld] {
            state = state.after(step, &names, now).expect("steps");
            let back = held(&data(&state)).expect("reads back");
            assert_eq!(back.bundle(), state.bundle(), "{step:?}");
            assert_eq!((back.next.is_some(), back.old_pem), (state.next.is_some(), state.old_pem.clone()));
            assert_eq!(back.leaf.chain_pem, state.leaf.chain_pem);
        }
    }

    #[test]
    fn an_empty_secret_holds_nothing() {
        assert!(held(&BTreeMap::new()).is_none());
        let empty = [CHAIN, KEY].map(|key| (key.to_owned(), ByteString(Vec::new())));
        assert!(held(&empty.into()).is_none());
    }
}
