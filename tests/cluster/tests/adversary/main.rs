//! Every way past the gate that we know, tried by a member of a team against a real API server. RBAC lets them on purpose: it
//! is the gate that refuses.
//!
//! The same table is tried twice. In a cluster without a gate every attempt must succeed, so that none is refused in the
//! other only because it is malformed. Prints attempt, path and answer:
//!
//! ```text
//! cargo test --workspace --test adversary -- --nocapture
//! ```

mod attempts;
mod calls;
mod site;

use crate::{
    calls::Call,
    site::{LET_IN, RBAC, Reply, Site},
};

/// Who tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// Of team A.
    Alice,
    /// Lead of team A.
    Amir,
    /// Of team B, which is held to the stricter level.
    Bob,
    /// Of no team, but may work in all namespaces and impersonate anybody.
    Eve,
    /// Code in a pod of alice's.
    Inside,
    /// A token of a service account of the namespace that no pod holds.
    Minted,
}

/// What the attempt is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The gate refuses: reason codes beside `forbidden`, then the policies that forbid.
    Gate(&'static str),
    /// The gate is not asked, because a webhook cannot be: teams have no such right in RBAC.
    Rbac,
    /// The gate is not asked, or says yes, and means it.
    Nobody,
}

/// One row of the table.
#[derive(Debug, Clone)]
struct Attempt {
    what: String,
    who: Who,
    call: Call,
    answer: Answer,
}

#[tokio::test]
async fn no_way_past_the_gate() {
    let attempts = attempts::attempts();
    let malformed = without_a_gate(&attempts).await;
    assert!(malformed.is_empty(), "these prove nothing, as they fail without a gate:\n{}", malformed.join("\n"));

    let site = Site::start(true).await;
    let mut replies = Vec::new();
    for attempt in &attempts {
        replies.push((attempt, site.try_it(attempt).await));
    }
    let answers = site.answers(&replies).await;
    print(&attempts, &answers);
    let wrong: Vec<_> =
        replies.iter().zip(&answers).filter_map(|((attempt, reply), answer)| attempt.wrong(reply, answer)).collect();
    assert!(wrong.is_empty(), "{} of {} attempts:\n{}", wrong.len(), attempts.len(), wrong.join("\n"));
}

/// What does not succeed there. What RBAC refuses is tried by the administrator.
async fn without_a_gate(attempts: &[Attempt]) -> Vec<String> {
    let site = Site::start(false).await;
    let mut failed = Vec::new();
    for attempt in attempts {
        let reply = match attempt.answer {
            Answer::Rbac => site.try_as_admin(attempt).await,
            Answer::Gate(_) | Answer::Nobody => site.try_it(attempt).await,
        };
        if !reply.passed(&attempt.call) {
            failed.push(format!("- {} ({}): {} {}", attempt.what, attempt.path(), reply.code, reply.message));
        }
    }
    failed
}

impl Attempt {
    fn path(&self) -> String {
        let path = ["/api/v1/", "/apis/"].iter().find_map(|root| self.call.path.strip_prefix(root));
        format!("{} {}", self.call.method, path.unwrap_or(&self.call.path))
    }

    fn wrong(&self, reply: &Reply, answer: &str) -> Option<String> {
        let expected = match self.answer {
            Answer::Gate(refusal) => refusal,
            Answer::Rbac => RBAC,
            Answer::Nobody => LET_IN,
        };
        let Self { what, who, .. } = self;
        let message = reply.message.replace('\n', "\n  ");
        (answer != expected).then(|| {
            format!("- {what} ({who:?}, {}): {answer}, not {expected}\n  {} {message}", self.path(), reply.code)
        })
    }
}

#[expect(clippy::print_stdout, reason = "the table is what this suite is asked for")]
fn print(attempts: &[Attempt], answers: &[String]) {
    println!("| attempt | as | path | answer |\n|---|---|---|---|");
    for (attempt, answer) in attempts.iter().zip(answers) {
        println!("| {} | {:?} | {} | {answer} |", attempt.what, attempt.who, attempt.path());
    }
}
