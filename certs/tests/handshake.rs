//! The resolver as rustls uses it: handshakes in memory, while certificates are issued, swapped and refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use certs::{Authority, Certificate, Error, Names, Resolver, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, crypto::aws_lc_rs,
    pki_types::ServerName,
};

const DAY: Duration = Duration::from_secs(86_400);
const NAME: &str = "cedargate.cedargate-system.svc";

#[test]
fn a_client_that_trusts_the_authority_accepts_what_it_issued() {
    let site = Site::new();
    let certificate = site.issue(DAY);
    let leaf = certificate.leaf().to_vec();
    let resolver = Arc::new(Resolver::new(certificate, UnixTime::now()).expect("valid"));
    assert_eq!(handshake(&site.client(), &server(&resolver), NAME).expect("shakes hands"), leaf);
}

#[test]
fn a_client_refuses_another_name_and_another_authority() {
    let site = Site::new();
    let resolver = Arc::new(Resolver::new(site.issue(DAY), UnixTime::now()).expect("valid"));
    let server = server(&resolver);
    handshake(&site.client(), &server, "elsewhere.svc").expect_err("another name");
    handshake(&Site::new().client(), &server, NAME).expect_err("another authority");
}

#[test]
fn an_address_is_a_name_too() {
    let site = Site::new();
    let names = Names::parse(["127.0.0.1"]).expect("parses");
    let issued = site.authority.issue(&names, DAY, UnixTime::now()).expect("issues");
    let certificate = issued.certificate().expect("reads back");
    let resolver = Arc::new(Resolver::new(certificate, UnixTime::now()).expect("valid"));
    handshake(&site.client(), &server(&resolver), "127.0.0.1").expect("shakes hands");
}

#[test]
fn an_expired_certificate_is_refused_and_the_old_one_kept() {
    let site = Site::new();
    let resolver = Resolver::new(site.issue(DAY), UnixTime::now()).expect("valid");
    let (before, expiry) = (resolver.current().leaf().to_vec(), resolver.expiry());

    let next = site.issue(DAY / 2);
    let later = UnixTime::since_unix_epoch(Duration::from_secs(next.not_after().as_secs() + 1));
    let error = resolver.swap(next, later).expect_err("expired");

    assert!(matches!(error, Error::Expired { .. }), "{error:?}");
    assert_eq!((resolver.current().leaf().to_vec(), resolver.expiry()), (before, expiry));
}

#[test]
fn a_certificate_from_the_future_is_refused_and_the_old_one_kept() {
    let site = Site::new();
    let resolver = Resolver::new(site.issue(DAY), UnixTime::now()).expect("valid");
    let before = resolver.current().leaf().to_vec();
    let next = site.issue(DAY);
    let earlier = UnixTime::since_unix_epoch(Duration::from_secs(next.not_before().as_secs() - 1));
    let error = resolver.swap(next, earlier).expect_err("not valid yet");
    assert!(matches!(error, Error::NotYetValid { .. }), "{error:?}");
    assert_eq!(resolver.current().leaf(), before);
}

#[test]
fn no_resolver_starts_with_an_expired_certificate() {
    let certificate = Site::new().issue(DAY);
    let later = UnixTime::since_unix_epoch(Duration::from_secs(certificate.not_after().as_secs() + 1));
    assert!(matches!(Resolver::new(certificate, later), Err(Error::Expired { .. })));
}

#[test]
fn swapping_under_load_loses_no_handshake() {
    let site = Site::new();
    let resolver = Arc::new(Resolver::new(site.issue(DAY), UnixTime::now()).expect("valid"));
    let server = server(&resolver);
    let done = AtomicBool::new(false);

    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = site.client();
                let mut seen = Vec::new();
                while !done.load(Ordering::Relaxed) || seen.is_empty() {
                    seen.push(handshake(&client, &server, NAME).expect("shakes hands"));
                }
            });
        }
        for _ in 0..50 {
            let next = site.issue(DAY);
            let leaf = next.leaf().to_vec();
            resolver.swap(next, UnixTime::now()).expect("swaps");
            let served = handshake(&site.client(), &server, NAME).expect("shakes hands");
            assert_eq!(served, leaf, "a handshake after the swap gets the new certificate");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// An authority and those who trust it.
struct Site {
    authority: Authority,
}

impl Site {
    fn new() -> Self {
        Self { authority: Authority::create("test", DAY * 10, UnixTime::now()).expect("creates") }
    }

    fn issue(&self, lifetime: Duration) -> Certificate {
        let names = Names::parse([NAME]).expect("parses");
        let issued = self.authority.issue(&names, lifetime, UnixTime::now()).expect("issues");
        issued.certificate().expect("reads back")
    }

    fn client(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate_der().clone()).expect("a root");
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A resumed session shows the certificate that it began with.
        config.resumption = rustls::client::Resumption::disabled();
        Arc::new(config)
    }
}

fn server(resolver: &Arc<Resolver>) -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::<Resolver>::clone(resolver));
    Arc::new(config)
}

/// Both ends in memory, record by record. Gives the leaf that the client saw.
fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>, name: &str) -> Result<Vec<u8>, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let mut client = ClientConnection::new(Arc::clone(client), name)?;
    let mut server = ServerConnection::new(Arc::clone(server))?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).expect("writes to memory");
        server.read_tls(&mut wire.as_slice()).expect("reads from memory");
        server.process_new_packets()?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("writes to memory");
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            client.read_tls(&mut wire).expect("reads from memory");
            client.process_new_packets()?;
        }
    }
    let leaf = client.peer_certificates().and_then(<[_]>::first).expect("a certificate");
    Ok(leaf.to_vec())
}
