//! The demand function against what others count: the tables of Kubernetes' own tests and Kueue's pod sets.
//! `testdata/demand/README.md` says where they are from and how to read them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Bound, Facts, KindRef, Workload, extract, stored_demand};
use crate::amounts::{Amounts, ResourceName};
use crate::cluster::{Meta, StoredObject};
use crate::facts::kinds::Kinds;

const KUBERNETES: &str = include_str!("../../testdata/demand/kubernetes.yaml");
const KUEUE: &str = include_str!("../../testdata/demand/kueue.yaml");

fn read(group: &str, kind: &str, object: &Value) -> Workload {
    match extract(Kinds::defaults(), &KindRef { group, kind, resource: "" }, object) {
        Ok(Facts::Workload(workload)) => workload,
        other => unreachable!("{kind} runs pods: {other:?}"),
    }
}

// ------------------------------------------------------------------------------------------------------- Kubernetes

type Column = BTreeMap<String, u64>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    /// What stands for a resource of theirs here.
    resources: BTreeMap<String, String>,
    tables: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    test: String,
    of: String,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Row {
    at: usize,
    #[serde(default)]
    init: Vec<Init>,
    #[serde(default)]
    main: Vec<Column>,
    #[serde(default)]
    overhead: Column,
    #[serde(default)]
    pod_level: Column,
    #[serde(default)]
    phase: Option<String>,
    #[serde(default)]
    terminating: bool,
    expected: Column,
    #[serde(default)]
    ours: Option<Column>,
    #[serde(default)]
    because: Option<Difference>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Init {
    Sidecar { sidecar: Column },
    Plain(Column),
}

/// Why we count otherwise; the README explains each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Difference {
    Overhead,
    PodLevel,
    Terminating,
}

/// How an amount is written down: the API server fills in requests from limits, and takes the two only if they are equal.
const SPELLINGS: [&[&str]; 3] = [&["requests", "limits"], &["limits"], &["requests"]];

impl Tables {
    fn translated(&self, column: &Column) -> Amounts {
        column.iter().map(|(name, amount)| (ResourceName::new(&self.resources[name]), *amount)).collect()
    }

    fn resources(&self, column: &Column, spelling: &[&str]) -> Value {
        spelling.iter().map(|key| ((*key).to_owned(), json!(self.translated(column)))).collect()
    }

    fn pod(&self, row: &Row, spelling: &[&str]) -> Value {
        let main = row
            .main
            .iter()
            .enumerate()
            .map(|(i, column)| json!({"name": format!("main-{i}"), "resources": self.resources(column, spelling)}));
        let init = row.init.iter().enumerate().map(|(i, init)| {
            let name = format!("init-{i}");
            match init {
                Init::Plain(column) => json!({"name": name, "resources": self.resources(column, spelling)}),
                Init::Sidecar { sidecar } => {
                    json!({"name": name, "restartPolicy": "Always", "resources": self.resources(sidecar, spelling)})
                }
            }
        });
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "deletionTimestamp": row.terminating.then_some("2026-01-01T00:00:00Z")},
            "spec": {
                "containers": main.collect::<Vec<_>>(),
                "initContainers": init.collect::<Vec<_>>(),
                "overhead": self.translated(&row.overhead),
                "resources": self.resources(&row.pod_level, spelling),
            },
            "status": {"phase": row.phase},
        })
    }
}

fn stored(object: &Value) -> StoredObject {
    StoredObject::new(Meta::read(object, None), object.clone())
}

