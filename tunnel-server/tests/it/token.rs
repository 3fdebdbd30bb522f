//! `tunnel-server token`: what is printed, what is written, what is kept.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;
use std::time::SystemTime;

use tunnel_ops::config_file::TomlFile;
use tunnel_server::auth::AuthRefusal;
use tunnel_server::auth::static_token;
use tunnel_server::runtimes::{RuntimeEntry, Runtimes};

use crate::program::Folder;

const CREATE: [&str; 5] = [
    "token",
    "create",
    "--account=acme",
    "--runtime=prod",
    "--runtimes=r.toml",
];

const FILE: &str = "\
# Ours.
[[runtime]]
account = \"acme\"   # since 2020
name = \"test\"
";

fn runtimes(folder: &Folder) -> Runtimes {
    let file = TomlFile::from_text("r.toml", folder.read("r.toml"));
    Runtimes::parse(&file, &"tunnels.localhost".parse().unwrap()).unwrap()
}

fn verify<'a>(runtimes: &'a Runtimes, token: &str) -> Result<&'a RuntimeEntry, AuthRefusal> {
    let verified = static_token::verify(runtimes, token, SystemTime::now());
    verified.map(|(runtime, _)| &**runtime)
}

fn mode(folder: &Folder) -> u32 {
    fs::metadata(folder.path("r.toml"))
        .unwrap()
        .permissions()
        .mode()
        & 0o777
}

#[test]
fn the_token_is_printed_once_and_alone_and_lets_its_runtime_in() {
    let folder = Folder::new();
    let ended = folder.run(
        CREATE
            .into_iter()
            .chain(["--host=argo.example.com,events.example.com", "--note=Ann's"]),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let token = ended.stdout.strip_suffix('\n').unwrap();
    assert!(
        token.starts_with("tnlrt_")
            && token
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_'),
        "{token}"
    );
    assert!(!ended.stderr.contains(token), "{}", ended.stderr);
    let written = folder.read("r.toml");
    assert!(
        !written.contains(token) && written.contains("note = \"Ann's\""),
        "{written}"
    );
    assert_eq!(mode(&folder), 0o600);
    let runtimes = runtimes(&folder);
    let runtime = verify(&runtimes, token).unwrap();
    assert_eq!(
        (runtime.label.as_str(), runtime.hosts.len()),
        ("acme-prod", 2)
    );
    assert_eq!(
        verify(&runtimes, &token.replace("tnlrt_", "tnlrt_0")),
        Err(AuthRefusal::NotAToken)
    );
}

#[test]
fn the_rest_of_the_file_is_kept_with_its_mode() {
    let folder = Folder::new();
    folder.write("r.toml", FILE);
    fs::set_permissions(folder.path("r.toml"), Permissions::from_mode(0o640)).unwrap();
    let (first, second) = (folder.run(CREATE), folder.run(CREATE));
    assert_ne!(first.stdout, second.stdout);
    assert!(
        folder.read("r.toml").starts_with(FILE),
        "{}",
        folder.read("r.toml")
    );
    assert_eq!(mode(&folder), 0o640);
    let runtimes = runtimes(&folder);
    assert_eq!((runtimes.iter().len(), runtimes.token_count()), (2, 2));
    for token in [first.stdout, second.stdout] {
        assert!(verify(&runtimes, token.trim_end()).is_ok());
    }
    assert_eq!(
        fs::read_dir(folder.path("")).unwrap().count(),
        1,
        "nothing else is left in the folder"
    );
}

#[test]
fn many_at_once_lose_none() {
    let folder = Folder::new();
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(
            folder
                .command(CREATE)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
    }
    let tokens: Vec<String> = running
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    let runtimes = runtimes(&folder);
    for token in &tokens {
        assert!(verify(&runtimes, token.trim_end()).is_ok(), "{token}");
    }
}

#[test]
fn a_runtime_that_cannot_be_is_refused_and_the_file_left_alone() {
    let folder = Folder::new();
    let file = "[[runtime]]\naccount = \"acme-pr\"\nname = \"od\"\nhosts = [\"x.example\"]\n";
    folder.write("r.toml", file);
    let label = folder.run([
        "token",
        "create",
        "--account=acme",
        "--runtime=pr-od",
        "--runtimes=r.toml",
    ]);
    let host = folder.run(CREATE.into_iter().chain(["--host=x.example"]));
    let below = folder.run(CREATE.into_iter().chain([
        "--host=a.acme-pr-od.other.example",
        "--domain=other.example",
    ]));
    for (ended, fault) in [
        (
            &label,
            "account `acme`, name `pr-od` gives the label `acme-pr-od`, and so does account `acme-pr`, name `od`",
        ),
        (
            &host,
            "`x.example` is listed twice: `acme-pr-od` has it already",
        ),
        (
            &below,
            "`a.acme-pr-od.other.example` belongs to the domain of the runtime `acme-pr-od`",
        ),
    ] {
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
        assert!(
            ended.stderr.contains("nothing was changed") && ended.stderr.contains(fault),
            "{}",
            ended.stderr
        );
    }
    assert_eq!(folder.read("r.toml"), file);
}

#[test]
fn a_damaged_file_is_left_alone() {
    let folder = Folder::new();
    folder.write("r.toml", "[[runtime]]\naccount = 7\n");
    let ended = folder.run(CREATE);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.starts_with("error: ") && ended.stderr.contains("r.toml:2:11: "),
        "{}",
        ended.stderr
    );
    assert_eq!(folder.read("r.toml"), "[[runtime]]\naccount = 7\n");
}

