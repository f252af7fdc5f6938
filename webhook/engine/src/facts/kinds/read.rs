//! Reads an object as the configuration of its kind says.

use serde_json::Value;

use super::number::{Number, Scope};
use super::pattern::{Found, Pattern, pointer};
use super::{Condition, ContainerAt, Fields, Kind, Pods, Source, Surge};
use crate::amounts::{Amounts, shown};
use crate::facts::demand::{self, Count};
use crate::facts::json::Node;
use crate::facts::pod_security::{Absence, Pod};
use crate::facts::pod_spec::{self, Parts};
use crate::facts::workload::workload;
use crate::facts::{Bound, Demand, FactsError, PodTemplate, Workload, fallback};
use crate::vocabulary::ContainerKind;

/// Pods of one template, counted.
struct Counted {
    template: PodTemplate,
    now: u64,
    most: Most,
    surge: u64,
}

/// How many there may be.
#[derive(Debug, Clone, PartialEq)]
enum Most {
    Bounded(u64),
    /// Any number; the text says what to set.
    Any {
        hint: String,
    },
    /// Neither their number nor their size is said.
    Unknown {
        hint: String,
    },
}

pub(in crate::facts) fn read(kind: &Kind, value: &Value, object: &Node<'_, '_>) -> Result<Workload, FactsError> {
    let mut counted = Vec::new();
    for pods in &kind.pods {
        pods.read(value, object, &mut counted)?;
    }
    unnamed(kind, object, &mut counted)?;
    let suspended = any(&kind.suspend, |pattern| pattern.find(value))?;
    let demand = demand(kind, value, &counted, suspended)?;
    let templates = counted.into_iter().map(|counted| counted.template).collect();
    let mut read = workload(object, kind.class, templates, demand)?;
    read.suspended = suspended;
    read.priority_classes.extend(names(&kind.priority_class, value)?);
    read.claim_templates.extend(names(&kind.claim_templates, value)?);
    for fields in &kind.fields {
        fields.note_unknown(value, &mut read)?;
    }
    Ok(read)
}

impl Pods {
    fn read(&self, value: &Value, object: &Node<'_, '_>, counted: &mut Vec<Counted>) -> Result<(), FactsError> {
        let (pattern, places) = self.source.places(value)?;
        for tokens in places {
            let place = pointer(&tokens);
            // What an entry above names outright, a `*` leaves out.
            let is_named = || counted.iter().any(|known| known.template.pointer == place);
            if pattern.has_each() && is_named() {
                continue;
            }
            let scope = Scope { object: value, template: pattern, place: &tokens };
            let template = object.at(&tokens, |holder| self.source.template(&scope, object, holder))?;
            let (now, most) = self.count(&scope)?;
            let surge = self.surge.as_ref().map(|surge| surge.read(&scope)).transpose()?.flatten().unwrap_or(0);
            add(counted, Counted { template, now, most, surge });
        }
        Ok(())
    }

    /// How many run now, and how many there may be.
    fn count(&self, scope: &Scope<'_>) -> Result<(u64, Most), FactsError> {
        if let Source::Fragment(pattern) = &self.source {
            let hint = format!("leave accelerators out of `{pattern}`: nobody knows over how many pods it is laid");
            return Ok((0, Most::Any { hint }));
        }
        let read = |number: &Option<Number>| number.as_ref().map(|number| number.read(scope)).transpose();
        let now = read(&self.replicas)?.flatten().unwrap_or(1);
        let most = match read(&self.maximum)? {
            Some(maximum) if self.may_grow(scope)? => match (maximum, &self.unbounded) {
                (Some(maximum), _) => Most::Bounded(maximum.max(now)),
                (None, Some(hint)) => Most::Any { hint: hint.clone() },
                (None, None) => Most::Bounded(now),
            },
            Some(_) | None => Most::Bounded(now),
        };
        let suspended = any(&self.suspend, |pattern| scope.find(pattern))?;
        let unsaid = self.unsaid(scope)?.map(|hint| Most::Unknown { hint: hint.to_owned() });
        Ok((if suspended { 0 } else { now }, unsaid.unwrap_or(most)))
    }

