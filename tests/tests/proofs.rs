//! Proves over the shipped policies, for every request and every set of entities that the schema allows:
//!
//! - they allow nothing that `policies/proofs/isolation.cedar` does not allow;
//! - they set nothing aside that `policies/proofs/exemptions.cedar` holds;
//! - none of them can fail to evaluate;
//! - the proofs are worth something: policies spoilt on purpose are refuted.
//!
//! Policies that warn or audit forbid nothing, so the first two leave them out. Cedar's symbolic compiler turns the
//! questions into formulas for the solver cvc5, from `PATH` or where `CVC5` points. Without it the proofs are passed
//! over, except in CI, where that is a failure.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cedar_policy::{Effect, EntityUid, Policy, PolicySet, RequestEnv, Schema};
use cedar_policy_symcc::solver::LocalSolver;
use cedar_policy_symcc::{CedarSymCompiler, CompiledPolicy, CompiledPolicySet, Env};
use engine::policies::{Mode, Policies, SourceFile, examples, starter_files, starter_schema};
use engine::vocabulary::Action;

const ISOLATION: &str = include_str!("../../policies/proofs/isolation.cedar");
const EXEMPTIONS: &str = include_str!("../../policies/proofs/exemptions.cedar");

/// For one query; the slowest takes two seconds.
const SOLVER_MILLISECONDS_PER_QUERY: u32 = 60_000;

#[test]
fn policies_stay_within_the_bounds() {
    let Some(prover) = Prover::new() else { return };
    let policies = load(&[starter_files(), examples()].concat());
    let environments = environments(policies.schema());
    assert_eq!(environments.len(), 196, "every pair of principal and resource type of every question");
    let leaks = prover.filter_map(&environments, |solver, environment| {
        let leak = solver.leak(&policies, environment)?;
        Some(format!("{}\n{}\n{}", describe(environment), leak.request, leak.entities.as_ref()))
    });
    assert!(leaks.is_empty(), "{} leaks:\n{}", leaks.len(), leaks.join("\n\n"));
}

#[test]
fn no_policy_can_error() {
    let Some(prover) = Prover::new() else { return };
    let policies = load(&[starter_files(), examples()].concat());
    let queries: Vec<(Policy, RequestEnv)> = policies
        .policy_set()
        .policies()
        .flat_map(|policy| {
            let environments = policy.get_valid_request_envs(policies.schema());
            environments.map(|environment| (policy.clone(), environment)).collect::<Vec<_>>()
        })
        .collect();
    let failures = prover.filter_map(&queries, |solver, (policy, environment)| {
        let errs = !solver.never_errors(policies.schema(), policy, environment);
        errs.then(|| format!("{} on {}", policy.id(), describe(environment)))
    });
    assert!(failures.is_empty(), "{} can error:\n{}", failures.len(), failures.join("\n"));
}

