//! Getting out: the tunnel through the proxies that others wrote, with and without a login, by
//! flags and by environment, and past them where they are not wanted.

use std::{net::IpAddr, path::PathBuf};

use e2e::{
    addresses::Addresses,
    ca::Ca,
    client::{Client, ClientOptions, tunnel_client},
    deadline::{SOON, eventually},
    peers::{
        dante::Dante,
        mitmproxy::Mitmproxy,
        squid::{Login, PASSWORD, Squid, SquidOptions, USER},
    },
    platform::PlatformClient,
    program::OutputLine,
    system::{Options, System},
    upstream::Upstream,
};

/// A name that only proxies know.
const HIDDEN: &str = "register.hidden.test";

/// Refusals come quickly, and again: a test waits for one of them.
const REDIAL: [&str; 4] = ["--redial-base", "200ms", "--redial-cap", "400ms"];

/// A system without a client, and its upstream.
async fn waiting() -> (Upstream, System) {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).client_flags(&REDIAL);
    let options = options.tunnel_name(HIDDEN).tunnel_name("localhost");
    (upstream, System::with(options.not_connected()).await)
}

/// A system without a client whose server is not on loopback, since proxies of the environment are never used for
/// loopback; `None` where this machine has no such address.
async fn outside() -> Option<(Addresses, Upstream, System)> {
    let addresses = match Addresses::take(1) {
        Ok(addresses) => addresses,
        Err(why) => {
            eprintln!("skipped: this machine gives no addresses: {why}");
            return None;
        }
    };
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).client_flags(&REDIAL);
    let address = addresses.get(0).to_string();
    let mut options = options.tunnel_name(&address).not_connected();
    options.server.tunnel_listen = Some(addresses.at(0, 0));
    let system = System::with(options).await;
    Some((addresses, upstream, system))
}

/// The options of a system's client, with these flags.
fn with(system: &mut System, flags: &[&str]) -> ClientOptions {
    let mut options = system.client_options("demo-app").clone();
    options.flags.extend(flags.iter().map(ToString::to_string));
    options
}

/// The options of a system's client, with these environment variables.
fn within_environment(system: &mut System, variables: &[(&str, &str)]) -> ClientOptions {
    let mut options = with(system, &[]);
    let variables = variables.iter();
    let owned = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    options.environment.extend(owned);
    options
}

/// Starts a client that must come up, sends a request through its tunnel, and ends it.
async fn assert_up(system: &System, options: &ClientOptions) {
    let client = Client::start(options).await;
    assert_serves(system, &client).await;
}

/// Waits until a client has a session, and sends a request through its tunnel.
async fn assert_serves(system: &System, client: &Client) {
    client.admin().wait_ready(true).await;
    let mut platform = PlatformClient::http1(&system.entry()).await;
    assert_eq!(platform.get("/status/200").await.status, 200);
}

/// Starts a client that must not come up, and say so in one line with all these words.
async fn assert_refused(options: &ClientOptions, words: &[&str]) {
    let client = Client::start(options).await;
    wait_said(&client, 0, words).await;
    assert_eq!(client.admin().status("/readyz").await, 503);
    let log = client.program().log().all();
    let told = log.iter().any(|line| line.text().contains(PASSWORD));
    assert!(!told, "the password is in the log");
}

/// Waits until a client has said all these words in one line, after its first `mark` lines.
async fn wait_said(client: &Client, mark: usize, words: &[&str]) {
    let what = format!("a line with {words:?}");
    let says = |line: &OutputLine| {
        let said = words.iter().all(|word| line.text().contains(word));
        said.then_some(())
    };
    let log = client.program().log();
    log.wait_for_after(mark, &what, SOON, says).await;
}

