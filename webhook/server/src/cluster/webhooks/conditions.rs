//! Match conditions: CEL that the API server evaluates itself, before it calls anybody. They keep the gate out of
//! bookkeeping, so that finalizers come off and status is written whether the gate is up or down.
//!
//! An expression that fails counts as a failed webhook: every optional field is asked for with `has` first.

use std::collections::BTreeSet;

use engine::attribution::GOVERNED_PREFIXES;
use engine::config::Config;
use engine::vocabulary::ComponentKind;
use k8s_openapi::api::admissionregistration::v1::MatchCondition;

/// An UPDATE counts if anything but metadata and status differs, the owners do, or a governed key does; so does one of a
/// status, which leaves the rest as it was and yet may carry metadata.
pub(super) fn changes(config: &Config, label_keys: &BTreeSet<String>) -> MatchCondition {
    let cleaners = usernames(config, ComponentKind::GarbageCollector);
    condition(
        "changes-what-matters",
        &[
            "request.operation != 'UPDATE'".to_owned(),
            // A Workload's status is what admits it.
            format!("({SUBRESOURCE} != '' && ({SUBRESOURCE} != 'status' || request.resource.resource == 'workloads'))"),
            content_differs(),
            // The garbage collector takes away what points to owners that are gone.
            format!("({} && !{})", owners_differ(), is_one_of(config, &cleaners)),
            // Taken away by whoever cleans up, at any time.
            format!("(({BY_IAM}) && {})", finalizers_come()),
            keys_differ("labels", label_keys),
            keys_differ("annotations", label_keys),
        ]
        .join(" || "),
    )
}

/// Of Namespaces and the like every label counts: only the site knows which of them select something.
pub(super) fn changes_at_all() -> MatchCondition {
    let differs = |list: &str| format!("{} != {}", map("object", list), map("oldObject", list));
    let content = format!("({SUBRESOURCE} == '' && ({}))", content_differs());
    let parts = ["request.operation != 'UPDATE'".to_owned(), content, differs("labels"), differs("annotations")];
    condition("changes-what-matters", &parts.join(" || "))
}

/// Kubelets write status and fetch the tokens of the pods that they run: those must not run out while the gate is down. The
/// API server holds a node to its own pods; what a node creates is judged.
pub(super) fn not_upkeep_by_a_node() -> MatchCondition {
    condition(
        "not-upkeep-by-a-node",
        &format!(
            "!(has(request.subResource) && request.subResource in ['status', 'token'] && \
             {USERNAME}.startsWith('system:node:') && has(request.userInfo.groups) && \
             'system:nodes' in request.userInfo.groups)"
        ),
    )
}

/// The queue's own controller admits and evicts all day; what others write there would admit them past their quota.
pub(super) fn not_the_queue(config: &Config) -> MatchCondition {
    let queue = usernames(config, ComponentKind::Queue);
    condition(
        "not-queueing-by-the-queue",
        &format!(
            "!(request.resource.resource == 'workloads' && has(request.subResource) && request.subResource == 'status' && {})",
            is_one_of(config, &queue)
        ),
    )
}

/// Every pod is bound once, by the scheduler; anybody else who binds is judged.
pub(super) fn not_the_scheduler() -> MatchCondition {
    condition(
        "not-binding-by-the-scheduler",
        &format!(
            "!(has(request.subResource) && request.subResource == 'binding' && {USERNAME} == 'system:kube-scheduler')"
        ),
    )
}

/// People and roles of IAM, by what only the authenticator of EKS writes. Outside the team namespaces nobody else matters.
pub(super) fn by_iam() -> MatchCondition {
    condition("by-iam", BY_IAM)
}

const BY_IAM: &str = "(has(request.userInfo.uid) && request.userInfo.uid.startsWith('aws-iam-authenticator:')) || \
    (has(request.userInfo.extra) && ('arn' in request.userInfo.extra || 'canonicalArn' in request.userInfo.extra))";

/// What the gate itself writes must not need the gate.
pub(super) fn not_by_the_gate(config: &Config) -> MatchCondition {
    let own = [username_of(&config.own_service_account)];
    condition("not-by-the-gate", &format!("!{}", is_one_of(config, &own)))
}

const USERNAME: &str = "(has(request.userInfo.username) ? request.userInfo.username : '')";

const SUBRESOURCE: &str = "(has(request.subResource) ? request.subResource : '')";

/// One of these service accounts, and not somebody who plainly impersonates it: that leaves no uid and no credential.
fn is_one_of(config: &Config, usernames: &[String]) -> String {
    let credential =
        "has(request.userInfo.extra) && 'authentication.kubernetes.io/credential-id' in request.userInfo.extra";
    let credential = if config.require_credential_id { format!(" && {credential}") } else { String::new() };
    format!(
        "({USERNAME} in [{}] && has(request.userInfo.uid) && request.userInfo.uid != ''{credential})",
        quoted(usernames.iter().map(String::as_str))
    )
}

fn content_differs() -> String {
    let content = "!(k in ['metadata', 'status'])";
    format!(
        "object.exists(k, {content} && (!(k in oldObject) || object[k] != oldObject[k])) || \
         oldObject.exists(k, {content} && !(k in object))"
    )
}

fn owners_differ() -> String {
    let owners =
        |object: &str| format!("(has({object}.metadata.ownerReferences) ? {object}.metadata.ownerReferences : [])");
    format!("{} != {}", owners("object"), owners("oldObject"))
}

fn finalizers_come() -> String {
    let finalizers = |object: &str| format!("(has({object}.metadata.finalizers) ? {object}.metadata.finalizers : [])");
    format!("{}.exists(f, !(f in {}))", finalizers("object"), finalizers("oldObject"))
}

fn keys_differ(list: &str, label_keys: &BTreeSet<String>) -> String {
    let prefixes = GOVERNED_PREFIXES.map(|prefix| format!("k.startsWith('{prefix}')"));
    let names = (list == "labels" && !label_keys.is_empty())
        .then(|| format!("k in [{}]", quoted(label_keys.iter().map(String::as_str))));
    let governed = prefixes.into_iter().chain(names).collect::<Vec<_>>().join(" || ");
    let (new, old) = (map("object", list), map("oldObject", list));
    format!(
        "{new}.exists(k, ({governed}) && (!(k in {old}) || {new}[k] != {old}[k])) || \
         {old}.exists(k, ({governed}) && !(k in {new}))"
    )
}

fn map(object: &str, list: &str) -> String {
    format!("(has({object}.metadata.{list}) ? {object}.metadata.{list} : {{}})")
}

fn usernames(config: &Config, kind: ComponentKind) -> Vec<String> {
    let of_kind = config.controllers.iter().filter(|controller| controller.kind == Some(kind));
    let name = |controller: &engine::config::Controller| {
        controller.user.clone().or_else(|| controller.service_account.as_deref().map(username_of))
    };
    of_kind.filter_map(name).collect()
}

fn username_of(service_account: &str) -> String {
    format!("system:serviceaccount:{}", service_account.replace('/', ":"))
}

/// Names come from configuration and label keys; neither may end the string they stand in.
fn quoted<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let escaped = texts.map(|text| text.replace('\\', "\\\\").replace('\'', "\\'"));
    escaped.map(|text| format!("'{text}'")).collect::<Vec<_>>().join(", ")
}

fn condition(name: &str, expression: &str) -> MatchCondition {
    MatchCondition { name: name.to_owned(), expression: expression.to_owned() }
}
