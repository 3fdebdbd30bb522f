//! Tests of what is given, merged and checked.

use std::fs;

use clap::{CommandFactory, FromArgMatches, Parser};
use tunnel_ops::config_file::TomlFile;
use tunnel_ops::config_value::{DurationText, PositiveDuration};

use super::*;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    given: Given,
}

/// A folder with all the files a client needs.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        folder.write("ca.pem", &made.cert.pem());
        folder.write("key.pem", &made.signing_key.serialize_pem());
        folder.write("token", "tnlrt_1_secret\n");
        folder
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What is required, and then these flags; the environment of the tests sets nothing.
    fn check(&self, flags: &[&str]) -> Result<Config, ConfigError> {
        let required = [
            "--server=wss://localhost:8443".to_owned(),
            format!("--token-file={}", self.path("token").display()),
            format!("--ca-file={}", self.path("ca.pem").display()),
        ];
        // The last wins where a flag is given twice by these tests.
        let upstream = "--upstream=http://127.0.0.1:3000";
        let own = flags.iter().any(|flag| flag.starts_with("--upstream="));
        let arguments = required
            .iter()
            .map(String::as_str)
            .chain(flags.iter().copied());
        let arguments = arguments.chain((!own).then_some(upstream));
        Config::check(&given(arguments).merge().map_err(ConfigError::from)?)
    }

    #[track_caller]
    fn faults(&self, flags: &[&str]) -> Vec<String> {
        self.check(flags)
            .unwrap_err()
            .faults()
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

fn given<'a>(flags: impl IntoIterator<Item = &'a str>) -> Given {
    Flags::parse_from([""].into_iter().chain(flags)).given
}

fn flags() -> Vec<clap::Arg> {
    Flags::command()
        .get_arguments()
        .filter(|flag| flag.get_id() != "help")
        .cloned()
        .collect()
}

#[test]
fn the_token_itself_is_no_flag_and_no_key() {
    assert!(flags().iter().all(|flag| flag.get_long() != Some("token")));
    assert!(
        TomlFile::from_text("f", "token = 'secret'")
            .parse::<Source>()
            .is_err()
    );
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let folder = Folder::new();
    let file = folder.write(
        "client.toml",
        "redial_stable = \"1s\"\ngrace_period = \"2s\"\ndial_timeout = \"3s\"\n",
    );
    // Setting variables is not safe in a process with threads, so clap is shown arguments with
    // another variable.
    let command = Flags::command()
        .mut_arg("redial_stable", |flag| flag.env("CARGO_PKG_VERSION_MAJOR"))
        .mut_arg("grace_period", |flag| {
            flag.env("CARGO_PKG_VERSION_MAJOR")
                .value_parser(|_: &str| "7s".parse::<DurationText>())
        });
    let matches =
        command.get_matches_from(["", "--redial-stable=9s", "--config", file.to_str().unwrap()]);
    let source = Flags::from_arg_matches(&matches)
        .unwrap()
        .given
        .merge()
        .unwrap();
    assert_eq!(
        source.redial_stable,
        Some("9s".parse().unwrap()),
        "the flag"
    );
    assert_eq!(
        source.grace_period,
        Some("7s".parse().unwrap()),
        "the environment"
    );
    assert_eq!(source.dial_timeout, Some("3s".parse().unwrap()), "the file");
}

/// A file with most settings.
const EVERYTHING: &str = r#"
server = "wss://localhost:8443"
token_file = "token"
client_cert = "ca.pem"
client_key = "key.pem"
ca_file = "ca.pem"
ca_dir = ["cas", "cas"]
system_roots = false
server_name = "tunnel.example.com"
host_header = "tunnel.example.com:8443"
connect_to = "10.0.0.7"
proxy = "https://proxy.example.com:3129"
proxy_auth_file = "login"
no_proxy = ["example.com", "10.1.0.0/16"]
proxy_ca_file = ["ca.pem"]
proxy_system_roots = false
max_session_age = "4h"
sessions = 8
allow_from = ["10.0.0.7/8", "2001:db8::7"]
upstream = "https://localhost:3000"
upstream_ca_file = "ca.pem"
admin_listen = "off"
admin_host = ["tunnel.example", "tunnel.internal"]
on_refusal = "retry"
tell_routes = "full"
refusal_wait = "10m"
upstream_idle_pool = 0
max_buffered_size = "7MiB"
access_log = "off"
"#;