#[test]
fn pods_ask_for_what_kubernetes_says() {
    let tables: Tables = serde_saphyr::from_str(KUBERNETES).expect("the tables");
    let mut differences = BTreeSet::new();
    let mut rows = 0;
    for table in &tables.tables {
        for row in &table.rows {
            rows += 1;
            differences.extend(row.because);
            let expected = tables.translated(row.ours.as_ref().unwrap_or(&row.expected));
            for spelling in SPELLINGS {
                let pod = tables.pod(row, spelling);
                let place = format!("{} {} of {}, by {spelling:?}: {pod}", table.test, row.at, table.of);
                assert_eq!(stored_demand(Kinds::defaults(), &stored(&pod)), expected, "{place}");
                // A pod that is admitted has no phase yet.
                if row.phase.is_none() {
                    let workload = read("", "Pod", &pod);
                    assert_eq!(workload.templates[0].per_pod, expected, "{place}");
                    assert_eq!(workload.demand.floor, expected, "{place}");
                    assert_eq!(workload.demand.ceiling, Bound::AtMost(expected.clone()), "{place}");
                }
            }
            assert_eq!(row.ours.is_some(), row.because.is_some(), "{} {}", table.test, row.at);
            assert_ne!(row.ours.as_ref(), Some(&row.expected), "{} {}: no difference", table.test, row.at);
        }
    }
    assert_eq!(rows, 108, "a row that is dropped is dropped on purpose");
    assert_eq!(differences, [Difference::Overhead, Difference::PodLevel, Difference::Terminating].into());
}

// ------------------------------------------------------------------------------------------------------------ Kueue

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kueue {
    /// Anchors of the rows.
    #[serde(rename = "templates")]
    _templates: Value,
    rows: Vec<Job>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Job {
    /// Below `pkg/controller/jobs/`.
    from: String,
    group: String,
    kind: String,
    object: Value,
    pod_sets: Vec<u64>,
    /// Of one pod of each set.
    gpus: Vec<u64>,
    /// Pods of the first set that have ended and are not held any more.
    #[serde(default)]
    reclaimed: u64,
    #[serde(default)]
    suspended: bool,
    /// Pod sets whose number the object leaves out. Kueue counts one; their operator makes none, and so we count none.
    #[serde(default)]
    left_out: Vec<usize>,
    /// Objects of this kind that make up Kueue's workload.
    #[serde(default = "once")]
    times: u64,
}

const fn once() -> u64 {
    1
}

impl Job {
    fn object(&self) -> Value {
        let mut object = self.object.clone();
        object["apiVersion"] = json!(format!("{}/v1", self.group).trim_start_matches('/'));
        object["kind"] = json!(self.kind);
        object["metadata"]["name"] = json!("j");
        object
    }

    fn place(&self) -> String {
        format!("{} {}: {}", self.from, self.kind, self.object)
    }

    /// As Kueue counts them, but for what is left out.
    fn counts(&self) -> impl Iterator<Item = u64> {
        let left_out = |index: &usize| self.left_out.contains(index);
        self.pod_sets.iter().enumerate().map(move |(index, count)| if left_out(&index) { 0 } else { *count })
    }

    fn pods(&self) -> u64 {
        self.counts().sum()
    }

    fn total(&self) -> u64 {
        assert_eq!(self.pod_sets.len(), self.gpus.len(), "{}", self.place());
        self.counts().zip(&self.gpus).map(|(count, gpus)| count * gpus).sum()
    }
}

#[test]
fn jobs_ask_for_kueues_pod_sets() {
    let kueue: Kueue = serde_saphyr::from_str(KUEUE).expect("the rows");
    for job in &kueue.rows {
        let place = job.place();
        let gpus = |amounts: &Amounts| amounts.get("nvidia.com/gpu") * job.times;
        let demand = read(&job.group, &job.kind, &job.object()).demand;
        let Bound::AtMost(ceiling) = &demand.ceiling else { unreachable!("{place} has a bound") };
        assert_eq!(gpus(ceiling), job.total(), "{place}");
        assert_eq!(demand.pods_ceiling.map(|pods| pods * job.times), Some(job.pods()), "{place}");
        let now = if job.suspended { (0, 0) } else { (job.total(), job.pods()) };
        assert_eq!((gpus(&demand.floor), demand.pods * job.times), now, "{place}");
        let held = gpus(&stored_demand(Kinds::defaults(), &stored(&job.object())));
        assert_eq!(held, now.0 - job.reclaimed * job.gpus[0], "{place}");
    }
}
