//! How the program leaves when it is told to: in time, whatever is stuck.

use std::process::Stdio;
use std::time::Duration;

use http_body_util::BodyExt;
use testkit::scripted::ScriptedUpstream;
use testkit::tunnel::body::data;
use testkit::tunnel::server::FakeServer;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tunnel_ops::task::Owned;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::exchange;

use crate::setup::{get, post_fed};
use crate::upgrade::{next, switching, websocket};

/// An upstream that answers nothing to its end: not at all, with content that goes on, or with an upgrade. Says
/// each time that it was asked.
async fn never_done() -> (ScriptedUpstream, mpsc::Receiver<()>) {
    let (asked_in, asked) = mpsc::channel(4);
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let asked_in = asked_in.clone();
        async move {
            let head = connection.head().await.unwrap();
            asked_in.send(()).await.unwrap();
            if head.starts_with("GET /endless") {
                connection.send("HTTP/1.1 200 OK\r\n\r\n").await;
                while connection.try_send([b'x'; 1_024]).await {}
                return;
            }
            if head.starts_with("GET /socket") {
                connection.send(switching(&head) + "first").await;
            }
            connection.rest().await;
        }
    });
    (upstream.await, asked)
}

/// The program in a folder of its own, which goes with it.
fn program(server: &FakeServer, upstream: &ScriptedUpstream) -> (Child, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("token", "tnlrt_1_secret\n"), ("ca.pem", server.pem())] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let program = Command::new(env!("CARGO_BIN_EXE_tunnel-client"))
        .args(["run", "--token-file=token", "--ca-file=ca.pem"])
        .args(["--sessions=1", "--admin-listen=off", "--grace-period=5s"])
        .arg(format!("--server={}", server.url()))
        .arg(format!("--upstream={}", upstream.url()))
        .current_dir(folder.path())
        .env_clear()
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    (program.unwrap(), folder)
}

/// One that stops in the middle of its content, one whose answer never ends, and one that is upgraded: the
/// program is gone before its time is over, and says that all is well.
#[tokio::test]
async fn the_program_ends_before_the_grace_period_does_whatever_is_stuck() {
    let grace = Duration::from_secs(5);
    let (upstream, mut asked) = never_done().await;
    let mut server = FakeServer::start().await;
    let (mut program, _folder) = program(&server, &upstream);
    let mut session = server.welcome().await;
    let (pieces, post) = post_fed();
    pieces.send(data("stuck")).await.unwrap();
    let handle = session.session.clone();
    let stuck = Owned::spawn("stuck", async move {
        exchange(&handle, post, |_, _| {}).await.is_err()
    });
    let mut endless = session.ask(get("/endless")).await.unwrap().into_body();
    let (_sending, upgrade) = websocket();
    let mut socket = session.ask(upgrade).await.unwrap().into_body();
    assert_eq!(next(&mut socket).await.unwrap(), "first");
    for _ in 0..3 {
        timeout(grace, asked.recv()).await.unwrap();
    }
    let reading = Owned::spawn("reading", async move {
        while let Some(Ok(_)) = endless.frame().await {}
    });

    let id = program.id().unwrap().to_string();
    let asked_at = Instant::now();
    let sent = Command::new("kill").args(["-TERM", &id]).status().await;
    assert!(sent.unwrap().success());
    let status = timeout(2 * grace, program.wait()).await.unwrap().unwrap();
    let took = asked_at.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!((grace / 2..grace).contains(&took), "{took:?}");
    assert!(matches!(session.notice().await, Control::Drain { .. }));
    assert_eq!(session.ended().await.reason(), CloseReason::Left);
    assert!(timeout(grace, stuck).await.unwrap().unwrap(), "it is cut");
    timeout(grace, reading).await.unwrap().unwrap();
}
