//! Tests of what is given, merged and checked.

use std::fs;

use clap::{CommandFactory, FromArgMatches, Parser};

use super::*;
use crate::certs;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    given: Given,
}

/// A folder with all the files a server needs.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let made = certs::generate(&["localhost".to_owned()], 1).unwrap();
        folder.write("server.pem", &made.server_pem);
        folder.write("server.key", &made.server_key);
        folder.write("client.key", &made.client_key);
        folder.write(
            "runtimes.toml",
            "[[runtime]]\naccount = \"acme\"\nname = \"prod\"\n",
        );
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
            "tls-cert=server.pem",
            "tls-key=server.key",
            "runtimes=runtimes.toml",
        ]
        .map(|required| {
            let (flag, file) = required.split_once('=').unwrap();
            format!("--{flag}={}", self.path(file).display())
        });
        let arguments = required
            .iter()
            .map(String::as_str)
            .chain(flags.iter().copied());
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
fn flags_override_the_environment_and_that_overrides_the_file() {
    let folder = Folder::new();
    let file = folder.write(
        "server.toml",
        "offline_wait = \"1s\"\nexpect_wait = \"2s\"\ngrace_period = \"3s\"\n",
    );
    // Setting variables is not safe in a process with threads, so clap is shown an argument with
    // another variable.
    let command = Flags::command()
        .mut_arg("offline_wait", |flag| flag.env("CARGO_PKG_VERSION_MAJOR"))
        .mut_arg("expect_wait", |flag| {
            flag.env("CARGO_PKG_VERSION_MAJOR")
                .value_parser(|_: &str| "7s".parse::<tunnel_ops::config_value::DurationText>())
        });
    let matches =
        command.get_matches_from(["", "--offline-wait=9s", "--config", file.to_str().unwrap()]);
    let source = Flags::from_arg_matches(&matches)
        .unwrap()
        .given
        .merge()
        .unwrap();
    assert_eq!(source.offline_wait, Some("9s".parse().unwrap()), "the flag");
    assert_eq!(
        source.expect_wait,
        Some("7s".parse().unwrap()),
        "the environment"
    );
    assert_eq!(source.grace_period, Some("3s".parse().unwrap()), "the file");
}

#[test]
fn a_file_and_flags_give_equal_configurations() {
    let folder = Folder::new();
    let file = folder.write(
        "server.toml",
        r#"
        tls_cert = "server.pem"
        tls_key = "server.key"
        public_tls_cert = "server.pem"
        public_tls_key = "server.key"
        runtimes = "runtimes.toml"
        public_listen = "127.0.0.1:8081"
        domain = "Tunnels.Example"
        trusted_proxies = ["10.0.0.7/8", "192.0.2.7"]
        proxy_protocol = true
        via = true
        cors_origin = ["https://a.example", "https://b.example"]
        max_connections = 5
        max_head_size = "64KiB"
        access_log = "off"
        log_format = "json"
        log_level = "warn,tunnel_server=debug"
        "#,
    );
    let from_file = given(["--config", file.to_str().unwrap()]).merge().unwrap();
    let from_file = Config::check(&from_file).unwrap();
    let public =
        |flag: &str, file: &str| format!("--public-tls-{flag}={}", folder.path(file).display());
    let from_flags = folder.check(&[
        &public("cert", "server.pem"),
        &public("key", "server.key"),
        "--public-listen=127.0.0.1:8081",
        "--domain=tunnels.example",
        "--trusted-proxies=10.0.0.7/8,192.0.2.7",
        "--proxy-protocol",
        "--via",
        "--cors-origin=https://a.example",
        "--cors-origin=https://b.example",
        "--max-connections=5",
        "--max-head-size=64KiB",
        "--access-log=off",
        "--log-format=json",
        "--log-level=warn,tunnel_server=debug",
    ]);
    assert_eq!(
        format!("{from_file:?}"),
        format!("{:?}", from_flags.unwrap())
    );
    assert_eq!(from_file.settings.trusted_proxies.len(), 2);
    assert!(
        from_file.settings.trusted_proxies[0].to_string() == "10.0.0.0/8"
            && from_file.public_tls.is_some()
    );
}

