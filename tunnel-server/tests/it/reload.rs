//! Files that change while the server runs: what is new counts at once, what is bad counts for nothing,
//! and no stream is dropped. The program as a process, its files edited as a person or a platform
//! would.

use std::{fs, os::unix::fs::symlink, process::Command, time::Duration};

use rustls_pki_types::CertificateDer;
use serde_json::Value;
use testkit::{
    deadline::{SOON, eventually},
    http1::RawConnection,
    tunnel::client::FakeClient,
};
use tokio::{task::spawn_blocking, time::Instant};
use tunnel_ops::tls_files::Roots;
use tunnel_proto::{close::CloseReason, session::SessionEnd};
use tunnel_server::certs;

use crate::{
    authority::{Authority, that_ran_out},
    jwt_keys::Issuer,
    program::Folder,
    rig::{ask_admin, connect},
    serving::{Files, OpenStream, SUCCEEDED, Serving, VERSION},
};

const PROD: &str = "acme-prod";
const DEV: &str = "globex-dev";

/// Within this time an edit is to count, for whoever is connected too.
const PROMISED: Duration = Duration::from_secs(1);

/// Checks that the session is cut because its credential is good no more, within the time promised.
async fn cut(client: &mut FakeClient, edited: Instant) {
    let end = client.ended().await;
    let took = edited.elapsed();
    assert!(
        matches!(
            end,
            // What is only gone, and not taken back by name, may be a slip.
            SessionEnd::ClosedByPeer(CloseReason::Revoked | CloseReason::Disconnected)
        ),
        "{end}"
    );
    assert!(took < PROMISED, "{took:?}");
}

