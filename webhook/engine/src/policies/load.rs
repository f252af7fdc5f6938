//! Reads policy files as a whole: everything that is wrong is reported at once, and nothing loads unless all does.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cedar_policy::{Policy, PolicyId, PolicySet, Schema, SchemaFragment, ValidationMode, Validator};
use miette::Diagnostic;
use sha2::{Digest, Sha256};

use super::index::Index;
use super::{Policies, PolicyInfo, lint, scan, schema};

/// A file as it was read. The engine opens none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// For messages; its last part counts for the revision.
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }
}

/// Why nothing was loaded. The caller keeps the policies that it has and shows this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// By file and place; never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no policy was loaded, {} to put right:", self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(formatter, "\n{problem}"))
    }
}

/// One thing to put right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub path: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub sentence: String,
    pub help: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, column, sentence, help } = self;
        write!(formatter, "{path}:{line}:{column}: {sentence}")?;
        help.iter().try_for_each(|help| write!(formatter, "\n  help: {help}"))
    }
}

impl Policies {
    /// Loads a schema and all policy files, or says everything that is wrong with them.
    ///
    /// Cedar parses by recursion: call this on a thread with at least 8 MiB of stack. The bounds on nesting and
    /// operators are made for that, and no text can overflow it.
    pub fn load(schema: &SourceFile, files: &[SourceFile]) -> Result<Self, LoadError> {
        let mut problems = Vec::new();
        let loaded_schema = read_schema(schema, &mut problems);
        let policies = read_policies(files, &mut problems);
        if let Some(schema) = &loaded_schema {
            validate(schema, &policies, &mut problems);
        }
        match loaded_schema {
            Some(loaded) if problems.is_empty() => Ok(assemble(loaded, policies, schema, files)),
            _ => {
                problems.sort();
                problems.dedup();
                Err(LoadError { problems })
            }
        }
    }
}

/// A policy with where it stands.
struct Located<'a> {
    /// The policy, under its `@id`, or under its place while it has none.
    policy: Policy,
    file: &'a SourceFile,
    range: Range<usize>,
}

impl Located<'_> {
    fn problem(&self, sentence: String, help: Option<String>) -> Problem {
        problem_at(self.file, self.range.start, sentence, help)
    }
}

fn read_schema(file: &SourceFile, problems: &mut Vec<Problem>) -> Option<Schema> {
    if let Err(excess) = scan::scan(&file.text, scan::MAX_TOTAL_BYTES) {
        problems.push(problem_at(file, excess.offset, excess.sentence, None));
        return None;
    }
    let (fragment, warnings) = SchemaFragment::from_cedarschema_str(&file.text)
        .map_err(|error| problems.extend(diagnosed(file, 0, &error)))
        .ok()?;
    problems.extend(warnings.flat_map(|warning| diagnosed(file, 0, &warning)));
    let schema = Schema::from_schema_fragments([fragment.clone()])
        .map_err(|error| problems.extend(diagnosed(file, 0, &error)))
        .ok()?;
    let actions =
        schema.action_entities().map_err(|error| problems.push(problem_at(file, 0, error.to_string(), None))).ok()?;
    let help = "the schema belongs to the version of the gate: take the one that `cedargate schema` prints";
    for sentence in schema::mismatches(&fragment, &schema, &actions) {
        problems.push(problem_at(file, 0, sentence, Some(help.to_owned())));
    }
    Some(schema)
}

fn read_policies<'a>(files: &'a [SourceFile], problems: &mut Vec<Problem>) -> Vec<Located<'a>> {
    let total: usize = files.iter().map(|file| file.text.len()).sum();
    if total > scan::MAX_TOTAL_BYTES {
        problems.push(problem_of_all(format!(
            "the policy files have {total} bytes, the limit is {}",
            scan::MAX_TOTAL_BYTES
        )));
        return Vec::new();
    }
    let mut policies: Vec<Located<'a>> = Vec::new();
    for file in files {
        policies.extend(read_file(file, problems));
    }
    check_ids(&mut policies, problems);
    for located in &policies {
        let found = lint::findings(&located.policy).into_iter();
        problems.extend(found.map(|found| located.problem(found.sentence, Some(found.help.to_owned()))));
    }
    if problems.is_empty() {
        problems.extend(missing_altogether(&policies));
    }
    policies
}

