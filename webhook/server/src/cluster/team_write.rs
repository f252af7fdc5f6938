//! Writes of Teams, judged on the snapshot: what `kubectl apply -f team.yaml` may be told.

use engine::cluster::Cluster;
use engine::config::Config;
use engine::json;
use engine::pipeline::Evaluation;
use engine::review::{Operation, Review};
use engine::snapshot::Snapshot;
use engine::team::served::{Reserved, check_team_write};
use engine::verdict::{ReasonCode, Refusal};

use super::team_object;

/// Namespaces that are never a team's, as the configuration has them.
#[derive(Debug, Clone, Copy)]
pub struct Reserving<'a>(pub &'a Config);

impl Reserved for Reserving<'_> {
    fn reason(&self, namespace: &str) -> Option<String> {
        let Self(config) = self;
        let lives_in = |id: &str| id.split_once('/').is_some_and(|(found, _)| found == namespace);
        if config.system_namespaces.contains(namespace) || lives_in(&config.own_service_account) {
            return Some("belongs to the cluster".to_owned());
        }
        let controller = config.controllers.iter().filter_map(|controller| controller.service_account.as_deref());
        let trusted = controller.into_iter().find(|id| lives_in(id))?;
        Some(format!("is where the trusted controller `{trusted}` lives, whose token a member could mint"))
    }
}

/// Adds what only all Teams together can say to what the policies said: an overlap, an unknown field, a quota that cannot be
/// meant.
///
/// The policies decide who writes Teams, by groups that Teams declare. While none does, nobody could ever be permitted, and
/// a gate that was installed without Teams would never get one: then RBAC alone decides who.
pub fn judge_team_write(review: &Review, snapshot: &Snapshot, evaluation: &mut Evaluation) {
    if !is_team_write(review) {
        return;
    }
    if snapshot.teams.all_groups().next().is_none() && !evaluation.refusals.is_empty() {
        evaluation.refusals.clear();
        evaluation.warnings.push("no Team declares a group yet, so RBAC alone decided who writes this one".to_owned());
    }
    evaluation.refusals.extend(refuse_team_write(review, snapshot));
}

fn is_team_write(review: &Review) -> bool {
    let Review { resource, subresource, .. } = review;
    resource.group == team_object::GROUP && resource.resource == team_object::PLURAL && subresource.is_none()
}

fn refuse_team_write(review: &Review, snapshot: &Snapshot) -> Option<Refusal> {
    let Review { operation, object, old_object, .. } = review;
    let new = match operation {
        Operation::Create | Operation::Update => object.as_ref(),
        Operation::Delete | Operation::Connect => None,
    };
    let pods = |namespace: &str| unfinished_pods(&snapshot.cluster, namespace);
    let judged = check_team_write(old_object.as_ref(), new, &snapshot.teams, &Reserving(&snapshot.config), pods);
    judged.err().map(|message| Refusal { reason: ReasonCode::Malformed, message, hint: None, policy: None })
}

/// Pods that have not finished: what would be left behind.
pub fn unfinished_pods(cluster: &Cluster, namespace: &str) -> usize {
    let finished = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
    cluster
        .objects()
        .filter(|stored| {
            stored.meta.kind == "Pod" && stored.meta.group.is_empty() && stored.meta.namespace == namespace
        })
        .filter(|stored| !finished(json::text(&stored.object, &["status", "phase"])))
        .count()
}