#[test]
fn a_file_says_the_same_as_flags() {
    let folder = Folder::new();
    folder.write("login", "me:secret\n");
    fs::create_dir(folder.path("cas")).unwrap();
    fs::copy(folder.path("ca.pem"), folder.path("cas/ca.pem")).unwrap();
    let file = folder.write("client.toml", EVERYTHING);
    let from_file =
        Config::check(&given(["--config", file.to_str().unwrap()]).merge().unwrap()).unwrap();
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.path(name).display());
    let from_flags = folder.check(&[
        "--upstream=https://localhost:3000",
        &file("ca-dir", "cas"),
        &file("ca-dir", "cas"),
        "--system-roots=false",
        "--server-name=tunnel.example.com",
        "--host-header=tunnel.example.com:8443",
        "--connect-to=10.0.0.7",
        "--proxy=https://proxy.example.com:3129",
        &file("proxy-auth-file", "login"),
        "--no-proxy=example.com,10.1.0.0/16",
        &file("proxy-ca-file", "ca.pem"),
        "--proxy-system-roots=false",
        "--max-session-age=4h",
        &file("upstream-ca-file", "ca.pem"),
        &file("client-cert", "ca.pem"),
        &file("client-key", "key.pem"),
        "--sessions=8",
        "--allow-from=10.0.0.0/8,2001:db8::7/128",
        "--admin-listen=off",
        "--admin-host=Tunnel.example,tunnel.internal",
        "--on-refusal=retry",
        "--tell-routes=full",
        "--refusal-wait=10m",
        "--upstream-idle-pool=0",
        "--max-buffered-size=7MiB",
        "--access-log=off",
    ]);
    assert_eq!(
        format!("{from_file:?}"),
        format!("{:?}", from_flags.unwrap())
    );
    assert_eq!(
        (
            from_file.settings.admin_listen,
            from_file.settings.on_refusal
        ),
        (None, OnRefusal::Retry)
    );
    assert_eq!(from_file.settings.tell_routes, TellRoutes::Full);
    assert!(from_file.upstream_roots.is_some() && from_file.servers[0].proxy.is_some());
}

#[test]
fn what_is_missing_is_all_told_at_once() {
    let folder = Folder::new();
    let ca_file = format!("--ca-file={}", folder.path("ca.pem").display());
    let error = Config::check(&given([ca_file.as_str()]).merge().unwrap()).unwrap_err();
    let flags: Vec<String> = error
        .to_string()
        .lines()
        .map(|line| line[..line.find(" is ").unwrap()].to_owned())
        .collect();
    assert_eq!(flags, ["--server", "--token-file", "--upstream"]);
    assert!(
        error
            .to_string()
            .contains("(or TUNNEL_CLIENT_TOKEN_FILE, or `token_file` in the configuration file)")
    );
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let folder = Folder::new();
    let ca_file = format!("--upstream-ca-file={}", folder.path("ca.pem").display());
    assert_eq!(
        folder.faults(&["--redial-base=1m", &ca_file]),
        [
            "--upstream-ca-file: http://127.0.0.1:3000 (--upstream) is used without TLS: write https:// or leave this out",
            "--redial-base: 60s is more than the longest wait, 30s (the default of --redial-cap)",
        ]
    );
    let nobody = folder.faults(&["--trace-ratio=0.5"]);
    assert!(nobody[0].starts_with("--trace-ratio: it has no effect without --otlp-endpoint"));
    let nobody = folder.faults(&["--proxy=none", "--proxy-auth-file=login"]);
    assert!(nobody[0].starts_with("--proxy-auth-file: there is no proxy"));
}