/// Under the names that the parser gives.
fn read_file<'a>(file: &'a SourceFile, problems: &mut Vec<Problem>) -> Vec<Located<'a>> {
    let ranges = match scan::scan(&file.text, scan::MAX_POLICY_BYTES) {
        Ok(ranges) => ranges,
        Err(excess) => {
            let help = "split the rule into several policies".to_owned();
            problems.push(problem_at(file, excess.offset, excess.sentence, Some(help)));
            return Vec::new();
        }
    };
    let parsed: PolicySet = match file.text.parse() {
        Ok(parsed) => parsed,
        Err(errors) => {
            let errors: cedar_policy::ParseErrors = errors;
            problems.extend(errors.iter().flat_map(|error| diagnosed(file, 0, error)));
            return Vec::new();
        }
    };
    for template in parsed.templates() {
        let start = place(&ranges, template.id()).start;
        let help = "write a policy: a limit or a list that differs by team is a fact of the team".to_owned();
        problems.push(problem_at(file, start, "templates are not used".to_owned(), Some(help)));
    }
    let mut policies: Vec<Located<'a>> = parsed
        .policies()
        .map(|policy| Located { policy: policy.clone(), file, range: place(&ranges, policy.id()) })
        .collect();
    policies.sort_by_key(|located| located.range.start);
    policies
}

/// The parser names what it finds policy0, policy1 ... in order, and so does the scanner find it.
fn place(ranges: &[Range<usize>], id: &PolicyId) -> Range<usize> {
    let id = id.to_string();
    let number: Option<usize> = id.strip_prefix("policy").and_then(|number| number.parse().ok());
    number.and_then(|number| ranges.get(number).cloned()).unwrap_or(0..0)
}

