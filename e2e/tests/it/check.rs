//! `tunnel-client check` on networks that are broken in every way: its verdict is what was broken.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use e2e::{
    addresses::Addresses,
    ca::Ca,
    client::ClientOptions,
    names::{NameServer, Reply, looked_up_at},
    network::Network,
    peers::{
        at_clock,
        dante::Dante,
        mitmproxy::Mitmproxy,
        nginx::{Nginx, Upgrades},
        squid::{Login, PASSWORD, Squid, SquidOptions, USER},
    },
    scripted::ScriptedUpstream,
    system::{Options, System},
    upstream::Upstream,
};
use testkit::closed_port::closed_port;

/// What the client is told of time: long for a busy machine, short for what never comes.
const LIMIT: [&str; 2] = ["--dial-timeout", "3s"];

/// The names of a certificate that many share; the server's is the last of them.
const SHARED: [&str; 12] = [
    "a.test",
    "b.test",
    "c.test",
    "d.test",
    "e.test",
    "f.test",
    "g.test",
    "h.test",
    "i.test",
    "j.test",
    "k.test",
    "127.0.0.1",
];

async fn waiting() -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).tunnel_name("localhost");
    let options = options.not_connected().client_flags(&LIMIT);
    (upstream, System::with(options).await)
}

fn with(system: &mut System, flags: &[&str]) -> ClientOptions {
    let mut options = system.client_options("demo-app").clone();
    options.flags.extend(flags.iter().map(ToString::to_string));
    options
}

/// The options of a system's client, with another program in place of the server.
fn instead(system: &mut System, server: SocketAddr) -> ClientOptions {
    ClientOptions {
        server,
        ..system.client_options("demo-app").clone()
    }
}