#[test]
fn all_missing_settings_are_reported_at_once() {
    let error = Config::check(&Source::default()).unwrap_err();
    assert_eq!(
        error.to_string().lines().collect::<Vec<_>>(),
        [
            "--tls-cert is missing: the tunnel listener's certificate chain (or TUNNEL_SERVER_TLS_CERT, or `tls_cert` in the configuration file)",
            "--tls-key is missing: the key of the tunnel listener's certificate (or TUNNEL_SERVER_TLS_KEY, or `tls_key` in the configuration file)",
            "--runtimes is missing: without a runtimes file, --managed-runtimes, --jwks, --auth-url or --client-ca no tunnel client can connect; `tunnel-server token create` makes one (or TUNNEL_SERVER_RUNTIMES, or `runtimes` in the configuration file)",
        ]
    );
}

#[test]
fn listeners_need_ports_of_their_own() {
    let folder = Folder::new();
    assert_eq!(
        folder.faults(&["--public-listen=0.0.0.0:8443", "--admin-listen=[::]:8443"]),
        [
            "--public-listen: 0.0.0.0:8443 overlaps with 127.0.0.1:8443 of the default of --tunnel-listen: give each listener its own port, or give both the same address and name the host of tunnel clients in --tunnel-host",
            "--admin-listen: [::]:8443 overlaps with 127.0.0.1:8443 of the default of --tunnel-listen: give each listener its own port",
            "--admin-listen: [::]:8443 overlaps with 0.0.0.0:8443 of --public-listen: give each listener its own port",
        ]
    );
    assert!(
        folder
            .check(&["--public-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .is_ok()
    );
}

#[test]
fn a_conflict_of_two_settings_names_both() {
    let folder = Folder::new();
    let text =
        "grace_period = \"5s\"\n\ntunnel_listen = \"127.0.0.1:9090\"\ndrain_delay = \"1m\"\n";
    let path = folder.write("server.toml", text).display().to_string();
    let config = format!("--config={path}");
    assert_eq!(
        folder.faults(&[&config, "--public-listen=127.0.0.1:8444"]),
        [
            format!(
                "{path}:3:1: tunnel_listen: 127.0.0.1:9090 overlaps with 127.0.0.1:9090 of the default of --admin-listen: give each listener its own port"
            ),
            format!(
                "{path}:4:1: drain_delay: 60s leaves nothing of the grace period, 5s (`grace_period` in line 1 of {path}), which begins with the signal"
            ),
        ]
    );
    let by_flag = folder.faults(&[&config, "--drain-delay=2m", "--tunnel-listen=127.0.0.1:1"]);
    assert_eq!(
        by_flag,
        [format!(
            "--drain-delay: 120s leaves nothing of the grace period, 5s (`grace_period` in line 1 of {path}), which begins with the signal"
        )]
    );
}

#[test]
fn one_address_for_both_listeners_needs_the_name_of_tunnel_clients() {
    let folder = Folder::new();
    let both = ["--tunnel-listen=0.0.0.0:443", "--public-listen=0.0.0.0:443"];
    let faults = folder.faults(&both);
    assert_eq!(
        faults,
        [
            "--public-listen: 0.0.0.0:443 overlaps with 0.0.0.0:443 of --tunnel-listen: give each listener its own port, \
             or give both the same address and name the host of tunnel clients in --tunnel-host"
        ]
    );
    let named = [&both[..], &["--tunnel-host=register.example.com"]].concat();
    let config = folder.check(&named).unwrap();
    assert!(config.is_one_listener());
    // One certificate is enough.
    assert_eq!(config.public_tls, config.tunnel_tls);
    let wider = [
        "--tunnel-listen=127.0.0.1:443",
        both[1],
        "--tunnel-host=a.example",
    ];
    assert_eq!(folder.faults(&wider).len(), 1);
    let admin = [&named[..], &["--admin-listen=127.0.0.1:443"]].concat();
    assert_eq!(folder.faults(&admin).len(), 2);
}

#[test]
fn plain_http_for_tunnel_clients_stays_where_nobody_can_read_it() {
    let folder = Folder::new();
    let check = |flags: &[&str]| {
        let flags = [&["--tunnel-tls=false"][..], flags].concat();
        folder.check(&flags).map(|config| config.tunnel_tls)
    };
    assert_eq!(check(&[]).unwrap(), None, "on loopback");
    let open = check(&["--tunnel-listen=0.0.0.0:8443"]).unwrap_err();
    assert!(open.to_string().contains("--trusted-proxies"), "{open}");
    let host = ["--tunnel-host=a.example", "--public-listen=0.0.0.0:80"];
    assert!(check(&host).is_err());
    let proxied = [
        "--tunnel-listen=0.0.0.0:8443",
        "--trusted-proxies=10.0.0.0/8",
    ];
    assert_eq!(check(&proxied).unwrap(), None);
    let ca = folder.write("ca.pem", "").display().to_string();
    let certificates = check(&[&format!("--client-ca={ca}")]).unwrap_err();
    assert!(
        certificates.to_string().contains("need TLS"),
        "{certificates}"
    );
}

#[test]
fn a_proxy_protocol_needs_proxies() {
    let folder = Folder::new();
    let fault =
        "--proxy-protocol: no peer may send a PROXY header: name the proxies in --trusted-proxies";
    assert_eq!(folder.faults(&["--proxy-protocol"]), [fault]);
    assert!(folder.check(&["--proxy-protocol=false"]).is_ok());
    assert!(
        folder
            .check(&["--proxy-protocol", "--trusted-proxies=10.0.0.0/8"])
            .is_ok()
    );
}

#[test]
fn traces_need_a_collector() {
    let folder = Folder::new();
    let fault =
        "--trace-ratio: it has no effect without --otlp-endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT";
    assert_eq!(folder.faults(&["--trace-ratio=0.5"]), [fault]);
    let collector = "--otlp-endpoint=http://collector:4318";
    let config = folder.check(&[collector, "--trace-ratio=0.5"]).unwrap();
    assert_eq!(config.tracer.unwrap().sampler().ratio, 0.5);
    assert!(folder.check(&[]).unwrap().tracer.is_none());
    let missing = folder.faults(&[collector, "--otlp-headers-file=/nowhere"]);
    let fault = "--otlp-headers-file: /nowhere: the headers cannot be read";
    assert!(missing[0].starts_with(fault), "{missing:?}");
}

#[test]
fn times_that_bound_a_peer_cannot_be_zero() {
    let zero = |flag: &str| Flags::try_parse_from(["", &format!("--{flag}=0s")]).is_ok();
    for flag in flags().iter().filter_map(|flag| flag.get_long()) {
        let bounds_a_peer = flag.ends_with("-timeout") || flag == "ping-interval";
        let may_be_zero =
            ["offline-wait", "drain-delay", "grace-period", "expect-wait"].contains(&flag);
        assert!(!bounds_a_peer || !zero(flag), "{flag}");
        assert!(!may_be_zero || zero(flag), "{flag}");
    }
}

#[test]
fn a_public_certificate_needs_its_key() {
    let folder = Folder::new();
    let (cert, key) = (folder.path("server.pem"), folder.path("client.key"));
    let cert = format!("--public-tls-cert={}", cert.display());
    let key = format!("--public-tls-key={}", key.display());
    assert_eq!(
        folder.faults(&[&cert]),
        ["--public-tls-cert: its key is missing: give --public-tls-key as well"]
    );
    assert_eq!(
        folder.faults(&[&key]),
        ["--public-tls-key: its certificate is missing: give --public-tls-cert as well"]
    );
    let mismatch = folder.faults(&[&cert, &key]);
    assert!(
        mismatch[0].contains("client.key: the key does not belong"),
        "{mismatch:?}"
    );
}

/// Every setting that names no file, each other than by default.
const FULL: [&str; 61] = [
    "--tunnel-listen=127.0.0.1:1",
    "--public-listen=127.0.0.1:2",
    "--admin-listen=127.0.0.1:3",
    "--admin-host=admin.test",
    "--domain=other.test",
    "--jwks=https://id.test/keys",
    "--jwt-issuer=x",
    "--jwt-audience=y",
    "--jwt-account-claim=a",
    "--jwt-runtime-claim=r",
    "--jwt-leeway=7s",
    "--auth-url=https://id.test/who",
    "--auth-timeout=7s",
    "--auth-concurrency=7",
    "--auth-cache=7s",
    "--auth-outage=7s",
    "--expiry-grace=7s",
    "--on-conflict=reject",
    "--max-handshakes=7",
    "--handshake-queue=7",
    "--max-tunnel-connections-per-address=7",
    "--trusted-proxies=10.0.0.0/8",
    "--proxy-protocol",
    "--via",
    "--cors-origin=https://a.example",
    "--allow-shared-cookies",
    "--first-byte-timeout=7s",
    "--tls-handshake-timeout=7s",
    "--request-head-timeout=7s",
    "--body-idle-timeout=7s",
    "--keep-alive-timeout=7s",
    "--expect-wait=7s",
    "--max-connections=7",
    "--max-connections-per-address=7",
    "--max-head-size=64KiB",
    "--offline-wait=7s",
    "--max-waiting=7",
    "--max-waiting-size=7MiB",
    "--max-buffered-size=7MiB",
    "--ping-interval=7s",
    "--drain-delay=7s",
    "--drain-spread=7s",
    "--grace-period=8s",
    "--max-exchanges=7",
    "--max-open-exchanges=7",
    "--max-exchange-rate=7",
    "--max-open-websockets=7",
    "--limit-exchanges=7",
    "--limit-exchange-rate=7",
    "--limit-upload-rate=7KiB",
    "--limit-download-rate=7KiB",
    "--limit-websockets=7",
    "--limit-head-size=7KiB",
    "--limit-waiting=7",
    "--limit-waiting-size=7MiB",
    "--otlp-endpoint=http://collector:4318",
    "--trace-ratio=0.5",
    "--shards=7",
    "--access-log=off",
    "--log-format=json",
    "--log-level=warn",
];

/// Every setting with a value other than its default.
fn full(folder: &Folder) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.path(name).display());
    let made = certs::generate(&["localhost".to_owned()], 1).unwrap();
    folder.write("ca.pem", &made.ca_pem);
    folder.write("admin.token", "a-token-of-the-operator");
    let mut all = vec![
        file("admin-token-file", "admin.token"),
        file("public-tls-cert", "server.pem"),
        file("public-tls-key", "server.key"),
        file("revocations", "revoked.toml"),
        file("auth-token-file", "platform.token"),
        file("auth-ca-file", "ca.pem"),
        file("client-ca", "ca.pem"),
        file("client-crl", "crl.pem"),
    ];
    all.extend(FULL.map(str::to_owned));
    all
}

