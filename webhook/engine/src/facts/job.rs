//! Jobs and CronJobs of `batch`.

use serde_json::Value;

use super::demand::{self, Count, Group};
use super::json::Node;
use super::workload::workload;
use super::{Demand, FactsError, PodTemplate, Workload, pod_spec};
use crate::json;
use crate::vocabulary::Class;

pub(super) fn read(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let suspended = spec.flag("suspend")?;
    let (template, demand) = job(&spec, suspended)?;
    Ok(Workload { suspended, is_one_pod_set: true, ..workload(object, Class::Batch, vec![template], demand)? })
}

/// A CronJob holds nothing itself: each of its Jobs is admitted and reserves. The ceiling is that of one Job, so that one
/// that can never fit is refused when it is written; by default Jobs may overlap, hence no bound on pods.
pub(super) fn cron_job(object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let spec = object.object("spec")?;
    let job_template = spec.object("jobTemplate")?;
    let (template, demand) = job(&job_template.object("spec")?, true)?;
    let overlaps = matches!(spec.string("concurrencyPolicy")?, None | Some("" | "Allow"));
    let pods_ceiling = demand.pods_ceiling.filter(|_| !overlaps);
    let demand = Demand { reserves: false, pods_ceiling, ..demand };
    let suspended = spec.flag("suspend")?;
    Ok(Workload { suspended, is_one_pod_set: true, ..workload(object, Class::Batch, vec![template], demand)? })
}

fn job(spec: &Node<'_, '_>, suspended: bool) -> Result<(PodTemplate, Demand), FactsError> {
    let template = pod_spec::template(&spec.object("template")?)?;
    let count = Count::fixed(pods_at_once(spec)?);
    let demand = demand::bounded(&[Group { per_pod: &template.per_pod, count }], suspended);
    Ok((template, demand))
}

/// Kubernetes never runs more pods at once than are still to complete. Without `completions` any number may.
fn pods_at_once(spec: &Node<'_, '_>) -> Result<u64, FactsError> {
    let parallelism = spec.count("parallelism")?.unwrap_or(1);
    Ok(spec.count("completions")?.map_or(parallelism, |completions| parallelism.min(completions)))
}

/// How many pods a stored Job may still run at once: no more than are still to complete. Without `completions` no pod is
/// started once one has succeeded.
pub(super) fn left_to_run(job: &Value) -> u64 {
    let number = |keys: &[&str]| json::at(job, keys).and_then(Value::as_u64);
    let parallelism = number(&["spec", "parallelism"]).unwrap_or(1);
    let completions = number(&["spec", "completions"]).unwrap_or(parallelism);
    let ended = match json::text(job, &["spec", "completionMode"]) {
        // Its `succeeded` may count indexes that it has lost since, when it was made smaller.
        Some("Indexed") => ended_indexes(job, completions),
        _ => number(&["status", "succeeded"]).unwrap_or(0),
    };
    completions.saturating_sub(ended)
}

/// Indexes below `completions` for which no pod will run any more, because one has succeeded or none may be tried again.
fn ended_indexes(job: &Value, completions: u64) -> u64 {
    let lists = ["completedIndexes", "failedIndexes"].map(|key| json::text(job, &["status", key]).unwrap_or_default());
    let mut ranges: Vec<(u64, u64)> = lists.iter().flat_map(|list| list.split(',')).filter_map(range).collect();
    ranges.sort_unstable();
    let (mut ended, mut next) = (0, 0);
    for (first, last) in ranges {
        let (first, after) = (first.max(next), last.saturating_add(1).min(completions));
        ended += after.saturating_sub(first);
        next = next.max(after);
    }
    ended
}

