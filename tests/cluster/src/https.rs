//! A small HTTPS server on loopback: for the token authenticator, and for webhooks of scenarios.
//!
//! Not the gate's own server: what judges the gate must not share its faults. Dropping it ends its connections too.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::Router;
use certs::{Authority, Names, Resolver, UnixTime};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use rustls::{ServerConfig, crypto::aws_lc_rs};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::TlsAcceptor;

/// Longer than any cluster of ours stands.
pub(crate) const LIFETIME: Duration = Duration::from_secs(7 * 86_400);

#[derive(Debug)]
pub(crate) struct Https {
    address: SocketAddr,
    authority_pem: String,
    serving: JoinHandle<()>,
}

impl Https {
    /// Serves on a free port, on the current runtime, with an authority of its own.
    pub(crate) async fn serve(app: Router) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot bind")?;
        let address = listener.local_addr()?;
        let authority = Authority::create("cedargate test cluster", LIFETIME, UnixTime::now())?;
        let acceptor = acceptor(&authority)?;
        let serving = tokio::spawn(accept(listener, acceptor, app));
        Ok(Self { address, authority_pem: authority.certificate_pem().to_owned(), serving })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// What its callers must trust.
    pub(crate) fn authority_pem(&self) -> &str {
        &self.authority_pem
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor> {
    let now = UnixTime::now();
    let issued = authority.issue(&Names::parse(["127.0.0.1", "localhost"])?, LIFETIME, now)?;
    let resolver = Resolver::new(issued.certificate()?, now)?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    Ok(Arc::new(config).into())
}

/// The connections are in here, so they end with this task.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, app: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_ended) = connections.join_next() => {}
            Ok((stream, _)) = listener.accept() => {
                connections.spawn(converse(stream, acceptor.clone(), app.clone()));
            }
        }
    }
}

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, app: Router) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = TowerToHyperService::new(app);
    let _ended = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}