fn contents() -> effective::Contents {
    effective::Contents {
        jwks: None,
        revocations: "0 entries".into(),
        client_ca: Some("a".into()),
        client_crl: Some("c".into()),
    }
}

fn checked(folder: &Folder, flags: &[String]) -> Config {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    folder.check(&flags).unwrap()
}

#[test]
fn settings_that_need_a_restart_are_kept_and_reported() {
    let folder = Folder::new();
    let started = checked(&folder, &[]);
    let other = checked(&folder, &full(&folder));
    for (in_force, given) in [(&started, &other), (&other, &started)] {
        let before = in_force.effective(&contents());
        let mut taken = given.clone();
        taken.keep_started(in_force);
        let after = taken.effective(&contents());
        let changed = effective::differences(&before, &after);
        let differences = effective::differences(&before, &given.effective(&contents()));
        let at_once = differences.iter().filter(|it| !it.needs_restart());
        let at_once: Vec<_> = at_once.cloned().collect();
        assert_eq!(changed, at_once);
        let count = differences.iter().filter(|it| it.needs_restart()).count();
        assert!(count > 20, "{count}");
    }
}

#[test]
fn another_query_of_a_url_counts_only_after_a_restart() {
    let folder = Folder::new();
    let with = |query: &str| {
        let keys = format!("--jwks=https://id.test/keys?{query}");
        let auth = format!("--auth-url=https://id.test/auth?{query}");
        let flags = [&keys, &auth, "--jwt-issuer=x", "--jwt-audience=y"];
        let config = folder.check(&flags).unwrap();
        config.effective(&contents())
    };
    let differences = effective::differences(&with("key=s3cr3t-one"), &with("key=s3cr3t-two"));
    let names: Vec<&str> = differences.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["auth-url", "jwks"]);
    for difference in differences {
        assert!(difference.needs_restart(), "{difference}");
        assert!(!difference.to_string().contains("s3cr3t"), "{difference}");
    }
}

