//! Who is asking. Identity comes from `userInfo.extra`, checked against `uid` and `username`; never from the username or
//! groups alone. What is inconsistent is [`Caller::Untrusted`] and may do nothing to a team.
//!
//! Source of the shapes: aws-iam-authenticator `pkg/server/server.go` and `pkg/arn/arn.go`; Kubernetes
//! `pkg/authentication/serviceaccount/util.go`. A consistent identity is no proof against somebody who may impersonate
//! `uids` and `userextras`; RBAC must not give that to a team.

use std::collections::BTreeMap;

use crate::config::{Config, Controller};
use crate::review::UserInfo;
use crate::team::Teams;
use crate::vocabulary::ComponentKind;

/// Whoever the API server authenticated, after the checks.
#[derive(Debug, Clone, PartialEq)]
pub enum Caller {
    /// An IAM role session or user whose fields agree.
    Iam(IamCaller),
    /// A token bound to a pod: whoever submitted that pod.
    PodToken { namespace: String, name: String, pod_name: String, pod_uid: String },
    /// A service account acting for itself.
    ServiceAccount { namespace: String, name: String },
    /// A trusted part of the cluster.
    Component(Component),
    /// A kubelet.
    Node { name: String },
    /// Anybody else with a consistent identity.
    Stranger { username: String },
    /// Fields that contradict each other, or that only impersonation leaves out.
    Untrusted { username: String, why: String },
}

/// A trusted part of the cluster, with its entry of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    pub name: String,
    pub kind: ComponentKind,
    pub entry: Controller,
}

impl Component {
    /// A service account has a uid and a credential as well; a plain user, only what the configuration pins.
    pub fn by_name(&self) -> bool {
        self.entry.user.is_some() && self.entry.uid.is_none()
    }
}

/// An IAM role session or user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IamCaller {
    /// Canonical: role ARN without path, or user ARN.
    pub arn: Arn,
    pub name: IamName,
    /// The raw session name; `None` for a user.
    pub session: Option<String>,
    /// `AROA...` or `AIDA...`.
    pub principal_id: String,
}

/// What a team file calls the principal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum IamName {
    /// Permission set of IAM Identity Center, suffix removed.
    PermissionSet(String),
    Role(String),
    /// With its path, without the leading slash.
    User(String),
}

impl IamName {
    pub fn text(&self) -> &str {
        match self {
            Self::PermissionSet(name) | Self::Role(name) | Self::User(name) => name,
        }
    }
}

/// `arn:partition:service:region:account:resource`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arn {
    pub partition: String,
    pub service: String,
    pub account: String,
    pub resource: String,
}

impl Arn {
    /// `None` for anything that has not all six parts, or whose account is not twelve digits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(6, ':');
        let (arn, partition, service, _region, account, resource) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let digits = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
        (arn == "arn" && digits && !partition.is_empty() && !resource.is_empty()).then(|| Self {
            partition: partition.to_owned(),
            service: service.to_owned(),
            account: account.to_owned(),
            resource: resource.to_owned(),
        })
    }

    /// The last segment of `role/path/name`.
    pub fn resource_name(&self) -> &str {
        self.resource.rsplit('/').next().unwrap_or_default()
    }
}

impl std::fmt::Display for Arn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { partition, service, account, resource } = self;
        write!(f, "arn:{partition}:{service}::{account}:{resource}")
    }
}

/// Reads `userInfo`.
pub fn identify(user: &UserInfo, config: &Config, teams: &Teams) -> Caller {
    if let Some((namespace, name)) = service_account(&user.username) {
        return of_service_account(user, namespace, name, config);
    }
    // A configured name first: HyperPod's service-linked role comes with IAM extras of its own.
    if let Some(entry) = config.controllers.iter().find(|entry| entry.user.as_deref() == Some(&user.username)) {
        return pinned(user, entry);
    }
    if let Some(node) = user.username.strip_prefix("system:node:") {
        return match user.groups.iter().any(|group| group == "system:nodes") {
            true => Caller::Node { name: node.to_owned() },
            false => untrusted(user, "a node's name without the group `system:nodes`"),
        };
    }
    if is_iam(user) {
        return match iam(user, config).and_then(|caller| check_username(user, caller, teams)) {
            Ok(caller) => Caller::Iam(caller),
            Err(why) => untrusted(user, &why),
        };
    }
    Caller::Stranger { username: user.username.clone() }
}

