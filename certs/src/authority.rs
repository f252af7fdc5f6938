//! An authority of our own, for clusters without cert-manager, for the demonstration and for tests.
//!
//! It is meant to be thrown away: its key lies in one Secret or one directory, it signs serving certificates for one
//! webhook, and the API server trusts it for that webhook alone (`caBundle`).

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};

use crate::{
    Error,
    certificate::{Validity, parse, validity},
    issue,
};

/// A self-signed authority that can issue ([`Self::issue`]).
#[derive(Debug)]
pub struct Authority {
    certificate_pem: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    not_before: UnixTime,
    not_after: UnixTime,
}

impl Authority {
    /// A new authority with a new key, valid from `now` (less [`issue::NOT_BEFORE_SKEW`]).
    pub fn create(name: &str, lifetime: Duration, now: UnixTime) -> Result<Self, Error> {
        let key = KeyPair::generate().map_err(Error::Make)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)); // it signs leaves, never another authority
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let (first, last) = issue::period(now, lifetime)?;
        (params.not_before, params.not_after) = (first.to_datetime(), last.to_datetime());
        let certificate = params.self_signed(&key).map_err(Error::Make)?;
        Self::from_pem(&certificate.pem(), &key.serialize_pem())
    }

    /// The authority that [`Self::certificate_pem`] and [`Self::key_pem`] wrote.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let certificate =
            CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(Error::ChainPem)?;
        let key = KeyPair::from_pem(key_pem).map_err(Error::Make)?;
        let parsed = parse(&certificate)?;
        if !parsed.is_ca() {
            return Err(Error::NotAnAuthority);
        }
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(Error::Mismatch);
        }
        let Validity {
            not_before,
            not_after,
        } = validity(&parsed)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(Error::Make)?;
        Ok(Self {
            certificate_pem: certificate_pem.to_owned(),
            certificate,
            issuer,
            not_before,
            not_after,
        })
    }

    /// What a client must trust: the webhook configuration's `caBundle`.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub fn certificate_der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The private key. Whoever holds it can pose as the webhook.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    pub fn not_before(&self) -> UnixTime {
        self.not_before
    }

    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    pub(crate) fn issuer(&self) -> &Issuer<'static, KeyPair> {
        &self.issuer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Names;

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn comes_back_from_pem_and_issues() {
        let made = Authority::create("cedargate test", DAY, NOW).expect("creates");
        let read =
            Authority::from_pem(made.certificate_pem(), &made.key_pem()).expect("reads back");
        assert_eq!(read.certificate_der(), made.certificate_der());
        assert_eq!(read.not_after().as_secs(), NOW.as_secs() + DAY.as_secs());
        read.issue(&Names::parse(["localhost"]).expect("parses"), DAY, NOW)
            .expect("issues");
    }

    #[test]
    fn a_leaf_or_another_key_makes_no_authority() {
        let authority = Authority::create("one", DAY, NOW).expect("creates");
        let other = Authority::create("two", DAY, NOW).expect("creates");
        let leaf = authority
            .issue(&Names::parse(["localhost"]).expect("parses"), DAY, NOW)
            .expect("issues");

        let error = Authority::from_pem(&leaf.chain_pem, &leaf.key_pem).expect_err("a leaf");
        assert!(matches!(error, Error::NotAnAuthority), "{error:?}");
        let error = Authority::from_pem(authority.certificate_pem(), &other.key_pem())
            .expect_err("another key");
        assert!(matches!(error, Error::Mismatch), "{error:?}");
    }

    #[test]
    fn the_key_does_not_show_when_printed() {
        let authority = Authority::create("one", DAY, NOW).expect("creates");
        let secret = authority
            .key_pem()
            .lines()
            .nth(1)
            .expect("a line of base64")
            .to_owned();
        assert!(!format!("{authority:?}").contains(&secret));
    }
}
