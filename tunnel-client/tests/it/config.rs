//! What is refused before anybody is dialled, and with which exit code.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Output, Stdio};

const FLAGS: [&str; 4] = [
    "--server=wss://127.0.0.1:1",
    "--token-file=token",
    "--ca-file=ca.pem",
    "--upstream=http://127.0.0.1:3000",
];

/// A folder with what a client needs.
struct Folder(tempfile::TempDir);

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let made = testkit::ca::self_signed("localhost");
        folder.write("ca.pem", &made.certificate);
        folder.write("token", "tnlrt_1_secret\n");
        folder
    }

    /// Writes a file that its owner alone can read.
    fn write(&self, name: &str, text: &str) {
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(0o600);
        let mut file = open.open(self.0.path().join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tunnel-client"));
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_clear();
        command
    }

    fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ended {
        ended(self.command(arguments).output().unwrap())
    }
}

fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_good_configuration_is_said_to_be_good() {
    let folder = Folder::new();
    let ended = folder.run(["validate"].into_iter().chain(FLAGS));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(
        ended.stdout,
        "ok: server wss://127.0.0.1:1, upstream http://127.0.0.1:3000\n"
    );
}

#[test]
fn what_is_missing_is_all_told_at_once() {
    let folder = Folder::new();
    let ended = folder.run(["run", "--ca-file=ca.pem"]);
    assert_eq!(ended.code, Some(2));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ended.stderr);
    for (line, flag) in lines.iter().zip(["--server", "--token-file", "--upstream"]) {
        assert!(
            line.starts_with(&format!("error: {flag} is missing: ")),
            "{line}"
        );
    }
}

#[test]
fn each_file_that_cannot_be_used_is_named() {
    let folder = Folder::new();
    let table = "server = \"wss://a\"\ntoken_file = \"no-token\"\nca_file = [\"no-ca\", \"nor-this\"]\n\
                 client_cert = \"no-cert\"\nclient_key = \"no-key\"\nupstream = \"https://a\"\n\
                 upstream_ca_file = \"no-upstream-ca\"\n[[route]]\nname = \"a\"\npath = \"/a\"\nupstream = \"https://b\"\n\
                 tls = { ca_file = \"no-route-ca\", client_cert = \"no-route-cert\", client_key = \"no-route-key\" }\n";
    folder.write("client.toml", table);
    let ended = folder.run(["validate", "--config=client.toml"]);
    assert_eq!(ended.code, Some(2));
    let name = |line: &str| {
        let fault = line.split(": ").nth(3).unwrap().to_owned();
        fault
            .split('`')
            .nth(1)
            .map_or_else(|| fault.clone(), str::to_owned)
    };
    let faults = ended.stderr.lines().map(name);
    let expected = [
        "no-cert",
        "no-key",
        "no-token",
        "no-ca",
        "nor-this",
        "no-upstream-ca",
        "no-route-ca",
        "no-route-cert",
        "no-route-key",
    ];
    assert_eq!(faults.collect::<Vec<_>>(), expected, "{}", ended.stderr);
}

#[test]
fn everything_can_come_from_the_environment_or_the_file() {
    let folder = Folder::new();
    folder.write(
        "client.toml",
        "upstream = \"h2c://localhost\"\nca_file = \"ca.pem\"\nadmin_listen = \"off\"\n",
    );
    let mut command = folder.command(["validate"]);
    command
        .env("TUNNEL_CLIENT_SERVER", "wss://tunnel.example")
        .env("TUNNEL_CLIENT_TOKEN_FILE", "token");
    command.env("TUNNEL_CLIENT_CONFIG", "client.toml");
    let ended = ended(command.output().unwrap());
    assert_eq!(
        ended.stdout, "ok: server wss://tunnel.example, upstream h2c://localhost\n",
        "{}",
        ended.stderr
    );
}

#[test]
fn the_token_is_given_in_a_file_only() {
    let folder = Folder::new();
    let flag = folder.run(["run", "--token=tnlrt_1_secret"]);
    assert_eq!(flag.code, Some(2));
    let missing = folder.run(
        ["validate"]
            .into_iter()
            .chain(FLAGS)
            .map(|flag| flag.replace("=token", "=elsewhere")),
    );
    assert_eq!(missing.code, Some(2));
    assert!(
        missing
            .stderr
            .starts_with("error: --token-file: the token file `elsewhere` cannot be read"),
        "{}",
        missing.stderr
    );
}

