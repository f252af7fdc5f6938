//! A certificate chain with its private key, parsed and found to belong together.

use std::{net::IpAddr, sync::Arc};

use rustls::{InconsistentKeys, crypto::aws_lc_rs, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use x509_parser::{
    certificate::X509Certificate,
    extensions::{GeneralName, ParsedExtension},
    prelude::FromDer,
    time::ASN1Time,
};

use crate::{Authority, Error, Names};

/// A chain, leaf first, and the key that signs for it.
///
/// That key and leaf belong together holds from here on; whether it is valid *now* is asked with [`Self::check`],
/// because that changes while it is held.
#[derive(Debug, Clone)]
pub struct Certificate {
    certified: Arc<CertifiedKey>,
    not_before: UnixTime,
    not_after: UnixTime,
}

impl Certificate {
    /// Both as a Secret of type `kubernetes.io/tls` holds them: `tls.crt`, leaf first, and `tls.key`.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, Error> {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::ChainPem)?;
        let leaf = chain.first().ok_or(Error::EmptyChain)?;
        let Validity {
            not_before,
            not_after,
        } = validity(&parse(leaf)?)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(Error::KeyPem)?;
        Ok(Self {
            certified: Arc::new(pair(chain, key)?),
            not_before,
            not_after,
        })
    }

    /// Valid at `now`, both ends included. A certificate from the future is refused too: the one at hand still works,
    /// and the next look at the files will find this one valid.
    pub fn check(&self, now: UnixTime) -> Result<(), Error> {
        let Self {
            certified: _,
            not_before,
            not_after,
        } = *self;
        if now > not_after {
            return Err(Error::Expired { not_after, now });
        }
        if now < not_before {
            return Err(Error::NotYetValid { not_before, now });
        }
        Ok(())
    }

    pub fn not_before(&self) -> UnixTime {
        self.not_before
    }

    pub fn not_after(&self) -> UnixTime {
        self.not_after
    }

    /// By name and key id, which the authority wrote into it. No proof against forgery: it tells our own leaves apart.
    pub fn is_signed_by(&self, authority: &Authority) -> bool {
        let (Ok(leaf), Ok(signer)) = (parse(self.leaf()), parse(authority.certificate_der())) else {
            return false;
        };
        authority_key_id(&leaf).is_some_and(|id| Some(id) == subject_key_id(&signer)) && leaf.issuer() == signer.subject()
    }

    /// Whether a client that asks for any of these names accepts it.
    pub fn speaks_for(&self, names: &Names) -> bool {
        let Ok(leaf) = parse(self.leaf()) else { return false };
        let Ok(Some(extension)) = leaf.subject_alternative_name() else { return false };
        let held: Vec<String> = extension.value.general_names.iter().filter_map(name_of).collect();
        names.texts().iter().all(|name| held.contains(name))
    }

    /// The leaf, for telling one certificate from another.
    pub fn leaf(&self) -> &[u8] {
        self.certified
            .cert
            .first()
            .map_or(&[], |leaf| leaf.as_ref())
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }
}

/// rustls lets a pair pass whose key does not tell its public half. Every key that aws-lc-rs loads does, so here that
/// is a mismatch like any other.
fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, Error> {
    let key = aws_lc_rs::sign::any_supported_type(&key).map_err(Error::Key)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(
            InconsistentKeys::KeyMismatch | InconsistentKeys::Unknown,
        )) => Err(Error::Mismatch),
        Err(other) => Err(Error::Key(other)),
    }
}

fn authority_key_id<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.iter_extensions().find_map(|extension| {
        let ParsedExtension::AuthorityKeyIdentifier(id) = extension.parsed_extension() else { return None };
        id.key_identifier.as_ref().map(|id| id.0)
    })
}

fn subject_key_id<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.iter_extensions().find_map(|extension| {
        let ParsedExtension::SubjectKeyIdentifier(id) = extension.parsed_extension() else { return None };
        Some(id.0)
    })
}

/// As [`Names::texts`] spells it.
fn name_of(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name {
        return Some((*name).to_owned());
    }
    let GeneralName::IPAddress(bytes) = name else { return None };
    let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
}

pub(crate) struct Validity {
    pub(crate) not_before: UnixTime,
    pub(crate) not_after: UnixTime,
}

pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, Error> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| certificate)
        .map_err(|error| match error {
            x509_parser::nom::Err::Error(error) | x509_parser::nom::Err::Failure(error) => {
                Error::Parse(error)
            }
            x509_parser::nom::Err::Incomplete(_) => {
                Error::Parse(x509_parser::error::X509Error::InvalidCertificate)
            }
        })
}

pub(crate) fn validity(certificate: &X509Certificate<'_>) -> Result<Validity, Error> {
    let validity = certificate.validity();
    Ok(Validity {
        not_before: unix(validity.not_before)?,
        not_after: unix(validity.not_after)?,
    })
}

fn unix(time: ASN1Time) -> Result<UnixTime, Error> {
    let seconds = u64::try_from(time.timestamp()).map_err(|_| Error::Validity)?;
    Ok(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        seconds,
    )))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    const DAY: Duration = Duration::from_secs(86_400);

    fn issued() -> crate::Issued {
        let authority = Authority::create("test", DAY * 10, NOW).expect("creates");
        authority
            .issue(&Names::parse(["localhost"]).expect("parses"), DAY, NOW)
            .expect("issues")
    }

    #[test]
    fn is_valid_from_not_before_to_not_after() {
        let certificate = issued().certificate().expect("reads back");
        let (first, last) = (certificate.not_before(), certificate.not_after());
        let second = |time: UnixTime, by: i64| {
            UnixTime::since_unix_epoch(Duration::from_secs(
                time.as_secs().checked_add_signed(by).expect("in range"),
            ))
        };

        assert!(matches!(
            certificate.check(second(first, -1)),
            Err(Error::NotYetValid { .. })
        ));
        certificate.check(first).expect("valid at its first second");
        certificate.check(NOW).expect("valid now");
        certificate.check(last).expect("valid at its last second");
        assert!(matches!(
            certificate.check(second(last, 1)),
            Err(Error::Expired { .. })
        ));
    }

    #[test]
    fn another_keys_certificate_is_refused() {
        let (one, other) = (issued(), issued());
        let error = Certificate::from_pem(one.chain_pem.as_bytes(), other.key_pem.as_bytes())
            .expect_err("mismatch");
        assert!(matches!(error, Error::Mismatch), "{error:?}");
    }

    #[test]
    fn what_is_no_certificate_or_key_is_refused_by_name() {
        let issued = issued();
        let refused = |chain: &str, key: &str| {
            Certificate::from_pem(chain.as_bytes(), key.as_bytes())
                .expect_err("refused")
                .to_string()
        };
        assert_eq!(
            refused("", &issued.key_pem),
            "the certificate chain is empty"
        );
        assert_eq!(
            refused("hello", &issued.key_pem),
            "the certificate chain is empty"
        );
        assert_eq!(refused(&issued.chain_pem, ""), "the private key is not PEM");
        assert_eq!(
            refused(&issued.chain_pem[..200], &issued.key_pem),
            "the certificate chain is not PEM"
        );
        let mangled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(
            refused(mangled, &issued.key_pem),
            "the certificate cannot be parsed"
        );
    }

    #[test]
    fn the_key_does_not_show_when_printed() {
        let issued = issued();
        let secret = issued
            .key_pem
            .lines()
            .nth(1)
            .expect("a line of base64")
            .to_owned();
        let printed = format!("{issued:?} {:?}", issued.certificate().expect("reads back"));
        assert!(!printed.contains(&secret), "{printed}");
    }
}