#[tokio::test]
async fn a_runtime_added_by_hand_is_good_within_a_second_and_cut_within_one_when_it_goes() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("").await;
    let (_prod, mut feeds) = serving.client(token.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    let before = serving.folder.read("runtimes.toml");
    assert_eq!(serving.status(DEV, "/now").await, 404);

    let edited = Instant::now();
    let token = serving.add("globex", "dev");
    let (mut dev, _feeds) = serving.client(token.expose()).await;
    let took = edited.elapsed();
    assert!(took < PROMISED, "{took:?}");
    assert_eq!(serving.status(DEV, "/now").await, 200);

    let edited = Instant::now();
    serving.folder.write("runtimes.toml", &before);
    cut(&mut dev, edited).await;
    assert_eq!(
        serving.refusal(token.expose()).await.reason,
        "token_refused"
    );
    stream.goes_on().await;
    serving.metric_becomes(VERSION, 3.0).await;
    serving.stop().await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_last_good_one_until_it_is_mended() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("").await;
    let (_prod, mut feeds) = serving.client(token.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    let good = serving.folder.read("runtimes.toml");
    assert_eq!(serving.metric(SUCCEEDED).await, 1.0);
    for (file, text, fault) in [
        (
            "runtimes.toml",
            "# a slip\n[[runtime]]\naccount = \"acme\"\nname = \"Prod\"\n".to_owned(),
            "runtimes.toml:4:8: name: `Prod` is no name",
        ),
        (
            "runtimes.toml",
            "[[runtime]\n".to_owned(),
            "runtimes.toml:1:11: ",
        ),
        (
            "server.toml",
            format!(
                "grace_perid = \"3s\"\n{}",
                serving.folder.read("server.toml")
            ),
            "server.toml:1:1: unknown key `grace_perid`, did you mean `grace_period`?",
        ),
    ] {
        let version = serving.metric(VERSION).await;
        let before = serving.folder.read(file);
        serving.folder.write(file, &text);
        serving.metric_becomes(SUCCEEDED, 0.0).await;
        let is_told = |line: &Value| {
            let told = line["fault"].as_str();
            told.is_some_and(|told| told.starts_with(fault))
        };
        let line = serving.logged(fault, is_told).await;
        assert_eq!(line["level"], "ERROR");
        assert_eq!(serving.metric(VERSION).await, version);
        assert_eq!(serving.status(PROD, "/now").await, 200);
        assert_eq!(serving.dial(token.expose()).await.status, 101);
        stream.goes_on().await;
        serving.folder.write(file, &before);
        serving.metric_becomes(SUCCEEDED, 1.0).await;
        serving.metric_becomes(VERSION, version + 1.0).await;
    }
    assert_eq!(serving.folder.read("runtimes.toml"), good);
    stream.goes_on().await;
    serving.stop().await;
}

#[tokio::test]
async fn a_configuration_counts_wholly_or_not_at_all() {
    let files = Files::new();
    files.add("acme", "prod");
    let issuer = Issuer::new("k1");
    files.folder.write("keys.json", &Issuer::keys(&[&issuer]));
    files.folder.write("revoked.toml", "");
    let authority = Authority::new();
    files.folder.write("ca.pem", &authority.pem());
    files.folder.write("crl.pem", &authority.revoking(&[]));
    files.folder.write("admin.token", "a-token-of-the-operator");
    let settings = "jwks = \"keys.json\"\njwt_issuer = \"https://id.example\"\njwt_audience = \"tunnel\"\n\
                    revocations = \"revoked.toml\"\nclient_ca = \"ca.pem\"\nclient_crl = \"crl.pem\"\n\
                    admin_token_file = \"admin.token\"\n";
    let serving = files.serve(settings).await;
    for (number, (file, fault)) in [
        ("keys.json", "keys.json: is not a JWK set"),
        ("revoked.toml", "revoked.toml:1:5: "),
        ("ca.pem", "ca.pem: holds no certificate"),
        ("crl.pem", "crl.pem: holds no revocation list"),
        ("admin.token", "admin.token: holds no usable token"),
        ("server.key", "server.key: holds no usable private key"),
    ]
    .into_iter()
    .enumerate()
    {
        let good = serving.folder.read(file);
        serving.folder.write(file, "not good");
        serving.metric_becomes(SUCCEEDED, 0.0).await;
        let is_told = |line: &Value| {
            let told = line["fault"].as_str();
            told.is_some_and(|told| told.contains(fault))
        };
        serving.logged(fault, is_told).await;
        // Good in itself, but it comes with what is not.
        let series = "tunnel_server_config_reloads_total{result=\"refused\"}";
        let refused = serving.metric(series).await;
        let runtime = format!("new-{number}");
        let token = serving.add("acme", &runtime);
        serving.metric_becomes(series, refused + 1.0).await;
        let label = format!("acme-{runtime}");
        assert_eq!(
            serving.refusal(token.expose()).await.reason,
            "token_refused"
        );
        assert_eq!(serving.status(&label, "/").await, 404);
        serving.folder.write(file, &good);
        serving.metric_becomes(SUCCEEDED, 1.0).await;
        assert_eq!(serving.dial(token.expose()).await.status, 101);
        assert_eq!(serving.status(&label, "/").await, 503);
    }
    serving.stop().await;
}

/// A revocation only takes away: it does not wait for the other files.
#[tokio::test]
async fn a_revocation_counts_whatever_is_wrong_with_other_files() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let other = files.add("globex", "dev");
    files
        .folder
        .write("revoked.toml", "[[revoked]]\nid = \"x\"\n");
    let authority = Authority::new();
    files.folder.write("ca.pem", &authority.pem());
    files.folder.write("crl.pem", &authority.revoking(&[1]));
    let settings =
        "revocations = \"revoked.toml\"\nclient_ca = \"ca.pem\"\nclient_crl = \"crl.pem\"\n";
    let serving = files.serve(settings).await;
    let (mut prod, _feeds) = serving.client(token.expose()).await;
    let certified = authority.client("tunnel://acme/certified", 2);
    let (mut certified, _feeds) = serving.client_with(&certified).await;
    let key = serving.folder.read("server.key");
    serving.folder.write("server.key", "no key");
    serving.metric_becomes(SUCCEEDED, 0.0).await;
    let edited = Instant::now();
    let entry = format!("[[revoked]]\nid = \"{}\"\n", token.id());
    serving.folder.write("revoked.toml", &entry);
    cut(&mut prod, edited).await;
    let reason = serving.refusal(token.expose()).await.reason;
    assert_eq!(reason, "credential_revoked");
    assert_eq!(serving.dial(other.expose()).await.status, 101);
    let edited = Instant::now();
    serving
        .folder
        .write("crl.pem", &authority.revoking(&[1, 2]));
    cut(&mut certified, edited).await;
    // A list that is at fault itself lifts nothing.
    serving.folder.write("revoked.toml", "not good");
    serving.folder.write("server.key", &key);
    serving
        .logged("the list's fault", |line| {
            let fault = line["fault"].as_str();
            fault.is_some_and(|fault| fault.contains("revoked.toml:1:5"))
        })
        .await;
    let reason = serving.refusal(token.expose()).await.reason;
    assert_eq!(reason, "credential_revoked");
    serving.stop().await;
}