#[test]
fn keys_in_another_file_count_at_once() {
    let folder = Folder::new();
    let with = |keys: &str| {
        let keys = format!("--jwks={keys}");
        let flags = [keys.as_str(), "--jwt-issuer=x", "--jwt-audience=y"];
        folder.check(&flags).unwrap()
    };
    let (one, two, url) = (with("/one"), with("/two"), with("https://id.test/keys"));
    let mut taken = two.clone();
    taken.keep_started(&one);
    assert_eq!(taken.credentials(), two.credentials());
    let mut taken = url.clone();
    taken.keep_started(&one);
    assert_eq!(taken.credentials(), one.credentials());
    for (before, after, needs_restart) in [(&one, &two, false), (&one, &url, true)] {
        let (before, after) = (before.effective(&contents()), after.effective(&contents()));
        let differences = effective::differences(&before, &after);
        assert_eq!(differences.len(), 1);
        assert_eq!(
            differences[0].needs_restart(),
            needs_restart,
            "{}",
            differences[0]
        );
    }
}

#[test]
fn a_node_of_several_says_where_etcd_is_and_who_it_is() {
    let folder = Folder::new();
    let alone = folder.faults(&["--node=n1"]);
    assert!(alone[0].contains("without --etcd"), "{alone:?}");
    let unnamed = folder.faults(&["--etcd=http://127.0.0.1:2379"]);
    assert!(unnamed[0].contains("node"), "{unnamed:?}");
    let mixed = ["--etcd=http://a:1,https://b:1", "--node=n1"];
    assert!(folder.faults(&mixed)[0].contains("http"), "{mixed:?}");
    let user = ["--etcd=http://a:1", "--node=n1", "--etcd-user=me"];
    assert!(folder.faults(&user)[0].contains("password"), "{user:?}");
    let config = folder.check(&["--etcd=http://a:1,http://b:1", "--node=n1"]);
    let shared = config.unwrap().shared_directory.unwrap();
    assert_eq!(shared.etcd.members.len(), 2);
    assert!(shared.links.is_none());
    for prefix in ["tunnel/", "/tunnel", "/"] {
        let parsed = prefix.parse::<KeyPrefix>();
        assert!(parsed.is_err(), "{prefix}");
    }
}