/// Waits until squid has carried `count` tunnels to the system's server, and no more.
async fn assert_carried(squid: &Squid, server: &str, count: usize) {
    let line = format!("CONNECT {server}");
    let carried = || {
        squid
            .access()
            .iter()
            .filter(|text| text.contains(&line))
            .count()
    };
    let enough = async || (carried() >= count).then_some(());
    eventually(SOON, "squid to have carried a tunnel", enough).await;
    assert_eq!(carried(), count, "{:?}", squid.access());
}

fn server(system: &System) -> String {
    system.server().tunnel_address().to_string()
}

#[tokio::test]
async fn squid_is_passed_as_flag_and_environment_say() {
    let Some((_addresses, _upstream, mut system)) = outside().await else {
        return;
    };
    let squid = Squid::start(&SquidOptions::default()).await;
    let url = squid.url();
    let one = ["--sessions", "1"];
    let mut ways = vec![with(&mut system, &["--proxy", &url])];
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        ways.push(within_environment(&mut system, &[(name, &url)]));
    }
    // A flag says more than the environment.
    let mut both = within_environment(&mut system, &[("HTTPS_PROXY", "http://127.0.0.1:1")]);
    both.flags.extend(["--proxy".to_owned(), url.clone()]);
    ways.push(both);
    for (number, mut options) in ways.into_iter().enumerate() {
        options.flags.extend(one.map(str::to_owned));
        assert_up(&system, &options).await;
        assert_carried(&squid, &server(&system), number + 1).await;
    }
}

#[tokio::test]
async fn no_proxy_leaves_the_proxy_aside() {
    let Some((addresses, _upstream, mut system)) = outside().await else {
        return;
    };
    let squid = Squid::start(&SquidOptions::default()).await;
    let (address, server) = (addresses.get(0).to_string(), server(&system));
    let cases: [(&str, bool); 9] = [
        (&address, false),
        ("10.0.0.0/8, 198.18.0.0/15", false),
        (&server, false),
        ("*", false),
        ("", true),
        (&format!("{address}:1"), true),
        ("10.0.0.0/8,::/0", true),
        ("example.com,.test", true),
        ("198.18.0.0/33", true),
    ];
    let mut carried = 0;
    for (exceptions, is_carried) in cases {
        let proxy = ("HTTPS_PROXY", &*squid.url());
        let mut options = within_environment(&mut system, &[proxy, ("NO_PROXY", exceptions)]);
        options.flags.extend(["--sessions", "1"].map(str::to_owned));
        assert_up(&system, &options).await;
        carried += usize::from(is_carried);
        assert_carried(&squid, &server, carried).await;
    }
}

/// This machine's loopback is nowhere where a proxy of the environment could be of use; one that is
/// named for this client alone is meant.
#[tokio::test]
async fn loopback_is_reached_by_no_proxy_but_one_that_is_named() {
    let (_upstream, mut system) = waiting().await;
    let squid = Squid::start(&SquidOptions::default()).await;
    let url = squid.url();
    let options = within_environment(&mut system, &[("HTTPS_PROXY", &url)]);
    assert_up(&system, &options).await;
    for (exceptions, is_carried) in [("localhost", false), (".example.com", true)] {
        let flags = ["--proxy", &url, "--no-proxy", exceptions];
        let mut options = with(&mut system, &flags);
        options.server_name = Some("localhost".to_owned());
        assert_up(&system, &options).await;
        if is_carried {
            squid.wait_access("CONNECT localhost").await;
        } else {
            assert!(squid.access().is_empty(), "{:?}", squid.access());
        }
    }
}

