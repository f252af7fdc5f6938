//! `cedargate quota`: what each team holds of its quota, and which workloads hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use engine::amounts::ResourceName;
use engine::cluster::Cluster;
use engine::queues::Queues;
use engine::quota::{Balance, Ledger};
use engine::team::{QuotaMode, TeamSpec};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde::Serialize;
use server::cluster::team_object::QueuedAmount;
use server::cluster::{ledger_object, team_object, watches};

use crate::output::line;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this team.
    team: Option<String>,
    /// Default: as kubectl finds it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Holders to show of each resource, largest first; JSON has all of them.
    #[arg(long, default_value_t = 10)]
    holders: usize,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// One resource of one team; units of the resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    team: String,
    resource: ResourceName,
    /// What counts: pods, and what is kept for workloads beyond their pods.
    used: u64,
    /// Of `used`, kept for workloads whose pods are not there.
    reserved: u64,
    limit: u64,
    /// Limit and what may be borrowed.
    ceiling: u64,
    holders: Vec<Holder>,
    /// The ledger was lost and is being made anew: nothing is admitted meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    settling: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    kind: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    person: Option<String>,
    held: u64,
    pods: usize,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { team, kubeconfig, output, holders } = arguments;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (specs, ledgers, queues) = runtime.block_on(read(kubeconfig))?;
    if let Some(team) = &team {
        ensure!(specs.contains_key(team), "there is no Team `{team}`");
    }
    let wanted = |name: &String| team.as_ref().is_none_or(|team| team == name);
    let specs: BTreeMap<String, TeamSpec> = specs.into_iter().filter(|(name, _)| wanted(name)).collect();
    let mut rows = rows(&specs, &ledgers);
    rows.extend(queued(&specs, queues.queues()));
    match output {
        Output::Json => line(&serde_json::to_string_pretty(&rows)?)?,
        Output::Text => line(text(&specs, &rows, holders).trim_end())?,
    }
    Ok(ExitCode::SUCCESS)
}

type Read = (BTreeMap<String, TeamSpec>, BTreeMap<String, Ledger>, Cluster);

async fn read(kubeconfig: Option<PathBuf>) -> Result<Read> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(&path).with_context(|| path.display().to_string())?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.context("kubeconfig")?
        }
        None => Config::infer().await.context("no cluster")?,
    };
    let client = Client::try_from(config).context("no client for the API server")?;
    let mut specs = BTreeMap::new();
    for team in list(&client, &team_object::resource()).await? {
        let name = team.name_any();
        let spec = serde_json::from_value(team.data["spec"].clone()).with_context(|| format!("Team {name}"))?;
        specs.insert(name, spec);
    }
    let mut ledgers = BTreeMap::new();
    for ledger in list(&client, &ledger_object::resource()).await? {
        let name = ledger.name_any();
        let status = ledger.data.get("status").cloned().unwrap_or_default();
        if !status.is_null() {
            ledgers
                .insert(name.clone(), serde_json::from_value(status).with_context(|| format!("QuotaLedger {name}"))?);
        }
    }
    let by_kueue = specs.values().any(|spec| mode(spec) == QuotaMode::Kueue);
    let queues = match by_kueue {
        true => watches::queues(&client).await.context("cannot read Kueue's queues")?,
        false => Cluster::default(),
    };
    Ok((specs, ledgers, queues))
}

async fn list(client: &Client, resource: &ApiResource) -> Result<Vec<DynamicObject>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let listed = api.list(&ListParams::default()).await;
    Ok(listed.with_context(|| format!("cannot list {}", resource.plural))?.items)
}

/// Every resource that a team has a limit for, or holds something of.
fn rows(specs: &BTreeMap<String, TeamSpec>, ledgers: &BTreeMap<String, Ledger>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (team, spec) in specs.iter().filter(|(_, spec)| mode(spec) == QuotaMode::Ledger) {
        let ledger = ledgers.get(team).cloned().unwrap_or_default();
        let settling = ledger.settling;
        let balance = Balance::from(ledger);
        let used = balance.used();
        let declared = spec.quota.iter().flat_map(|quota| quota.limit.keys());
        let mut resources: Vec<&ResourceName> = declared.chain(used.iter().map(|(resource, _)| resource)).collect();
        resources.sort_unstable();
        resources.dedup();
        for resource in resources {
            let quota = spec.quota.as_ref();
            let limit = quota.and_then(|quota| quota.limit.get(resource)).copied().unwrap_or(0);
            let ceiling = quota.and_then(|quota| quota.ceiling.get(resource)).copied().unwrap_or(limit);
            let (used, held) = (used.get(resource.as_str()), balance.ledger().holders(resource.as_str()));
            let by_pods: u64 = balance.ledger().of_pods().get(resource.as_str());
            rows.push(Row {
                team: team.clone(),
                resource: resource.clone(),
                used,
                reserved: used.saturating_sub(by_pods),
                limit,
                ceiling,
                settling,
                holders: held
                    .into_iter()
                    .map(|(entry, held)| Holder {
                        kind: entry.kind.clone(),
                        namespace: entry.namespace.clone(),
                        name: entry.name.clone(),
                        person: entry.person.clone(),
                        held,
                        pods: entry.pods.len(),
                    })
                    .collect(),
            });
        }
    }
    rows
}

