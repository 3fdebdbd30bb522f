//! What is refused before anything is bound, and with which exit code.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::program::{Folder, ended};

const FILES: [&str; 3] = [
    "--tls-cert=server.pem",
    "--tls-key=server.key",
    "--runtimes=runtimes.toml",
];

#[test]
fn without_a_runtimes_file_it_does_not_start() {
    let folder = Folder::with_all_files();
    let ended = folder.run(["run", "--tls-cert=server.pem", "--tls-key=server.key"]);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.starts_with("error: --runtimes is missing: "),
        "{}",
        ended.stderr
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
}

#[test]
fn a_valid_configuration_is_reported_as_valid() {
    let folder = Folder::with_all_files();
    let ended = folder.run(["validate"].into_iter().chain(FILES));
    assert_eq!(
        (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
        (Some(0), "ok: runtimes 1, tokens 1\n", "")
    );
    let all = Permissions::from_mode(0o644);
    fs::set_permissions(folder.path("server.key"), all).unwrap();
    let ended = folder.run(["validate"].into_iter().chain(FILES));
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (
            Some(0),
            "warning: --tls-key: server.key can be read by every user of this machine: chmod o-r server.key\n"
        )
    );
}

#[test]
fn an_admin_token_that_can_be_guessed_is_refused_and_not_shown() {
    let folder = Folder::with_all_files();
    folder.write("admin.token", "s3cret\n");
    for command in ["run", "validate"] {
        let flags = FILES.into_iter().chain(["--admin-token-file=admin.token"]);
        let ended = folder.run([command].into_iter().chain(flags));
        assert_eq!(ended.code, Some(2));
        let expected = "error: --admin-token-file: admin.token: holds no usable token: ";
        assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
        assert!(!ended.stderr.contains("s3cret"), "{}", ended.stderr);
    }
}

#[test]
fn an_unknown_key_is_named_with_file_line_and_the_likely_one() {
    let folder = Folder::with_all_files();
    folder.write("server.toml", "# mine\npubic_listen = \"127.0.0.1:1\"\n");
    for command in ["run", "validate"] {
        let ended = folder.run([command, "--config=server.toml"]);
        assert_eq!(ended.code, Some(2));
        assert_eq!(
            ended.stderr,
            "error: server.toml:2:1: unknown key `pubic_listen`, did you mean `public_listen`?\n"
        );
    }
}

#[test]
fn flag_environment_and_file_mean_the_same_and_come_in_this_order() {
    let folder = Folder::with_all_files();
    folder.write(
        "server.toml",
        "tls_cert = \"server.pem\"\ntls_key = \"server.key\"\nruntimes = \"of-file.toml\"\noffline_wait = \"1s\"\n",
    );
    let validate = |flags: &[&str], variables: &[(&str, &str)]| {
        let arguments = ["validate", "--config=server.toml"]
            .into_iter()
            .chain(flags.iter().copied());
        let mut command = folder.command(arguments);
        ended(command.envs(variables.iter().copied()).output().unwrap())
    };
    let variable = ("TUNNEL_SERVER_RUNTIMES", "of-environment.toml");
    assert!(
        validate(&[], &[])
            .stderr
            .contains("of-file.toml: cannot be read")
    );
    assert!(
        validate(&[], &[variable])
            .stderr
            .contains("of-environment.toml: cannot be read")
    );
    assert_eq!(
        validate(&["--runtimes=runtimes.toml"], &[variable]).code,
        Some(0)
    );
}

#[test]
fn everything_can_come_from_the_environment() {
    let folder = Folder::with_all_files();
    let mut command = folder.command(["validate"]);
    for (name, value) in [
        ("TLS_CERT", "server.pem"),
        ("TLS_KEY", "server.key"),
        ("RUNTIMES", "runtimes.toml"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,192.0.2.1"),
        ("PROXY_PROTOCOL", "true"),
        ("CORS_ORIGIN", "https://a.example,https://b.example"),
        ("ACCESS_LOG", "off"),
        ("MAX_HEAD_SIZE", "64KiB"),
    ] {
        command.env(format!("TUNNEL_SERVER_{name}"), value);
    }
    let ended = ended(command.output().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_bad_value_says_that_the_environment_has_it() {
    let folder = Folder::with_all_files();
    let output = folder
        .command(["validate"])
        .env("TUNNEL_SERVER_OFFLINE_WAIT", "5")
        .output()
        .unwrap();
    let ended = ended(output);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended.stderr.contains("a duration needs a unit"),
        "{}",
        ended.stderr
    );
    assert!(
        ended
            .stderr
            .contains("environment variable TUNNEL_SERVER_OFFLINE_WAIT"),
        "{}",
        ended.stderr
    );
}

#[test]
fn all_faults_are_reported_at_once() {
    let folder = Folder::with_all_files();
    folder.write("runtimes.toml", "[[runtime]]\naccount = \"a-b\"\nname = \"c\"\n[[runtime]]\naccount = \"a\"\nname = \"b-c\"\n");
    let ended = folder.run([
        "validate",
        "--tls-cert=server.pem",
        "--runtimes=runtimes.toml",
        "--admin-listen=0.0.0.0:8080",
    ]);
    assert_eq!(ended.code, Some(2));
    let starts = [
        "error: --tls-key is missing",
        "error: runtimes.toml:6:8: name: account `a`",
        "error: --admin-listen: ",
    ];
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{}", ended.stderr);
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn the_long_version_names_the_build() {
    let folder = Folder::new();
    let short = folder.run(["-V"]).stdout;
    let version = concat!("tunnel-server ", env!("CARGO_PKG_VERSION"));
    assert_eq!(short.trim_end(), version);
    let long = folder.run(["--version"]).stdout;
    let build = long.trim_end().strip_prefix(version);
    let build = build.and_then(|rest| rest.strip_prefix(" (")?.strip_suffix(", wire 1)"));
    let (commit, target) = build.unwrap().split_once(", ").unwrap();
    assert!(target.starts_with(std::env::consts::ARCH), "{long}");
    let commit = commit.strip_suffix("-dirty").unwrap_or(commit);
    let is_hash = |text: &str| text.len() >= 7 && text.chars().all(|c| c.is_ascii_hexdigit());
    // Without git, and in a release's archive.
    let is_set = std::env::var("TUNNEL_COMMIT").is_ok_and(|set| set == commit);
    assert!(is_hash(commit) || is_set || commit == "unknown", "{long}");
}

#[test]
fn bad_usage_has_the_exit_code_in_the_help() {
    let folder = Folder::new();
    assert_eq!(folder.run(["run", "--no-such-flag"]).code, Some(2));
    assert_eq!(folder.run([""; 0]).code, Some(2));
    let help = folder.run(["run", "--help"]);
    assert_eq!(help.code, Some(0));
    assert!(
        help.stdout.contains("2  bad usage or configuration"),
        "{}",
        help.stdout
    );
}

#[test]
fn it_runs_until_asked_to_stop() {
    let folder = Folder::with_all_files();
    let ports = [
        "--tunnel-listen=127.0.0.1:0",
        "--public-listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
    ];
    let arguments = ["run", "--log-format=json"]
        .into_iter()
        .chain(FILES)
        .chain(ports);
    let mut child = folder
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    // Signals are listened for before the first line is logged.
    log.read_line(&mut first).unwrap();
    assert!(
        first.starts_with('{') && first.contains("\"tunnel-server starts\""),
        "{first}"
    );
    let asked = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(asked.success());
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.contains("shutting down (send"), "{rest}");
    let mut stdout = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut stdout)
        .unwrap();
    assert_eq!(stdout, "", "standard output is for what was asked for");
}