#[tokio::test]
async fn squid_with_a_login_lets_the_right_one_through_and_its_refusals_are_shown() {
    let Some((_addresses, _upstream, mut system)) = outside().await else {
        return;
    };
    for (login, scheme) in [(Login::Basic, "Basic"), (Login::Digest, "Digest")] {
        let squid = Squid::start(&SquidOptions {
            login,
            ..SquidOptions::default()
        })
        .await;
        let (bare, known) = (squid.url(), squid.login_url());
        let options = within_environment(&mut system, &[("HTTPS_PROXY", &known)]);
        assert_up(&system, &options).await;
        squid.wait_access(&format!(" {USER} ")).await;

        let file = auth_file(&system, PASSWORD);
        let flags = ["--proxy", &bare, "--proxy-auth-file", &file];
        let options = with(&mut system, &flags);
        assert_up(&system, &options).await;

        let options = with(&mut system, &["--proxy", &bare]);
        assert_refused(&options, &["407", scheme]).await;
        let file = auth_file(&system, "not the password");
        let flags = ["--proxy", &bare, "--proxy-auth-file", &file];
        let options = with(&mut system, &flags);
        assert_refused(&options, &["407", "Proxy Authentication Required"]).await;
    }
}

/// Other users of a machine see the flags of its programs.
#[tokio::test]
async fn a_password_is_no_flag() {
    let url = format!("http://{USER}:secret-word@127.0.0.1:1");
    let ended = tunnel_client(&["run", "--proxy", &url]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("--proxy-auth-file"), "{ended:?}");
    assert!(!ended.err.contains("secret-word"), "{ended:?}");
}