    fn may_grow(&self, scope: &Scope<'_>) -> Result<bool, FactsError> {
        for condition in &self.maximum_when {
            if !condition.holds(|pattern| scope.find(pattern))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What to say where a field without which nobody knows the size is absent.
    fn unsaid(&self, scope: &Scope<'_>) -> Result<Option<&str>, FactsError> {
        for required in &self.required {
            if scope.find(required)?.is_empty() {
                return Ok(self.unknown.as_deref());
            }
        }
        Ok(None)
    }
}

impl Source {
    /// The places of the templates, by the first pattern that leads to one.
    fn places(&self, value: &Value) -> Result<(&Pattern, Vec<Vec<String>>), FactsError> {
        let patterns = match self {
            Self::Template(patterns) => patterns.as_slice(),
            Self::Fragment(pattern) => std::slice::from_ref(pattern),
            // A container of which nothing is said is there all the same.
            Self::Container(ContainerAt { at, .. }) => match at.tokens() {
                Some(tokens) => return Ok((at, vec![tokens])),
                None => std::slice::from_ref(at),
            },
        };
        let mut found = (&patterns[0], Vec::new());
        for pattern in patterns {
            let places: Vec<_> = pattern.find(value)?.into_iter().map(|found| found.tokens).collect();
            if !places.is_empty() {
                found = (pattern, places);
                break;
            }
        }
        Ok(found)
    }

    fn template(
        &self,
        scope: &Scope<'_>,
        object: &Node<'_, '_>,
        holder: &Node<'_, '_>,
    ) -> Result<PodTemplate, FactsError> {
        match self {
            Self::Template(_) => pod_spec::template(holder),
            Self::Fragment(_) => pod_spec::fragment(holder),
            Self::Container(container) => container.template(scope, object, holder),
        }
    }
}

impl ContainerAt {
    /// Absent settings say nothing: the operator writes the pod spec, and its pods are judged in their turn.
    fn template(
        &self,
        scope: &Scope<'_>,
        object: &Node<'_, '_>,
        holder: &Node<'_, '_>,
    ) -> Result<PodTemplate, FactsError> {
        let Self { at: _, name, resources, env } = self;
        let nothing = Node::nothing();
        let pod = Pod::read(&nothing, &nothing, Absence::SaysNothing)?;
        let mut template = PodTemplate { synthetic: true, ..pod_spec::blank(holder.pointer()) };
        let resources = resources.as_ref().and_then(|resources| scope.beside(resources).tokens()).unwrap_or_default();
        let container = object.at(&resources, |node| {
            let resources = if resources.is_empty() { &nothing } else { node };
            let parts = Parts { node: holder, name, security: &nothing, resources, probes: &nothing, env };
            pod_spec::container(&parts, ContainerKind::Main, &pod, &mut template)
        })?;
        template.containers.push(container);
        template.per_pod = demand::per_pod(&template.containers, &Amounts::new(), &Amounts::new());
        Ok(template)
    }
}

impl Scope<'_> {
    fn beside(&self, pattern: &Pattern) -> Pattern {
        pattern.beside(self.template, self.place)
    }

    fn find(&self, pattern: &Pattern) -> Result<Vec<Found<'_>>, FactsError> {
        self.beside(pattern).find(self.object)
    }
}

