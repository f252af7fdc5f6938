//! What can be wrong with a certificate.

use std::{io, path::PathBuf};

use rustls_pki_types::{UnixTime, pem};

/// None of these goes away by trying again at once. At start, give up; while serving, keep the certificate at hand,
/// say so, and look again when the files change.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is larger than the {limit_bytes} bytes a Secret can hold", path.display())]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("the certificate chain is not PEM")]
    ChainPem(#[source] pem::Error),
    #[error("the private key is not PEM")]
    KeyPem(#[source] pem::Error),
    #[error("the certificate chain is empty")]
    EmptyChain,
    #[error("the certificate cannot be parsed")]
    Parse(#[source] x509_parser::error::X509Error),
    #[error("the certificate's validity is before 1970")]
    Validity,
    #[error("the private key cannot be used")]
    Key(#[source] rustls::Error),
    #[error("the private key does not belong to the certificate")]
    Mismatch,
    #[error("the certificate expired at {} (now {})", not_after.as_secs(), now.as_secs())]
    Expired { not_after: UnixTime, now: UnixTime },
    #[error("the certificate is not valid before {} (now {})", not_before.as_secs(), now.as_secs())]
    NotYetValid { not_before: UnixTime, now: UnixTime },
    #[error("a serving certificate needs at least one name")]
    NoNames,
    #[error("`{name}` is neither a DNS name nor an IP address")]
    Name { name: String },
    #[error("the certificate is not an authority's")]
    NotAnAuthority,
    #[error("a validity of {seconds} seconds is out of range")]
    TimeRange { seconds: u64 },
    #[error("cannot make the certificate")]
    Make(#[source] rcgen::Error),
}
