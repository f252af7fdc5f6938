//! How long a review may take.
//!
//! The API server gives up after the webhook's `timeoutSeconds` and tells us: it calls `/validate?timeout=10s`, a Go
//! duration. An answer of our own before that says why; a timeout says nothing, and with `failurePolicy: Ignore` it
//! would let the request in.

use std::time::Duration;

use tokio::time::Instant;

/// `timeoutSeconds` where the webhook configuration leaves it out, and the longest that we take in any case: several
/// webhooks may look at one request, and the person waits for all of them.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// What is left for the way back: the API server's clock started before the connection was made, and stops after the
/// answer is read.
pub const ANSWER_MARGIN: Duration = Duration::from_millis(500);

/// When the answer must be on its way, for a review that arrived at `arrived` with this query.
///
/// With a short timeout the margin shrinks to a quarter of it. A timeout that cannot be read counts as absent.
pub fn deadline(arrived: Instant, query: Option<&str>, longest: Duration, margin: Duration) -> Instant {
    let asked = query.and_then(timeout_in).filter(|asked| !asked.is_zero());
    let timeout = asked.map_or(longest, |asked| asked.min(longest));
    arrived + (timeout - margin.min(timeout / 4))
}

fn timeout_in(query: &str) -> Option<Duration> {
    query.split('&').find_map(|pair| pair.strip_prefix("timeout=")).and_then(go_duration)
}

/// Go's `time.ParseDuration`, without signs: `10s`, `1m30s`, `1.5h`, `250ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = go_part(rest)?;
        nanos = nanos.checked_add(part)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_nanos(nanos))
}

/// The nanoseconds of one number with its unit, and what follows.
fn go_part(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit_nanos = unit_nanos(unit)?;
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let nanos = whole.checked_mul(unit_nanos)?.checked_add(fraction_nanos(fraction, unit_nanos))?;
    Some((nanos, rest))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

/// Digit by digit: what lies below a nanosecond falls away.
fn fraction_nanos(fraction: &str, unit_nanos: u64) -> u64 {
    let mut place = unit_nanos;
    fraction.bytes().fold(0, |sum, digit| {
        place /= 10;
        sum + u64::from(digit - b'0') * place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_durations() {
        for (text, millis) in [
            ("10s", 10_000),
            ("1m0s", 60_000),
            ("1m30s", 90_000),
            ("1h2m3s", 3_723_000),
            ("250ms", 250),
            ("1.5s", 1_500),
            (".5s", 500),
            ("2.s", 2_000),
            ("3000us", 3),
            ("3000µs", 3),
            ("0s", 0),
        ] {
            assert_eq!(go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_go_duration_counts_as_absent() {
        for text in ["", "10", "s", "-1s", "+1s", "10 s", "1d", ".s", "10s5", "99999999999999999999s", "9999999999h"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }

    #[test]
    fn the_shorter_of_ours_and_the_callers_counts_less_the_margin() {
        let arrived = Instant::now();
        for (query, millis) in [
            (None, 9_500),
            (Some(""), 9_500),
            (Some("timeout=10s"), 9_500),
            (Some("timeout=30s"), 9_500),
            (Some("timeout=5s"), 4_500),
            (Some("a=b&timeout=5s&c=d"), 4_500),
            (Some("xtimeout=5s"), 9_500),
            (Some("timeout=1s"), 750),
            (Some("timeout=100ms"), 75),
            (Some("timeout=0s"), 9_500),
            (Some("timeout=soon"), 9_500),
        ] {
            let left = deadline(arrived, query, DEFAULT_TIMEOUT, ANSWER_MARGIN) - arrived;
            assert_eq!(left, Duration::from_millis(millis), "{query:?}");
        }
    }
}
