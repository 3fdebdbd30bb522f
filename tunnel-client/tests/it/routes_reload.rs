//! Routes are taken over anew when their file changes, without a cut.

use std::path::Path;

use testkit::deadline::SOON;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream, slow};
use testkit::tunnel::server::{FakeServer, ServerSession};
use testkit::tunnel::whole;
use tokio::time::timeout;
use tunnel_client::client::Client;
use tunnel_client::config::{Given, Source};
use tunnel_http::access_log::AccessLog;
use tunnel_proto::problem::Reason;

use crate::routes::telling;
use crate::setup::{Running, get};

/// A client whose routes stand in a file.
struct Reloading {
    client: Running,
    session: ServerSession,
    _server: FakeServer,
}

fn write(folder: &Path, routes: &str) {
    // A rename, so that half of it is never read.
    let text = format!("sessions = 1\nadmin_listen = \"127.0.0.1:0\"\n{routes}");
    std::fs::write(folder.join("next"), text).unwrap();
    std::fs::rename(folder.join("next"), folder.join("client.toml")).unwrap();
}

fn route(name: &str, path: &str, upstream: &str) -> String {
    format!("[[route]]\nname = \"{name}\"\npath = \"{path}\"\nupstream = \"{upstream}\"\n")
}

impl Reloading {
    async fn start(routes: &str) -> Self {
        let mut server = FakeServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("token"), "tnlrt_1_secret\n").unwrap();
        std::fs::write(path("ca.pem"), server.pem()).unwrap();
        write(folder.path(), routes);
        let source = Source {
            server: Some(vec![server.url().parse().unwrap()].into()),
            token_file: Some(path("token")),
            ca_file: Some(vec![path("ca.pem")].into()),
            ..Source::default()
        };
        let given = Given::new(Some(path("client.toml")), source);
        let client = Running::begin(
            Client::with_reload(given, AccessLog::off()).unwrap(),
            folder,
        );
        let session = server.welcome().await;
        Self {
            client,
            session,
            _server: server,
        }
    }

    fn write(&self, routes: &str) {
        write(self.client.folder(), routes);
    }

    async fn version(&self, version: f64) {
        self.client.wait_metric("config_version", version).await;
    }
}

#[tokio::test]
async fn a_new_table_counts_with_the_next_request_and_connections_survive() {
    let (one, two) = (telling("one").await, telling("two").await);
    let setup = Reloading::start(&route("one", "/one", &one.url())).await;
    setup.session.fetch(get("/one")).await;
    assert_eq!(
        setup.session.failure(get("/two")).await,
        Reason::RouteUnknown
    );
    // Another name and place change nothing of how the upstream is reached.
    let routes = route("two", "/two", &two.url()) + &route("renamed", "/*", &one.url());
    setup.write(&routes);
    setup.version(2.0).await;
    assert_eq!(
        setup.session.fetch(get("/two")).await.headers()["server"],
        "two"
    );
    assert_eq!(
        setup.session.fetch(get("/one")).await.headers()["server"],
        "one"
    );
    assert_eq!((one.connections(), two.connections()), (1, 1));
    let metrics = setup.client.metrics().await;
    assert!(
        metrics.contains("route=\"renamed\"") && !metrics.contains("route=\"one\""),
        "{metrics}"
    );
    // Another time limit does.
    setup.write(&routes.replace("path = \"/*\"", "path = \"/*\"\nconnect_timeout = \"1s\""));
    setup.version(3.0).await;
    setup.session.fetch(get("/one")).await;
    assert_eq!((one.connections(), two.connections()), (2, 1));
}

#[tokio::test]
async fn the_last_good_table_stays() {
    let one = telling("one").await;
    let good = route("one", "/one", &one.url());
    let setup = Reloading::start(&good).await;
    setup.write(&(good.clone() + &route("one", "/two", "ftp://nowhere")));
    setup
        .client
        .wait_metric("config_last_reload_succeeded", 0.0)
        .await;
    assert_eq!(
        setup.session.fetch(get("/one")).await.headers()["server"],
        "one"
    );
    setup.version(1.0).await;
    setup.write(&(good + &route("two", "/two", &one.url())));
    setup.version(2.0).await;
    setup
        .client
        .wait_metric("config_last_reload_succeeded", 1.0)
        .await;
    setup
        .client
        .wait_metric("config_reloads_total{result=\"refused\"}", 1.0)
        .await;
    assert_eq!(
        setup.session.fetch(get("/two")).await.headers()["server"],
        "one"
    );
}

#[tokio::test]
async fn an_exchange_goes_on_by_the_table_that_it_began_with() {
    let (upstream, mut asked, answer) = slow().await;
    let setup = Reloading::start(&route("slow", "/slow", &upstream.url())).await;
    let asking = setup.session.ask(get("/slow"));
    let changing = async {
        asked.recv().await.unwrap();
        setup.write(&route("other", "/other", "http://127.0.0.1:1"));
        setup.version(2.0).await;
        // Its series are there for as long as it is.
        assert!(setup.client.metrics().await.contains("route=\"slow\""));
        answer.send(()).await.unwrap();
    };
    let (answered, ()) = tokio::join!(asking, changing);
    assert_eq!(whole(answered.unwrap()).await.body(), "late");
    assert_eq!(
        setup.session.failure(get("/slow")).await,
        Reason::RouteUnknown
    );
    assert!(!setup.client.metrics().await.contains("route=\"slow\""));
}

#[tokio::test]
async fn a_replaced_upstream_keeps_no_connections_however_long_its_exchanges_last() {
    let (closed, mut is_closed) = tokio::sync::mpsc::channel(1);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let closed = closed.clone();
        async move {
            if connection.head().await.unwrap().starts_with("GET /long") {
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha";
                connection.send(head).await;
            } else {
                connection
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                    .await;
            }
            connection.rest().await;
            let _ = closed.send(()).await;
        }
    })
    .await;
    let setup = Reloading::start(&route("one", "/*", &upstream.url())).await;
    let long = setup.session.ask(get("/long")).await.unwrap();
    setup.session.fetch(get("/quick")).await;
    assert_eq!(upstream.connections(), 2);
    setup.write(&route("other", "/other", "http://127.0.0.1:1"));
    setup.version(2.0).await;
    // That of the quick exchange, at rest; the long one goes on.
    timeout(SOON, is_closed.recv()).await.unwrap().unwrap();
    assert!(is_closed.try_recv().is_err());
    drop(long);
    timeout(SOON, is_closed.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_file_that_a_route_names_is_followed_too() {
    let setup_routes = "[[route]]\nname = \"tls\"\npath = \"/*\"\nupstream = \"https://127.0.0.1:1\"\ntls = { ca_file = \"upstream.pem\" }\n";
    let made = || testkit::ca::self_signed("a").certificate;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("upstream.pem"), made()).unwrap();
    let absolute = folder.path().join("upstream.pem");
    let routes = setup_routes.replace("upstream.pem", absolute.to_str().unwrap());
    let setup = Reloading::start(&routes).await;
    std::fs::write(&absolute, made()).unwrap();
    setup.version(2.0).await;
    std::fs::write(&absolute, "nothing").unwrap();
    setup
        .client
        .wait_metric("config_last_reload_succeeded", 0.0)
        .await;
    setup.version(2.0).await;
}