fn untrusted(user: &UserInfo, why: &str) -> Caller {
    Caller::Untrusted { username: user.username.clone(), why: why.to_owned() }
}

/// A trusted part of the cluster, by its name and, where the configuration says it, its uid.
fn pinned(user: &UserInfo, entry: &Controller) -> Caller {
    if entry.uid.as_ref().is_some_and(|uid| *uid != user.uid) {
        return untrusted(user, "a trusted controller's name with another uid");
    }
    Caller::Component(Component { name: entry.name().to_owned(), kind: entry.component(), entry: entry.clone() })
}

fn service_account(username: &str) -> Option<(&str, &str)> {
    username.strip_prefix("system:serviceaccount:")?.split_once(':')
}

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

fn of_service_account(user: &UserInfo, namespace: &str, name: &str, config: &Config) -> Caller {
    if user.uid.is_empty() {
        return untrusted(user, "a service account without uid, as impersonation leaves it");
    }
    if config.require_credential_id && one(&user.extra, CREDENTIAL_ID).is_err() {
        return untrusted(user, "a service account without credential id, as impersonation leaves it");
    }
    let id = format!("{namespace}/{name}");
    let trusted = config.controllers.iter().find(|entry| entry.service_account.as_deref() == Some(&id));
    if let Some(entry) = trusted {
        return pinned(user, entry);
    }
    match (one(&user.extra, POD_NAME), one(&user.extra, POD_UID)) {
        (Ok(pod_name), Ok(pod_uid)) => Caller::PodToken {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            pod_name: pod_name.to_owned(),
            pod_uid: pod_uid.to_owned(),
        },
        _ => Caller::ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() },
    }
}

/// Any sign of IAM makes it an IAM caller, who must then be one in every field.
fn is_iam(user: &UserInfo) -> bool {
    user.uid.starts_with(UID_PREFIX)
        || user.username.starts_with("arn:")
        || user.extra.keys().any(|key| EXTRAS.iter().any(|known| key.eq_ignore_ascii_case(known)))
}

const UID_PREFIX: &str = "aws-iam-authenticator:";
const SIGS_PRINCIPAL_ID: &str = "sigs.k8s.io/aws-iam-authenticator/principalId";
const EXTRAS: [&str; 6] = ["arn", "canonicalArn", "sessionName", "principalId", "accessKeyId", SIGS_PRINCIPAL_ID];

fn iam(user: &UserInfo, config: &Config) -> Result<IamCaller, String> {
    let extra = &user.extra;
    // Header impersonation lower-cases keys: a look-alike beside or instead of the real key is a forgery.
    if let Some(key) =
        extra.keys().find(|key| EXTRAS.iter().any(|known| key.eq_ignore_ascii_case(known) && key != known))
    {
        return Err(format!("extra key `{key}` is spelt as impersonation leaves it"));
    }
    // The authenticator writes one value each, even into what nothing below compares.
    EXTRAS.iter().filter(|key| extra.contains_key(**key)).try_for_each(|key| one(extra, key).map(drop))?;
    let (arn, canonical) = (one(extra, "arn")?, one(extra, "canonicalArn")?);
    let (session, principal_id) = (one(extra, "sessionName")?, one(extra, "principalId")?);
    let (account, uid_principal) = uid_parts(&user.uid).ok_or("uid is not the authenticator's")?;
    let arn = Arn::parse(arn).ok_or("extra `arn` is no ARN")?;
    let canonical = Arn::parse(canonical).ok_or("extra `canonicalArn` is no ARN")?;
    let agree = [
        (arn.account == account && canonical.account == account, "accounts of uid and ARNs differ"),
        (arn.partition == canonical.partition, "partitions of the ARNs differ"),
        (principal_id == uid_principal, "principal id differs from the uid's"),
        (
            !extra.contains_key(SIGS_PRINCIPAL_ID) || one(extra, SIGS_PRINCIPAL_ID) == Ok(principal_id),
            "the two principal ids differ",
        ),
        (config.accounts.contains(account), "the account is not one of the configuration"),
        (config.partitions.contains(&arn.partition), "the partition is not one of the configuration"),
    ];
    if let Some((_, why)) = agree.into_iter().find(|(holds, _)| !holds) {
        return Err(why.to_owned());
    }
    if config.require_temporary_credentials && !one(extra, "accessKeyId")?.starts_with("ASIA") {
        return Err("the credentials are not temporary".to_owned());
    }
    let name = name_of(&arn, &canonical, session, principal_id)?;
    let session = (!session.is_empty()).then(|| session.to_owned());
    Ok(IamCaller { arn: canonical, name, session, principal_id: principal_id.to_owned() })
}

