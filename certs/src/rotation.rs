//! When to renew and when to rotate, as functions of what is held and of the time.
//!
//! A client that trusts only one authority refuses the other's certificates, so a rotation overlaps at both ends:
//!
//! ```text
//!              rotate                     promote                        drop
//!  signs     | one                      | two                          | two
//!  trusted   | one, two                 | one, two                     | two
//!            +------ OVERLAP, and ------+----------- OVERLAP ----------+
//!              clients have been told
//! ```

use std::time::Duration;

use rustls_pki_types::UnixTime;

use crate::issue::NOT_BEFORE_SKEW;
use crate::{Authority, Certificate, Error, Issued, Names};

const DAY: Duration = Duration::from_secs(86_400);

/// An authority outlives many leaves; two years is what a cluster usually lives between rebuilds.
pub const AUTHORITY_LIFETIME: Duration = DAY.saturating_mul(730);

/// Half a year is time to notice that a rotation does not come about.
pub const ROTATE_BEFORE: Duration = DAY.saturating_mul(180);

pub const LEAF_LIFETIME: Duration = DAY.saturating_mul(90);

/// A month is time to notice that a renewal does not come about.
pub const RENEW_BEFORE: Duration = DAY.saturating_mul(30);

/// Each replica looks within a minute and each API server hears of a new bundle within seconds; an hour covers a replica
/// that hangs and a control plane that is being replaced.
pub const OVERLAP: Duration = Duration::from_secs(3_600);

/// Everything that the replicas share.
#[derive(Debug, Clone)]
pub struct Held {
    /// The authority that signs.
    pub authority: AuthorityPem,
    /// The one that will sign next, during the first half of a rotation.
    pub next: Option<AuthorityPem>,
    /// The certificate of the one that signed before, during the second half.
    pub old_pem: Option<String>,
    pub leaf: Issued,
}

/// An authority as a Secret holds it.
#[derive(Clone)]
pub struct AuthorityPem {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for AuthorityPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { certificate, key: _ } = self;
        f.debug_struct("AuthorityPem").field("certificate", certificate).finish_non_exhaustive()
    }
}

/// What to do now; one at a time, each from what the one before left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Keep,
    /// A new leaf of the same authority.
    RenewLeaf,
    /// A second authority, trusted from now on.
    RotateAuthority,
    /// The second authority signs from now on.
    Promote,
    /// The first authority is not trusted any more.
    DropOld,
    /// Nothing here can be used: everything anew. Clients refuse us until they trust it.
    StartOver,
}

impl Held {
    /// A new authority with its first leaf.
    pub fn create(names: &Names, now: UnixTime) -> Result<Self, Error> {
        let authority = new_authority(now)?;
        let leaf = authority.issue(names, LEAF_LIFETIME, now)?;
        Ok(Self { authority: pem(&authority), next: None, old_pem: None, leaf })
    }

