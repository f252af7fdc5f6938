//! Follows the mounted certificate: reads it again, compares, checks and swaps it in.
//!
//! It looks at intervals rather than being told. Kubelet itself brings a changed Secret within a minute or two, a
//! certificate is renewed weeks before it expires, and a look cannot miss a change as a file watch can that sits on
//! the wrong side of the symlink.

use std::{path::PathBuf, sync::Arc, time::Duration};

use certs::{Error, Resolver, UnixTime, files};
use tokio::sync::watch;

use crate::{Check, Readiness, cluster::governor::Trust};

/// How often to look; small beside kubelet's own delay.
pub const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Keeps `resolver` at what lies in `directory`, and [`Check::Certificate`] at whether it is valid. Never ends: drop
/// it, or abort its task.
pub async fn follow(
    directory: PathBuf,
    resolver: Arc<Resolver>,
    readiness: Readiness,
    every: Duration,
) {
    loop {
        let (directory, looked) = (directory.clone(), Arc::clone(&resolver));
        let look = tokio::task::spawn_blocking(move || renew(&directory, &looked, UnixTime::now()));
        match look.await {
            Ok(Ok(Renewal::None)) => {}
            Ok(Ok(Renewal::Swapped)) => {
                tracing::info!(
                    expires_at_unix_seconds = resolver.expiry().as_secs(),
                    "certificate renewed"
                );
            }
            // The one at hand goes on serving; when it expires, readiness says so.
            Ok(Err(error)) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "certificate not renewed"
            ),
            Err(_panicked) => tracing::error!("looking for a new certificate ended in a panic"),
        }
        judge(&resolver, &readiness, UnixTime::now());
        tokio::time::sleep(every).await;
    }
}