/// Exactly one value. The error is a sentence part.
fn one<'a>(extra: &'a BTreeMap<String, Vec<String>>, key: &str) -> Result<&'a str, String> {
    match extra.get(key).map(Vec::as_slice) {
        Some([value]) => Ok(value),
        Some(_) => Err(format!("extra `{key}` has not exactly one value")),
        None => Err(format!("extra `{key}` is missing")),
    }
}

/// `aws-iam-authenticator:<account>:<principal id>`; a federated user's id contains a further colon.
fn uid_parts(uid: &str) -> Option<(&str, &str)> {
    uid.strip_prefix(UID_PREFIX)?.split_once(':')
}

fn name_of(arn: &Arn, canonical: &Arn, session: &str, principal_id: &str) -> Result<IamName, String> {
    if let Some(role) = canonical.resource.strip_prefix("role/") {
        let assumed = format!("assumed-role/{role}/{session}");
        let legal = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
        let agree = arn.service == "sts"
            && canonical.service == "iam"
            && arn.resource == assumed
            && !session.is_empty()
            && session.chars().all(legal)
            && !role.contains('/')
            && principal_id.starts_with("AROA");
        return if agree { Ok(role_name(role)) } else { Err("role, session and ARNs do not agree".to_owned()) };
    }
    if let Some(user) = canonical.resource.strip_prefix("user/") {
        let agree = arn == canonical && session.is_empty() && principal_id.starts_with("AIDA");
        return if agree {
            Ok(IamName::User(user.to_owned()))
        } else {
            Err("user, session and ARNs do not agree".to_owned())
        };
    }
    Err("the canonical ARN is neither a role's nor a user's".to_owned())
}

/// `AWSReservedSSO_<permission set>_<16 hex>`. The set's own name may contain `_`, so the last one counts. IAM keeps
/// customers from creating roles of that prefix.
fn role_name(role: &str) -> IamName {
    let permission_set = role.strip_prefix("AWSReservedSSO_").and_then(|rest| rest.rsplit_once('_'));
    match permission_set {
        Some((set, suffix))
            if !set.is_empty() && suffix.len() == 16 && suffix.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            IamName::PermissionSet(set.to_owned())
        }
        Some(_) | None => IamName::Role(role.to_owned()),
    }
}

/// The username must be what the access entry's template makes of the extras: somebody who impersonates the name alone
/// fails above, somebody who impersonates extras under another name fails here.
fn check_username(user: &UserInfo, caller: IamCaller, teams: &Teams) -> Result<IamCaller, String> {
    let defaults = [
        "arn:{{Partition}}:sts::{{AccountID}}:assumed-role/{{Role}}/{{SessionName}}",
        "arn:{{Partition}}:sts::{{AccountID}}:assumed-role/{{Role}}/{{SessionNameRaw}}",
    ];
    let matches = match (&caller.name, &caller.session) {
        (IamName::User(_), _) => user.username == caller.arn.to_string(),
        (IamName::PermissionSet(_) | IamName::Role(_), session) => {
            let session = session.as_deref().unwrap_or_default();
            defaults.into_iter().any(|template| render(template, &caller, session) == user.username)
        }
    };
    let session = caller.session.as_deref().unwrap_or_default();
    if matches || teams.usernames(&caller).any(|template| render(template, &caller, session) == user.username) {
        return Ok(caller);
    }
    Err("the username is not what its access entry makes of this session".to_owned())
}

fn render(template: &str, caller: &IamCaller, session: &str) -> String {
    template
        .replace("{{Partition}}", &caller.arn.partition)
        .replace("{{AccountID}}", &caller.arn.account)
        .replace("{{Role}}", caller.arn.resource_name())
        .replace("{{SessionNameRaw}}", session)
        .replace("{{SessionName}}", &session.replace('@', "-"))
}
