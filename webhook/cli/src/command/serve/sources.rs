//! What the gate's parts keep count of, for `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use certs::Resolver;
use engine::quota::Balance;
use engine::snapshot::Snapshot;
use server::cluster::governor::Reports;
use server::cluster::index::Trouble;
use server::cluster::ledgers::KubeLedgers;
use server::cluster::publish::State;
use server::metrics::{Reading, Source};
use server::policy_directory::Counters;
use server::{DecisionLog, Readiness};

#[expect(clippy::cast_precision_loss, reason = "counts and times stay far below 2^53")]
fn number(value: u64) -> f64 {
    value as f64
}

fn load(value: &AtomicU64) -> f64 {
    number(value.load(Ordering::Relaxed))
}

pub(super) fn readiness(readiness: Readiness) -> Source {
    Source::new(move || {
        vec![Reading::plain("ready", "1 while the gate is ready", f64::from(u8::from(readiness.is_ready())))]
    })
}

pub(super) fn log(log: DecisionLog) -> Source {
    Source::new(move || {
        let counts = log.counts();
        vec![
            Reading::plain("log_lines_written", "Lines of the decision log that were written", number(counts.written)),
            Reading::plain("log_lines_refused", "Lines that found the queue full", number(counts.refused)),
            Reading::plain("log_failed_writes", "Writes of the decision log that failed", number(counts.failed_writes)),
        ]
    })
}

pub(super) fn certificate(resolver: Arc<Resolver>) -> Source {
    Source::new(move || {
        let expiry = number(resolver.expiry().as_secs());
        vec![Reading::plain("certificate_expiry_timestamp_seconds", "When the serving certificate ends", expiry)]
    })
}

pub(super) fn policies(counters: Arc<Counters>) -> Source {
    Source::new(move || {
        let Counters { reloaded, refused, stale, reloaded_at_unix_seconds } = &*counters;
        vec![
            Reading::plain("policies_stale", "1 while the policy directory does not load", load(stale)),
            Reading::plain("policy_reloads", "Policy sets that were taken over", load(reloaded)),
            Reading::plain("policy_reloads_refused", "Policy sets that did not load", load(refused)),
            Reading::plain(
                "policies_reloaded_timestamp_seconds",
                "When the last policy set was taken over; 0 before the first",
                load(reloaded_at_unix_seconds),
            ),
        ]
    })
}

pub(super) fn cluster(state: Arc<State>, reports: Arc<Reports>) -> Source {
    Source::new(move || {
        let counters = &state.counters;
        let mut readings = vec![
            Reading::plain("snapshots", "Snapshots of the cluster that were published", load(&counters.published)),
            Reading::plain(
                "snapshot_lag_seconds",
                "How long the oldest change of the last snapshot had waited",
                load(&counters.lag_micros) / 1e6,
            ),
            Reading::plain("webhook_applies", "Writes of the webhook configurations", load(&reports.applied)),
            Reading::plain("webhook_applies_failed", "Writes that failed", load(&reports.failed)),
            Reading::plain(
                "governed_namespaces",
                "Namespaces that both configurations hold",
                load(&reports.governed_namespaces),
            ),
        ];
        readings.extend(troubled(&state.index().trouble()));
        let report = state.index().report();
        let of_kind =
            |name: &'static str, help: &'static str, value: &dyn Fn(&server::cluster::index::WatchReport) -> u64| {
                let reading = |watch: &server::cluster::index::WatchReport| Reading {
                    name,
                    help,
                    label: Some(("kind", watch.kind.to_string())),
                    value: number(value(watch)),
                };
                report.iter().map(reading).collect::<Vec<_>>()
            };
        readings.extend(of_kind("watch_objects", "Objects that a watch holds", &|watch| watch.objects as u64));
        readings.extend(of_kind("watch_errors", "Errors of a watch", &|watch| watch.errors));
        readings
            .extend(of_kind("watch_lists", "Lists of a watch; more than one: it started over", &|watch| watch.lists));
        readings
    })
}

/// What the ledgers hold is told by team and resource: their number is bounded by what the platform declares.
pub(super) fn ledgers(
    counters: Arc<server::ledger::Counters>,
    ledgers: Arc<KubeLedgers>,
    snapshots: Arc<ArcSwap<Snapshot>>,
) -> Source {
    Source::new(move || {
        let counters = &*counters;
        let count = |name, help, counter: &AtomicU64| Reading::plain(name, help, load(counter));
        let mut readings = vec![
            count("ledger_rounds", "Rounds in which ledgers were judged", &counters.rounds),
            count("ledger_waiters", "Requests that these rounds answered", &counters.waiters),
            count("ledger_writes", "Ledgers that were written", &counters.writes),
            count("ledger_conflicts", "Writes that another replica was faster than", &counters.conflicts),
            count("ledger_quorum_reads", "Ledgers that were read past every cache", &counters.quorum_reads),
            count("ledger_released", "Pods that ended and were let go", &counters.released),
            count("ledger_leaked", "Reservations let go whose object never came to exist", &counters.leaked),
            count("ledger_overrun", "Pods that came past the gate and were entered", &counters.adopted),
            count("ledger_built", "Ledgers that were made, or made anew", &counters.built),
            count("ledger_busy", "Requests that no time was left for", &counters.busy),
            count("ledger_behind", "Requests that found another replica to know more", &counters.behind),
        ];
        let snapshot = snapshots.load();
        let (mut used, mut over) = (Vec::new(), Vec::new());
        for (team, ledger) in ledgers.all() {
            let Some(declared) = snapshot.teams.named(&team) else { continue };
            for (resource, amount) in Balance::from(ledger).used().iter() {
                let label = || Some(("team_resource", format!("{team}/{resource}")));
                let help = "Units of a resource that a team holds";
                used.push(Reading { name: "ledger_used", help, label: label(), value: number(amount) });
                let above = amount.saturating_sub(declared.limits(resource).ceiling);
                let help =
                    "Units that a team holds above what it may: a lowered limit, or pods that came past the gate";
                over.push(Reading { name: "ledger_over_limit", help, label: label(), value: number(above) });
            }
        }
        readings.extend(used);
        readings.extend(over);
        readings
    })
}

fn troubled(Trouble { conflicting, unusable, vanished }: &Trouble) -> impl Iterator<Item = Reading> {
    let reading = |(trouble, names): (&str, &Vec<String>)| Reading {
        name: "teams_in_trouble",
        help: "Teams that are not as they were meant: their status says why",
        label: Some(("trouble", trouble.to_owned())),
        value: number(names.len() as u64),
    };
    [("conflict", conflicting), ("unusable", unusable), ("vanished", vanished)].map(reading).into_iter()
}
