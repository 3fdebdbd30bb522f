//! Two runtimes of one label, which no file lists: the one that comes later is refused.

use std::io::Write;

use http::Response;
use tempfile::NamedTempFile;
use testkit::{
    deadline::{SOON, eventually},
    etcd::Etcd,
    tunnel::{
        body::full,
        client::{FakeClient, dial, random_instance, session_request},
    },
};
use tunnel_proto::control::Control;
use tunnel_server::config::{Config, JwksSource};

use crate::{
    jwt_keys::{Issuer, jwt},
    nodes::node_with,
    rig::Rig,
};

/// An issuer of tokens for `acme-corp` + `prod` and for `acme` + `corp-prod`.
struct Tokens {
    keys: NamedTempFile,
    owner: String,
    other: String,
}

impl Tokens {
    fn new() -> Self {
        let issuer = Issuer::new("k1");
        let mut keys = NamedTempFile::new().unwrap();
        write!(keys, "{}", Issuer::keys(&[&issuer])).unwrap();
        Self {
            keys,
            owner: issuer.sign("acme-corp", "prod"),
            other: issuer.sign("acme", "corp-prod"),
        }
    }

    fn accept(&self, config: &mut Config) {
        let source = JwksSource::File(self.keys.path().to_owned());
        jwt(&mut config.settings, source);
    }

    async fn owner_at(&self, rig: &Rig) -> FakeClient {
        let connected = dial(rig, &session_request(&self.owner, random_instance())).await;
        let client = FakeClient::on(connected, |_| async { Ok(Response::new(full("here"))) }).await;
        client
            .control(|control| matches!(control, Control::Welcome { .. }))
            .await;
        client
    }

    /// The status of a dial of the other runtime's client.
    async fn other_at(&self, rig: &Rig) -> u16 {
        let request = session_request(&self.other, random_instance());
        dial(rig, &request).await.status
    }
}

#[tokio::test]
async fn a_label_is_its_runtimes_at_each_node_and_after_a_restart() {
    let (etcd, tokens) = (Etcd::start(1).await, Tokens::new());
    let node = async |name: &str| node_with(&etcd, name, |config| tokens.accept(config)).await;
    let (one, two) = (node("n1").await, node("n2").await);
    let client = tokens.owner_at(&one).await;
    assert_eq!(tokens.other_at(&one).await, 403);
    eventually(SOON, "the other node to know it", async || {
        let (_, text) = two
            .admin("/api/v1/runtimes/acme-corp-prod?scope=node")
            .await;
        text.contains("n1").then_some(())
    })
    .await;
    assert_eq!(tokens.other_at(&two).await, 403);
    two.stop().await;
    let two = node("n2").await;
    assert_eq!(tokens.other_at(&two).await, 403, "the first dial");
    assert!(client.session.is_open());
    client.die();
    one.stop().await;
    assert_eq!(tokens.other_at(&two).await, 403, "it is offline");
    let _next = tokens.owner_at(&two).await;
}

#[tokio::test]
async fn a_newer_token_for_another_runtime_of_the_label_is_refused() {
    let tokens = Tokens::new();
    let rig = Rig::with(|config| tokens.accept(config)).await;
    let client = tokens.owner_at(&rig).await;
    let token = tokens.other.clone();
    client
        .session
        .send(Control::RefreshToken { token })
        .unwrap();
    let refused = client
        .control(|control| matches!(control, Control::RefreshRefused { .. }))
        .await;
    let Control::RefreshRefused { reason, .. } = refused else {
        unreachable!();
    };
    assert_eq!(reason, "runtime_differs");
    rig.stop().await;
}
