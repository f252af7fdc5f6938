//! Reads a certificate as a mounted Secret gives it: a directory with `tls.crt` and `tls.key`.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use rustls_pki_types::{CertificateDer, pem::PemObject};

use crate::{Certificate, Error};

pub const CHAIN_FILE: &str = "tls.crt";
pub const KEY_FILE: &str = "tls.key";
pub const AUTHORITY_FILE: &str = "ca.crt";

/// The most that a Secret can hold; whatever is longer is not what was meant to be mounted here.
const FILE_LIMIT_BYTES: u64 = 1024 * 1024;

/// Kubelet replaces what is mounted by pointing this symlink at another directory.
const DATA_LINK: &str = "..data";

/// The pair that lies in `directory` now.
///
/// Both files are read from one generation: were they read through the symlink one after the other, a renewal between
/// them would pair the old chain with the new key.
pub fn read(directory: &Path) -> Result<Certificate, Error> {
    let generation = generation(directory);
    let chain = contents(generation.join(CHAIN_FILE))?;
    let key = contents(generation.join(KEY_FILE))?;
    Certificate::from_pem(&chain, &key)
}

/// The authority beside the pair, if there is one: PEM, and nothing but certificates.
pub fn read_authority(directory: &Path) -> Result<Option<String>, Error> {
    let bytes = match contents(generation(directory).join(AUTHORITY_FILE)) {
        Err(Error::Read { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    let certificates = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(Error::ChainPem)?;
    if certificates.is_empty() {
        // cert-manager leaves it empty for issuers that have none to show.
        return Ok(None);
    }
    String::from_utf8(bytes).map(Some).map_err(|_| Error::EmptyChain)
}

fn generation(directory: &Path) -> PathBuf {
    directory
        .join(DATA_LINK)
        .canonicalize()
        .unwrap_or_else(|_| directory.to_owned())
}

fn contents(path: PathBuf) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(length) if length as u64 > FILE_LIMIT_BYTES => Err(Error::TooLarge {
            path,
            limit_bytes: FILE_LIMIT_BYTES,
        }),
        Ok(_) => Ok(bytes),
        Err(source) => Err(Error::Read { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, time::Duration};

    use super::*;
    use crate::{Authority, Issued, Names, UnixTime};

    const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
    const DAY: Duration = Duration::from_secs(86_400);

    fn issue() -> Issued {
        let authority = Authority::create("test", DAY, NOW).expect("creates");
        authority
            .issue(&Names::parse(["localhost"]).expect("parses"), DAY, NOW)
            .expect("issues")
    }

    fn write(directory: &Path, issued: &Issued) {
        fs::create_dir_all(directory).expect("makes the directory");
        fs::write(directory.join(CHAIN_FILE), &issued.chain_pem).expect("writes the chain");
        fs::write(directory.join(KEY_FILE), &issued.key_pem).expect("writes the key");
    }

    #[test]
    fn reads_a_plain_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let issued = issue();
        write(directory.path(), &issued);
        let certificate = read(directory.path()).expect("reads");
        assert_eq!(
            certificate.leaf(),
            issued.certificate().expect("reads back").leaf()
        );
    }

    #[test]
    fn follows_the_symlink_swap_of_a_mounted_secret() {
        let mount = tempfile::tempdir().expect("a directory");
        let path = mount.path();
        let (first, second) = (issue(), issue());
        write(&path.join("..2026_01_01"), &first);
        symlink("..2026_01_01", path.join(DATA_LINK)).expect("links");
        for file in [CHAIN_FILE, KEY_FILE] {
            symlink(Path::new(DATA_LINK).join(file), path.join(file)).expect("links");
        }
        assert_eq!(
            read(path).expect("reads").leaf(),
            first.certificate().expect("reads back").leaf()
        );

        write(&path.join("..2026_02_02"), &second);
        symlink("..2026_02_02", path.join("..data_tmp")).expect("links");
        fs::rename(path.join("..data_tmp"), path.join(DATA_LINK)).expect("swaps");
        fs::remove_dir_all(path.join("..2026_01_01")).expect("removes the old generation");
        assert_eq!(
            read(path).expect("reads").leaf(),
            second.certificate().expect("reads back").leaf()
        );
    }

    #[test]
    fn an_authority_may_lie_beside_or_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        assert!(matches!(read_authority(path), Ok(None)));
        fs::write(path.join(AUTHORITY_FILE), "").expect("writes");
        assert!(matches!(read_authority(path), Ok(None)));
        let authority = Authority::create("test", DAY, NOW).expect("creates");
        fs::write(path.join(AUTHORITY_FILE), authority.certificate_pem()).expect("writes");
        assert_eq!(read_authority(path).expect("reads").as_deref(), Some(authority.certificate_pem()));
    }

    #[test]
    fn says_which_file_is_missing_or_too_large() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), &issue());
        fs::write(
            directory.path().join(CHAIN_FILE),
            vec![b'x'; FILE_LIMIT_BYTES as usize + 1],
        )
        .expect("writes");
        let error = read(directory.path()).expect_err("too large").to_string();
        assert!(
            error.ends_with("tls.crt is larger than the 1048576 bytes a Secret can hold"),
            "{error}"
        );

        fs::remove_file(directory.path().join(CHAIN_FILE)).expect("removes");
        let error = read(directory.path()).expect_err("missing").to_string();
        assert!(
            error.starts_with("cannot read ") && error.ends_with("tls.crt"),
            "{error}"
        );
    }
}