#[test]
fn a_node_is_linked_with_a_certificate_of_its_own_name() {
    let folder = Folder::new();
    let authority = certs::NodeAuthority::generate(1).unwrap();
    let (pem, key) = authority.issue(&"n1".parse().unwrap(), 1).unwrap();
    let flag = |name: &str, file: &str, text: &str| {
        format!("--{name}={}", folder.write(file, text).display())
    };
    let certificates = [
        flag("peer-ca", "peer-ca.pem", &authority.pem),
        flag("peer-cert", "peer.pem", &pem),
        flag("peer-key", "peer.key", &key),
    ];
    let check = |node: &str, listen: &str| {
        let node = format!("--node={node}");
        let listen = format!("--peer-listen={listen}");
        let mut flags = vec!["--etcd=http://a:1", &node, &listen];
        flags.extend(certificates.iter().map(String::as_str));
        folder.check(&flags)
    };
    let links = check("n1", "127.0.0.1:7400")
        .unwrap()
        .shared_directory
        .unwrap()
        .links;
    assert_eq!(links.unwrap().advertised, "127.0.0.1:7400");
    let other = check("n2", "127.0.0.1:7400").unwrap_err().to_string();
    assert!(other.contains("that of the node n1"), "{other}");
    let nowhere = check("n1", "0.0.0.0:7400").unwrap_err().to_string();
    assert!(nowhere.contains("--peer-advertise"), "{nowhere}");
    let bare = [
        "--etcd=http://a:1",
        "--node=n1",
        "--peer-listen=127.0.0.1:7400",
    ];
    let lacking = folder.faults(&bare);
    assert_eq!(lacking.len(), 3, "{lacking:?}");
    let listener = folder.faults(&[
        "--etcd=http://a:1",
        "--node=n1",
        "--peer-listen=127.0.0.1:7400",
        &certificates[0],
        &format!("--peer-cert={}", folder.path("server.pem").display()),
        &format!("--peer-key={}", folder.path("server.key").display()),
    ]);
    assert!(listener[0].contains("names no node"), "{listener:?}");
}
