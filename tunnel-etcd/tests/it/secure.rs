//! TLS and users.

use testkit::{
    ca::Authority,
    deadline::{SOON, eventually},
    etcd::Etcd,
};
use tunnel_etcd::{Client, EtcdError, Settings, User};
use tunnel_ops::tls_files::{Identity, Roots, client_config};

use crate::{PATIENT, client, put, write};

fn secure(etcd: &Etcd, roots: &Roots, identity: Option<&Identity>) -> Client {
    Client::new(Settings {
        members: etcd.urls().iter().map(|url| url.parse().unwrap()).collect(),
        tls: client_config(roots, identity, &[b"h2"]).unwrap(),
        user: None,
        timeout: PATIENT,
    })
}

#[tokio::test]
async fn both_ends_show_their_certificates() {
    let authority = Authority::new("etcd");
    let own = authority.issue(&["127.0.0.1"]);
    let etcd = Etcd::start_tls(&authority.pem(), &own).await;
    let good = secure(&etcd, &authority.roots(), Some(&own.identity()));
    write(&good, "/a", "1").await;
    assert_eq!(etcd.ctl(&["get", "/a", "--print-value-only"]).await, "1\n");
    let nameless = secure(&etcd, &authority.roots(), None);
    assert!(nameless.txn(put("/a", "2")).await.is_err());
    let other = Authority::new("other").roots();
    let strange = secure(&etcd, &other, Some(&own.identity()));
    let refused = strange.txn(put("/a", "2")).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

/// A member that lets the user `tunnel` write below `/tunnel/`.
async fn with_users() -> Etcd {
    let etcd = Etcd::start(1).await;
    for arguments in [
        &["user", "add", "root:secret-of-root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "tunnel"],
        &[
            "role",
            "grant-permission",
            "tunnel",
            "--prefix=true",
            "readwrite",
            "/tunnel/",
        ],
        &["user", "add", "tunnel:secret-of-tunnel"],
        &["user", "grant-role", "tunnel", "tunnel"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments).await;
    }
    etcd
}

fn with_password(etcd: &Etcd, password: &str) -> Client {
    Client::new(Settings {
        members: etcd.urls().iter().map(|url| url.parse().unwrap()).collect(),
        tls: client_config(&Roots::none(), None, &[b"h2"]).unwrap(),
        user: Some(user(password)),
        timeout: PATIENT,
    })
}

fn user(password: &str) -> User {
    User {
        name: "tunnel".into(),
        password: password.to_owned().into(),
    }
}

#[tokio::test]
async fn a_user_may_write_only_where_its_role_says() {
    let etcd = with_users().await;
    let tunnel = with_password(&etcd, "secret-of-tunnel");
    write(&tunnel, "/tunnel/a", "1").await;
    let denied = |error| matches!(error, EtcdError::Denied { .. });
    assert!(denied(tunnel.txn(put("/other", "1")).await.unwrap_err()));
    let wrong = with_password(&etcd, "wrong");
    assert!(denied(wrong.txn(put("/tunnel/a", "1")).await.unwrap_err()));
    let nobody = client(&etcd, PATIENT);
    assert!(nobody.txn(put("/tunnel/a", "1")).await.is_err());
}

#[tokio::test]
async fn a_login_that_etcd_has_forgotten_is_made_again_by_the_password_of_then() {
    let etcd = with_users().await;
    let client = with_password(&etcd, "secret-of-tunnel");
    write(&client, "/tunnel/a", "1").await;
    // As after the time to live of a token, or a restart: etcd does not know it any more.
    let root = ["--user", "root:secret-of-root"];
    etcd.ctl(&[&root[..], &["auth", "disable"]].concat()).await;
    for change in [
        &["user", "delete", "tunnel"][..],
        &["user", "add", "tunnel:another-secret"],
        &["user", "grant-role", "tunnel", "tunnel"],
        &["auth", "enable"],
    ] {
        etcd.ctl(change).await;
    }
    let tls = client_config(&Roots::none(), None, &[b"h2"]).unwrap();
    client.set_credentials(tls, Some(user("another-secret")));
    eventually(SOON, "a write", async || {
        let written = client.txn(put("/tunnel/a", "2")).await;
        // A denial would end a server that starts.
        let error = written.as_ref().err();
        assert!(error.is_none_or(EtcdError::is_of_member), "{error:?}");
        written.ok()
    })
    .await;
}
