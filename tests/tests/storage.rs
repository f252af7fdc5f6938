//! The storage examples of the documentation: they are what the starter teams declare, the job's table is their people, its
//! script does what the page says, and only the platform team may apply them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use engine::review::UserInfo;
use serde_json::{Value, json};
use tests::gate::{self, Gate, sample};
use tests::people;

const TEAM: &str = "team-a.yaml";
const DIRECTORIES: &str = "directories.yaml";

fn example(file: &str) -> Vec<Value> {
    gate::documents(&gate::read(&gate::repository().join("docs/examples/storage").join(file)))
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

#[test]
fn volumes_are_the_teams_own_directories() {
    let (team, directories) = (example(TEAM), example(DIRECTORIES));
    let volumes = [of_kind(&team, "PersistentVolume"), of_kind(&directories, "PersistentVolume")].concat();
    let handles: BTreeSet<&str> =
        volumes.iter().filter_map(|volume| volume["spec"]["csi"]["volumeHandle"].as_str()).collect();
    assert_eq!(handles.len(), volumes.len(), "one handle for each volume");
    let claims = [of_kind(&team, "PersistentVolumeClaim"), of_kind(&directories, "PersistentVolumeClaim")].concat();
    for volume in &volumes {
        let bound = &volume["spec"]["claimRef"];
        let of_it = |claim: &&&Value| {
            [&claim["metadata"]["namespace"], &claim["metadata"]["name"]] == [&bound["namespace"], &bound["name"]]
        };
        let claim = claims.iter().find(of_it).expect("the claim that it is bound to");
        assert_eq!(claim["spec"]["volumeName"], volume["metadata"]["name"]);
        assert_eq!((&claim["spec"]["storageClassName"], &volume["spec"]["storageClassName"]), (&json!(""), &json!("")));
    }
    let mount_names = |documents: &[Value]| -> Vec<String> {
        let name = |volume: &&Value| volume["spec"]["csi"]["volumeAttributes"]["mountname"].as_str().map(str::to_owned);
        of_kind(documents, "PersistentVolume").iter().filter_map(name).collect()
    };
    assert_eq!(mount_names(&team), ["abcdef01/TeamA", "abcdef01/home/TeamA"]);
    assert_eq!(mount_names(&directories), ["abcdef01"]);
}

#[test]
fn the_claims_are_those_that_the_team_file_declares() {
    let teams = gate::starter_teams();
    let team = teams.named("team-a").expect("the team");
    let declared: BTreeSet<&str> = team.spec.storage.iter().map(|storage| storage.claim.as_str()).collect();
    let documents = example(TEAM);
    let claims = of_kind(&documents, "PersistentVolumeClaim");
    let claimed: BTreeSet<&str> = claims.iter().filter_map(|claim| claim["metadata"]["name"].as_str()).collect();
    assert_eq!(claimed, declared);
    assert!(claims.iter().all(|claim| claim["metadata"]["namespace"] == team.spec.namespaces[0].as_str()));
}

#[test]
fn the_table_is_the_people_of_the_team_files() {
    let teams = gate::starter_teams();
    let directory = |team: &str| match team {
        "team-a" => "TeamA",
        "team-b" => "TeamB",
        other => unreachable!("the directory of {other}"),
    };
    let mut expected = BTreeSet::new();
    for team in teams.iter() {
        for person in &team.spec.people {
            let (home, uid, gid) = (person.home.as_deref(), person.uid, person.gid);
            let (Some(home), Some(uid), Some(gid)) = (home, uid, gid) else { continue };
            expected.insert(format!("home {} {home} {uid} {gid}", directory(&team.name)));
            expected.insert(format!("team {} {gid}", directory(&team.name)));
        }
    }
    let documents = example(DIRECTORIES);
    let table = of_kind(&documents, "ConfigMap")[0]["data"]["table"].as_str().expect("a table").to_owned();
    assert_eq!(table.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

/// Whoever may apply them could open every directory to anybody.
#[test]
fn only_the_platform_team_applies_them() {
    let alice = sample("01-sso-teama-default-username");
    let admin: UserInfo = serde_json::from_value(people::named("admin").expect("a person")).expect("a userInfo");
    for document in example(TEAM).iter().chain(&example(DIRECTORIES)) {
        let mut gate = Gate::new(gate::snapshot(gate::starter_teams()));
        let name = format!("{} {}", document["kind"], document["metadata"]["name"]);
        assert!(gate.create(document, &admin).is_allowed(), "{name} by the platform team");
        let by_alice = gate.create(document, &alice);
        assert!(!by_alice.is_allowed(), "{name} by a member");
    }
}

#[test]
fn the_script_makes_what_is_missing_and_touches_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let me = fs::metadata(root).map(|metadata| (metadata.uid(), metadata.gid())).expect("metadata");
    let table = format!("team T {gid}\nhome T ann {uid} {gid}\nhome T eve {uid} {gid}\n", uid = me.0, gid = me.1);
    let first = make(root, &table, me.0);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let mode = |path: &str| fs::metadata(root.join(path)).expect(path).permissions().mode() & 0o7777;
    assert_eq!(["home", "T", "home/T", "home/T/ann"].map(mode), [0o755, 0o2770, 0o755, 0o700]);

    // Its owner may open a home. What root owns is always set again, and then this test's own.
    if me.0 != 0 {
        fs::set_permissions(root.join("home/T/ann"), fs::Permissions::from_mode(0o750)).expect("to open it");
        let again = make(root, &table, me.0);
        assert_eq!((again.status.success(), again.stdout.as_slice(), mode("home/T/ann")), (true, &b""[..], 0o750));
    }

    fs::remove_dir(root.join("home/T/eve")).expect("to go");
    symlink("/etc", root.join("home/T/eve")).expect("a link");
    let wrong = format!("{table}home T ../../x {0} {0}\nhome T kim {0} {0}\n", me.0);
    let refused = make(root, &wrong, me.0);
    let complaints = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(complaints.contains("eve is a link") && complaints.contains("no name"), "{complaints}");
    assert!(root.join("home/T/kim").is_dir(), "one that is wrong does not hold the others up");
}

/// Runs the script of the example.
fn make(root: &Path, table: &str, owner: u32) -> Output {
    let documents = example(DIRECTORIES);
    let script = of_kind(&documents, "ConfigMap")[0]["data"]["make.sh"].as_str().expect("a script").to_owned();
    let path = root.join("table");
    fs::write(&path, table).expect("a table");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("ROOT", root).env("TABLE", &path).env("OWNER", owner.to_string());
    shell.output().expect("a shell")
}