/// A policy that can overflow, so that the proof above is known to find one.
#[test]
fn a_policy_that_can_error_is_found() {
    let Some(prover) = Prover::new() else { return };
    let policies = load(
        &[
            starter_files(),
            vec![SourceFile::new(
                "overflow.cedar",
                "@id(\"overflow\") @message(\"m\") @hint(\"h\")
         forbid (principal, action == Action::\"consume\", resource)
         when { context.used + context.requested > context.limit };",
            )],
        ]
        .concat(),
    );
    let overflow = policies.policy_set().policies().find(|policy| policy.id().to_string() == "overflow");
    let environment = environment("IamPrincipal", Action::Consume, "Quota");
    let query = [(overflow.expect("it was loaded").clone(), environment)];
    let proved = prover.filter_map(&query, |solver, (policy, environment)| {
        solver.never_errors(policies.schema(), policy, environment).then_some(())
    });
    assert_eq!(proved.len(), 0);
}

/// One spoilt file, and the question on which it leaks.
struct Mutant {
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    leaks: (&'static str, Action, &'static str),
}

#[test]
fn spoilt_policies_are_refuted() {
    let Some(prover) = Prover::new() else { return };
    let mutants = mutants();
    let unnoticed = prover.filter_map(&mutants, |solver, mutant| {
        let policies = load(&spoilt(mutant));
        let (principal, action, resource) = mutant.leaks;
        let leak = solver.leak(&policies, &environment(principal, action, resource));
        leak.is_none().then_some(mutant.name)
    });
    assert_eq!(unnoticed, Vec::<&str>::new());
}

fn mutants() -> Vec<Mutant> {
    let of = |file, name, from, to, leaks| Mutant { name, file, from, to, leaks };
    let tenancy = |name, from, to, leaks| Mutant { name, file: "tenancy.cedar", from, to, leaks };
    vec![
        tenancy(
            "a permit for everybody",
            "// The border between teams.",
            "@id(\"x\") @message(\"m\") permit (principal, action in [Action::\"create\", Action::\"use\"], resource);\n//",
            ("Stranger", Action::Create, "Workload"),
        ),
        tenancy(
            "a permit without its condition",
            "action in [Action::\"create\", Action::\"use\"], resource)\nwhen { principal in resource.teams };",
            "action in [Action::\"create\", Action::\"use\"], resource);",
            ("IamPrincipal", Action::Run, "Container"),
        ),
        tenancy(
            "any member instead of the team's",
            "when { principal in resource.teams && resource has owner",
            "when { resource has owner",
            ("IamPrincipal", Action::Exec, "Workload"),
        ),
        tenancy(
            "leads of any team",
            "when { principal.leads.containsAny(resource.teams) };",
            "when { !principal.leads.isEmpty() };",
            ("IamPrincipal", Action::Delete, "Workload"),
        ),
        tenancy(
            "templates for any team",
            "principal.leads.containsAny(resource.teams) && resource.kind",
            "!principal.leads.isEmpty() && resource.kind",
            ("IamPrincipal", Action::Open, "Door"),
        ),
        tenancy(
            "a JumpStart name is enough",
            "resource.teams.isEmpty() && resource.name like",
            "resource.name like",
            ("IamPrincipal", Action::Read, "Bucket"),
        ),
        tenancy(
            "what is nobody's, inside a team namespace too",
            "unless { context has team || action == Action::\"consume\" };",
            "unless { action == Action::\"consume\" };",
            ("Stranger", Action::Create, "Workload"),
        ),
        tenancy(
            "automation inside team namespaces",
            "        resource)\nunless { context has team };",
            "        resource);",
            ("IamPrincipal", Action::Create, "Object"),
        ),
        tenancy(
            "no border",
            "forbid (principal, action in Action::\"use\", resource)",
            "forbid (principal, action == Action::\"charge\", resource)",
            ("IamPrincipal", Action::Mount, "Volume"),
        ),
        tenancy(
            "a border that only warns",
            "@id(\"things-stay-in-their-team\")",
            "@id(\"things-stay-in-their-team\")\n@mode(\"warn\")",
            ("IamPrincipal", Action::Assume, "IamRole"),
        ),
        tenancy(
            "a border with a hole",
            "(context has team && resource.teams.contains(context.team)) };",
            "(context has team && resource.teams.contains(context.team)) || context.dryRun };",
            ("IamPrincipal", Action::Enqueue, "Queue"),
        ),
        of(
            "storage.cedar",
            "homes for the team",
            "unless { principal is IamPrincipal && principal in resource.owner };",
            "unless { principal in resource.teams };",
            ("IamPrincipal", Action::Mount, "Volume"),
        ),
        of(
            "exemptions.cedar",
            "an exemption from the quota",
            "\"things-stay-in-their-team\", \"quota\"",
            "\"things-stay-in-their-team\"",
            ("IamPrincipal", Action::Exempt, "Quota"),
        ),
        of(
            "exemptions.cedar",
            "an exemption for everybody",
            "permit (principal is IamPrincipal in Group::\"break-glass\",",
            "permit (principal,",
            ("Stranger", Action::Exempt, "Container"),
        ),
    ]
}

fn spoilt(mutant: &Mutant) -> Vec<SourceFile> {
    let mut files = starter_files();
    let file = files.iter_mut().find(|file| file.path == mutant.file).expect("a shipped file");
    assert_eq!(file.text.matches(mutant.from).count(), 1, "{} spoils one place", mutant.name);
    file.text = file.text.replace(mutant.from, mutant.to);
    files
}

fn load(files: &[SourceFile]) -> Policies {
    Policies::load(&starter_schema(), files).expect("to load")
}

fn environments(schema: &Schema) -> Vec<RequestEnv> {
    schema.request_envs().collect()
}

/// What must hold of this question.
fn bound(environment: &RequestEnv) -> PolicySet {
    let exempt = *environment.action() == EntityUid::from(Action::Exempt);
    let text = if exempt { EXEMPTIONS } else { ISOLATION };
    text.parse().expect("the proofs are Cedar")
}

fn environment(principal: &str, action: Action, resource: &str) -> RequestEnv {
    let name = |name: &str| name.parse().expect("a type name");
    RequestEnv::new(name(principal), EntityUid::from(action), name(resource))
}

fn describe(environment: &RequestEnv) -> String {
    format!("{} {} {}", environment.principal(), environment.action(), environment.resource())
}

/// Runs queries on all cores, each core with a solver.
struct Prover {
    cores: usize,
}

impl Prover {
    /// None without a solver.
    fn new() -> Option<Self> {
        if !has_solver() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "cvc5 is not installed, and CI must prove");
            say("nothing was proved: install the solver cvc5, or set CVC5 to where it is");
            return None;
        }
        Some(Self { cores: std::thread::available_parallelism().map_or(1, NonZero::get) })
    }

    fn filter_map<Q: Sync, T: Send + Debug>(
        &self,
        queries: &[Q],
        ask: impl Fn(&mut Asking, &Q) -> Option<T> + Sync,
    ) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let found = Mutex::new(Vec::new());
        let work = || {
            let mut solver = Asking::new();
            while let Some(query) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let answer = ask(&mut solver, query);
                found.lock().expect("no other worker panicked").extend(answer);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.cores.min(queries.len()) {
                let thread = std::thread::Builder::new().stack_size(8 << 20);
                thread.spawn_scoped(scope, work).expect("a thread");
            }
        });
        found.into_inner().expect("no worker panicked")
    }
}