/// Gives each policy its `@id`. One without, or with another's, keeps a name that no `@id` can have, so that it is
/// validated all the same.
fn check_ids(policies: &mut [Located<'_>], problems: &mut Vec<Problem>) {
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    for (number, located) in policies.iter_mut().enumerate() {
        let mut id = format!("policy number {number}");
        match lint::id(&located.policy) {
            Err(found) => problems.push(located.problem(found.sentence, Some(found.help.to_owned()))),
            Ok(given) => match first.get(given) {
                Some(other) => {
                    let help = format!("the other is at {other}; an exemption and a record name a policy by its @id");
                    problems.push(located.problem(format!("two policies have the @id `{given}`"), Some(help)));
                }
                None => {
                    let (line, _) = line_and_column(&located.file.text, located.range.start);
                    first.insert(given.to_owned(), format!("{}:{line}", located.file.path));
                    id = given.to_owned();
                }
            },
        }
        located.policy = located.policy.new_id(PolicyId::new(id));
    }
}

fn missing_altogether(policies: &[Located<'_>]) -> Option<Problem> {
    if policies.len() > scan::MAX_POLICIES {
        let limit = scan::MAX_POLICIES;
        return Some(problem_of_all(format!("there are {} policies, the limit is {limit}", policies.len())));
    }
    let permits = policies.iter().any(|located| located.policy.effect() == super::Effect::Permit);
    (!permits).then(|| problem_of_all("no policy permits anything, so that everything would be refused".to_owned()))
}

/// Strictly, and a warning is a problem: an impossible policy is one that its author believes in.
fn validate(schema: &Schema, policies: &[Located<'_>], problems: &mut Vec<Problem>) {
    let by_id: HashMap<&PolicyId, &Located<'_>> =
        policies.iter().map(|located| (located.policy.id(), located)).collect();
    let set = policy_set(policies);
    let result = Validator::new(schema.clone()).validate(&set, ValidationMode::Strict);
    let mut report = |id: &PolicyId, diagnostic: &dyn Diagnostic| {
        if let Some(located) = by_id.get(id) {
            problems.extend(diagnosed(located.file, located.range.start, diagnostic));
        }
    };
    result.validation_errors().for_each(|error| report(error.policy_id(), error));
    result.validation_warnings().for_each(|warning| report(warning.policy_id(), warning));
    if !result.validation_passed_without_warnings() && problems.is_empty() {
        problems.push(problem_of_all("the policies do not validate".to_owned()));
    }
}

fn policy_set(policies: &[Located<'_>]) -> PolicySet {
    let policies = policies.iter().map(|located| located.policy.clone());
    PolicySet::from_policies(policies).expect("each policy was given a name of its own")
}

fn assemble(loaded: Schema, policies: Vec<Located<'_>>, schema_file: &SourceFile, files: &[SourceFile]) -> Policies {
    let all = policy_set(&policies);
    let mut infos: Vec<Arc<PolicyInfo>> = policies.iter().map(|located| Arc::new(info(located))).collect();
    infos.sort_by(|a, b| a.id.cmp(&b.id));
    let by_id = infos.iter().map(|info| (PolicyId::new(&info.id), Arc::clone(info))).collect();
    let actions = loaded.action_entities().expect("the schema was read with its actions");
    let index = Index::new(&loaded, &actions, &all, by_id);
    Policies {
        index,
        schema: loaded,
        actions,
        all,
        infos,
        revision: revision(files),
        schema_revision: revision(std::slice::from_ref(schema_file)),
    }
}

fn info(located: &Located<'_>) -> PolicyInfo {
    let policy = &located.policy;
    PolicyInfo {
        id: policy.id().to_string(),
        effect: policy.effect(),
        mode: lint::mode(policy),
        message: policy.annotation("message").unwrap_or_default().to_owned(),
        hint: policy.annotation("hint").map(str::to_owned),
        file: located.file.path.clone(),
        line: line_and_column(&located.file.text, located.range.start).0,
    }
}

/// Of names and texts in the order of names, each with its length, so that no two sets of files run together to the
/// same bytes. Sixteen hex digits tell revisions apart; nobody is kept out by them.
fn revision(files: &[SourceFile]) -> String {
    let name = |file: &SourceFile| file.path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut named: Vec<(String, &str)> = files.iter().map(|file| (name(file), file.text.as_str())).collect();
    named.sort();
    let mut digest = Sha256::new();
    for (name, text) in named {
        for part in [name.as_str(), text] {
            digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(part);
        }
    }
    let hex: String = digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// One problem for each diagnostic, at its first label, else at `fallback`.
fn diagnosed(file: &SourceFile, fallback: usize, diagnostic: &dyn Diagnostic) -> Vec<Problem> {
    let label = diagnostic.labels().and_then(|mut labels| labels.next());
    let offset = label.as_ref().map_or(fallback, miette::LabeledSpan::offset);
    let mut sentence = diagnostic.to_string();
    if let Some(text) = label.as_ref().and_then(miette::LabeledSpan::label) {
        sentence = format!("{sentence}: {text}");
    }
    let help = diagnostic.help().map(|help| help.to_string());
    let related = diagnostic.related().into_iter().flatten();
    let mut problems = vec![problem_at(file, offset, sentence, help)];
    problems.extend(related.flat_map(|related| diagnosed(file, offset, related)));
    problems
}

fn problem_at(file: &SourceFile, offset: usize, sentence: String, help: Option<String>) -> Problem {
    let (line, column) = line_and_column(&file.text, offset);
    Problem { path: file.path.clone(), line, column, sentence, help }
}

/// Of no file in particular.
fn problem_of_all(sentence: String) -> Problem {
    Problem { path: "policies".to_owned(), line: 1, column: 1, sentence, help: None }
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