/// Keeps `trust` at the authority that lies beside the certificate (`ca.crt`, as cert-manager writes it); without one, API
/// servers trust what their system trusts. Never ends: drop it, or abort its task.
pub async fn follow_trust(
    directory: PathBuf,
    trust: watch::Sender<Option<Trust>>,
    every: Duration,
) {
    loop {
        let directory = directory.clone();
        match tokio::task::spawn_blocking(move || files::read_authority(&directory)).await {
            Ok(Ok(found)) => {
                let found = Some(found.map_or(Trust::System, Trust::Bundle));
                trust.send_if_modified(|current| {
                    let changed = *current != found;
                    *current = found;
                    changed
                });
            }
            Ok(Err(error)) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "authority not read"
            ),
            Err(_panicked) => tracing::error!("looking for an authority ended in a panic"),
        }
        tokio::time::sleep(every).await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Renewal {
    None,
    Swapped,
}

fn renew(
    directory: &std::path::Path,
    resolver: &Resolver,
    now: UnixTime,
) -> Result<Renewal, Error> {
    let found = files::read(directory)?;
    if found.leaf() == resolver.current().leaf() {
        return Ok(Renewal::None);
    }
    resolver.swap(found, now)?;
    Ok(Renewal::Swapped)
}

fn judge(resolver: &Resolver, readiness: &Readiness, now: UnixTime) {
    match resolver.current().check(now) {
        Ok(()) => readiness.pass(Check::Certificate),
        Err(error) => readiness.fail(Check::Certificate, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use certs::{Authority, Issued, Names};

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// A Secret as kubelet mounts it: a change is a new directory and a symlink that is moved to it.
    struct Mount {
        directory: tempfile::TempDir,
        authority: Authority,
        generation: u32,
    }

    impl Mount {
        fn new() -> Self {
            let authority = Authority::create("test", DAY * 10, UnixTime::now()).expect("creates");
            Self {
                directory: tempfile::tempdir().expect("a directory"),
                authority,
                generation: 0,
            }
        }

        fn path(&self) -> &Path {
            self.directory.path()
        }

        fn issue(&self) -> Issued {
            let names = Names::parse(["localhost"]).expect("parses");
            self.authority
                .issue(&names, DAY, UnixTime::now())
                .expect("issues")
        }

        fn put(&mut self, chain_pem: &str, key_pem: &str) {
            self.generation += 1;
            let name = format!("..generation_{}", self.generation);
            let path = self.path().join(&name);
            fs::create_dir(&path).expect("makes a generation");
            fs::write(path.join(files::CHAIN_FILE), chain_pem).expect("writes the chain");
            fs::write(path.join(files::KEY_FILE), key_pem).expect("writes the key");
            symlink(name, self.path().join("..data_tmp")).expect("links");
            fs::rename(self.path().join("..data_tmp"), self.path().join("..data")).expect("swaps");
        }

        fn renew(&mut self) -> Issued {
            let issued = self.issue();
            self.put(&issued.chain_pem, &issued.key_pem);
            issued
        }
    }

    fn leaf(issued: &Issued) -> Vec<u8> {
        issued.certificate().expect("reads back").leaf().to_vec()
    }

    fn later(by: Duration) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs()) + by)
    }

    #[test]
    fn each_swap_of_the_mount_is_seen() {
        let mut mount = Mount::new();
        mount.renew();
        let resolver = Resolver::new(files::read(mount.path()).expect("reads"), UnixTime::now())
            .expect("valid");
        assert!(matches!(
            renew(mount.path(), &resolver, UnixTime::now()),
            Ok(Renewal::None)
        ));
        for _ in 0..3 {
            let issued = mount.renew();
            assert!(matches!(
                renew(mount.path(), &resolver, UnixTime::now()),
                Ok(Renewal::Swapped)
            ));
            assert_eq!(resolver.current().leaf(), leaf(&issued));
        }
    }

    #[test]
    fn a_bad_pair_leaves_the_one_at_hand_and_a_good_one_after_it_is_taken() {
        let mut mount = Mount::new();
        let first = mount.renew();
        let resolver = Resolver::new(files::read(mount.path()).expect("reads"), UnixTime::now())
            .expect("valid");

        let (one, other) = (mount.issue(), mount.issue());
        mount.put(&one.chain_pem, &other.key_pem);
        assert!(matches!(
            renew(mount.path(), &resolver, UnixTime::now()),
            Err(Error::Mismatch)
        ));
        mount.renew();
        assert!(matches!(
            renew(mount.path(), &resolver, later(DAY * 2)),
            Err(Error::Expired { .. })
        ));
        assert_eq!(resolver.current().leaf(), leaf(&first));

        let good = mount.renew();
        renew(mount.path(), &resolver, UnixTime::now()).expect("swaps");
        assert_eq!(resolver.current().leaf(), leaf(&good));
    }

    #[test]
    fn readiness_ends_with_the_certificate() {
        let mut mount = Mount::new();
        mount.renew();
        let resolver = Resolver::new(files::read(mount.path()).expect("reads"), UnixTime::now())
            .expect("valid");
        let readiness = Readiness::requiring([Check::Certificate]);
        judge(&resolver, &readiness, UnixTime::now());
        assert!(readiness.is_ready());
        judge(&resolver, &readiness, later(DAY * 2));
        assert!(
            readiness
                .report()
                .to_string()
                .contains("[-]certificate failed: the certificate expired at ")
        );
    }

    #[tokio::test]
    async fn following_takes_up_a_renewal() {
        let mut mount = Mount::new();
        mount.renew();
        let first = files::read(mount.path()).expect("reads");
        let resolver = Arc::new(Resolver::new(first, UnixTime::now()).expect("valid"));
        let readiness = Readiness::requiring([Check::Certificate]);
        let every = Duration::from_millis(5);
        let following = follow(
            mount.path().to_owned(),
            Arc::clone(&resolver),
            readiness.clone(),
            every,
        );
        let following = tokio::spawn(following);
        let issued = mount.renew();
        let seen = async {
            while resolver.current().leaf() != leaf(&issued) || !readiness.is_ready() {
                tokio::time::sleep(every).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), seen)
            .await
            .expect("is seen");
        following.abort();
    }
}
