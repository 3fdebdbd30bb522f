//! Where a whole client goes for an answer: sockets, names, and not wherever a name leads.

use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tunnel_ops::task::Owned;
use tunnel_proto::problem::Reason;

use crate::setup::{Setup, get};
use testkit::names::{NameServer, Reply};
use testkit::scripted::ScriptedUpstream;

#[tokio::test]
async fn a_unix_socket_answers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let _upstream = Owned::spawn("upstream", async move {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tasks.spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(read));
                while let Ok(Some(line)) = lines.next_line().await {
                    if line.is_empty() {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
                        let written = tokio::io::AsyncWriteExt::write_all(&mut write, answer);
                        written.await.unwrap();
                    }
                }
            });
        }
    });
    let setup = Setup::new(&format!("unix:{}", path.display())).await;
    for _ in 0..3 {
        assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    }
}

#[tokio::test]
async fn localhost_is_reached_and_another_name_of_this_machine_is_not() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let port = upstream.address().port();
    let setup = Setup::new(&format!("http://localhost:{port}")).await;
    assert_eq!(setup.session.fetch(get("/")).await.body(), "hello");
    let server = NameServer::start().await;
    server.set("dev-box.test", &["127.0.0.1"], 60);
    let setup = Setup::with(&format!("http://dev-box.test.:{port}"), |config| {
        config.settings.dns_server = Some(vec![server.address()]);
    })
    .await;
    let problem = setup.session.ask(get("/")).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::DestinationDenied);
    let detail = problem.detail();
    assert!(detail.contains("dev-box.test"), "{detail}");
    assert!(
        detail.contains("localhost"),
        "it says what to write: {detail}"
    );
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn a_name_server_that_cannot_tell_is_a_dns_error() {
    let server = NameServer::start().await;
    server.set_reply("app.test", Reply::Failure);
    let setup = Setup::with("http://app.test.", |config| {
        config.settings.dns_server = Some(vec![server.address()]);
    })
    .await;
    let problem = setup.session.ask(get("/")).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::DnsError);
    let text = setup.client.metrics().await;
    assert!(
        text.contains("problems_total{reason=\"dns_error\"} 1"),
        "{text}"
    );
}