fn auth_file(system: &System, password: &str) -> String {
    let path: PathBuf = system.directory().join("proxy-login");
    std::fs::write(&path, format!("{USER}:{password}\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_proxy_that_lets_nobody_through_is_quoted() {
    let (_upstream, mut system) = waiting().await;
    let squid = Squid::start(&SquidOptions {
        denies: true,
        ..SquidOptions::default()
    })
    .await;
    let options = with(&mut system, &["--proxy", &squid.url()]);
    assert_refused(&options, &["403", "Forbidden"]).await;
}

#[tokio::test]
async fn a_proxy_over_tls_is_trusted_by_its_own_authority() {
    let (_upstream, mut system) = waiting().await;
    let directory = tempfile::tempdir().unwrap();
    let other = Ca::new(directory.path());
    let squid = Squid::start(&SquidOptions {
        login: Login::Basic,
        certificate: Some(other.issue("proxy", &["localhost"])),
        ..SquidOptions::default()
    })
    .await;
    let authority = other.file().to_str().unwrap().to_owned();
    let (proxy, login) = (squid.url(), auth_file(&system, PASSWORD));
    let by = ["--proxy", &proxy, "--proxy-auth-file", &login];
    let trusting = [&by[..], &["--proxy-ca-file", &authority]].concat();
    let options = with(&mut system, &trusting);
    assert_up(&system, &options).await;
    squid
        .wait_access(&format!("CONNECT {}", server(&system)))
        .await;
    // The server's authority is not the proxy's.
    let options = with(&mut system, &by);
    assert_refused(&options, &["certificate", "proxy"]).await;
}

#[tokio::test]
async fn what_only_the_proxy_can_look_up_is_looked_up_there() {
    let (_upstream, mut system) = waiting().await;
    let hosts = vec![(HIDDEN.to_owned(), IpAddr::from([127, 0, 0, 1]))];
    let squid = Squid::start(&SquidOptions {
        hosts: hosts.clone(),
        ..SquidOptions::default()
    })
    .await;
    let hidden = |flags: &[&str], system: &mut System| {
        let mut options = with(system, flags);
        options.server_name = Some(HIDDEN.to_owned());
        options
    };
    let options = hidden(&["--proxy", &squid.url()], &mut system);
    assert_up(&system, &options).await;
    squid.wait_access(&format!("CONNECT {HIDDEN}")).await;
    assert_refused(&hidden(&[], &mut system), &[HIDDEN]).await;

    let dante = match Dante::start(&hosts).await {
        Ok(dante) => dante,
        Err(why) => return eprintln!("skipped for SOCKS: {why}"),
    };
    let login = auth_file(&system, PASSWORD);
    let by = |scheme: &str| format!("{scheme}://{}", dante.address());
    let flags = ["--proxy", &by("socks5h"), "--proxy-auth-file", &login];
    let options = hidden(&flags, &mut system);
    assert_up(&system, &options).await;
    // `socks5` looks names up here, where nobody knows this one.
    let flags = ["--proxy", &by("socks5"), "--proxy-auth-file", &login];
    let options = hidden(&flags, &mut system);
    assert_refused(&options, &[HIDDEN]).await;
}

#[tokio::test]
async fn dante_lets_who_knows_the_password_through() {
    let Some((_addresses, _upstream, mut system)) = outside().await else {
        return;
    };
    let dante = match Dante::start(&[]).await {
        Ok(dante) => dante,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for scheme in ["socks5", "socks5h"] {
        let mark = dante.program().log().len();
        let login = dante.login_url(scheme);
        let options = within_environment(&mut system, &[("ALL_PROXY", &login)]);
        assert_up(&system, &options).await;
        let carried = |line: &OutputLine| {
            let text = line.text();
            (text.contains(USER) && text.contains("tcp/connect")).then_some(())
        };
        let log = dante.program().log();
        let what = "dante to carry a tunnel";
        log.wait_for_after(mark, what, SOON, carried).await;

        let bare = format!("{scheme}://{}", dante.address());
        let by = ["--proxy", &bare, "--proxy-auth-file"];
        let file = auth_file(&system, PASSWORD);
        let options = with(&mut system, &[&by[..], &[&file]].concat());
        assert_up(&system, &options).await;
        auth_file(&system, "not the password");
        assert_refused(&options, &["proxy", "password"]).await;
        let options = with(&mut system, &by[..2]);
        assert_refused(&options, &["proxy", "login"]).await;
    }
}

#[tokio::test]
async fn a_proxy_that_opens_tls_is_named_and_passed_with_its_authority() {
    let (_upstream, mut system) = waiting().await;
    let inspection = Mitmproxy::start(system.ca()).await;
    let proxy = inspection.url();
    let options = with(&mut system, &["--proxy", &proxy]);
    assert_refused(&options, &["certificate"]).await;
    // With its authority everything goes through it, opened and closed again.
    let mut options = with(&mut system, &["--proxy", &proxy]);
    options.ca = inspection.ca_file();
    assert_up(&system, &options).await;
    inspection.program().wait_for_line("/connect", SOON).await;
}

/// The server's certificate is signed by another authority from one day to the next. It is trusted as
/// soon as its file is in the folder, by the client that runs already.
#[tokio::test]
async fn an_authority_that_appears_in_the_folder_is_trusted_by_the_next_dial() {
    let (_upstream, mut system) = waiting().await;
    let squid = Squid::start(&SquidOptions::default()).await;
    let folder = system.directory().join("authorities");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(system.ca().file(), folder.join("first.pem")).unwrap();
    let flags = [
        "--proxy",
        &squid.url(),
        "--ca-dir",
        folder.to_str().unwrap(),
    ];
    let mut options = with(&mut system, &flags);
    // The folder alone says whom to trust.
    options.ca = PathBuf::new();
    let client = Client::start(&options).await;
    assert_serves(&system, &client).await;

    system.kill_server();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Ca::named(elsewhere.path(), "e2e authority of the next day");
    let next = other.issue("next", &["localhost", "127.0.0.1"]);
    let shown = system.files().tunnel_certificate.clone();
    std::fs::copy(next.certificate, shown.certificate).unwrap();
    std::fs::copy(next.key, shown.key).unwrap();
    let mark = client.program().log().len();
    system.start_server().await;
    wait_said(&client, mark, &["certificate"]).await;
    assert_eq!(client.admin().status("/readyz").await, 503);

    std::fs::copy(other.file(), folder.join("second.pem")).unwrap();
    assert_serves(&system, &client).await;
    // A tunnel is in squid's log when it has ended.
    let carried = squid.access().len();
    drop(client);
    let ended = async || (squid.access().len() > carried).then_some(());
    eventually(SOON, "squid to have carried what was trusted", ended).await;
}
