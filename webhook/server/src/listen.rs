//! Accepts connections, shakes hands and speaks HTTP/1.1 or HTTP/2 on them.
//!
//! The API server calls webhooks over HTTP/1.1 and keeps its connections; HTTP/2 is for whoever negotiates it. The
//! loop is our own because a connection here has an age, a number and a farewell.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, Response, Version, header},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use rustls::{ServerConfig, crypto::aws_lc_rs, server::ResolvesServerCert};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::ServiceExt;

use crate::drain::{Phase, Phases};

/// How many connections stand at once. A handful of API servers and kubelet need a few dozen; the bound keeps a
/// stranger in the cluster from taking all memory. Further ones wait in the kernel's queue.
pub const CONNECTIONS: usize = 1024;

/// How long a handshake may take: it is a round trip or two inside one cluster.
pub const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long an HTTP/1.1 connection may wait for the next request's head, idle time included. The API server's client
/// closes what was idle for 90 s; were we to close first, a review that was just being sent would be lost, because a
/// POST is not sent again.
pub const IDLE: Duration = Duration::from_secs(120);

/// How old a connection grows before it is ended politely. API servers keep their connections for ever, and a replica
/// that came later would never be called.
pub const AGE: Duration = Duration::from_secs(600);

/// How long a connection that was told to end may still take. Longer than any deadline, so it cuts off none but those
/// who negotiated HTTP/2 and then said nothing.
const FAREWELL: Duration = Duration::from_secs(60);

/// How many reviews one HTTP/2 connection may have under way; no more are decided at once in any case.
const STREAMS: u32 = crate::http::CONCURRENT_DECISIONS as u32;

/// HTTP/2 has no idle bound; a peer that is gone without a word is noticed by pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause after a failed accept. What fails is most often the lack of a file descriptor, and that takes a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What goes by ALPN, our preference first.
const H2: &[u8] = b"h2";
const H1: &[u8] = b"http/1.1";

/// The bounds of a connection. [`Default`] gives the constants of this module.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub connections: usize,
    pub handshake: Duration,
    pub idle: Duration,
    pub age: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: CONNECTIONS, handshake: HANDSHAKE, idle: IDLE, age: Some(AGE) }
    }
}

/// TLS 1.2 and 1.3 with the certificate of the moment. No client certificates: EKS does not let its API server
/// present one.
pub fn tls(resolver: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![H2.to_vec(), H1.to_vec()];
    Ok(Arc::new(config))
}

/// Serves until [`Phase::Stopping`], then gives what is under way `finish` to end. Gives the number of connections
/// that did not.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    app: Router,
    bounds: Bounds,
    phases: Phases,
    finish: Duration,
) -> usize {
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let door = Arc::new(Door { acceptor: tls.into(), app, bounds, http: protocols(bounds) });
    let mut connections = JoinSet::new();
    let mut conductor = phases.clone();
    loop {
        tokio::select! {
            () = conductor.reached(Phase::Stopping) => break,
            Some(ended) = connections.join_next() => note_panic(ended),
            (stream, slot) = accept(&listener, &slots) => {
                connections.spawn(Arc::clone(&door).connection(stream, slot, phases.clone()));
            }
        }
    }
    drop(listener);
    let ended = async {
        while let Some(ended) = connections.join_next().await {
            note_panic(ended);
        }
    };
    let cut_off = match timeout(finish, ended).await {
        Ok(()) => 0,
        Err(_late) => connections.len(),
    };
    connections.shutdown().await;
    cut_off
}

fn note_panic(ended: Result<(), JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!("a connection ended in a panic");
    }
}

/// The next connection for which there is a slot. Never fails: there is always a next one.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Slot) {
    loop {
        let slot = Arc::clone(slots).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => return (stream, slot),
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Held as long as the connection stands. (The semaphore is never closed, so there is always one.)
type Slot = Option<OwnedSemaphorePermit>;

fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// One builder for each protocol. ALPN has said which it is, so the bytes need not be sniffed: while they are, no
/// timeout holds and a farewell would drop the connection.
struct Protocols {
    one: Builder<TokioExecutor>,
    two: Builder<TokioExecutor>,
}

fn protocols(bounds: Bounds) -> Protocols {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(bounds.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    Protocols { one: builder.clone().http1_only(), two: builder.http2_only() }
}

/// What all connections share.
struct Door {
    acceptor: TlsAcceptor,
    app: Router,
    bounds: Bounds,
    http: Protocols,
}

impl Door {
    async fn connection(self: Arc<Self>, stream: TcpStream, slot: Slot, phases: Phases) {
        let _slot = slot;
        // Answers are small and whole: waiting for more to send only costs the caller time.
        let _ = stream.set_nodelay(true);
        match timeout(self.bounds.handshake, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.converse(stream, phases).await,
            Ok(Err(error)) => tracing::debug!(%error, "handshake failed"),
            Err(_late) => tracing::debug!("handshake took too long"),
        }
    }

    /// HTTP/2 has a farewell that loses nothing (GOAWAY). HTTP/1.1 has not: a request may be on its way while we
    /// close. There each answer says `Connection: close` from the time on when the connection should end, and only at
    /// [`Phase::Stopping`] is an idle one closed.
    async fn converse(&self, stream: TlsStream<TcpStream>, mut phases: Phases) {
        let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        let builder = if is_h2 { &self.http.two } else { &self.http.one };
        let farewell = Farewell { old_at: self.bounds.age.map(|age| Instant::now() + age), phases: phases.clone() };
        let mut due = pin!(async {
            if is_h2 { farewell.old_or_stopping(&mut phases).await } else { phases.reached(Phase::Stopping).await }
        });
        let app = self.app.clone();
        let service = service_fn(|request| answer(app.clone(), request, farewell.clone()));
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = due.as_mut() => {
                connection.as_mut().graceful_shutdown();
                timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection broke off");
        }
    }
}

/// When this connection should end after the answer at hand.
#[derive(Clone)]
struct Farewell {
    old_at: Option<Instant>,
    phases: Phases,
}

impl Farewell {
    fn is_due(&self) -> bool {
        self.old_at.is_some_and(|old_at| Instant::now() >= old_at) || self.phases.now() >= Phase::Draining
    }

    async fn old_or_stopping(&self, phases: &mut Phases) {
        let stopping = phases.reached(Phase::Stopping);
        match self.old_at {
            Some(old_at) => timeout_at(old_at, stopping).await.unwrap_or_default(),
            None => stopping.await,
        }
    }
}

async fn answer(app: Router, request: Request<Incoming>, farewell: Farewell) -> Result<Response<Body>, Infallible> {
    let version = request.version();
    let mut response = app.oneshot(request.map(Body::new)).await?;
    if version < Version::HTTP_2 && farewell.is_due() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}
