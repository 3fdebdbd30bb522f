//! A client that runs between a tunnel server and an upstream, both in the hands of a test.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full};
use testkit::tunnel::body::{AnyBody, Feed, fed};
use testkit::tunnel::server::{FakeServer, ServerSession};
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{self, RawResponse},
};
use tunnel_client::client::{Client, ClientError};
use tunnel_client::config::Config;
use tunnel_http::access_log::AccessLog;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_ops::task::Owned;

/// A running client.
pub(crate) struct Running {
    pub(crate) trigger: Trigger,
    admin: SocketAddr,
    ended: Owned<Result<(), ClientError>>,
    folder: tempfile::TempDir,
}

/// A client with a session.
pub(crate) struct Setup {
    pub(crate) client: Running,
    pub(crate) server: FakeServer,
    pub(crate) session: ServerSession,
}

impl Setup {
    /// A client with this upstream, its session welcomed.
    pub(crate) async fn new(upstream: &str) -> Self {
        Self::with(upstream, |_| {}).await
    }

    /// The same with another configuration.
    pub(crate) async fn with(upstream: &str, change: impl FnOnce(&mut Config)) -> Self {
        let mut server = FakeServer::start().await;
        let client = Running::start(&server, upstream, change);
        let session = server.welcome().await;
        Self {
            client,
            server,
            session,
        }
    }
}

impl Running {
    pub(crate) fn start(
        server: &FakeServer,
        upstream: &str,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Self::config(server, upstream, folder.path(), change);
        Self::begin(Client::new(config, AccessLog::off()).unwrap(), folder)
    }

    /// What a client is told, with a token in a file of this folder.
    pub(crate) fn config(
        server: &FakeServer,
        upstream: &str,
        folder: &Path,
        change: impl FnOnce(&mut Config),
    ) -> Config {
        let token_file = folder.join("token");
        std::fs::write(&token_file, "tnlrt_1_secret\n").unwrap();
        let (url, roots) = (server.url().parse().unwrap(), server.roots());
        let mut config = Config::new(url, roots, token_file, upstream.parse().unwrap());
        config.settings.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        // Most tests are about one session.
        config.settings.sessions = 1;
        config.settings.redial_base = Duration::from_millis(10);
        config.settings.redial_cap = Duration::from_millis(50);
        change(&mut config);
        config
    }

    /// Starts one that is made already. `folder` lasts as long as it does.
    pub(crate) fn begin(client: Client, folder: tempfile::TempDir) -> Self {
        let admin = client.addresses().admin.unwrap();
        let (trigger, shutdown) = Shutdown::manual();
        let ended = Owned::spawn("client", client.run(shutdown));
        Self {
            trigger,
            admin,
            ended,
            folder,
        }
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// How it ended.
    pub(crate) async fn ended(self) -> Result<(), ClientError> {
        soon("the client's end", self.ended).await.unwrap()
    }

    /// What the admin listener answers.
    pub(crate) async fn admin(&self, path: &str) -> RawResponse {
        self.admin_as("localhost", path).await
    }

    /// What it answers when it is asked by this name.
    pub(crate) async fn admin_as(&self, host: &str, path: &str) -> RawResponse {
        http1::get(self.admin, host, path).await
    }

    /// All metrics.
    pub(crate) async fn metrics(&self) -> String {
        self.admin("/metrics").await.text()
    }

    /// The value of one series; what it counts may be a moment late.
    pub(crate) async fn wait_metric(&self, series: &str, value: f64) {
        let line = format!("tunnel_client_{series} {value}");
        eventually(SOON, &line, async || {
            let metrics = self.metrics().await;
            metrics.lines().any(|found| found == line).then_some(())
        })
        .await;
    }

    /// Waits until it is ready, or not any more.
    pub(crate) async fn wait_ready(&self, ready: bool) {
        let status = if ready { 200 } else { 503 };
        eventually(SOON, "readiness to change", async || {
            let answer = self.admin("/readyz").await;
            (answer.head.status() == status).then_some(())
        })
        .await;
    }
}

/// A `GET` for a path of the runtime's host.
pub(crate) fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("https://a-b.tunnels.test{path}"))
        .body(Empty::new())
        .unwrap()
}

/// A `POST` whose content's length is known.
pub(crate) fn post(content: &'static str) -> Request<Full<Bytes>> {
    Request::post("https://a-b.tunnels.test/")
        .header("content-length", content.len())
        .body(Full::new(content.into()))
        .unwrap()
}

/// A `POST` whose content is fed while it is sent.
pub(crate) fn post_fed() -> (Feed, Request<AnyBody>) {
    let (feed, body) = fed();
    let request = Request::post("https://a-b.tunnels.test/").body(body);
    (feed, request.unwrap())
}
