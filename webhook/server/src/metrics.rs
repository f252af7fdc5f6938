//! What an operator watches. Labels are closed lists: endpoint, verdict, reason code, kind of a watch; never a user, an
//! ARN, a namespace or a pod, whose number nobody bounds.
//!
//! Decisions are counted as they are made; everything else is read when it is asked for, from whoever keeps it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use engine::record::Record;
use engine::verdict::Verdict;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// All metrics of a gate. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    decisions: Family<Decided, Counter>,
    refusals: Family<Refused, Counter>,
    seconds: Family<At, Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decided {
    endpoint: &'static str,
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct At {
    endpoint: &'static str,
}

/// A number that somebody else keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub name: &'static str,
    /// A sentence for whoever looks it up.
    pub help: &'static str,
    /// At most one label.
    pub label: Option<(&'static str, String)>,
    pub value: f64,
}

impl Reading {
    pub fn plain(name: &'static str, help: &'static str, value: f64) -> Self {
        Self { name, help, label: None, value }
    }
}

/// Seconds. A pod takes well under a millisecond, and the API server gives up after ten seconds.
const BUCKETS: [f64; 12] = [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0];

impl Metrics {
    /// `sources` are read at each scrape, and must not wait.
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        let mut registry = Registry::with_prefix("cedargate");
        let decisions = Family::<Decided, Counter>::default();
        let refusals = Family::<Refused, Counter>::default();
        let seconds = Family::<At, Histogram>::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register("decisions", "Answers by endpoint and verdict", decisions.clone());
        registry.register("refusals", "Reasons of refusals; one answer may have several", refusals.clone());
        registry.register("decision_seconds", "Time from reading a review to its answer", seconds.clone());
        for source in sources {
            registry.register_collector(Box::new(source));
        }
        Self { registry: Arc::new(registry), decisions, refusals, seconds }
    }

    /// Counts one answer.
    pub fn decided(&self, record: &Record, took: Duration) {
        let verdict = match record.verdict {
            Verdict::Allow => "allow",
            Verdict::Deny { .. } => "deny",
            Verdict::RetryLater { .. } => "retry-later",
        };
        self.decisions.get_or_create(&Decided { endpoint: record.endpoint, verdict }).inc();
        for reason in record.reasons() {
            self.refusals.get_or_create(&Refused { reason: reason.id() }).inc();
        }
        self.seconds.get_or_create(&At { endpoint: record.endpoint }).observe(took.as_secs_f64());
    }

    /// OpenMetrics text.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Whoever keeps numbers of its own.
pub struct Source(Box<dyn Fn() -> Vec<Reading> + Send + Sync>);

impl Source {
    pub fn new(read: impl Fn() -> Vec<Reading> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Collector for Source {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let readings = (self.0)();
        // One descriptor for all readings of a name, which stand together.
        for same in readings.chunk_by(|a, b| a.name == b.name) {
            let [first, ..] = same else { continue };
            let mut metric = encoder.encode_descriptor(first.name, first.help, None, MetricType::Gauge)?;
            for Reading { label, value, .. } in same {
                match label {
                    Some((key, label)) => {
                        let labels = [(*key, label.as_str())];
                        ConstGauge::new(*value).encode(metric.encode_family(&labels)?)?;
                    }
                    None => metric.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::record::Revisions;
    use engine::verdict::{Answer, ReasonCode};

    #[test]
    fn decisions_and_readings_are_told() {
        let label = |kind: &str, value| Reading {
            name: "watch_objects",
            help: "Objects that a watch holds",
            label: Some(("kind", kind.to_owned())),
            value,
        };
        let source = move || vec![Reading::plain("ready", "1 while ready", 1.0), label("Pod", 3.0), label("Team", 2.0)];
        let metrics = Metrics::new([Source::new(source)]);
        let answer = Answer::refusal("u", ReasonCode::Malformed, "no".to_owned());
        let now = jiff::Timestamp::UNIX_EPOCH;
        let record = Record::unjudged(
            None,
            "u",
            "validate",
            answer.verdict.clone(),
            answer.message(),
            now,
            Revisions::default(),
        );
        metrics.decided(&record, Duration::from_micros(300));
        let text = metrics.text().expect("text");
        for line in [
            "cedargate_decisions_total{endpoint=\"validate\",verdict=\"deny\"} 1",
            "cedargate_refusals_total{reason=\"malformed\"} 1",
            "cedargate_decision_seconds_bucket{le=\"0.0005\",endpoint=\"validate\"} 1",
            "cedargate_ready 1",
            "cedargate_watch_objects{kind=\"Pod\"} 3",
            "cedargate_watch_objects{kind=\"Team\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
