//! What a client proves itself by, and how that changes without a drop.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testkit::tunnel::server::{FakeServer, ServerSession, refusal};
use tunnel_client::config::{CertificateFiles, OnRefusal};
use tunnel_ops::tls_files::{ClientAuth, Roots};
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;

use crate::setup::{Running, Setup};

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(150);

/// Puts a file in the place of another at once, as whoever takes care does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// The token that the client sends next.
async fn refreshed(session: &mut ServerSession) -> String {
    match session.notice().await {
        Control::RefreshToken { token } => token,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_changed_token_is_told_on_every_session_and_drops_none() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| config.settings.sessions = 2);
    let mut sessions = [server.welcome().await, server.welcome().await];
    client.wait_metric("sessions", 2.0).await;
    replace(&client.folder().join("token"), "tnlrt_2_secret\n");
    for session in &mut sessions {
        assert_eq!(refreshed(session).await, "tnlrt_2_secret");
    }
    let [one, other] = &mut sessions;
    one.send(Control::Refreshed {
        expires_in_ms: Some(60_000),
    });
    other.send(Control::RefreshRefused {
        reason: "token_unknown".to_owned(),
        detail: String::new(),
    });
    // The same once more says nothing.
    replace(&client.folder().join("token"), "tnlrt_2_secret");
    assert!(one.is_quiet(A_WHILE).await && other.is_quiet(A_WHILE).await);
    assert!(server.is_left_alone(A_WHILE).await);
    client.wait_metric("sessions", 2.0).await;
}

#[tokio::test]
async fn a_secret_s_folder_that_is_swapped_is_noticed() {
    let mut server = FakeServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, token) in [("..1", "tnlrt_1_secret"), ("..2", "tnlrt_2_secret")] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("token"), token).unwrap();
    }
    let link = |to: &str, from: &str| std::os::unix::fs::symlink(to, path(from)).unwrap();
    link("..1", "..data");
    link("..data/token", "token");
    let _client = Running::start(&server, NOBODY, |config| {
        config.settings.token_file = Some(path("token"));
    });
    let mut session = server.welcome().await;
    link("..2", "..data_tmp");
    fs::rename(path("..data_tmp"), path("..data")).unwrap();
    fs::remove_dir_all(path("..1")).unwrap();
    assert_eq!(refreshed(&mut session).await, "tnlrt_2_secret");
}

#[tokio::test]
async fn a_token_that_runs_out_is_read_again_and_sent_once() {
    let mut setup = Setup::new(NOBODY).await;
    setup.session.send(Control::Expiring { in_ms: 1_000 });
    assert!(setup.session.is_quiet(A_WHILE).await, "nothing newer");
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    setup.session.send(Control::Expiring { in_ms: 500 });
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    setup.session.send(Control::Expiring { in_ms: 0 });
    assert!(setup.session.is_quiet(Duration::from_millis(700)).await);
}

#[tokio::test]
async fn a_token_that_was_refused_is_sent_again_when_the_one_before_runs_out() {
    let mut setup = Setup::new(NOBODY).await;
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    setup.session.send(Control::RefreshRefused {
        reason: "token_not_yet_valid".to_owned(),
        detail: String::new(),
    });
    setup.session.send(Control::Expiring { in_ms: 500 });
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    setup.session.send(Control::Refreshed {
        expires_in_ms: None,
    });
    setup.session.send(Control::Expiring { in_ms: 0 });
    assert!(setup.session.is_quiet(A_WHILE).await);
}

fn refuse_refresh(session: &ServerSession, reason: &str) {
    session.send(Control::RefreshRefused {
        reason: reason.to_owned(),
        detail: String::new(),
    });
}

#[tokio::test]
async fn a_token_that_was_refused_for_a_reason_that_passes_is_sent_again_after_a_pause() {
    let mut setup = Setup::new(NOBODY).await;
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    refuse_refresh(&setup.session, "auth_busy");
    let is_quiet = setup.session.is_quiet(Duration::from_secs(3));
    assert!(is_quiet.await);
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
}

#[tokio::test]
async fn a_token_that_was_refused_is_not_sent_again_once_its_file_holds_the_one_before() {
    let mut setup = Setup::new(NOBODY).await;
    let token = setup.client.folder().join("token");
    replace(&token, "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    refuse_refresh(&setup.session, "auth_busy");
    replace(&token, "tnlrt_1_secret");
    // The pause before it would be sent again is 5 s.
    for _ in 0..2 {
        let is_quiet = setup.session.is_quiet(Duration::from_secs(3));
        assert!(is_quiet.await);
    }
}

#[tokio::test]
async fn a_token_is_held_back_until_the_one_before_is_answered() {
    let mut setup = Setup::new(NOBODY).await;
    let token = setup.client.folder().join("token");
    replace(&token, "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
    replace(&token, "tnlrt_3_secret");
    assert!(setup.session.is_quiet(Duration::from_secs(1)).await);
    refuse_refresh(&setup.session, "token_unknown");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_3_secret");
}

#[tokio::test]
async fn a_revoked_session_is_followed_by_one_with_the_token_that_is_new_in_its_file() {
    let mut setup = Setup::new(NOBODY).await;
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    setup.session.session.close(CloseReason::Revoked);
    let next = setup.server.welcome().await;
    let authorization = next.request.authorization.as_deref();
    assert_eq!(authorization, Some("Bearer tnlrt_2_secret"));
    next.session.close(CloseReason::Revoked);
    assert!(setup.client.ended().await.is_err(), "nothing newer");
}

#[tokio::test]
async fn a_place_that_is_refused_beside_others_dials_when_the_token_is_replaced() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.sessions = 2;
        config.settings.refusal_wait = Duration::from_secs(3_600);
    });
    let (first, mut second) = (server.welcome().await, server.welcome().await);
    client.wait_metric("sessions", 2.0).await;
    server.refuse([refusal(401, "token_unknown", true)]);
    drop(first);
    let refused = "dials_total{result=\"refused\"}";
    client.wait_metric(refused, 1.0).await;
    assert!(server.is_left_alone(A_WHILE).await);
    replace(&client.folder().join("token"), "tnlrt_2_secret");
    let next = server.welcome().await;
    let authorization = next.request.authorization.as_deref();
    assert_eq!(authorization, Some("Bearer tnlrt_2_secret"));
    assert_eq!(refreshed(&mut second).await, "tnlrt_2_secret");
}