    /// What a client must trust: PEM, the signing authority first.
    pub fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| &next.certificate);
        let all = [Some(&self.authority.certificate), next, self.old_pem.as_ref()];
        all.into_iter().flatten().map(|pem| format!("{}\n", pem.trim_end())).collect()
    }

    /// The next step. `trusted` says whether clients have been told to trust an authority (its PEM): until they have, it
    /// signs nothing.
    pub fn step(&self, names: &Names, now: UnixTime, trusted: impl Fn(&str) -> bool) -> Step {
        let Ok(authority) = self.authority.read() else { return Step::StartOver };
        if left(authority.not_after(), now).is_zero() {
            return Step::StartOver;
        }
        if self.needs_leaf(&authority, names, now) {
            return Step::RenewLeaf;
        }
        match (&self.next, &self.old_pem) {
            (Some(next), _) => match next.read() {
                Ok(next_read) if passed(next_read.not_before(), now) >= OVERLAP && trusted(&next.certificate) => {
                    Step::Promote
                }
                Ok(_) => Step::Keep,
                Err(_) => Step::RotateAuthority,
            },
            (None, Some(_)) if self.leaf_age(now).is_some_and(|age| age >= OVERLAP) => Step::DropOld,
            (None, Some(_)) => Step::Keep,
            (None, None) if left(authority.not_after(), now) < ROTATE_BEFORE => Step::RotateAuthority,
            (None, None) => Step::Keep,
        }
    }

    /// What is held after a step.
    pub fn after(&self, step: Step, names: &Names, now: UnixTime) -> Result<Self, Error> {
        let held = self.clone();
        match step {
            Step::Keep => Ok(held),
            Step::RenewLeaf => {
                let leaf = self.authority.read()?.issue(names, LEAF_LIFETIME, now)?;
                Ok(Self { leaf, ..held })
            }
            Step::RotateAuthority => Ok(Self { next: Some(pem(&new_authority(now)?)), ..held }),
            Step::Promote => {
                let Some(next) = held.next else { return Ok(held) };
                let leaf = next.read()?.issue(names, LEAF_LIFETIME, now)?;
                Ok(Self { authority: next, next: None, old_pem: Some(self.authority.certificate.clone()), leaf })
            }
            Step::DropOld => Ok(Self { old_pem: None, ..held }),
            Step::StartOver => Self::create(names, now),
        }
    }

    fn needs_leaf(&self, authority: &Authority, names: &Names, now: UnixTime) -> bool {
        let Ok(leaf) = self.leaf.certificate() else { return true };
        // Close to the authority's own end a new leaf would end no later.
        let could_be_longer = leaf.not_after().as_secs() < authority.not_after().as_secs();
        leaf.check(now).is_err()
            || !leaf.is_signed_by(authority)
            || !leaf.speaks_for(names)
            || (left(leaf.not_after(), now) < RENEW_BEFORE && could_be_longer)
    }

    fn leaf_age(&self, now: UnixTime) -> Option<Duration> {
        self.leaf.certificate().ok().map(|leaf: Certificate| passed(leaf.not_before(), now))
    }
}

impl AuthorityPem {
    fn read(&self) -> Result<Authority, Error> {
        Authority::from_pem(&self.certificate, &self.key)
    }
}

fn new_authority(now: UnixTime) -> Result<Authority, Error> {
    Authority::create(&format!("cedargate {}", now.as_secs()), AUTHORITY_LIFETIME, now)
}

fn pem(authority: &Authority) -> AuthorityPem {
    AuthorityPem { certificate: authority.certificate_pem().to_owned(), key: authority.key_pem() }
}

fn left(not_after: UnixTime, now: UnixTime) -> Duration {
    Duration::from_secs(not_after.as_secs().saturating_sub(now.as_secs()))
}