#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() {
    let folder = Folder::new();
    let flag = folder.run(["run", "--upstream=http://me:secret@localhost"]);
    let variable = folder
        .command(["run"])
        .env("TUNNEL_CLIENT_SERVER", "wss://me:secret@localhost")
        .output();
    folder.write("client.toml", "upstream = \"http://me:secret@localhost\"\n");
    let file = folder.run(["run", "--config=client.toml"]);
    for ended in [flag, ended(variable.unwrap()), file] {
        assert_eq!(ended.code, Some(2));
        assert!(
            ended.stderr.contains("leave out user name and password"),
            "{}",
            ended.stderr
        );
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}

#[test]
fn a_proxy_s_login_is_taken_from_a_variable_or_a_file_but_from_no_flag() {
    let folder = Folder::new();
    let with_proxy = "http://me:secret@proxy:3128";
    let flag = format!("--proxy={with_proxy}");
    let ended_by = |command: &mut Command| ended(command.output().unwrap());
    let check = || ["validate"].into_iter().chain(FLAGS);
    let refused = folder.run(check().chain([flag.as_str()]));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("--proxy-auth-file"),
        "{}",
        refused.stderr
    );
    folder.write("client.toml", &format!("proxy = \"{with_proxy}\"\n"));
    let file = folder.run(check().chain(["--config=client.toml"]));
    let variable = ended_by(
        folder
            .command(check())
            .env("TUNNEL_CLIENT_PROXY", with_proxy),
    );
    let shared = ended_by(
        folder
            .command(check().chain(["--connect-to=tunnel.example.com"]))
            .env("HTTPS_PROXY", with_proxy),
    );
    for ended in [&file, &variable, &shared] {
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(
            ended.stdout.contains(", by the proxy http://proxy:3128"),
            "{}",
            ended.stdout
        );
    }
    let help = ended_by(
        folder
            .command(["run", "--help"])
            .env("TUNNEL_CLIENT_PROXY", with_proxy),
    );
    for ended in [refused, file, variable, shared, help] {
        assert!(!(ended.stdout + &ended.stderr).contains("secret"));
    }
}

#[test]
fn a_variable_that_names_no_proxy_is_told_and_can_be_passed_over() {
    let folder = Folder::new();
    let run = |more: &[&str]| {
        let flags = FLAGS.iter().chain(&["--connect-to=tunnel.example.com"]);
        let mut command = folder.command(["validate"].iter().chain(flags).chain(more));
        ended(
            command
                .env("https_proxy", "gopher://me:secret@proxy")
                .output()
                .unwrap(),
        )
    };
    let refused = run(&[]);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("environment variable https_proxy: ")
            && !refused.stderr.contains("secret"),
        "{}",
        refused.stderr
    );
    assert_eq!(run(&["--proxy=none"]).code, Some(0));
}

#[test]
fn a_server_without_tls_is_refused() {
    let folder = Folder::new();
    let ended = folder.run(["run", "--server=ws://localhost"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("has no TLS"), "{}", ended.stderr);
}

#[test]
fn the_long_version_names_the_build() {
    let folder = Folder::new();
    let short = folder.run(["-V"]).stdout;
    let version = concat!("tunnel-client ", env!("CARGO_PKG_VERSION"));
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
fn bad_usage_has_the_exit_code_that_the_help_tells() {
    let folder = Folder::new();
    assert_eq!(folder.run(["run", "--no-such-flag"]).code, Some(2));
    let help = folder.run(["run", "--help"]);
    assert_eq!(help.code, Some(0));
    assert!(
        help.stdout.contains("2  bad usage or configuration"),
        "{}",
        help.stdout
    );
}

#[test]
fn it_runs_until_asked_to_stop_and_never_shows_its_token() {
    let folder = Folder::new();
    let more = ["--admin-listen=off", "--log-level=trace"];
    let arguments = ["run"].into_iter().chain(FLAGS).chain(more);
    let mut child = folder
        .command(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    // Signals are listened for before this line is logged.
    while !first.contains("tunnel-client starts") {
        assert_ne!(log.read_line(&mut first).unwrap(), 0, "{first}");
    }
    let asked = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(asked.success());
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(
        rest.contains("shutting down (send the signal again to stop immediately)")
            && !rest.contains("secret"),
        "{rest}"
    );
}