#[tokio::test]
async fn an_entry_is_lifted_when_the_list_without_it_stays_as_it_is() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let other = files.add("globex", "dev");
    let entry = |id: &str| format!("[[revoked]]\nid = \"{id}\"\n");
    let whole = entry("x") + &entry(token.id().as_str());
    files.folder.write("revoked.toml", &whole);
    let serving = files.serve("revocations = \"revoked.toml\"\n").await;
    // As a program that writes it in place and has come half way: what is new counts, what is missing stays.
    serving
        .folder
        .write("revoked.toml", &(entry("x") + &entry(other.id().as_str())));
    serving.metric_becomes(VERSION, 2.0).await;
    for token in [&token, &other] {
        let reason = serving.refusal(token.expose()).await.reason;
        assert_eq!(reason, "credential_revoked");
    }
    serving.client(token.expose()).await;
    let reason = serving.refusal(other.expose()).await.reason;
    assert_eq!(reason, "credential_revoked");
    serving.stop().await;
}

/// The file is as slow as the test likes: a pipe, which nobody writes yet.
#[tokio::test]
async fn health_checks_are_answered_while_a_file_is_read() {
    let files = Files::new();
    files.folder.write("page.html", "one");
    let serving = files.serve("problem_page = \"page.html\"\n").await;
    let (page, pipe) = (
        serving.folder.path("page.html"),
        serving.folder.path("pipe"),
    );
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    fs::rename(&pipe, &page).unwrap();
    let is_begun = |line: &Value| line["message"] == "reading the configuration again";
    serving.logged("a reload", is_begun).await;
    for _ in 0..3 {
        assert_eq!(ask_admin(serving.admin, "/healthz").await.0, 200);
    }
    let writing = spawn_blocking(move || fs::write(page, "two"));
    serving.metric_becomes(VERSION, 2.0).await;
    writing.await.unwrap().unwrap();
    serving.stop().await;
}

/// Whoever writes a file in place empties it first.
#[tokio::test]
async fn a_file_that_became_empty_counts_only_when_a_person_asks_for_it() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    files
        .folder
        .write("revocations.toml", "[[revoked]]\nid = \"x\"\n");
    let serving = files.serve("revocations = \"revocations.toml\"\n").await;
    let (mut prod, mut feeds) = serving.client(token.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    for (file, name) in [
        ("runtimes.toml", "runtimes"),
        ("revocations.toml", "revocations"),
    ] {
        let good = serving.folder.read(file);
        serving.folder.write(file, "");
        serving.metric_becomes(SUCCEEDED, 0.0).await;
        let told = format!("{file}: the file has no entries any more");
        let is_told = |line: &Value| {
            let fault = line["fault"].as_str();
            fault.is_some_and(|it| it.starts_with(&format!("{name}: ")) && it.contains(&told))
        };
        serving.logged(&told, is_told).await;
        stream.goes_on().await;
        serving.folder.write(file, &good);
        serving.metric_becomes(SUCCEEDED, 1.0).await;
    }
    serving.folder.write("runtimes.toml", "");
    serving.metric_becomes(SUCCEEDED, 0.0).await;
    serving.signal("-HUP").await;
    cut(&mut prod, Instant::now()).await;
    serving.metric_becomes(SUCCEEDED, 1.0).await;
    serving.stop().await;
}