#[tokio::test]
async fn a_session_that_leaves_still_follows_its_token() {
    let mut setup = Setup::new(NOBODY).await;
    setup.session.send(Control::Drain { spread_ms: Some(0) });
    let _new = setup.server.welcome().await;
    assert_eq!(setup.session.notice().await, Control::Moved);
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
}

#[tokio::test]
async fn a_session_that_expired_is_followed_by_one_with_the_file_as_it_is_then() {
    let mut setup = Setup::new(NOBODY).await;
    replace(&setup.client.folder().join("token"), "tnlrt_2_secret");
    setup.session.session.close(CloseReason::Expired);
    let next = setup.server.welcome().await;
    let authorization = next.request.authorization.as_deref();
    assert_eq!(authorization, Some("Bearer tnlrt_2_secret"));
}

#[tokio::test]
async fn a_file_that_is_no_token_leaves_the_session_alone() {
    let mut setup = Setup::new(NOBODY).await;
    let token = setup.client.folder().join("token");
    replace(&token, "two words");
    setup.session.send(Control::Expiring { in_ms: 1_000 });
    let is_quiet = setup.session.is_quiet(Duration::from_millis(700));
    assert!(is_quiet.await);
    replace(&token, "tnlrt_2_secret");
    assert_eq!(refreshed(&mut setup.session).await, "tnlrt_2_secret");
}

#[tokio::test]
async fn a_refusal_for_good_ends_when_its_token_is_replaced() {
    let mut server = FakeServer::start().await;
    server.refuse([refusal(401, "token_unknown", true)]);
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.on_refusal = OnRefusal::Retry;
        config.settings.refusal_wait = Duration::from_secs(3_600);
    });
    client
        .wait_metric("dials_total{result=\"refused\"}", 1.0)
        .await;
    assert!(server.is_left_alone(A_WHILE).await);
    replace(&client.folder().join("token"), "tnlrt_2_secret");
    server.welcome().await;
}

/// Makes certificates for clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Puts a new certificate for a runtime into these files, the key first.
    fn issue(&self, files: &CertificateFiles) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["a-b.test".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        replace(&files.key, &key.serialize_pem());
        replace(&files.cert, &cert.pem());
    }

    /// A server that lets in whom this one has made a certificate for.
    async fn server(&self) -> FakeServer {
        let client_auth = ClientAuth {
            roots: Roots::from_pem(&self.pem).unwrap(),
            revocation_lists: None,
            is_required: true,
        };
        FakeServer::with_client_auth(Some(client_auth)).await
    }
}

#[tokio::test]
async fn a_certificate_is_shown_in_the_place_of_a_token_and_replaced_without_a_drop() {
    let authority = Authority::new();
    let mut server = authority.server().await;
    let folder = tempfile::tempdir().unwrap();
    let files = CertificateFiles {
        cert: folder.path().join("cert.pem"),
        key: folder.path().join("key.pem"),
    };
    authority.issue(&files);
    let _client = Running::start(&server, NOBODY, |config| {
        config.settings.token_file = None;
        config.client_certificate = Some(files.clone());
    });
    let mut old = server.welcome().await;
    assert_eq!(old.request.authorization, None);
    assert!(old.request.certificate.is_some());

    authority.issue(&files);
    let new = server.accept().await;
    assert!(
        new.request.certificate.is_some() && new.request.certificate != old.request.certificate
    );
    assert!(old.is_quiet(A_WHILE).await, "it stays");
    new.welcome();
    assert!(matches!(old.notice().await, Control::Drain { .. }));
    assert_eq!(old.ended().await.reason(), CloseReason::Left);
}

#[tokio::test]
async fn the_networks_that_the_runtime_may_be_reached_from_are_told() {
    let mut server = FakeServer::start().await;
    let _client = Running::start(&server, NOBODY, |config| {
        let networks = ["10.0.0.0/8", "2001:db8::/32"];
        let networks = networks.map(|network| network.parse().unwrap());
        config.settings.allow_from = Some(networks.to_vec());
    });
    let session = server.welcome().await;
    let allowed = session.request.greeting.allow_from.as_deref();
    assert_eq!(allowed, Some("10.0.0.0/8,2001:db8::/32"));
}
