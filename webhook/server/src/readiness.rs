//! Whether the API server should send reviews here, and if not, why.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// What must hold before reviews are welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// A certificate is loaded and valid.
    Certificate,
    /// Policies are loaded, valid and without warnings.
    Policies,
    /// The watches have seen the cluster's state.
    State,
    /// Decisions can be written down.
    DecisionLog,
    /// Not shutting down.
    Serving,
}

impl Check {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Policies => "policies",
            Self::State => "state",
            Self::DecisionLog => "decision-log",
            Self::Serving => "serving",
        }
    }
}

/// Passed, perhaps with something to know all the same; or why not.
type Standing = Result<Option<String>, String>;

/// The checks and how they stand. Clones share them.
#[derive(Debug, Clone)]
pub struct Readiness {
    checks: Arc<Mutex<BTreeMap<Check, Standing>>>,
}

impl Readiness {
    /// Each of `required` fails until it is passed, so that what was forgotten shows. [`Check::Serving`] holds from
    /// the start.
    pub fn requiring(required: impl IntoIterator<Item = Check>) -> Self {
        let mut checks: BTreeMap<_, _> = required
            .into_iter()
            .map(|check| (check, Err("not yet".to_owned())))
            .collect();
        checks.insert(Check::Serving, Ok(None));
        Self {
            checks: Arc::new(Mutex::new(checks)),
        }
    }

    pub fn pass(&self, check: Check) {
        self.set(check, Ok(None));
    }

    /// It holds, and whoever is on call should know: `note` is read as the `why` of [`Self::fail`] is.
    pub fn pass_with(&self, check: Check, note: impl Into<String>) {
        self.set(check, Ok(Some(note.into())));
    }

    /// `why` is read by whoever is on call: what is wrong, without secrets.
    pub fn fail(&self, check: Check, why: impl Into<String>) {
        self.set(check, Err(why.into()));
    }

    pub fn is_ready(&self) -> bool {
        self.report().is_ready()
    }

    pub fn report(&self) -> Report {
        Report(
            self.checks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }

    fn set(&self, check: Check, state: Standing) {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = checks.insert(check, state.clone());
        drop(checks);
        match (&state, before == Some(state.clone())) {
            (_, true) => {}
            (Ok(None), false) => tracing::info!(check = check.name(), "check passes"),
            (Ok(Some(note)), false) => tracing::warn!(check = check.name(), note, "check passes, with a note"),
            (Err(why), false) => tracing::warn!(check = check.name(), why, "check fails"),
        }
    }
}

/// How the checks stood at one moment. Prints as Kubernetes' own health endpoints do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report(BTreeMap<Check, Standing>);

impl Report {
    pub fn is_ready(&self) -> bool {
        self.0.values().all(Result::is_ok)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (check, state) in &self.0 {
            match state {
                Ok(None) => writeln!(f, "[+]{} ok", check.name())?,
                Ok(Some(note)) => writeln!(f, "[+]{} ok: {note}", check.name())?,
                Err(why) => writeln!(f, "[-]{} failed: {why}", check.name())?,
            }
        }
        f.write_str(if self.is_ready() {
            "ready\n"
        } else {
            "not ready\n"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_each_check_by_name() {
        let readiness = Readiness::requiring([Check::Policies, Check::Certificate]);
        readiness.pass(Check::Certificate);
        let report = "[+]certificate ok\n[-]policies failed: not yet\n[+]serving ok\nnot ready\n";
        assert_eq!(readiness.report().to_string(), report);
        assert!(!readiness.is_ready());

        readiness.pass(Check::Policies);
        let report = "[+]certificate ok\n[+]policies ok\n[+]serving ok\nready\n";
        assert_eq!(readiness.report().to_string(), report);
        assert!(readiness.is_ready());
    }

    #[test]
    fn a_note_shows_and_harms_nothing() {
        let readiness = Readiness::requiring([Check::Policies]);
        readiness.pass_with(Check::Policies, "newer files are refused");
        assert_eq!(readiness.report().to_string(), "[+]policies ok: newer files are refused\n[+]serving ok\nready\n");
    }

    #[test]
    fn a_check_nobody_required_counts_once_it_fails() {
        let readiness = Readiness::requiring([]);
        assert!(readiness.is_ready());
        readiness.clone().fail(Check::DecisionLog, "disk full");
        assert!(!readiness.is_ready(), "clones share the checks");
        readiness.pass(Check::DecisionLog);
        assert!(readiness.is_ready());
    }
}