#[test]
fn a_fault_is_where_the_setting_was_given() {
    let folder = Folder::new();
    let text = "# for a test\nallow_from = []\nredial_base = \"1m\"\nredial_cap = \"30s\"\n";
    let path = folder.write("client.toml", text).display().to_string();
    let config = format!("--config={path}");
    let empty = "the list is empty: omit it to set no bound";
    assert_eq!(
        folder.faults(&[&config]),
        [
            format!(
                "{path}:4:1: redial_cap: 30s is less than the first wait, 60s (`redial_base` in line 3 of {path})"
            ),
            format!("{path}:2:1: allow_from: {empty}"),
        ]
    );
    assert_eq!(
        folder.faults(&[&config, "--redial-cap=1s"])[0],
        format!(
            "--redial-cap: 1s is less than the first wait, 60s (`redial_base` in line 3 of {path})"
        )
    );
    // The environment of these tests sets nothing of ours, so that clap is shown another variable.
    let command = Flags::command().mut_arg("redial_cap", |flag| {
        flag.env("CARGO_PKG_VERSION_MAJOR")
            .value_parser(|_: &str| "1ms".parse::<PositiveDuration>())
    });
    let flags = [
        "",
        "--server=wss://a.test",
        "--token-file=token",
        "--upstream=http://a",
    ];
    let matches = command.get_matches_from(flags);
    let source = Flags::from_arg_matches(&matches).unwrap().given.source;
    let error = Config::check(&source).unwrap_err().to_string();
    let by_variable = "the environment variable TUNNEL_CLIENT_REDIAL_CAP: 1ms is less than";
    assert!(error.contains(by_variable), "{error}");
}

#[test]
fn what_has_the_wrong_form_in_a_file_is_named_with_its_place() {
    let route = "[[route]]\nname = \"a\"\npath = \"/a\"\nupstream = \"http://a\"\n";
    for (text, expected) in [
        (
            format!("{route}idle_timeout = 5\n"),
            "5:16: route.idle_timeout: a duration needs a unit, such as `5s`, `250ms` or `10m`",
        ),
        (
            format!("{route}max_body = 5\n"),
            "5:12: route.max_body: a size needs a unit, such as `64KiB` or `1MiB`",
        ),
        (
            "sessions = true\n".to_owned(),
            "1:12: sessions: expected a whole number from 1 to 8",
        ),
        (
            "max_session_age = \"59s\"\n".to_owned(),
            "1:19: max_session_age: must be at least 1m",
        ),
        // From here on the words are the parser's.
        ("[route]\nname = \"a\"\n".to_owned(), "1:1: route: "),
        (
            format!("{route}methods = \"GET\"\n"),
            "5:11: route.methods: ",
        ),
        ("access_log = \"yes\"\n".to_owned(), "1:14: access_log: "),
        ("ca_file = 7\n".to_owned(), "1:11: ca_file: "),
        (
            "server = \"wss://a.test\"\nserver = \"wss://b.test\"\n".to_owned(),
            "2:1: ",
        ),
    ] {
        let file = TomlFile::from_text("c.toml", text.as_str());
        let source = Source::from_file(file).map_err(ConfigError::from);
        let checked = source.and_then(|source| Config::check(&source));
        let error = checked.unwrap_err().to_string();
        let expected = format!("c.toml:{expected}");
        let is_told = error.lines().any(|line| line.starts_with(&expected));
        assert!(is_told, "{text}{error}");
    }
}

