//! A server with a scripted decision, and clients that trust it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{body::Bytes, http::StatusCode};
use certs::{Authority, Certificate, Names, Resolver, UnixTime};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, Version};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use server::{
    Answered, Check, Decide, DecisionLog, Endpoint, Gate, Line, Readiness, Refusal, Server, drain::Times, http::Limits,
    listen, listen::Bounds, runtime,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinHandle,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// No test waits that long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// Does what the review asks for (`script`), so that each test says in its own lines what happens.
#[derive(Debug)]
pub(crate) struct Scripted {
    /// A review with script `wait` announces itself on the first and waits for the second.
    pub(crate) arrivals: Semaphore,
    pub(crate) releases: Semaphore,
}

#[expect(clippy::panic, reason = "a test asks for it")]
impl Decide for Scripted {
    async fn decide(&self, endpoint: Endpoint, body: Bytes, _deadline: Instant) -> Answered {
        let review: Value = serde_json::from_slice(&body).expect("tests send JSON");
        let request = &review["request"];
        let uid = request["uid"].as_str().expect("tests send a uid");
        match request["script"].as_str().unwrap_or_default() {
            "panic" => panic!("as the script says"),
            "wait" => {
                self.arrivals.add_permits(1);
                self.releases.acquire().await.expect("never closed").forget();
            }
            "compute" => {
                while self.releases.available_permits() == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
        answer(uid, endpoint.path(), Line::Required(format!("{{\"uid\":\"{uid}\"}}")))
    }

    fn refuse(&self, _endpoint: Endpoint, body: &[u8], why: Refusal) -> Answered {
        let review: Value = serde_json::from_slice(body).unwrap_or_default();
        let request = &review["request"];
        if request["script_of_refusal"] == "panic" {
            panic!("as the script says");
        }
        match request["uid"].as_str() {
            Some(uid) => answer(uid, &format!("{why:?}"), Line::Optional(format!("{{\"refused\":\"{uid}\"}}"))),
            None => Answered::sentence(StatusCode::SERVICE_UNAVAILABLE, format!("{why:?}")),
        }
    }
}

fn answer(uid: &str, message: &str, line: Line) -> Answered {
    let review = json!({ "response": { "uid": uid, "message": message } });
    Answered::review(review.to_string().into_bytes(), line)
}

/// Where a test differs from the rest.
pub(crate) struct Setup {
    pub(crate) limits: Limits,
    pub(crate) bounds: Bounds,
    pub(crate) drain: Times,
    pub(crate) log: Option<DecisionLog>,
    pub(crate) readiness: Readiness,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Limits { timeout: PATIENCE, turn_wait: PATIENCE, ..Limits::default() },
            bounds: Bounds::default(),
            drain: Times { propagation: Duration::ZERO, finish: PATIENCE },
            log: None,
            readiness: Readiness::requiring([Check::Policies]),
        }
    }
}

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) decider: Arc<Scripted>,
    pub(crate) readiness: Readiness,
    pub(crate) resolver: Arc<Resolver>,
    authority: Authority,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<usize>,
}

impl Setup {
    pub(crate) async fn serve(self) -> Served {
        let Self { limits, bounds, drain, log, readiness } = self;
        runtime::install_crypto();
        let authority = Authority::create("test", DAY * 10, UnixTime::now()).expect("creates");
        let resolver = Arc::new(Resolver::new(issue(&authority), UnixTime::now()).expect("valid"));
        let decider = Arc::new(Scripted { arrivals: Semaphore::new(0), releases: Semaphore::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("is bound");
        let server = Server {
            listener,
            tls: listen::tls(Arc::<Resolver>::clone(&resolver)).expect("configures"),
            gate: Gate::new(Arc::clone(&decider), log, readiness.clone(), limits),
            bounds,
            drain,
        };
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(server.run(async {
            // A sender that is dropped is a test that is over.
            let _ = stopped.await;
        }));
        Served { address, decider, readiness, resolver, authority, stop: Some(stop), server }
    }
}

fn issue(authority: &Authority) -> Certificate {
    let names = Names::parse(["127.0.0.1"]).expect("parses");
    let issued = authority.issue(&names, DAY, UnixTime::now()).expect("issues");
    issued.certificate().expect("reads back")
}

impl Served {
    pub(crate) fn client(&self, version: Version) -> Client {
        let client = self.client_builder();
        let client = if version == Version::HTTP_11 { client.http1_only() } else { client };
        client.build().expect("builds")
    }

    pub(crate) fn client_builder(&self) -> ClientBuilder {
        let root = reqwest::Certificate::from_pem(self.authority.certificate_pem().as_bytes()).expect("reads");
        Client::builder().tls_certs_only([root]).timeout(PATIENCE).no_proxy()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    pub(crate) fn review(&self, client: &Client, path: &str, uid: &str, script: &str) -> RequestBuilder {
        client.post(self.url(path)).json(&json!({ "request": { "uid": uid, "script": script } }))
    }

    /// A connection with nothing but TLS on it.
    pub(crate) async fn shake_hands(&self) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate_der().clone()).expect("a root");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(self.address).await.expect("connects");
        let name = self.address.ip().into();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("shakes hands")
    }

    /// Certificates of the same authority, as a renewal brings them.
    pub(crate) fn renew(&self) {
        self.resolver.swap(issue(&self.authority), UnixTime::now()).expect("swaps");
    }

    /// Ends when so many reviews with script `wait` are being decided.
    pub(crate) async fn arrived(&self, reviews: u32) {
        let arrivals = self.decider.arrivals.acquire_many(reviews);
        tokio::time::timeout(PATIENCE, arrivals).await.expect("arrive").expect("never closed").forget();
    }

    pub(crate) fn release(&self, reviews: usize) {
        self.decider.releases.add_permits(reviews);
    }

    pub(crate) fn ask_to_stop(&mut self) {
        self.stop.take().expect("once").send(()).expect("still serving");
    }

    /// Gives the number of connections that were cut off.
    pub(crate) async fn stopped(self) -> usize {
        tokio::time::timeout(PATIENCE, self.server).await.expect("stops").expect("does not panic")
    }
}

/// The uid and message of an answer with status 200.
pub(crate) async fn read(response: Response) -> (String, String) {
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/json");
    let review: Value = response.json().await.expect("is JSON");
    let text = |field: &str| review["response"][field].as_str().expect("is text").to_owned();
    (text("uid"), text("message"))
}

/// The status and text of an answer that is a sentence.
pub(crate) async fn read_sentence(response: Response) -> (u16, String) {
    assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    (response.status().as_u16(), response.text().await.expect("is text"))
}

pub(crate) fn pair(uid: &str, message: &str) -> (String, String) {
    (uid.to_owned(), message.to_owned())
}