fn has_solver() -> bool {
    let path = std::env::var("CVC5").unwrap_or_else(|_| "cvc5".to_owned());
    std::process::Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[expect(clippy::print_stderr, reason = "who runs the tests must know what was passed over")]
fn say(sentence: &str) {
    eprintln!("{sentence}");
}

/// A solver process with what runs it.
struct Asking {
    runtime: tokio::runtime::Runtime,
    compiler: CedarSymCompiler<LocalSolver>,
}

impl Asking {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let limit = format!("--tlimit-per={SOLVER_MILLISECONDS_PER_QUERY}");
        // `like` with something between two stars asks whether a string contains another.
        let arguments = [limit.as_str(), "--strings-exp"];
        let solver = runtime.block_on(async { LocalSolver::cvc5_with_args(arguments) }).expect("the solver starts");
        let compiler = CedarSymCompiler::new(solver).expect("a compiler");
        Self { runtime, compiler }
    }

    /// A request that the policies allow and should not.
    fn leak(&mut self, policies: &Policies, environment: &RequestEnv) -> Option<Env> {
        let allowed = compiled(&enforced(policies), environment, policies.schema());
        let bound = compiled(&bound(environment), environment, policies.schema());
        self.runtime.block_on(self.compiler.check_implies_with_counterexample_opt(&allowed, &bound)).expect("an answer")
    }

    fn never_errors(&mut self, schema: &Schema, policy: &Policy, environment: &RequestEnv) -> bool {
        let compiled = CompiledPolicy::compile(policy, environment, schema).expect("a policy that validates");
        self.runtime.block_on(self.compiler.check_never_errors_opt(&compiled)).expect("an answer")
    }
}

fn compiled(policies: &PolicySet, environment: &RequestEnv, schema: &Schema) -> CompiledPolicySet {
    CompiledPolicySet::compile(policies, environment, schema).expect("policies that validate")
}

/// Without what only warns or audits.
fn enforced(policies: &Policies) -> PolicySet {
    let soft: BTreeSet<&str> = policies
        .infos()
        .iter()
        .filter(|info| info.effect == Effect::Forbid && info.mode != Mode::Enforce)
        .map(|info| info.id.as_str())
        .collect();
    let kept = policies.policy_set().policies().filter(|policy| !soft.contains(policy.id().to_string().as_str()));
    PolicySet::from_policies(kept.cloned()).expect("ids are unique")
}