/// Since it was made: validity begins a little before.
fn passed(not_before: UnixTime, now: UnixTime) -> Duration {
    Duration::from_secs(now.as_secs().saturating_sub(not_before.as_secs() + NOT_BEFORE_SKEW.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn at(after: Duration) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(START) + after)
    }

    fn names() -> Names {
        Names::parse(["cedargate.cedargate-system.svc"]).expect("parses")
    }

    fn authorities(held: &Held) -> usize {
        held.bundle().matches("BEGIN CERTIFICATE").count()
    }

    /// Clients always trust whoever signed the leaf that is served.
    fn served_is_trusted(held: &Held) -> bool {
        let signer = held.authority.read().expect("reads");
        held.leaf.certificate().expect("reads").is_signed_by(&signer)
            && held.bundle().contains(held.authority.certificate.trim_end())
    }

    #[test]
    fn three_years() {
        let mut held = Held::create(&names(), at(Duration::ZERO)).expect("creates");
        let mut steps = Vec::new();
        // Every replica looks far more often; every two hours shows the same.
        for look in 0..(3 * 365 * 12) {
            let now = at(Duration::from_secs(7_200) * look);
            let bundle_before = held.bundle();
            let step = held.step(&names(), now, |pem| bundle_before.contains(pem.trim_end()));
            if step != Step::Keep {
                held = held.after(step, &names(), now).expect("steps");
                steps.push((look / 12, step, authorities(&held)));
                held.leaf.certificate().expect("reads").check(now).expect("valid");
                assert!(served_is_trusted(&held), "{step:?}");
            }
        }
        // Leaves every 60 days; the authority rotates half a year before its end, and the leaf that comes with it counts.
        let rotation: Vec<_> = steps.iter().filter(|(_, step, _)| *step != Step::RenewLeaf).copied().collect();
        assert_eq!(rotation, [(550, Step::RotateAuthority, 2), (550, Step::Promote, 2), (550, Step::DropOld, 1)]);
        let renewals: Vec<_> =
            steps.iter().filter(|(_, step, _)| *step == Step::RenewLeaf).map(|(day, ..)| *day).collect();
        assert_eq!(renewals[..3], [60, 120, 180]);
        assert!(renewals.windows(2).all(|pair| pair[1] - pair[0] <= 60 || pair[0] < 550), "{renewals:?}");
    }

    #[test]
    fn the_next_authority_signs_nothing_before_clients_trust_it() {
        let held = Held::create(&names(), at(Duration::ZERO)).expect("creates");
        let day = AUTHORITY_LIFETIME - ROTATE_BEFORE + DAY;
        let held = held.after(Step::RenewLeaf, &names(), at(day)).expect("steps");
        assert_eq!(held.step(&names(), at(day), |_| true), Step::RotateAuthority);
        let held = held.after(Step::RotateAuthority, &names(), at(day)).expect("steps");
        assert_eq!(held.step(&names(), at(day + OVERLAP / 2), |_| true), Step::Keep);
        assert_eq!(held.step(&names(), at(day + OVERLAP * 2), |_| false), Step::Keep);
        assert_eq!(held.step(&names(), at(day + OVERLAP * 2), |_| true), Step::Promote);
        // A leaf is renewed by the one that clients trust, whatever else goes on.
        let late = day + LEAF_LIFETIME - RENEW_BEFORE + DAY;
        assert_eq!(held.step(&names(), at(late), |_| false), Step::RenewLeaf);
    }

    #[test]
    fn what_cannot_be_used_is_made_anew() {
        let held = Held::create(&names(), at(Duration::ZERO)).expect("creates");
        let trusted = |_: &str| true;
        let other = Names::parse(["gate.example.org", "127.0.0.1"]).expect("parses");
        assert_eq!(held.step(&names(), at(Duration::ZERO), trusted), Step::Keep);
        assert_eq!(held.step(&other, at(Duration::ZERO), trusted), Step::RenewLeaf, "another name");
        let renamed = held.after(Step::RenewLeaf, &other, at(Duration::ZERO)).expect("steps");
        assert_eq!(renamed.step(&other, at(Duration::ZERO), trusted), Step::Keep);
        assert_eq!(held.step(&names(), at(LEAF_LIFETIME + DAY), trusted), Step::RenewLeaf, "expired");
        assert_eq!(held.step(&names(), at(AUTHORITY_LIFETIME + DAY), trusted), Step::StartOver);

        let stranger = Held::create(&names(), at(Duration::ZERO)).expect("creates");
        let mixed = Held { leaf: stranger.leaf.clone(), ..held.clone() };
        assert_eq!(mixed.step(&names(), at(Duration::ZERO), trusted), Step::RenewLeaf, "another authority's leaf");
        let broken = AuthorityPem { certificate: held.authority.certificate.clone(), key: "x".to_owned() };
        let broken = Held { authority: broken, ..held };
        assert_eq!(broken.step(&names(), at(Duration::ZERO), trusted), Step::StartOver);
    }

    #[test]
    fn keys_do_not_show_when_printed() {
        let held = Held::create(&names(), at(Duration::ZERO)).expect("creates");
        let secret = held.authority.key.lines().nth(1).expect("a line of base64").to_owned();
        assert!(!format!("{held:?}").contains(&secret));
    }
}