#[tokio::test]
async fn a_hangup_asks_to_look_again_and_ends_nothing() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("").await;
    let (_prod, mut feeds) = serving.client(token.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    for version in [2.0, 3.0] {
        serving.signal("-HUP").await;
        serving.metric_becomes(VERSION, version).await;
    }
    stream.goes_on().await;
    let log = serving.stop().await;
    let same = "the configuration is valid and unchanged";
    let count = log.iter().filter(|line| line["message"] == same).count();
    assert_eq!(count, 2);
}

/// As Kubernetes writes a secret: the files are links through a link that is replaced.
fn publish(folder: &Folder, version: &str, cert: &str, key: &str) {
    fs::create_dir(folder.path(version)).unwrap();
    folder.write(&format!("{version}/server.pem"), cert);
    folder.write(&format!("{version}/server.key"), key);
    symlink(version, folder.path("..data_tmp")).unwrap();
    fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
}

/// The same, of the certificate that a server starts with.
fn publish_first(folder: &Folder, made: &certs::Certificates) {
    publish(folder, "..v1", &made.server_pem, &made.server_key);
    for name in ["server.pem", "server.key"] {
        fs::remove_file(folder.path(name)).unwrap();
        symlink(format!("..data/{name}"), folder.path(name)).unwrap();
    }
}

/// The certificate that a tunnel client is shown.
async fn shown(serving: &Serving) -> CertificateDer<'static> {
    let io = serving.tls(None).await.unwrap();
    io.get_ref().1.peer_certificates().unwrap()[0].clone()
}

#[tokio::test]
async fn a_certificate_replaced_by_symlink_is_served_to_new_connections() {
    let made = |days| certs::generate(&["localhost".to_owned()], days).unwrap();
    let (old, new) = (made(1), made(2));
    let files = Files::new();
    let token = files.add("acme", "prod");
    publish_first(&files.folder, &old);
    let settings = "public_tls_cert = \"server.pem\"\npublic_tls_key = \"server.key\"\n";
    let roots = Roots::from_pem(&format!("{}{}", old.ca_pem, new.ca_pem)).unwrap();
    let serving = Serving::start(files.folder, roots, settings).await;
    let (_prod, mut feeds) = serving.client(token.expose()).await;
    let raw = RawConnection::over(serving.public_tls().await);
    let mut stream = OpenStream::begin(raw, PROD, &mut feeds).await;
    let before = shown(&serving).await;
    let ends = async || {
        let of = |listener| {
            format!("tunnel_server_certificate_not_after_seconds{{listener=\"{listener}\"}}")
        };
        let (tunnel, public) = (of("tunnel"), of("public"));
        (serving.metric(&tunnel).await, serving.metric(&public).await)
    };
    let (tunnel, public) = ends().await;
    assert!(tunnel > 0.0 && tunnel <= public, "{tunnel} {public}");
    publish(&serving.folder, "..v2", &new.server_pem, &new.server_key);
    let after = eventually(SOON, "another certificate", async || {
        let after = shown(&serving).await;
        (after != before).then_some(after)
    });
    let after = after.await;
    serving.metric_becomes(VERSION, 2.0).await;
    let (later, _) = ends().await;
    assert!(later > tunnel, "{later}");
    let public = serving.public_tls().await;
    assert_eq!(public.get_ref().1.peer_certificates().unwrap()[0], after);
    stream.goes_on().await;
    serving.stop().await;
}

