//! What the policies promise, and each pitfall of Cedar that this module is built around.

mod decisions;
mod index;
mod loading;
mod starter;
mod world;

use super::*;

/// The starter schema with these policies.
fn load(text: &str) -> Result<Policies, LoadError> {
    Policies::load(&starter_schema(), &[SourceFile::new("test.cedar", text)])
}

fn loaded(text: &str) -> Policies {
    load(text).expect("to load")
}

/// The sentences of a refusal to load.
fn problems(text: &str) -> Vec<String> {
    let error = load(text).expect_err("not to load");
    error.problems.into_iter().map(|problem| problem.sentence).collect()
}

/// A permit for everything that may be asked beside exemptions.
const PERMIT_ALL: &str = r#"
@id("permit-all")
@message("Everything.")
permit (principal, action in [Action::"create", Action::"change", Action::"access", Action::"remove",
                              Action::"use", Action::"open"], resource);
"#;

/// A policy with its annotations.
fn policy(id: &str, mode: &str, body: &str) -> String {
    format!("@id(\"{id}\")\n@message(\"No.\")\n@hint(\"Do not.\")\n@mode(\"{mode}\")\n{body}\n")
}

fn ids(infos: &[Arc<PolicyInfo>]) -> Vec<&str> {
    infos.iter().map(|info| info.id.as_str()).collect()
}
