//! Requests that are forwarded to another node whose session is lost, or becomes silent, before it has answered anything.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Request;
use testkit::{
    deadline::{SOON, eventually, soon},
    http1::{Duplex, RawConnection},
    tunnel::{
        body::{full, status},
        client::{Connected, FakeClient, Outcome, dial, session_request},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex, split},
    sync::watch,
    task::JoinSet,
    time::Instant,
};
use tunnel_proto::{exchange::RecvBody, handshake::InstanceSecret};

use crate::{
    forwarding::{Linked, knows_holder},
    rig::{PROD, PROD_HOST, Rig},
};

/// The time in which a silent session is found, and a moment for what follows on a busy machine.
const LEFT_WITHIN: Duration = Duration::from_secs(6);

/// A path to a server on which nothing passes while it is held; it is cut when this is dropped.
struct Path {
    is_held: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Path {
    /// A path between a client and what it has connected to.
    fn over(connected: Connected) -> (Self, Connected) {
        let (near, far) = duplex(65_536);
        let (from_far, to_far) = split(far);
        let (from_io, to_io) = split(connected.io);
        let (is_held, held) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(pass(from_far, to_io, held.clone()));
        tasks.spawn(pass(from_io, to_far, held));
        let io: Box<dyn Duplex> = Box::new(near);
        let path = Self {
            is_held,
            _tasks: tasks,
        };
        (path, Connected { io, ..connected })
    }

    fn hold(&self) {
        self.is_held.send_replace(true);
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut held: watch::Receiver<bool>,
) {
    let mut bytes = [0; 4_096];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if held.wait_for(|is_held| !is_held).await.is_err() {
            return;
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

/// A session of the runtime at a node, over a path of its own.
struct Holder {
    client: FakeClient,
    path: Path,
    /// Whether requests for `/hold` wait for ever.
    is_stuck: Arc<AtomicBool>,
    /// Whether requests for `/warm` are answered.
    is_warm: watch::Sender<bool>,
}

impl Holder {
    /// It answers with its name.
    async fn at(rig: &Rig, name: &'static str) -> Self {
        let request = session_request(rig.token(PROD), InstanceSecret::from_random([7; 16]));
        let (path, connected) = Path::over(dial(rig, &request).await);
        let is_stuck = Arc::new(AtomicBool::new(false));
        let stuck = is_stuck.clone();
        let (is_warm, warm) = watch::channel(false);
        let answer = move |request: Request<RecvBody>| {
            let is_stuck = request.uri().path() == "/hold" && stuck.load(Ordering::SeqCst);
            let is_warming = request.uri().path() == "/warm";
            let mut warm = warm.clone();
            async move {
                if is_stuck {
                    std::future::pending::<()>().await;
                }
                if is_warming {
                    let _ = warm.wait_for(|is_warm| *is_warm).await;
                }
                Outcome::Ok(status(200, full(name)))
            }
        };
        Self {
            client: FakeClient::on(connected, answer).await,
            path,
            is_stuck,
            is_warm,
        }
    }

    /// How many requests for this path it has received.
    fn count(&self, path: &str) -> usize {
        self.client
            .paths()
            .iter()
            .filter(|seen| *seen == path)
            .count()
    }

    /// A connection with a request that waits at this session, whose stream has carried one before: nothing is received
    /// for it.
    async fn waiting(&self, node: &Rig, request: &str) -> RawConnection {
        self.is_stuck.store(true, Ordering::SeqCst);
        let before = self.count("/hold");
        soon("a request that waits", async {
            loop {
                let mut raw = node.raw().await;
                raw.send(request).await;
                tokio::select! {
                    answer = raw.response() => assert_eq!(answer.head.status(), 200),
                    () = eventually(SOON, "a request", async || (self.count("/hold") > before).then_some(())) => {
                        return raw;
                    }
                }
            }
        })
        .await
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n\r\n")
}

fn upgrade(path: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

/// Has each session answer two requests at once, so that the next ones find streams that were used before.
async fn warm(node: &Rig, holders: &[&Holder]) {
    let mut asked = Vec::new();
    eventually(SOON, "requests at each session", async || {
        let mut raw = node.raw().await;
        raw.send(get("/warm")).await;
        asked.push(raw);
        let is_ready = |holder: &&Holder| holder.count("/warm") >= 2;
        holders.iter().all(is_ready).then_some(())
    })
    .await;
    for holder in holders {
        holder.is_warm.send_replace(true);
    }
    for mut raw in asked {
        assert_eq!(raw.response().await.head.status(), 200);
    }
}

/// Three nodes, of which the last has no session.
async fn three(linked: &Linked) -> (Rig, Rig, Rig) {
    let (one, two) = linked.pair().await;
    let three = linked.node("n3", |_| {}).await;
    three.metric_becomes("tunnel_server_peer_links", 4.0).await;
    (one, two, three)
}

#[tokio::test]
async fn a_forwarded_request_is_sent_once_more_when_the_holder_loses_its_session() {
    let linked = Linked::start().await;
    let (one, two, three) = three(&linked).await;
    let first = Holder::at(&one, "first").await;
    let second = Holder::at(&two, "second").await;
    knows_holder(&three, "n1").await;
    knows_holder(&three, "n2").await;
    warm(&three, &[&first, &second]).await;
    let mut get = first.waiting(&three, &get("/hold")).await;
    let mut upgrade = first.waiting(&three, &upgrade("/hold")).await;
    drop(first.path);
    assert_eq!(get.response().await.text(), "second");
    assert_eq!(upgrade.response().await.head.status(), 101);
}

/// The holder has another session: the request goes there, although it was forwarded to that node before.
#[tokio::test]
async fn a_forwarded_request_goes_to_another_session_of_the_same_node() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let first = Holder::at(&one, "first").await;
    let second = Holder::at(&one, "second").await;
    knows_holder(&two, "n1").await;
    warm(&two, &[&first, &second]).await;
    let mut get = first.waiting(&two, &get("/hold")).await;
    drop(first.path);
    assert_eq!(get.response().await.text(), "second");
}

/// What waits for its answer on a silent session, at its node or forwarded to it, goes to the session of another node.
#[tokio::test]
async fn a_silent_session_is_left_for_one_of_another_node() {
    let linked = Linked::start().await;
    let (one, two, three) = three(&linked).await;
    let first = Holder::at(&one, "first").await;
    let second = Holder::at(&two, "second").await;
    for node in [&one, &three] {
        knows_holder(node, "n1").await;
        knows_holder(node, "n2").await;
    }
    warm(&three, &[&first, &second]).await;
    let mut local = first.waiting(&one, &get("/hold")).await;
    let mut forwarded = first.waiting(&three, &get("/hold")).await;
    let held = Instant::now();
    first.path.hold();
    assert_eq!(
        soon("an answer", forwarded.response()).await.text(),
        "second"
    );
    assert_eq!(soon("an answer", local.response()).await.text(), "second");
    assert!(held.elapsed() < LEFT_WITHIN, "{:?}", held.elapsed());
    // Whatever is new goes there at once, a request with content included.
    let post = format!("POST / HTTP/1.1\r\nhost: {PROD_HOST}\r\ncontent-length: 5\r\n\r\nhello");
    for node in [&one, &three] {
        for _ in 0..4 {
            let asked = Instant::now();
            assert_eq!(node.raw().await.ask(&post).await.text(), "second");
            assert!(asked.elapsed() < Duration::from_secs(1));
        }
    }
}

/// The client of a silent session comes back at another node, which no request knew of when it was forwarded.
#[tokio::test]
async fn a_silent_session_is_left_for_one_that_comes_later() {
    let linked = Linked::start().await;
    let (one, two, three) = three(&linked).await;
    let first = Holder::at(&one, "first").await;
    knows_holder(&three, "n1").await;
    warm(&three, &[&first]).await;
    let mut local = first.waiting(&one, &get("/hold")).await;
    let mut forwarded = first.waiting(&three, &get("/hold")).await;
    first.path.hold();
    eventually(SOON, "the session to be silent", async || {
        let mut raw = three.raw().await;
        let asked = tokio::time::timeout(Duration::from_millis(100), raw.ask(get("/")));
        asked.await.is_err().then_some(())
    })
    .await;
    let _later = Holder::at(&two, "second").await;
    assert_eq!(
        soon("an answer", forwarded.response()).await.text(),
        "second"
    );
    assert_eq!(soon("an answer", local.response()).await.text(), "second");
}

/// With no other session anywhere, a silent one is used as a last resort, and answers when its path is back.
#[tokio::test]
async fn a_silent_session_without_another_one_is_not_given_up() {
    let linked = Linked::start().await;
    let (one, two) = linked.pair().await;
    let first = Holder::at(&one, "first").await;
    knows_holder(&two, "n1").await;
    warm(&two, &[&first]).await;
    first.path.hold();
    let mut forwarded = two.raw().await;
    forwarded.send(get("/")).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    first.path.is_held.send_replace(false);
    assert_eq!(
        soon("an answer", forwarded.response()).await.text(),
        "first"
    );
}