#[test]
fn names_are_checked_where_they_enter() {
    let folder = Folder::new();
    for bad in [
        "--account=Acme",
        "--account=a_b",
        "--account=-a",
        "--account=",
    ] {
        let ended = folder.run([
            "token",
            "create",
            bad,
            "--runtime=prod",
            "--runtimes=r.toml",
        ]);
        assert_eq!(ended.code, Some(2), "{bad}");
    }
    assert!(!folder.path("r.toml").exists());
}

#[test]
fn a_link_stays_a_link() {
    let folder = Folder::new();
    fs::create_dir(folder.path("real")).unwrap();
    folder.write("real/r.toml", FILE);
    symlink("real/r.toml", folder.path("r.toml")).unwrap();
    assert_eq!(folder.run(CREATE).code, Some(0));
    assert!(
        folder
            .path("r.toml")
            .symlink_metadata()
            .unwrap()
            .is_symlink()
    );
    assert_eq!(runtimes(&folder).token_count(), 1);
}

#[test]
fn a_token_that_cannot_be_printed_is_a_failure() {
    let folder = Folder::new();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ended = crate::program::ended(folder.command(CREATE).stdout(full).output().unwrap());
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("the token cannot be printed"),
        "{}",
        ended.stderr
    );
}

/// Makes a token, and says its id.
fn created(folder: &Folder, more: &[&str]) -> (String, String) {
    let ended = folder.run(CREATE.iter().chain(more));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let token = ended.stdout.trim_end().to_owned();
    let id = token["tnlrt_".len()..][..16].to_owned();
    (token, id)
}

fn revoke(folder: &Folder, more: &[&str]) -> crate::program::Ended {
    let revoke = [
        "token",
        "revoke",
        "--account=acme",
        "--runtimes=r.toml",
        "--runtime",
    ];
    folder.run(revoke.iter().chain(more))
}

#[test]
fn a_token_may_have_an_end() {
    let folder = Folder::new();
    let (token, _) = created(&folder, &["--expires=90d"]);
    let listed = runtimes(&folder);
    let (_, listed_token) = listed.tokens().next().unwrap();
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let left = listed_token.expires.unwrap();
    let left = left.duration_since(SystemTime::now()).unwrap();
    assert!(left < 90 * day && left > 89 * day, "{left:?}");
    assert!(verify(&listed, &token).is_ok());
    let over = listed_token.expires.unwrap();
    let refused = static_token::verify(&listed, &token, over).unwrap_err();
    assert_eq!(refused.name(), "token_expired");
    for bad in ["--expires=2020-01-01T00:00:00Z", "--expires=90"] {
        let ended = folder.run(CREATE.into_iter().chain([bad]));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{bad}");
    }
    assert_eq!(runtimes(&folder).token_count(), 1);
}