#[tokio::test]
async fn an_expired_certificate_does_not_replace_a_valid_one() {
    let made = certs::generate(&["localhost".to_owned()], 1).unwrap();
    let files = Files::new();
    publish_first(&files.folder, &made);
    let roots = Roots::from_pem(&made.ca_pem).unwrap();
    let serving = Serving::start(files.folder, roots, "").await;
    let before = shown(&serving).await;
    let (cert, key) = that_ran_out();
    publish(&serving.folder, "..v2", &cert, &key);
    serving.metric_becomes(SUCCEEDED, 0.0).await;
    assert_eq!(shown(&serving).await, before);
    publish(&serving.folder, "..v3", &made.server_pem, &made.server_key);
    serving.metric_becomes(SUCCEEDED, 1.0).await;
    serving.stop().await;
}

#[tokio::test]
async fn the_log_level_counts_at_once() {
    let serving = Files::new().serve("").await;
    // Each reload logs that it begins, at the level that is in force then.
    for (version, level) in [(2.0, "warn"), (3.0, "info"), (4.0, "debug")] {
        serving.set(&format!("log_level = \"{level}\"\n"));
        serving.metric_becomes(VERSION, version).await;
    }
    let log = serving.stop().await;
    let begins = |line: &&Value| line["message"] == "reading the configuration again";
    assert_eq!(log.iter().filter(begins).count(), 2);
}

#[tokio::test]
async fn what_waits_for_a_restart_waits_after_a_bad_file_too() {
    let serving = Files::new().serve("").await;
    serving.set("shards = 2\n");
    serving.metric_becomes(VERSION, 2.0).await;
    serving.set("shards = 2\nno_such_key = 1\n");
    serving.metric_becomes(SUCCEEDED, 0.0).await;
    let (_, status) = ask_admin(serving.admin, "/api/v1/status").await;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["last_reload_ok"], false);
    assert_eq!(status["waiting_for_restart"][0], "shards");
    serving.stop().await;
}

