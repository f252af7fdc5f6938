//! Issuing a serving certificate.

use std::{fmt, net::IpAddr, time::Duration};

use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    SanType,
};
use rustls_pki_types::{DnsName, UnixTime};
use x509_parser::time::ASN1Time;

use crate::{Authority, Certificate, Error};

/// A certificate is valid from a little before it was made, because the clock of the API server that must accept it
/// at once may run behind ours.
pub const NOT_BEFORE_SKEW: Duration = Duration::from_secs(5 * 60);

/// Whom a certificate speaks for: at least one DNS name or IP address.
#[derive(Debug, Clone)]
pub struct Names(Vec<SanType>);

impl Names {
    /// For a webhook: `<service>.<namespace>.svc`, the only name that the API server asks for.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let names = names
            .into_iter()
            .map(parse_name)
            .collect::<Result<Vec<_>, _>>()?;
        if names.is_empty() {
            return Err(Error::NoNames);
        }
        Ok(Self(names))
    }

    /// Each name as it was given; addresses in their shortest spelling.
    pub(crate) fn texts(&self) -> Vec<String> {
        let Self(names) = self;
        let text = |name: &SanType| {
            if let SanType::DnsName(name) = name {
                return Some(name.to_string());
            }
            let SanType::IpAddress(address) = name else { return None };
            Some(address.to_string())
        };
        names.iter().filter_map(text).collect()
    }
}

fn parse_name(name: &str) -> Result<SanType, Error> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || Error::Name {
        name: name.to_owned(),
    };
    // rcgen takes any ASCII; what is no DNS name would be refused only by each client that connects.
    let host = name.strip_prefix("*.").unwrap_or(name);
    DnsName::try_from(host).map_err(|_| refused())?;
    name.try_into()
        .map(SanType::DnsName)
        .map_err(|_: rcgen::Error| refused())
}

/// What goes into a Secret of type `kubernetes.io/tls`.
#[derive(Clone)]
pub struct Issued {
    /// `tls.crt`: the leaf alone, since the authority is what the client already trusts.
    pub chain_pem: String,
    /// `tls.key`
    pub key_pem: String,
}

impl Issued {
    /// Ready to serve with, without the detour through files.
    pub fn certificate(&self) -> Result<Certificate, Error> {
        Certificate::from_pem(self.chain_pem.as_bytes(), self.key_pem.as_bytes())
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            chain_pem,
            key_pem: _,
        } = self;
        f.debug_struct("Issued")
            .field("chain_pem", chain_pem)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// A serving certificate with a new key, valid from `now` (less [`NOT_BEFORE_SKEW`]) for `lifetime`, but never
    /// longer than the authority itself: a leaf that outlives it fails at every client while it looks valid here.
    pub fn issue(&self, names: &Names, lifetime: Duration, now: UnixTime) -> Result<Issued, Error> {
        let not_after = self.not_after();
        let left = Duration::from_secs(not_after.as_secs().saturating_sub(now.as_secs()));
        if left.is_zero() {
            return Err(Error::Expired { not_after, now });
        }
        let key = KeyPair::generate().map_err(Error::Make)?;
        let Names(names) = names;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new(); // clients read the alternative names alone
        params.subject_alt_names = names.clone();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let (first, last) = period(now, lifetime.min(left))?;
        (params.not_before, params.not_after) = (first.to_datetime(), last.to_datetime());
        let certificate = params.signed_by(&key, self.issuer()).map_err(Error::Make)?;
        Ok(Issued {
            chain_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// First and last second of a validity. rcgen wants the `time` crate's type, which an `ASN1Time` turns into: so that
/// crate stays out of our manifest.
pub(crate) fn period(now: UnixTime, lifetime: Duration) -> Result<(ASN1Time, ASN1Time), Error> {
    let seconds = now.as_secs();
    let first = at(seconds.saturating_sub(NOT_BEFORE_SKEW.as_secs()))?;
    let last = at(seconds.saturating_add(lifetime.as_secs()))?;
    Ok((first, last))
}

fn at(seconds: u64) -> Result<ASN1Time, Error> {
    let signed = i64::try_from(seconds).map_err(|_| Error::TimeRange { seconds })?;
    ASN1Time::from_timestamp(signed).map_err(|_| Error::TimeRange { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_leaf_never_outlives_its_authority() {
        let authority = Authority::create("test", DAY, NOW).expect("creates");
        let names = Names::parse(["localhost"]).expect("parses");

        let long = authority
            .issue(&names, DAY * 30, NOW)
            .expect("issues")
            .certificate()
            .expect("reads back");
        assert_eq!(long.not_after(), authority.not_after());
        assert_eq!(
            long.not_before().as_secs(),
            NOW.as_secs() - NOT_BEFORE_SKEW.as_secs()
        );

        let error = authority
            .issue(&names, DAY, authority.not_after())
            .expect_err("nothing left");
        assert!(matches!(error, Error::Expired { .. }), "{error:?}");
    }

    #[test]
    fn names_are_dns_names_or_addresses() {
        for names in [
            vec!["cedargate.cedargate-system.svc"],
            vec!["127.0.0.1", "::1"],
            vec!["*.example.org"],
        ] {
            Names::parse(names.iter().copied()).expect("a name");
        }
        assert!(matches!(Names::parse([]), Err(Error::NoNames)));
        for wrong in ["", "two words", "a..b", "käse", "https://x"] {
            let error = Names::parse([wrong]).expect_err("no name");
            assert_eq!(
                error.to_string(),
                format!("`{wrong}` is neither a DNS name nor an IP address")
            );
        }
    }

    #[test]
    fn a_lifetime_beyond_the_calendar_is_refused() {
        let error = Authority::create("test", Duration::from_secs(u64::MAX), NOW)
            .expect_err("out of range");
        assert!(matches!(error, Error::TimeRange { .. }), "{error:?}");
    }
}