/// What Kueue says of the queues of a team: it names no holders here, and keeps nothing for anybody.
fn queued(specs: &BTreeMap<String, TeamSpec>, queues: &Queues) -> Vec<Row> {
    let queued = specs.iter().filter(|(_, spec)| mode(spec) == QuotaMode::Kueue);
    let row = |team: &String, QueuedAmount { resource, used, nominal, most }| Row {
        team: team.clone(),
        resource,
        used,
        reserved: 0,
        limit: nominal,
        ceiling: most,
        holders: Vec::new(),
        settling: false,
    };
    queued
        .flat_map(|(team, spec)| {
            let amounts = team_object::queued_amounts(spec, queues).unwrap_or_default();
            amounts.into_iter().map(move |amount| row(team, amount))
        })
        .collect()
}

fn mode(spec: &TeamSpec) -> QuotaMode {
    spec.quota.as_ref().map_or(QuotaMode::Ledger, |quota| quota.mode)
}

fn text(specs: &BTreeMap<String, TeamSpec>, rows: &[Row], most: usize) -> String {
    let mut text = String::new();
    let mut table = |cells: [&str; 6]| {
        let [team, resource, used, reserved, limit, ceiling] = cells;
        let row = format!("{team:<20} {resource:<28} {used:>6} {reserved:>8} {limit:>6} {ceiling:>7}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", row.trim_end());
    };
    table(["TEAM", "RESOURCE", "USED", "RESERVED", "LIMIT", "CEILING"]);
    for (team, _) in specs.iter().filter(|(_, spec)| mode(spec) == QuotaMode::Kueue) {
        table([team, "by Kueue", "", "", "", ""]);
    }
    for row in rows {
        let [used, reserved, limit, ceiling] =
            [row.used, row.reserved, row.limit, row.ceiling].map(|amount| amount.to_string());
        table([&row.team, row.resource.as_str(), &used, &reserved, &limit, &ceiling]);
    }
    for row in rows.iter().filter(|row| !row.holders.is_empty()) {
        let Row { team, resource, holders, .. } = row;
        let _ = writeln!(text, "\n{resource} of {team}, largest first:");
        for Holder { kind, namespace, name, person, held, pods } in holders.iter().take(most) {
            let person = person.as_deref().map(|person| format!(" of {person}")).unwrap_or_default();
            let _ = writeln!(text, "{held:>6}  {kind} `{name}` in {namespace}{person}, pods: {pods}");
        }
        if let Some(more) = holders.len().checked_sub(most).filter(|more| *more > 0) {
            let _ = writeln!(text, "        and {more} more");
        }
    }
    let settling: BTreeSet<&String> = rows.iter().filter(|row| row.settling).map(|row| &row.team).collect();
    for team in settling {
        let _ =
            writeln!(text, "\nThe ledger of {team} was lost and is being made anew: nothing is admitted meanwhile.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(yaml: &str) -> Ledger {
        serde_saphyr::from_str(yaml).expect("a ledger")
    }

    fn spec(yaml: &str) -> TeamSpec {
        serde_saphyr::from_str(yaml).expect("a Team's spec")
    }

    #[test]
    fn used_reserved_limit_and_holders() {
        let specs = BTreeMap::from([
            (
                "team-a".to_owned(),
                spec("{namespaces: [a], quota: {limit: {nvidia.com/gpu: 16}, ceiling: {nvidia.com/gpu: 24}}}"),
            ),
            ("team-b".to_owned(), spec("{namespaces: [b], queue: q, quota: {mode: kueue}}")),
        ]);
        let held = ledger(
            "
settling: true
entries:
  one: {kind: Job, namespace: a, name: train, class: batch, person: alice@example.com, floor: {nvidia.com/gpu: 8},
        pods: {p: {name: train-0, amounts: {nvidia.com/gpu: 1}}, q: {name: train-1, amounts: {nvidia.com/gpu: 1}}}}
  two: {kind: Pod, namespace: a, name: probe, class: pod, pods: {two: {name: probe, amounts: {aws.amazon.com/neuron: 2}}}}
",
        );
        let ledgers = BTreeMap::from([("team-a".to_owned(), held)]);
        let mut queues = Cluster::default();
        let queue = serde_json::json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "b"},
            "spec": {"resourceGroups": [{"flavors": [{"name": "p5", "resources": [
                {"name": "nvidia.com/gpu", "nominalQuota": 8},
            ]}]}]},
            "status": {"flavorsReservation": [{"name": "p5", "resources": [{"name": "nvidia.com/gpu", "total": 3}]}]},
        });
        queues.insert(queue);
        queues.insert(serde_json::json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue",
            "metadata": {"name": "q", "namespace": "b"}, "spec": {"clusterQueue": "b"},
        }));
        let mut rows = rows(&specs, &ledgers);
        rows.extend(queued(&specs, queues.queues()));
        insta::assert_snapshot!(text(&specs, &rows, 10));
        insta::assert_json_snapshot!(rows);
    }
}