/// `7`, or `0-3`. Anything else has not ended.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facts::Bound;

    fn spec(fields: Value) -> Value {
        let mut spec = fields;
        spec["template"] = json!({"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 2}}},
        ]}});
        spec
    }

    fn gpus(demand: &Demand) -> (u64, u64) {
        let Bound::AtMost(ceiling) = &demand.ceiling else { unreachable!("a Job has a bound") };
        (demand.floor.get("nvidia.com/gpu"), ceiling.get("nvidia.com/gpu"))
    }

    #[test]
    fn the_smaller_of_parallelism_and_completions() -> Result<(), FactsError> {
        for (fields, expected) in [
            (json!({}), (2, 2)),
            (json!({"parallelism": 8}), (16, 16)),
            (json!({"parallelism": 8, "completions": 2}), (4, 4)),
            (json!({"completions": 5}), (2, 2)),
            (json!({"parallelism": 0}), (0, 0)),
            (json!({"parallelism": 3, "suspend": true}), (0, 6)),
        ] {
            let object = json!({"spec": spec(fields.clone())});
            let job = read(&Node::root(&object)?)?;
            assert_eq!(gpus(&job.demand), expected, "{fields}");
            assert_eq!(job.suspended, fields["suspend"] == true);
        }
        Ok(())
    }

    #[test]
    fn cron_jobs_reserve_nothing() -> Result<(), FactsError> {
        for (policy, pods_ceiling) in [(json!(null), None), (json!("Allow"), None), (json!("Forbid"), Some(3))] {
            let object = json!({"spec": {
                "concurrencyPolicy": policy,
                "jobTemplate": {"spec": spec(json!({"parallelism": 3}))},
            }});
            let cron_job = cron_job(&Node::root(&object)?)?;
            assert!(!cron_job.demand.reserves);
            assert_eq!(gpus(&cron_job.demand), (0, 6));
            assert_eq!((cron_job.demand.pods, cron_job.demand.pods_ceiling), (0, pods_ceiling));
            assert_eq!(cron_job.templates[0].pointer, "/spec/jobTemplate/spec/template");
        }
        Ok(())
    }

    /// Kueue's own table (`TestTerminalIndexesCount`): completed, failed, completions, ended.
    #[test]
    fn indexes_that_have_ended() {
        for (completed, failed, completions, ended) in [
            ("", "", 10, 0),
            ("0-9", "", 0, 0),
            ("0", "", 10, 1),
            ("", "1", 10, 1),
            ("0-4", "", 10, 5),
            ("0-4,7,9-11", "", 10, 7),
            ("0-2,7", "3-5,8", 10, 8),
            ("0-4", "3-7", 10, 8),
            ("0-9", "2-3", 10, 10),
            ("0-8", "", 10, 9),
            ("0-14", "", 10, 10),
            ("5-19", "", 10, 5),
            ("10-19", "", 10, 0),
            ("", "5-19", 10, 5),
            ("", "10-19", 10, 0),
            ("", "4", 3, 0),
            ("0-1", "2-19", 5, 5),
            ("0-4", "", 3, 3),
            ("3,5,7", "", 10, 3),
            ("3,5,12", "", 10, 2),
            ("abc,0-2", "", 10, 3),
            ("3-1,18446744073709551615", "", 10, 0),
        ] {
            let job = json!({"status": {"completedIndexes": completed, "failedIndexes": failed}});
            assert_eq!(ended_indexes(&job, completions), ended, "{completed:?} {failed:?} of {completions}");
        }
    }

    #[test]
    fn absurd_numbers_stick_or_are_refused() -> Result<(), FactsError> {
        let most = json!({"spec": spec(json!({"parallelism": i64::MAX}))});
        let most = read(&Node::root(&most)?)?;
        assert_eq!(gpus(&most.demand), (crate::amounts::MAX, crate::amounts::MAX));
        for (value, problem) in [
            (json!(1_u64 << 63), "is `9223372036854775808`, which is too large"),
            (json!(-1), "is `-1` but must not be negative"),
            (json!("1e0"), "must be a whole number"),
            (json!([1]), "must be a whole number"),
        ] {
            let object = json!({"spec": spec(json!({"parallelism": value}))});
            let error = read(&Node::root(&object)?).expect_err("no count");
            assert_eq!(error.to_string(), format!("`/spec/parallelism` {problem}"));
        }
        Ok(())
    }
}