#[test]
fn a_certificate_stands_for_a_token_and_comes_with_its_key() {
    let folder = Folder::new();
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.path(name).display());
    let required = [
        "--server=wss://localhost:8443".to_owned(),
        "--upstream=http://127.0.0.1:3000".to_owned(),
        file("ca-file", "ca.pem"),
    ];
    let check = |more: &[String]| {
        let flags = required.iter().chain(more).map(String::as_str);
        Config::check(&given(flags).merge().unwrap())
    };
    let (cert, key) = (file("client-cert", "ca.pem"), file("client-key", "key.pem"));
    let config = check(&[cert.clone(), key.clone()]).unwrap();
    assert!(config.settings.token_file.is_none() && config.client_certificate.is_some());
    let fault = |more: &[String]| check(more).unwrap_err().to_string();
    let alone = fault(&[key]);
    assert!(
        alone.starts_with("--client-key: its certificate is missing"),
        "{alone}"
    );
    let other = fault(&[cert.clone(), file("client-key", "token")]);
    assert!(
        other.contains("token: holds no usable private key"),
        "{other}"
    );
    assert!(!other.contains("tnlrt"), "{other}");
    let alone = fault(&[cert]);
    assert!(
        alone.starts_with("--client-cert: its key is missing"),
        "{alone}"
    );
}

#[test]
fn a_bound_on_addresses_is_never_empty_and_never_too_long() {
    let folder = Folder::new();
    let longest = "0000:0000:0000:0000:0000:0000:0000:0000/128,".repeat(NETWORKS_MAX);
    let longest = longest.trim_end_matches(',');
    assert!(longest.len() <= 4096);
    let flag = |list: &str| format!("--allow-from={list}");
    assert!(folder.check(&[&flag(longest)]).is_ok());
    let more = folder.faults(&[&flag(&format!("{longest},::1"))]);
    assert!(
        more[0].starts_with("--allow-from: 91 networks are named"),
        "{more:?}"
    );
    let file = folder.write("client.toml", "allow_from = []\n");
    let none = folder.faults(&[&format!("--config={}", file.display())]);
    assert!(
        none[0]
            .ends_with("client.toml:1:1: allow_from: the list is empty: omit it to set no bound"),
        "{none:?}"
    );
}

#[test]
fn files_are_read_while_checking() {
    let folder = Folder::new();
    folder.write("token", "");
    folder.write("ca.pem", "nothing");
    let faults = folder.faults(&[]);
    assert!(faults[0].contains("token` is empty"), "{faults:?}");
    assert!(
        faults[1].contains("ca.pem: holds no certificate"),
        "{faults:?}"
    );
}

#[test]
fn debug_shows_no_token() {
    let folder = Folder::new();
    let shown = format!("{:?}", folder.check(&[]).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn several_servers_are_a_list_in_each_form() {
    let folder = Folder::new();
    let urls = |config: &Config| -> Vec<String> {
        let servers = config.servers.iter();
        servers.map(|server| server.url.to_string()).collect()
    };
    let more = "--server=wss://b.test,wss://c.test";
    let expected = ["wss://localhost:8443", "wss://b.test", "wss://c.test"];
    assert_eq!(urls(&folder.check(&[more]).unwrap()), expected);
    for (text, expected) in [
        ("server = \"wss://a.test\"", &["wss://a.test"][..]),
        (
            "server = [\"wss://a.test\", \"wss://b.test\"]",
            &["wss://a.test", "wss://b.test"],
        ),
    ] {
        let text = format!("{text}\ntoken_file = \"token\"\nupstream = \"http://a.test\"\n");
        let file = folder.write("servers.toml", &text);
        let source = given(["--config", file.to_str().unwrap()]).merge().unwrap();
        assert_eq!(urls(&Config::check(&source).unwrap()), expected);
    }
    let fault = &folder.faults(&["--server=wss://localhost:8443"])[0];
    assert!(fault.contains("named twice"), "{fault}");
    let fault = &folder.faults(&[more, "--connect-to=10.0.0.1"])[0];
    assert!(fault.contains("--connect-to leads to one"), "{fault}");
    let many = format!("--server={}", ["wss://x.test"; 9].join(","));
    let fault = &folder.faults(&[&many])[0];
    assert!(fault.contains("at most 8"), "{fault}");
}
