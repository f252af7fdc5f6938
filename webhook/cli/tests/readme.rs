//! The README shows what the demonstration really prints.

use std::process::Command;

#[test]
fn the_readme_shows_the_real_output() {
    let directory = tempfile::tempdir().expect("a directory");
    let demo = Command::new(env!("CARGO_BIN_EXE_cedargate"))
        .args(["demo", "--directory"])
        .arg(directory.path())
        .output()
        .expect("the demonstration runs");
    assert!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));
    let printed = String::from_utf8(demo.stdout).expect("text");
    let readme = include_str!("../../../README.md");
    // The log has another name each time.
    let lines = printed.lines().filter(|line| !line.is_empty() && !line.starts_with("Decision log:"));
    let missing: Vec<&str> = lines.filter(|line| !readme.contains(line)).collect();
    assert!(missing.is_empty(), "the README lacks:\n{}", missing.join("\n"));
}

#[test]
fn explain_answers_with_its_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let alice = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/identities/01-sso-teama-default-username.json");
    let pod = |image: &str, extra: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: hyperpod-ns-team-a}}\n\
             spec: {{containers: [{{name: main, image: {image}{extra}}}]}}\n"
        )
    };
    let allowed = write("allowed.yaml", &pod("a", ""));
    let refused = write("refused.yaml", &pod("a", ", securityContext: {privileged: true}"));
    let unreadable = write("unreadable.yaml", "a: [");
    for (file, code) in [(allowed, 0), (refused, 1), (unreadable, 2)] {
        let explain = Command::new(env!("CARGO_BIN_EXE_cedargate"))
            .args(["explain", "--as", alice, "-o", "json"])
            .arg(&file)
            .output()
            .expect("explain runs");
        assert_eq!(
            explain.status.code(),
            Some(code),
            "{}: {}",
            file.display(),
            String::from_utf8_lossy(&explain.stderr)
        );
        let lines = String::from_utf8(explain.stdout).expect("text");
        assert_eq!(lines.lines().count(), usize::from(code != 2));
        for line in lines.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("one JSON object a line");
            assert!(line["patch"].is_array() && line["questions"].is_array() && line["verdict"].is_string());
        }
    }
}