impl Condition {
    fn holds<'j>(&self, find: impl Fn(&Pattern) -> Result<Vec<Found<'j>>, FactsError>) -> Result<bool, FactsError> {
        let (path, values) = match self {
            Self::Flag(path) => (path, None),
            Self::Is { path, is } => (path, Some(is)),
        };
        for found in find(path)? {
            let holds = match (values, found.value) {
                (Some(values), value) => values.contains(value),
                (None, Value::Bool(flag)) => *flag,
                (None, _) => {
                    return Err(FactsError { pointer: found.pointer(), problem: "must be true or false".to_owned() });
                }
            };
            if holds {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn any<'j>(
    conditions: &[Condition],
    find: impl Fn(&Pattern) -> Result<Vec<Found<'j>>, FactsError>,
) -> Result<bool, FactsError> {
    for condition in conditions {
        if condition.holds(&find)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Fields {
    fn note_unknown(&self, value: &Value, workload: &mut Workload) -> Result<(), FactsError> {
        for found in self.at.find(value)? {
            let fields = found.value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
            for (key, _) in fields.filter(|(key, _)| !self.known.contains(key)) {
                let tokens: Vec<_> = found.tokens.iter().chain([key]).cloned().collect();
                workload.unknown_fields.insert(pointer(&tokens));
            }
        }
        Ok(())
    }
}

/// Leaders and workers may be of one template: it stands there once, with the pods of both.
fn add(counted: &mut Vec<Counted>, new: Counted) {
    match counted.iter_mut().find(|known| known.template.pointer == new.template.pointer) {
        None => counted.push(new),
        Some(known) => {
            known.now = known.now.saturating_add(new.now);
            known.surge = known.surge.saturating_add(new.surge);
            known.most = match (&known.most, new.most) {
                (Most::Bounded(known), Most::Bounded(new)) => Most::Bounded(known.saturating_add(new)),
                (Most::Bounded(_), unbounded) => unbounded,
                (unbounded, _) => unbounded.clone(),
            };
        }
    }
}

/// Pod specs in places that the configuration does not name, since an operator may have learnt something new. They are
/// judged like all others.
fn unnamed(kind: &Kind, object: &Node<'_, '_>, counted: &mut Vec<Counted>) -> Result<(), FactsError> {
    let mut found = Vec::new();
    fallback::find_templates(object, 0, &mut found)?;
    let is_named = |template: &PodTemplate| {
        counted.iter().any(|known| {
            let known = &known.template;
            known.pointer == template.pointer || (known.synthetic && known.pointer == spec_of(template))
        })
    };
    let unnamed: Vec<_> = found.into_iter().filter(|template| !is_named(template)).collect();
    for template in unnamed {
        let hint = format!(
            "leave accelerators out of it, or ask the platform team to say under `kinds` in the gate's configuration \
             how many pods a {} makes of `{}`",
            kind.kind, template.pointer
        );
        counted.push(Counted { template, now: 1, most: Most::Any { hint }, surge: 0 });
    }
    Ok(())
}

fn spec_of(template: &PodTemplate) -> String {
    if template.synthetic { template.pointer.clone() } else { format!("{}/spec", template.pointer) }
}

fn demand(kind: &Kind, value: &Value, counted: &[Counted], suspended: bool) -> Result<Demand, FactsError> {
    let groups: Vec<_> = counted
        .iter()
        .map(|Counted { template, now, most, .. }| {
            let most = match most {
                Most::Bounded(most) => *most,
                Most::Any { .. } | Most::Unknown { .. } => *now,
            };
            demand::Group { per_pod: &template.per_pod, count: Count { now: *now, most } }
        })
        .collect();
    let demand = demand::bounded(&groups, suspended || !kind.reserves);
    let fixed = counted.iter().all(|counted| matches!(counted.most, Most::Bounded(_)) || counted.now == 0);
    let ceiling = counted.iter().find_map(without_bound).unwrap_or(demand.ceiling);
    let surge = surge(kind, value, counted, &ceiling)?;
    Ok(Demand {
        pods_ceiling: demand.pods_ceiling.filter(|_| fixed && kind.reserves),
        reserves: kind.reserves,
        estimated: kind.pods.iter().any(|pods| matches!(pods.source, Source::Container(_))),
        surge,
        surge_hint: kind.surge.as_ref().map(|surge| surge.hint.clone()).unwrap_or_default(),
        ceiling,
        ..demand
    })
}

/// Any number of pods is no matter as long as none asks for what is counted.
fn without_bound(counted: &Counted) -> Option<Bound> {
    match &counted.most {
        Most::Unknown { hint } => {
            let problem = "nothing says how much it will take".to_owned();
            Some(Bound::Unbounded { problem, hint: hint.clone() })
        }
        Most::Any { hint } if !counted.template.per_pod.is_empty() => {
            let problem = format!("pods of {} may be any number", shown(&counted.template.pointer));
            Some(Bound::Unbounded { problem, hint: hint.clone() })
        }
        Most::Any { .. } | Most::Bounded(_) => None,
    }
}

fn surge(kind: &Kind, value: &Value, counted: &[Counted], ceiling: &Bound) -> Result<Amounts, FactsError> {
    let pods = |counted: &Counted| counted.template.per_pod.saturating_scale(counted.surge);
    let pods = counted.iter().fold(Amounts::new(), |sum, counted| sum.saturating_add(&pods(counted)));
    let (Some(Surge { copies, unless, .. }), Bound::AtMost(most)) = (&kind.surge, ceiling) else { return Ok(pods) };
    let replaced_in_place = unless.as_slice();
    match any(replaced_in_place, |pattern| pattern.find(value))? {
        true => Ok(pods),
        false => Ok(pods.saturating_add(&most.saturating_scale(*copies))),
    }
}

fn names(patterns: &[Pattern], value: &Value) -> Result<Vec<String>, FactsError> {
    let mut names = Vec::new();
    for pattern in patterns {
        for found in pattern.find(value)? {
            let problem = || FactsError { pointer: found.pointer(), problem: "must be a string".to_owned() };
            names.push(found.value.as_str().ok_or_else(problem)?.to_owned());
        }
    }
    names.retain(|name| !name.is_empty());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::facts::kinds::Kinds;
    use crate::facts::{Facts, KindRef, extract};

    fn read(kinds: &Kinds, group: &str, kind: &str, spec: Value) -> Workload {
        let kind = KindRef { group, kind, resource: "" };
        match extract(kinds, &kind, &json!({"spec": spec})).unwrap_or_else(|error| unreachable!("{kind:?}: {error}")) {
            Facts::Workload(workload) => workload,
            Facts::Object(object) => unreachable!("{kind:?} runs pods: {object:?}"),
        }
    }

    /// Two GPUs.
    fn template() -> Value {
        json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}})
    }

    /// Each kind's group and where its template stands among `fields`.
    fn gpus(kind: &str, spec: Value) -> (u64, Result<u64, String>) {
        let group = Kinds::defaults().iter().find(|known| known.kind == kind).expect("is configured").group.clone();
        let workload = read(Kinds::defaults(), &group, kind, spec);
        let ceiling = match workload.demand.ceiling {
            Bound::AtMost(most) => Ok(most.get("nvidia.com/gpu")),
            Bound::Unbounded { problem, .. } => Err(problem),
        };
        (workload.demand.floor.get("nvidia.com/gpu"), ceiling)
    }

    fn of_workers(fields: Value, cluster: Value) -> Value {
        let mut group = fields;
        group["template"] = template();
        let mut cluster = cluster;
        cluster["headGroupSpec"] = json!({"template": {"spec": {"containers": [{"name": "head"}]}}});
        cluster["workerGroupSpecs"] = json!([group]);
        cluster
    }

    #[test]
    fn groups_of_a_ray_cluster() {
        let largest = 2_147_483_647_u64;
        let any = || Err("pods of `/spec/workerGroupSpecs/0/template` may be any number".to_owned());
        for (group, cluster, expected) in [
            (json!({}), json!({}), (0, Ok(0))),
            (json!({"replicas": 3}), json!({}), (6, Ok(6))),
            (json!({"replicas": 3, "numOfHosts": 4}), json!({}), (24, Ok(24))),
            (json!({"replicas": 3, "maxReplicas": 2}), json!({}), (4, Ok(4))),
            (json!({"replicas": 1, "minReplicas": 2, "maxReplicas": 5}), json!({}), (4, Ok(4))),
            (json!({"replicas": 1, "maxReplicas": 5}), json!({"enableInTreeAutoscaling": true}), (2, Ok(10))),
            (json!({"replicas": 1}), json!({"enableInTreeAutoscaling": true}), (2, any())),
            (json!({"replicas": 1, "maxReplicas": largest}), json!({"enableInTreeAutoscaling": true}), (2, any())),
            (json!({"replicas": 1, "maxReplicas": largest}), json!({"enableInTreeAutoscaling": false}), (2, Ok(2))),
            (json!({"replicas": 3, "suspend": true}), json!({}), (0, Ok(6))),
            (json!({"replicas": 3}), json!({"suspend": true}), (0, Ok(6))),
        ] {
            let spec = of_workers(group, cluster);
            assert_eq!(gpus("RayCluster", spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn a_service_may_run_twice_while_it_is_upgraded() {
        let cluster = of_workers(json!({"replicas": 3}), json!({}));
        for (strategy, surge) in [(json!(null), 6), (json!({"type": "NewCluster"}), 6), (json!({"type": "None"}), 0)] {
            let spec = json!({"rayClusterConfig": cluster, "upgradeStrategy": strategy});
            let service = read(Kinds::defaults(), "ray.io", "RayService", spec);
            assert_eq!(service.demand.surge.get("nvidia.com/gpu"), surge, "{strategy}");
        }
    }

    #[test]
    fn leaders_and_workers() {
        let set = |replicas: Value, size: Value, leader: Value, surge: Value| {
            json!({
                "replicas": replicas,
                "leaderWorkerTemplate": {"size": size, "leaderTemplate": leader, "workerTemplate": template()},
                "rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": surge}},
            })
        };
        let cpu = json!({"spec": {"containers": [{"name": "a"}]}});
        for (spec, expected, surge) in [
            (set(json!(null), json!(null), json!(null), json!(0)), 2, 0),
            (set(json!(2), json!(4), json!(null), json!(1)), 16, 8),
            (set(json!(2), json!(4), template(), json!("50%")), 16, 8),
            (set(json!(2), json!(4), cpu.clone(), json!("10%")), 12, 6),
            (set(json!(2), json!(1), cpu, json!(1)), 0, 0),
            (set(json!(0), json!(4), json!(null), json!(1)), 0, 8),
        ] {
            assert_eq!(gpus("LeaderWorkerSet", spec.clone()), (expected, Ok(expected)), "{spec}");
            let set = read(Kinds::defaults(), "leaderworkerset.x-k8s.io", "LeaderWorkerSet", spec);
            assert_eq!(set.demand.surge.get("nvidia.com/gpu"), surge);
        }
    }

    #[test]
    fn roles_of_kubeflow() {
        let role = |replicas: Value| json!({"replicas": replicas, "template": template()});
        let spec = |field: &str, roles: Value, elastic: Value, suspend: bool| json!({field: roles, "elasticPolicy": elastic, "runPolicy": {"suspend": suspend}});
        let both = json!({"Master": role(json!(null)), "Worker": role(json!(null))});
        let worker = |replicas: Value| json!({"Worker": role(replicas)});
        let master = json!({"Master": role(json!(null))});
        for (roles, elastic, suspend, expected) in [
            (both.clone(), json!(null), false, (4, Ok(4))),
            (master.clone(), json!({"maxReplicas": 4}), false, (2, Ok(2))),
            (both, json!({"maxReplicas": 4}), false, (4, Ok(10))),
            (worker(json!(3)), json!({"maxReplicas": 36}), false, (6, Ok(72))),
            (worker(json!(3)), json!({"minReplicas": 5}), false, (6, Ok(10))),
            (json!({"worker": role(json!(3))}), json!({"maxReplicas": 4}), false, (6, Ok(8))),
            (worker(json!(3)), json!({"maxReplicas": 2}), false, (6, Ok(6))),
            (worker(json!(3)), json!(null), true, (0, Ok(6))),
            (json!(null), json!(null), false, (0, Ok(0))),
        ] {
            let spec = spec("pytorchReplicaSpecs", roles, elastic, suspend);
            assert_eq!(gpus("PyTorchJob", spec.clone()), expected, "{spec}");
        }
        for (roles, expected) in [
            (json!({"Launcher": role(json!(null)), "Worker": role(json!(null))}), 2),
            (json!({"Launcher": role(json!(null)), "Worker": role(json!(4))}), 10),
        ] {
            assert_eq!(gpus("MPIJob", spec("mpiReplicaSpecs", roles, json!(null), false)), (expected, Ok(expected)));
        }
    }

    #[test]
    fn spares_and_elastic_sizes_of_hyperpod() {
        let job = |elastic: Value, replica: Value| {
            let mut replica = replica;
            replica["template"] = template();
            json!({"elasticPolicy": elastic, "replicaSpecs": [replica]})
        };
        for (elastic, replica, expected) in [
            (json!(null), json!({}), (0, Ok(0))),
            (json!(null), json!({"replicas": 4}), (8, Ok(8))),
            (json!(null), json!({"replicas": 4, "spares": 2}), (12, Ok(12))),
            (json!(null), json!({"replicas": 1, "maxReplicas": 3, "spares": 1}), (4, Ok(8))),
            (json!({"maxReplicas": 5}), json!({"replicas": 1, "maxReplicas": 3}), (2, Ok(10))),
            (json!({"replicaDiscreteValues": [1, 2, 6]}), json!({"replicas": 1}), (2, Ok(12))),
        ] {
            assert_eq!(
                gpus("HyperPodPyTorchJob", job(elastic.clone(), replica.clone())),
                expected,
                "{elastic} {replica}"
            );
        }
        let new = job(json!({"burst": 1}), json!({"replicas": 1, "standby": 3}));
        let new = read(Kinds::defaults(), "sagemaker.amazonaws.com", "HyperPodPyTorchJob", new);
        let noted = ["/spec/elasticPolicy/burst", "/spec/replicaSpecs/0/standby"].map(str::to_owned);
        assert_eq!(new.unknown_fields, noted.into());
    }

    #[test]
    fn a_train_job_says_its_size_or_nobody_knows_it() {
        let sized = json!({"numNodes": 3, "image": "a", "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}});
        assert_eq!(gpus("TrainJob", json!({"trainer": sized})), (12, Ok(12)));
        assert_eq!(gpus("TrainJob", json!({"trainer": sized, "suspend": true})), (0, Ok(12)));
        let unknown = || Err("nothing says how much it will take".to_owned());
        for trainer in [json!(null), json!({"numNodes": 3}), json!({"resourcesPerNode": {}})] {
            assert_eq!(gpus("TrainJob", json!({"trainer": trainer})).1, unknown(), "{trainer}");
        }
        let patched = json!({
            "trainer": sized,
            "podTemplateOverrides": [{"spec": {"serviceAccountName": "other", "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}],
        });
        let patched = read(Kinds::defaults(), "trainer.kubeflow.org", "TrainJob", patched);
        let pointers: Vec<_> = patched.templates.iter().map(|template| template.pointer.as_str()).collect();
        assert_eq!(pointers, ["/spec/trainer", "/spec/podTemplateOverrides/0/spec"]);
        assert_eq!(patched.templates[0].containers[0].image.repository, "library/a");
        assert_eq!(patched.templates[1].service_account.as_deref(), Some("other"));
        assert_eq!(patched.demand.pods, 3);
        assert!(patched.demand.estimated);
    }

    #[test]
    fn a_template_in_a_place_that_nobody_named_is_judged_and_has_no_bound() {
        let spec = json!({"headGroupSpec": {"template": template()}, "sidekick": {"template": template()}});
        let cluster = read(Kinds::defaults(), "ray.io", "RayCluster", spec);
        let pointers: Vec<_> = cluster.templates.iter().map(|template| template.pointer.as_str()).collect();
        assert_eq!(pointers, ["/spec/headGroupSpec/template", "/spec/sidekick/template"]);
        let Bound::Unbounded { problem, hint } = cluster.demand.ceiling else { unreachable!("nobody knows one") };
        assert_eq!(problem, "pods of `/spec/sidekick/template` may be any number");
        assert!(hint.contains("how many pods a RayCluster makes of `/spec/sidekick/template`"), "{hint}");
    }

    #[test]
    fn a_kind_of_a_site() {
        let kinds: Kinds = serde_saphyr::from_str(
            "
- group: ml.example.org
  plural: sweeps
  kind: Sweep
  class: training
  suspend: [{path: /spec/state, is: [Stopped]}]
  priorityClass: [/spec/priority]
  claimTemplates: [/spec/claims/*/name]
  pods:
  - template: /spec/trial/template
    replicas: {path: /spec/parallel, default: 1}
    maximum: {path: /spec/budget/maximum}
    unbounded: set `/spec/budget/maximum`",
        )
        .expect("a kind");
        let sweep = |fields: Value| {
            let mut spec = fields;
            spec["trial"] = json!({"template": template()});
            read(&kinds, "ml.example.org", "Sweep", spec)
        };
        let running =
            sweep(json!({"parallel": 2, "budget": {"maximum": 5}, "priority": "high", "claims": [{"name": "data"}]}));
        assert_eq!(running.demand.floor.get("nvidia.com/gpu"), 4);
        assert_eq!(running.demand.ceiling, Bound::AtMost(running.templates[0].per_pod.saturating_scale(5)));
        assert_eq!(running.priority_classes, ["high".to_owned()].into());
        assert_eq!(running.claim_templates, ["data".to_owned()].into());
        let stopped = sweep(json!({"state": "Stopped", "budget": {"maximum": 5}}));
        assert!(stopped.suspended && stopped.demand.floor.is_empty() && stopped.demand.pods == 0);
        let Bound::Unbounded { hint, .. } = sweep(json!({})).demand.ceiling else { unreachable!("has no maximum") };
        assert_eq!(hint, "set `/spec/budget/maximum`");
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (spec, message) in [
            (json!({"suspend": "yes"}), "`/spec/suspend` must be true or false"),
            (json!({"workerGroupSpecs": 1}), "`/spec/workerGroupSpecs` must be a list or a map"),
            (
                json!({"workerGroupSpecs": [{"template": template(), "replicas": -1}]}),
                "`/spec/workerGroupSpecs/0/replicas` is `-1` but must not be negative",
            ),
            (
                json!({"headGroupSpec": {"template": {"spec": {"containers": {}}}}}),
                "`/spec/headGroupSpec/template/spec/containers` must be a list",
            ),
        ] {
            let kind = KindRef { group: "ray.io", kind: "RayCluster", resource: "" };
            let error = extract(Kinds::defaults(), &kind, &json!({"spec": spec})).expect_err("cannot be read");
            assert_eq!(error.to_string(), message);
        }
    }
}
