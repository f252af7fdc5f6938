//! Answers rustls with the certificate of the moment, and replaces it without a connection noticing.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::UnixTime;

use crate::{Certificate, Error};

/// One certificate for every client, whatever name it asks for: the API server is the only one who calls.
///
/// Handshakes under way keep the certificate they began with; connections that stand are not touched.
#[derive(Debug)]
pub struct Resolver {
    current: ArcSwap<Certificate>,
}

impl Resolver {
    pub fn new(first: Certificate, now: UnixTime) -> Result<Self, Error> {
        first.check(now)?;
        Ok(Self { current: ArcSwap::from_pointee(first) })
    }

    /// Serves `next` from the next handshake on. On an error the certificate at hand stays.
    pub fn swap(&self, next: Certificate, now: UnixTime) -> Result<(), Error> {
        next.check(now)?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    pub fn current(&self) -> Arc<Certificate> {
        self.current.load_full()
    }

    /// When the certificate at hand expires: for a metric, and for readiness.
    pub fn expiry(&self) -> UnixTime {
        self.current.load().not_after()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(self.current.load().certified()))
    }
}