#[test]
fn one_token_or_all_of_a_runtime_are_revoked_and_the_rest_of_the_file_is_kept() {
    let folder = Folder::new();
    folder.write("r.toml", FILE);
    fs::set_permissions(folder.path("r.toml"), Permissions::from_mode(0o640)).unwrap();
    let (one, id) = created(&folder, &[]);
    let (two, other_id) = created(&folder, &[]);
    let before = folder.read("r.toml");
    let ended = revoke(&folder, &["prod", "--id", &id]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""));
    assert!(
        ended.stderr.starts_with(&format!(
            "revoked token {id} of account acme, runtime prod in "
        )),
        "{}",
        ended.stderr
    );
    let refusal = verify(&runtimes(&folder), &one).unwrap_err();
    assert_eq!(refusal.name(), "credential_revoked");
    assert!(verify(&runtimes(&folder), &two).is_ok());
    let ended = revoke(&folder, &["prod"]);
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.stderr.contains(&format!("revoked token {other_id} "))
            && ended.stderr.contains(&format!(
                "token {id} of account acme, runtime prod was revoked before"
            )),
        "{}",
        ended.stderr
    );
    assert!(verify(&runtimes(&folder), &two).is_err());
    let after = folder.read("r.toml");
    let mut lines = after.lines();
    for line in before.lines() {
        assert!(lines.any(|kept| kept == line), "lost: {line}");
    }
    assert_eq!(mode(&folder), 0o640);
    assert_eq!(revoke(&folder, &["prod"]).code, Some(0), "once more");
    assert_eq!(folder.read("r.toml"), after);
}

#[test]
fn what_is_not_there_cannot_be_revoked() {
    let folder = Folder::new();
    folder.write("r.toml", FILE);
    for (more, fault) in [
        (
            &["stage"][..],
            "no runtime `stage` of account `acme` is listed",
        ),
        (&["test"], "runtime `test` of account `acme` has no token"),
        (
            &["test", "--id", "0123456789abcdef"],
            "runtime `test` of account `acme` has no token 0123456789abcdef",
        ),
        (&["test", "--id", "x"], "expected the token's id"),
    ] {
        let ended = revoke(&folder, more);
        assert_eq!(ended.code, Some(2), "{more:?}");
        assert!(ended.stderr.contains(fault), "{}", ended.stderr);
    }
    assert_eq!(folder.read("r.toml"), FILE);
}

#[test]
fn the_list_shows_every_token_and_no_hash() {
    let folder = Folder::new();
    folder.write("r.toml", FILE);
    let (token, id) = created(
        &folder,
        &["--note=Ann's \u{1b}[31m", "--expires=2999-01-01T00:00:00Z"],
    );
    let (_, revoked) = created(&folder, &[]);
    assert_eq!(revoke(&folder, &["prod", "--id", &revoked]).code, Some(0));
    let list = |more: &[&str]| {
        let ended = folder.run(["token", "list", "--runtimes=r.toml"].iter().chain(more));
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    let text = list(&[]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("ID                ACCOUNT  RUNTIME  STATE    CREATED"));
    assert!(
        lines[1].starts_with(&format!("{id}  acme     prod     good ")),
        "{text}"
    );
    assert!(
        lines[1].ends_with("  2999-01-01T00:00:00Z  Ann's \\u{1b}[31m"),
        "{text}"
    );
    assert!(
        lines[2].starts_with(&format!("{revoked}  acme     prod     revoked")),
        "{text}"
    );
    assert_eq!(lines.len(), 3);
    let json: serde_json::Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(json[0]["id"], id.as_str());
    assert_eq!(json[0]["expires"], "2999-01-01T00:00:00Z");
    assert_eq!(json[1]["state"], "revoked");
    assert_eq!(json[1]["expires"], serde_json::Value::Null);
    let hash = runtimes(&folder).tokens().next().unwrap().1.sha256;
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    for shown in [&text, &list(&["--json"])] {
        assert!(!shown.contains(&hash) && !shown.contains(&token[23..]));
    }
    assert_eq!(list(&["--account=globex"]).lines().count(), 1);
    assert_eq!(
        list(&["--account=acme", "--runtime=prod"]).lines().count(),
        3
    );
    assert_eq!(list(&["--runtime=test", "--json"]), "[]\n");
}