/// A file with the login that proxies let through, or with another password.
fn login_file(system: &System, password: &str) -> String {
    let path = system.directory().join("proxy-login");
    std::fs::write(&path, format!("{USER}:{password}\n")).unwrap();
    text(&path).to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn a_way_on_which_nothing_is_wrong_holds_and_leaves_the_runtime_to_who_has_it() {
    let (_upstream, mut system) = waiting().await;
    with(&mut system, &[]).check().await.assert_held();
    system.start_client("demo-app").await;
    let checked = with(&mut system, &[]).check().await;
    checked.assert_held();
    let steps = [
        "config",
        "token",
        "tcp",
        "tls",
        "upgrade",
        "authentication",
        "echo",
        "upstream",
    ];
    for step in steps {
        assert_eq!(checked.result(step), Some("held"), "{step}: {checked}");
    }
    assert_eq!(system.client().admin().status("/readyz").await, 200);
    let reconnects = system.client().program().log().all();
    let disturbed = reconnects
        .iter()
        .any(|line| line.text().contains("superseded"));
    assert!(!disturbed, "{reconnects:?}");
}

#[tokio::test]
async fn names_that_are_not_found_or_not_answered() {
    let (_upstream, mut system) = waiting().await;
    let addresses = match Addresses::take(1) {
        Ok(addresses) => addresses,
        Err(why) => return eprintln!("skipped: this machine gives no addresses: {why}"),
    };
    let names = NameServer::start_at(addresses.at(0, 53)).await;
    let before = looked_up_at(addresses.get(0), system.directory());
    let mut options = with(&mut system, &[]);
    options.server_name = Some("register.tunnel.test".to_owned());
    let checked = options.check_by(&before).await;
    checked.assert_failed("dns", "dns_failure");
    names.set_reply("register.tunnel.test", Reply::Silence);
    let checked = options.check_by(&before).await;
    // The system gives up by itself, and says no more than that it has.
    let verdict = checked.verdict();
    assert!(
        matches!(verdict, Some("dns_timeout" | "dns_failure")),
        "{checked}"
    );
    names.set("register.tunnel.test", &[IpAddr::from([127, 0, 0, 1])], 1);
    // The certificate is for other names.
    let checked = options.check_by(&before).await;
    checked.assert_failed("tls", "tls_name_mismatch");
}

#[tokio::test]
async fn a_port_that_refuses_and_packets_that_are_dropped() {
    let (_upstream, mut system) = waiting().await;
    let checked = instead(&mut system, closed_port()).check().await;
    checked.assert_failed("tcp", "connect_refused");

    let network = match Network::make() {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: this machine makes no network of its own: {why}"),
    };
    let upstream = Upstream::start_at(network.beside()).await;
    let options = Options::to(&upstream.url()).client_flags(&LIMIT);
    let mut options = options
        .tunnel_name(&network.server_address().to_string())
        .not_connected();
    options.server.tunnel_listen = Some((network.server_address(), 0).into());
    let mut system = System::with(options).await;
    let options = with(&mut system, &[]);
    options.check_by(&network.inside()).await.assert_held();
    network.drop_packets(true);
    let checked = options.check_by(&network.inside()).await;
    checked.assert_failed("tcp", "connect_timeout");
}

#[tokio::test]
async fn proxies_that_want_a_login_refuse_or_are_none() {
    let (_upstream, mut system) = waiting().await;
    for login in [Login::Basic, Login::Digest] {
        let squid = Squid::start(&SquidOptions {
            login,
            ..SquidOptions::default()
        })
        .await;
        let login = login_file(&system, PASSWORD);
        let by = ["--proxy", &squid.url(), "--proxy-auth-file", &login];
        let through = with(&mut system, &by);
        through.check().await.assert_held();
        login_file(&system, "not the password");
        for through in [through, with(&mut system, &by[..2])] {
            let checked = through.check().await;
            checked.assert_failed("proxy", "proxy_login");
            assert!(checked.to_string().contains("407"), "{checked}");
        }
    }
    let denying = Squid::start(&SquidOptions {
        denies: true,
        ..SquidOptions::default()
    })
    .await;
    let checked = with(&mut system, &["--proxy", &denying.url()])
        .check()
        .await;
    checked.assert_failed("proxy", "proxy_refused");

    let nobody = format!("http://{}", closed_port());
    let checked = with(&mut system, &["--proxy", &nobody]).check().await;
    checked.assert_failed("proxy_tcp", "proxy_connect_refused");

    let other = ScriptedUpstream::start(|mut connection| async move {
        connection.send("SSH-2.0-other\r\n").await;
        connection.ended(Duration::from_secs(60)).await;
    })
    .await;
    let checked = with(&mut system, &["--proxy", &other.url()]).check().await;
    checked.assert_failed("proxy", "not_a_proxy");

    // squid itself can be reached, and the server cannot be from there.
    let squid = Squid::start(&SquidOptions::default()).await;
    let mut options = instead(&mut system, closed_port());
    options.flags.extend(["--proxy".to_owned(), squid.url()]);
    options
        .check()
        .await
        .assert_failed("proxy", "proxy_refused");
}

#[tokio::test]
async fn a_proxy_over_tls_that_is_not_trusted() {
    let (_upstream, mut system) = waiting().await;
    let directory = tempfile::tempdir().unwrap();
    let other = Ca::new(directory.path());
    let squid = Squid::start(&SquidOptions {
        certificate: Some(other.issue("proxy", &["localhost"])),
        ..SquidOptions::default()
    })
    .await;
    let url = squid.url();
    let checked = with(&mut system, &["--proxy", &url]).check().await;
    checked.assert_failed("proxy_tls", "proxy_tls");
    let authority = other.file();
    let flags = ["--proxy", &url, "--proxy-ca-file", text(&authority)];
    with(&mut system, &flags).check().await.assert_held();
}

#[tokio::test]
async fn a_socks_server_that_wants_a_password() {
    let (_upstream, mut system) = waiting().await;
    let dante = match Dante::start(&[]).await {
        Ok(dante) => dante,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for scheme in ["socks5", "socks5h"] {
        let login = login_file(&system, PASSWORD);
        let bare = format!("{scheme}://{}", dante.address());
        let by = ["--proxy", &bare, "--proxy-auth-file", &login];
        let through = with(&mut system, &by);
        through.check().await.assert_held();
        login_file(&system, "not the password");
        for through in [through, with(&mut system, &by[..2])] {
            let checked = through.check().await;
            checked.assert_failed("proxy", "proxy_login");
        }
    }
}

#[tokio::test]
async fn tls_inspection_is_named_until_its_authority_is_trusted() {
    let (_upstream, mut system) = waiting().await;
    let inspection = Mitmproxy::start(system.ca()).await;
    let mut options = with(&mut system, &["--proxy", &inspection.url()]);
    let checked = options.check().await;
    checked.assert_failed("tls", "tls_inspection");
    assert!(checked.to_string().contains("mitmproxy"), "{checked}");
    options.ca = inspection.ca_file();
    options.check().await.assert_held();
}

#[tokio::test]
async fn captive_portals() {
    let (_upstream, mut system) = waiting().await;
    let plain = Nginx::portal(None).await;
    let checked = instead(&mut system, plain.address()).check().await;
    checked.assert_failed("tls", "captive_portal");

    let directory = tempfile::tempdir().unwrap();
    let other = Ca::named(directory.path(), "the portal's authority");
    let certificate = other.issue("portal", &["127.0.0.1"]);
    let portal = Nginx::portal(Some(&certificate)).await;
    let mut options = instead(&mut system, portal.address());
    let checked = options.check().await;
    checked.assert_failed("tls", "captive_portal");
    assert!(
        checked.to_string().contains("login.portal.test"),
        "{checked}"
    );
    // Who is trusted is the host that was named, and that host is no tunnel server.
    options.ca = other.file();
    let checked = options.check().await;
    checked.assert_failed("upgrade", "not_a_tunnel_server");
    assert!(
        checked.to_string().contains("login.portal.test"),
        "{checked}"
    );
}

/// The address that platform clients use is the one that people know.
#[tokio::test]
async fn the_address_of_the_runtime_instead_of_the_server() {
    for (has_tls, step) in [(true, "upgrade"), (false, "tls")] {
        let upstream = Upstream::start().await;
        // With the usual time to dial: the server waits a while for a runtime to come.
        let mut options = Options::to(&upstream.url()).not_connected();
        options.server.public_tls = has_tls;
        let mut system = System::with(options).await;
        let public = system.server().public_address();
        let mut options = with(&mut system, &["--connect-to", &public.to_string()]);
        options.server = public;
        options.server_name = Some("demo-app.tunnels.localhost".to_owned());
        let checked = options.check().await;
        checked.assert_failed(step, "public_listener");
        assert!(checked.to_string().contains("--tunnel-listen"), "{checked}");
    }
}

/// It says no to every request, which is not for want of an Upgrade.
#[tokio::test]
async fn a_gateway_that_wants_a_certificate_of_the_client() {
    let (_upstream, mut system) = waiting().await;
    let certificate = system.ca().issue("gateway", &["127.0.0.1"]);
    let gateway = Nginx::wanting_certificates(&certificate, &system.ca().file()).await;
    let checked = instead(&mut system, gateway.address()).check().await;
    checked.assert_failed("upgrade", "refused_on_the_way");
    for said in ["No required SSL certificate was sent", "--client-cert"] {
        assert!(checked.to_string().contains(said), "{checked}");
    }
}

#[tokio::test]
async fn a_load_balancer_that_strips_upgrade() {
    let (_upstream, mut system) = waiting().await;
    let certificate = system.ca().issue("balancer", &["127.0.0.1"]);
    let server = system.server().tunnel_address();
    let stripping = Nginx::balancer(server, &certificate, Upgrades::Strips).await;
    let checked = instead(&mut system, stripping.address()).check().await;
    checked.assert_failed("upgrade", "upgrade_stripped");
    let passing = Nginx::balancer(server, &certificate, Upgrades::Passes).await;
    instead(&mut system, passing.address())
        .check()
        .await
        .assert_held();
    // And one behind which nobody is.
    let away = Nginx::balancer(closed_port(), &certificate, Upgrades::Passes).await;
    let checked = instead(&mut system, away.address()).check().await;
    checked.assert_failed("upgrade", "server_away");
}

/// Some hop always cuts what is silent for too long; pings must come before that.
#[tokio::test]
async fn the_idle_limit_of_a_load_balancer_is_found() {
    let (_upstream, mut system) = waiting().await;
    let certificate = system.ca().issue("balancer", &["127.0.0.1"]);
    let server = system.server().tunnel_address();
    let upgrades = Upgrades::PassesWhileNotIdleFor(3);
    let balancer = Nginx::balancer(server, &certificate, upgrades).await;
    let mut options = instead(&mut system, balancer.address());
    let probe = ["--idle-probe", "--idle-probe-max", "8s"];
    options.flags.extend(probe.map(str::to_owned));
    let checked = options.check().await;
    let idle = &checked.report["idle"];
    let limit = |index: usize| idle["limit_ms"][index].as_f64().unwrap_or_default();
    let advised = idle["advised_ping_interval_ms"].as_f64().unwrap();
    assert!(limit(1) >= 2_000.0 && limit(1) <= 8_000.0, "{checked}");
    assert!(advised > 0.0 && advised < limit(1), "{checked}");
}

#[tokio::test]
async fn certificates_that_are_wrong() {
    let (_upstream, mut system) = waiting().await;
    let server = system.server().tunnel_address();
    let directory = tempfile::tempdir().unwrap();
    let other = Ca::named(directory.path(), "the network's authority");
    let folder = tempfile::tempdir().unwrap();
    let renewed = Ca::new(folder.path());
    let cases = [
        (
            system.ca().issue_expired("expired", &["127.0.0.1"]),
            "tls_expired",
        ),
        (
            system.ca().issue("elsewhere", &["elsewhere.test"]),
            "tls_name_mismatch",
        ),
        (other.issue("unknown", &["127.0.0.1"]), "tls_inspection"),
        // As those are that one gateway shows for all that it opens.
        (other.issue("shared", &SHARED), "tls_inspection"),
        // An authority that has the name of the trusted one, and another key.
        (renewed.issue("renewed", &["127.0.0.1"]), "tls_ca_replaced"),
    ];
    for (certificate, verdict) in cases {
        let balancer = Nginx::balancer(server, &certificate, Upgrades::Passes).await;
        let checked = instead(&mut system, balancer.address()).check().await;
        checked.assert_failed("tls", verdict);
    }
}

#[tokio::test]
async fn tokens_that_are_missing_unknown_revoked_or_expired() {
    let (_upstream, mut system) = waiting().await;
    let mut options = with(&mut system, &[]);
    let good = options.token.clone();
    options.token = system.directory().join("nowhere");
    options
        .check()
        .await
        .assert_failed("token", "token_file_missing");

    let write = |system: &System, token: &str| -> PathBuf {
        let path = system.directory().join("another.token");
        std::fs::write(&path, token).unwrap();
        path
    };
    options.token = write(&system, "");
    options
        .check()
        .await
        .assert_failed("token", "token_file_empty");
    let token = std::fs::read_to_string(&good).unwrap();
    let token = token.trim();
    let last = if token.ends_with('a') { 'b' } else { 'a' };
    let other = format!("{}{last}", &token[..token.len() - 1]);
    options.token = write(&system, &other);
    let checked = options.check().await;
    checked.assert_failed("authentication", "token_unknown");
    assert!(!checked.to_string().contains(&other), "{checked}");

    let hour_ago = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        - 3600;
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let claims = format!(r#"{{"sub":"demo-app","exp":{hour_ago}}}"#);
    let header = part(r#"{"alg":"RS256"}"#);
    let expired = format!("{header}.{}.{}", part(&claims), part("signed"));
    options.token = write(&system, &expired);
    options
        .check()
        .await
        .assert_failed("token", "token_expired");

    options.token = good;
    options.check().await.assert_held();
    system.files().revoke_token("demo", "app", None);
    let refused = async || {
        let checked = options.check().await;
        (checked.failed() == Some("authentication")).then_some(checked)
    };
    let checked = e2e::deadline::eventually(e2e::deadline::SOON, "the revocation", refused).await;
    let verdict = checked.verdict();
    assert!(
        matches!(verdict, Some("token_unknown" | "credential_revoked")),
        "{checked}"
    );
}

#[tokio::test]
async fn a_clock_that_is_off() {
    let (_upstream, mut system) = waiting().await;
    for offset in ["-3d", "+3d"] {
        let checked = with(&mut system, &[]).check_by(&at_clock(offset)).await;
        assert_eq!(checked.verdict(), Some("clock_off"), "{checked}");
    }
    // So far that no certificate is good, which is not the certificate's fault.
    let certificate = system.ca().issue_young("young", &["127.0.0.1"]);
    let server = system.server().tunnel_address();
    let balancer = Nginx::balancer(server, &certificate, Upgrades::Passes).await;
    let options = instead(&mut system, balancer.address());
    options.check().await.assert_held();
    let checked = options.check_by(&at_clock("-15y")).await;
    checked.assert_failed("tls", "clock_off");
}

#[tokio::test]
async fn upstreams_that_are_down() {
    let (upstream, mut system) = waiting().await;
    drop(upstream);
    let checked = with(&mut system, &[]).check().await;
    checked.assert_failed("upstream", "upstream_refused");
    assert_eq!(checked.result("echo"), Some("held"), "{checked}");
}

#[tokio::test]
async fn upstreams_of_routes_that_are_down_in_their_own_ways() {
    let directory = tempfile::tempdir().unwrap();
    let ca = Ca::new(directory.path());
    let good = Upstream::start().await;
    let secure = Upstream::start_tls(&ca.issue("secure", &["elsewhere.test"])).await;
    let silent = ScriptedUpstream::silent().await;
    let http1 =
        ScriptedUpstream::answering("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    let refusing = format!("http://{}", closed_port());
    let authority = format!("tls = {{ ca_file = \"{}\" }}", ca.file().display());
    let health = "health = { path = \"/status/503\" }";
    let unanswered = "health = { path = \"/\", timeout = \"1s\" }";
    let routes = [
        ("good", good.url(), "", None),
        ("refusing", refusing, "", Some("upstream_refused")),
        (
            "nameless",
            "http://nowhere.invalid".to_owned(),
            "",
            Some("upstream_dns_failure"),
        ),
        (
            "other",
            secure.url(),
            &authority,
            Some("upstream_certificate"),
        ),
        ("unknown", secure.url(), "", Some("upstream_certificate")),
        (
            "garbled",
            good.url().replace("http", "https"),
            "",
            Some("upstream_tls"),
        ),
        (
            "tls",
            secure.url().replace("https", "http"),
            "",
            Some("upstream_protocol"),
        ),
        (
            "http1",
            http1.url().replace("http", "h2c"),
            "",
            Some("upstream_protocol"),
        ),
        ("sick", good.url(), health, Some("upstream_unhealthy")),
        (
            "silent",
            silent.url(),
            unanswered,
            Some("upstream_unhealthy"),
        ),
    ];
    let table = routes.iter().map(|(name, url, more, _)| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}/*\"\nupstream = \"{url}\"\n{more}\n"
        )
    });
    let options = Options::to("").client_file(&table.collect::<String>());
    let mut system = System::with(options.not_connected().client_flags(&LIMIT)).await;
    let checked = with(&mut system, &[]).check().await;
    assert_eq!(checked.result("echo"), Some("held"), "{checked}");
    assert_eq!(checked.ended.code, Some(1), "{checked}");
    for (name, _, _, verdict) in &routes {
        assert_eq!(checked.upstream(name), *verdict, "{name}: {checked}");
    }
}

/// What a person reads has a line for each step, and what to do at its end.
#[tokio::test]
async fn a_person_is_told_step_by_step() {
    let (_upstream, mut system) = waiting().await;
    let options = with(&mut system, &[]);
    let said = options.check_for_people().await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<_> = said.out.lines().collect();
    for step in [
        "config", "token", "tcp", "tls", "upgrade", "echo", "upstream",
    ] {
        let told = lines.iter().any(|line| line.contains(step));
        assert!(told, "{step}: {said:?}");
    }
    let inspection = Mitmproxy::start(system.ca()).await;
    let options = with(&mut system, &["--proxy", &inspection.url()]);
    let said = options.check_for_people().await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let said = said.out.to_lowercase();
    let told = ["inspect", "mitmproxy", "--ca-file"];
    let missing: Vec<_> = told
        .iter()
        .filter(|words| !said.contains(**words))
        .collect();
    assert!(missing.is_empty(), "{missing:?}: {said}");
}

#[tokio::test]
async fn a_configuration_that_is_wrong() {
    let (_upstream, mut system) = waiting().await;
    let checked = with(&mut system, &["--ca-file", "nowhere.pem"])
        .check()
        .await;
    let verdict = checked.verdict();
    assert!(
        matches!(verdict, Some("trust_unusable" | "config_invalid")),
        "{checked}"
    );
}
