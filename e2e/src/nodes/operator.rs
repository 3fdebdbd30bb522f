//! The operator of several nodes, who makes runtimes by the admin API.

use std::fs;

use serde_json::Value;
use testkit::{etcd::Etcd, http1::RawResponse};

use super::{Nodes, Number, path_text};
use crate::{entry::Entry, raw::RawClient, system::ADMIN_TOKEN};

impl Nodes {
    /// So many nodes on an etcd of one member, which keep managed runtimes there and have an admin token.
    ///
    /// # Panics
    /// When the file of the token cannot be written.
    pub async fn managing(count: usize) -> Self {
        let mut nodes = Self::on(Etcd::start(1).await);
        let token = nodes.directory.path().join("admin.token");
        fs::write(&token, ADMIN_TOKEN).unwrap();
        nodes.more_flags = vec![
            "--managed-runtimes".to_owned(),
            "etcd".to_owned(),
            "--admin-token-file".to_owned(),
            path_text(&token),
        ];
        for _ in 0..count {
            nodes.add(Vec::new()).await;
        }
        nodes.wait_linked().await;
        nodes
    }

    /// Sends a request to the admin API of a node.
    ///
    /// # Panics
    /// When there is no response.
    pub async fn operate(
        &self,
        number: Number,
        method: &str,
        path: &str,
        content: &str,
    ) -> RawResponse {
        let admin = self.server(number).admin().0;
        let mut client = RawClient::connect(&Entry::plain(admin, "localhost")).await;
        let fields = format!("Authorization: Bearer {ADMIN_TOKEN}\r\n");
        let path = format!("/api/v1{path}");
        client
            .request(method, &path, &fields, content.as_bytes())
            .await;
        client.response_to(method).await
    }

    /// Makes a managed runtime of the account `demo` with a token. Returns the token's id.
    ///
    /// # Panics
    /// When that is not the account of the label, or it cannot be made.
    pub async fn make_runtime(&mut self, number: Number, label: &str) -> String {
        let name = label.strip_prefix("demo-").unwrap();
        let body = format!(r#"{{"account": "demo", "name": "{name}"}}"#);
        let path = format!("/runtimes/{label}");
        let made = self.operate(number, "PUT", &path, &body).await;
        assert_eq!(made.head.status(), 201, "{made:?}");
        let made = self
            .operate(number, "POST", &format!("{path}/tokens"), "")
            .await;
        let token: Value = serde_json::from_str(&made.text()).unwrap();
        let file = self.directory.path().join(format!("{label}.token"));
        fs::write(&file, token["token"].as_str().unwrap()).unwrap();
        self.tokens.insert(label.to_owned(), file);
        token["id"].as_str().unwrap().to_owned()
    }
}