#[tokio::test]
async fn a_lower_limit_counts_at_once() {
    let files = Files::new();
    let token = files.add("acme", "prod");
    let serving = files.serve("").await;
    let (_prod, mut feeds) = serving.client(token.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    assert_eq!(serving.status(PROD, "/now").await, 200);
    serving.set("limit_exchanges = 1\n");
    serving.metric_becomes(VERSION, 2.0).await;
    assert_eq!(serving.status(PROD, "/now").await, 503);
    stream.goes_on().await;
    serving.set("max_connections = 1\n");
    serving.metric_becomes(VERSION, 3.0).await;
    // The stream has the one connection that there may be.
    let mut raw = RawConnection::over(connect(serving.public).await);
    raw.closes().await;
    stream.goes_on().await;
    serving.set("");
    serving.metric_becomes(VERSION, 4.0).await;
    assert_eq!(serving.status(PROD, "/now").await, 200);
    serving.stop().await;
}

#[tokio::test]
async fn keys_of_tokens_are_taken_over_from_their_file() {
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    let files = Files::new();
    files.folder.write("keys.json", &Issuer::keys(&[&old]));
    let settings =
        "jwks = \"keys.json\"\njwt_issuer = \"https://id.example\"\njwt_audience = \"tunnel\"\n";
    let serving = files.serve(settings).await;
    let (mut prod, mut feeds) = serving.client(&old.sign("acme", "prod")).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    let token = new.sign("globex", "dev");
    assert_eq!(serving.refusal(&token).await.reason, "token_key_unknown");
    let edited = Instant::now();
    serving
        .folder
        .write("keys.json", &Issuer::keys(&[&old, &new]));
    let (_dev, mut feeds) = serving.client(&token).await;
    let took = edited.elapsed();
    assert!(took < PROMISED, "{took:?}");
    serving.metric_becomes("tunnel_server_jwks_keys", 2.0).await;
    stream.goes_on().await;
    let mut stream = serving.stream(DEV, &mut feeds).await;
    let edited = Instant::now();
    serving.folder.write("keys.json", &Issuer::keys(&[&new]));
    cut(&mut prod, edited).await;
    serving.metric_becomes("tunnel_server_jwks_keys", 1.0).await;
    let gone = serving.refusal(&old.sign("acme", "prod")).await;
    assert_eq!(gone.reason, "token_key_unknown");
    stream.goes_on().await;
    serving.stop().await;
}

#[tokio::test]
async fn the_revocation_list_cuts_the_listed_sessions_only() {
    let files = Files::new();
    let (prod, dev) = (files.add("acme", "prod"), files.add("globex", "dev"));
    files.folder.write("revoked.toml", "");
    let serving = files.serve("revocations = \"revoked.toml\"\n").await;
    let (_prod, mut feeds) = serving.client(prod.expose()).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    let (mut client, _feeds) = serving.client(dev.expose()).await;
    let edited = Instant::now();
    let entry = format!("[[revoked]]\nid = \"{}\"\n", dev.id());
    serving.folder.write("revoked.toml", &entry);
    cut(&mut client, edited).await;
    let refusal = serving.refusal(dev.expose()).await;
    assert_eq!(refusal.reason, "credential_revoked");
    stream.goes_on().await;
    serving.stop().await;
}

#[tokio::test]
async fn the_issuers_list_cuts_the_revoked_certificates_sessions_only() {
    let authority = Authority::new();
    let files = Files::new();
    files.folder.write("ca.pem", &authority.pem());
    files.folder.write("crl.pem", &authority.revoking(&[]));
    let settings = "client_ca = \"ca.pem\"\nclient_crl = \"crl.pem\"\n";
    let serving = files.serve(settings).await;
    let revoked = authority.client("tunnel://globex/dev", 7);
    let good = authority.client("tunnel://acme/prod", 8);
    let (mut client, _feeds) = serving.client_with(&revoked).await;
    let (mut other, mut feeds) = serving.client_with(&good).await;
    let mut stream = serving.stream(PROD, &mut feeds).await;
    let edited = Instant::now();
    serving.folder.write("crl.pem", &authority.revoking(&[7]));
    cut(&mut client, edited).await;
    stream.goes_on().await;
    // TLS 1.3 tells a client that it is refused with its first byte.
    let refused = serving.tls(Some(&revoked)).await;
    if let Ok(io) = refused {
        let (answer, _) = RawConnection::over(io).rest().await;
        assert_eq!(answer, b"");
    }
    let (_again, _feeds) = serving.client_with(&good).await;
    // Another authority, and nobody of the old one's is left.
    let edited = Instant::now();
    serving.set("client_ca = \"other.pem\"\n");
    serving.folder.write("other.pem", &Authority::new().pem());
    cut(&mut other, edited).await;
    serving.stop().await;
}

#[tokio::test]
async fn the_operators_token_can_be_replaced() {
    let files = Files::new();
    files
        .folder
        .write("admin.token", "the-old-token-of-the-operator");
    let serving = files.serve("admin_token_file = \"admin.token\"\n").await;
    let config = async |token: &str| {
        let request = format!(
            "GET /api/v1/config HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        let mut admin = RawConnection::over(connect(serving.admin).await);
        admin.ask(request).await.head.status()
    };
    let (old, new) = (
        "the-old-token-of-the-operator",
        "the-new-token-of-the-operator",
    );
    assert_eq!((config(old).await, config(new).await), (200, 401));
    serving.folder.write("admin.token", new);
    eventually(SOON, "the new token", async || {
        (config(new).await == 200).then_some(())
    })
    .await;
    assert_eq!(config(old).await, 401);
    // Without one there is nothing to be read that names files, or it is free: here, for this machine.
    serving.set("");
    serving.metric_becomes(VERSION, 3.0).await;
    assert_eq!(config("").await, 200);
    serving.stop().await;
}
