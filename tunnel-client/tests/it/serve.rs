//! `serve`: the client behind a listener of its own, on raw sockets between a scripted upstream and a
//! test in the place of the ingress controller.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt;
use testkit::deadline::{SOON, eventually};
use testkit::http1::{self, End, Head, RawConnection, RawResponse};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tunnel_client::config::ServeConfig;
use tunnel_client::serving::{Serving, ServingError};
use tunnel_http::access_log::AccessLog;
use tunnel_ops::signals::{Shutdown, Trigger};
use tunnel_ops::task::Owned;

use testkit::scripted::{ScriptedConnection, ScriptedUpstream, slow};

/// A running client without a tunnel.
pub(crate) struct Served {
    pub(crate) trigger: Trigger,
    pub(crate) front: SocketAddr,
    admin: SocketAddr,
    ended: Owned<Result<(), ServingError>>,
}

impl Served {
    pub(crate) fn start(upstream: &str) -> Self {
        Self::with(upstream, |_| {})
    }

    /// The same with another configuration.
    pub(crate) fn with(upstream: &str, change: impl FnOnce(&mut ServeConfig)) -> Self {
        let mut config = ServeConfig::new(upstream.parse().unwrap());
        config.settings.listen = "127.0.0.1:0".parse().unwrap();
        config.settings.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        change(&mut config);
        let serving = Serving::new(config, AccessLog::off()).unwrap();
        let addresses = serving.addresses();
        let (trigger, shutdown) = Shutdown::manual();
        Self {
            trigger,
            front: addresses.front,
            admin: addresses.admin.unwrap(),
            ended: Owned::spawn("serving", serving.run(shutdown)),
        }
    }

    /// A connection of an ingress controller.
    pub(crate) async fn connect(&self) -> RawConnection {
        RawConnection::connect(self.front).await
    }

    /// How it ended.
    pub(crate) async fn ended(self) {
        timeout(SOON, self.ended).await.unwrap().unwrap().unwrap();
    }

    pub(crate) async fn admin(&self, path: &str) -> RawResponse {
        http1::get(self.admin, "localhost", path).await
    }

    /// Waits until it is ready, or not any more.
    async fn wait_ready(&self, ready: bool) {
        let status = if ready { 200 } else { 503 };
        eventually(SOON, "readiness to change", async || {
            let answer = self.admin("/readyz").await;
            (answer.head.status() == status).then_some(())
        })
        .await;
    }
}

/// All that still comes.
async fn rest(connection: &mut RawConnection) -> String {
    let (rest, _) = connection.rest().await;
    String::from_utf8_lossy(&rest).into_owned()
}

const GET: &str = "GET /a//b/%2e?x=%zz HTTP/1.1\r\nHost: App.example.com:80\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The value of a field in a head.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// An upstream that says what it was asked, and answers.
async fn told() -> (ScriptedUpstream, tokio::sync::mpsc::Receiver<Head>) {
    let (tell, told) = tokio::sync::mpsc::channel(8);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let tell = tell.clone();
        async move {
            while let Ok(head) = connection.head().await {
                tell.send(head).await.unwrap();
                connection.send(OK).await;
            }
        }
    })
    .await;
    (upstream, told)
}

#[tokio::test]
async fn a_request_goes_on_as_it_is_and_says_who_asked() {
    let (upstream, mut told) = told().await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    let request = GET.replace(
        "\r\n\r\n",
        "\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-User: admin\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
    );
    ingress.send(&request).await;
    let answer = ingress.head().await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(field(&answer, "x-request-id").is_some(), "{answer}");
    assert_eq!(ingress.bytes(2).await, b"ok");
    let head = told.recv().await.unwrap();
    assert!(
        head.starts_with("GET /a//b/%2e?x=%zz HTTP/1.1\r\nhost: App.example.com:80\r\n"),
        "{head}"
    );
    assert_eq!(field(&head, "x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(field(&head, "x-forwarded-proto"), Some("http"));
    assert_eq!(field(&head, "x-hop"), None);
    assert_eq!(field(&head, "x-forwarded-user"), None);
    assert!(
        field(&head, "tunnel-via").unwrap().starts_with("tunnel-"),
        "{head}"
    );
    // The same connection, in a row.
    ingress.send([GET, GET].concat()).await;
    for _ in 0..2 {
        ingress.head().await.unwrap();
        assert_eq!(ingress.bytes(2).await, b"ok");
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test]
async fn only_a_trusted_proxy_may_say_who_asked_before_it() {
    let (upstream, mut told) = told().await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    });
    let mut ingress = served.connect().await;
    let said = "\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n";
    ingress.send(GET.replace("\r\n\r\n", said)).await;
    let head = told.recv().await.unwrap();
    // In one line, since many readers take only one.
    let both = Some("203.0.113.9, 127.0.0.1");
    assert_eq!(field(&head, "x-forwarded-for"), both);
    assert_eq!(head.matches("x-forwarded-for").count(), 1, "{head}");
    assert_eq!(field(&head, "x-forwarded-proto"), Some("https"));
}

/// As plain probes of load balancers are.
#[tokio::test]
async fn a_request_of_http10_may_name_no_host() {
    let (upstream, mut told) = told().await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress.send("GET /readyz HTTP/1.0\r\n\r\n").await;
    let answer = rest(&mut ingress).await;
    assert!(
        answer.starts_with("HTTP/1.0 200 ") || answer.starts_with("HTTP/1.1 200 "),
        "{answer}"
    );
    let head = told.recv().await.unwrap();
    assert!(head.starts_with("GET /readyz HTTP/1.1\r\n"), "{head}");
    // The upstream gets its own name, and nobody is said to have named another.
    let own = upstream.address().to_string();
    assert_eq!(field(&head, "host"), Some(&*own));
    assert_eq!(field(&head, "x-forwarded-host"), None);
    assert_eq!(field(&head, "forwarded"), Some("for=127.0.0.1;proto=http"));
    let mut ingress = served.connect().await;
    ingress.send("GET /readyz HTTP/1.1\r\n\r\n").await;
    assert!(rest(&mut ingress).await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused_and_nobody_is_asked() {
    let upstream = ScriptedUpstream::answering(OK).await;
    let served = Served::start(&upstream.url());
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "400",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n folded\r\n\r\n",
            "400",
        ),
        (
            "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
            "400",
        ),
        ("GET / HTTP/1.1\nHost: a\n\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nX_A: 1\r\n\r\n", "400"),
        ("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "405"),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "501",
        ),
    ] {
        let mut ingress = served.connect().await;
        ingress.send(request).await;
        let answer = rest(&mut ingress).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:?}: {answer}"
        );
        assert!(answer.contains("\"hop\":\"tunnel-client\""), "{answer}");
        let proxy = field(&answer, "proxy-status").unwrap();
        assert!(proxy.starts_with("tunnel-client; error="), "{proxy}");
    }
    assert_eq!(upstream.connections(), 0);
}

#[tokio::test]
async fn a_problem_is_told_as_the_tunnel_server_would() {
    // A port on which nobody listens.
    let gone = ScriptedUpstream::answering(OK).await.url();
    let served = Served::start(&gone);
    let mut ingress = served.connect().await;
    ingress.send(GET).await;
    let head = ingress.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    let status = field(&head, "proxy-status").unwrap();
    assert!(
        status.starts_with("tunnel-client; error=connection_refused"),
        "{status}"
    );
    assert_eq!(field(&head, "content-type"), Some("application/json"));
    let length = field(&head, "content-length").unwrap().parse().unwrap();
    let body = String::from_utf8(ingress.bytes(length).await).unwrap();
    assert!(body.contains("\"reason\":\"connection_refused\""), "{body}");
    // The connection goes on.
    ingress.send(GET).await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 502 "));
    assert!(
        served
            .admin("/metrics")
            .await
            .text()
            .contains("tunnel_client_problems_total{reason=\"connection_refused\"} 2")
    );
}

#[tokio::test]
async fn a_hundred_is_said_when_the_upstream_says_it() {
    let (asked_in, asked) = oneshot::channel();
    let (go, gone) = oneshot::channel::<()>();
    let script = std::sync::Mutex::new(Some((asked_in, gone)));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let script = script.lock().unwrap().take();
        async move {
            let (asked_in, gone) = script.unwrap();
            asked_in.send(connection.head().await.unwrap()).unwrap();
            gone.await.unwrap();
            connection.send("HTTP/1.1 100 Continue\r\n\r\n").await;
            connection
                .send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
                .await;
            assert_eq!(connection.bytes(4).await, b"body");
            connection.send(OK).await;
        }
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        .await;
    let head = asked.await.unwrap();
    assert_eq!(field(&head, "expect"), Some("100-continue"));
    assert!(ingress.read_some().now_or_never().is_none());
    go.send(()).unwrap();
    let mut heads = Vec::new();
    while heads.len() < 2 {
        heads.push(ingress.head().await.unwrap());
    }
    heads.sort_by_key(|head| head.status());
    assert!(heads[0].starts_with("HTTP/1.1 100 "), "{heads:?}");
    assert!(
        heads[1].starts_with("HTTP/1.1 103 ") && heads[1].contains("link: </a>"),
        "{heads:?}"
    );
    ingress.send("body").await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_answer_may_come_before_the_content() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection
            .send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
            .await;
        connection.rest().await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        .await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 413 "));
}

#[tokio::test]
async fn each_piece_goes_on_at_once_in_both_directions() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        let head = connection.head().await.unwrap();
        assert_eq!(field(&head, "transfer-encoding"), Some("chunked"));
        connection
            .send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        assert_eq!(connection.bytes(9).await, b"4\r\nping\r\n");
        connection.send("9\r\ndata: a\n\n\r\n").await;
        assert_eq!(connection.bytes(5).await, b"0\r\n\r\n");
        connection.send("9\r\ndata: b\n\n\r\n0\r\n\r\n").await;
        connection.rest().await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    ingress.send("4\r\nping\r\n").await;
    assert_eq!(ingress.bytes(14).await, b"9\r\ndata: a\n\n\r\n");
    ingress.send("0\r\n\r\n").await;
    assert_eq!(ingress.bytes(19).await, b"9\r\ndata: b\n\n\r\n0\r\n\r\n");
}

/// What a platform client sends and what it gets are two streams once there is an answer.
#[tokio::test]
async fn a_content_may_be_silent_once_the_answer_has_begun() {
    const LIMIT: Duration = Duration::from_millis(200);
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        connection
            .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        assert_eq!(connection.bytes(13).await, b"3\r\nabc\r\n0\r\n\r\n");
        connection.send("2\r\nok\r\n0\r\n\r\n").await;
        connection.rest().await;
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.body_idle_timeout = LIMIT;
    });
    let mut ingress = served.connect().await;
    ingress
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        .await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    // That nothing happens in this time is what the test is about.
    tokio::time::sleep(LIMIT * 4).await;
    ingress.send("0\r\n\r\n").await;
    assert_eq!(ingress.bytes(12).await, b"2\r\nok\r\n0\r\n\r\n");
}

/// That of the head is `request_timeout`.
#[tokio::test]
async fn a_content_that_stalls_is_incomplete() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        drop(connection.head().await);
        connection.rest().await;
    })
    .await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.body_idle_timeout = Duration::from_millis(100);
    });
    let mut ingress = served.connect().await;
    ingress
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        .await;
    assert!(ingress.head().await.unwrap().starts_with("HTTP/1.1 400 "));
    let content = rest(&mut ingress).await;
    assert!(content.contains("\"request_incomplete\""), "{content}");
}

#[tokio::test]
async fn large_contents_pass_whole_and_wait_for_who_reads_slowly() {
    const BYTES: usize = 16 * 1024 * 1024;
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        connection.head().await.unwrap();
        let content = connection.bytes(BYTES).await;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n");
        connection.send(head).await;
        connection.send(content).await;
        connection.rest().await;
    })
    .await;
    let served = Served::start(&upstream.url());
    let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let (mut reading, mut writing) = served.connect().await.split();
    let sent = content.clone();
    let _sending = Owned::spawn("upload", async move {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n");
        writing.send(head).await;
        writing.send(&sent).await;
        writing
    });
    let response = reading.response().await;
    assert!(response.content.bytes == content, "all bytes come back");
}

#[tokio::test]
async fn a_cut_is_never_an_end() {
    let upstream = ScriptedUpstream::start(|mut connection| async move {
        let head = connection.head().await.unwrap();
        if head.starts_with("GET /chunked") {
            connection
                .send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n")
                .await;
        } else {
            connection
                .send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")
                .await;
        }
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress
        .send("GET /chunked HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    let text = rest(&mut ingress).await;
    assert!(
        text.ends_with("4\r\npart\r\n") || !text.contains("0\r\n\r\n"),
        "{text}"
    );
    // An HTTP/1.0 client has nothing but the way in which the connection ends.
    let mut ingress = served.connect().await;
    ingress
        .send("GET /chunked HTTP/1.0\r\nHost: a\r\n\r\n")
        .await;
    let (_, end) = ingress.rest().await;
    assert_eq!(end, End::Reset);
}

#[tokio::test]
async fn who_hangs_up_is_seen_by_the_upstream() {
    let (seen, is_seen) = oneshot::channel();
    let seen = std::sync::Mutex::new(Some(seen));
    let upstream = ScriptedUpstream::start(move |mut connection| {
        let seen = seen.lock().unwrap().take();
        async move {
            connection.head().await.unwrap();
            connection.rest().await;
            seen.unwrap().send(()).unwrap();
        }
    })
    .await;
    let served = Served::start(&upstream.url());
    let mut ingress = served.connect().await;
    ingress.send(GET).await;
    upstream.more_connections(0).await;
    drop(ingress);
    timeout(SOON, is_seen).await.unwrap().unwrap();
}

#[tokio::test]
async fn there_are_bounds() {
    let (upstream, mut asked, answer) = slow().await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.max_exchanges = 1;
        config.settings.max_connections = 2;
        config.settings.max_head_size = 8 * 1024;
    });
    let mut first = served.connect().await;
    first.send(GET).await;
    asked.recv().await.unwrap();
    let mut second = served.connect().await;
    second.send(GET).await;
    let head = second.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert_eq!(field(&head, "retry-after"), Some("1"));
    // There is no place for a third connection.
    let mut third = served.connect().await;
    let text = rest(&mut third).await;
    assert_eq!(text, "");
    answer.send(()).await.unwrap();
    assert!(first.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    assert_eq!(first.bytes(4).await, b"late");
    first
        .send(GET.replace("\r\n\r\n", &format!("\r\nx: {}\r\n\r\n", "x".repeat(9_000))))
        .await;
    assert!(first.head().await.unwrap().starts_with("HTTP/1.1 431 "));
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let upstream = ScriptedUpstream::answering(OK).await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.request_head_timeout = Duration::from_millis(50);
        config.settings.keep_alive_timeout = Duration::from_millis(50);
    });
    let mut slow = served.connect().await;
    slow.send("GET / HTTP/1.1\r\nHost: ").await;
    assert!(rest(&mut slow).await.starts_with("HTTP/1.1 408 "));
    let mut idle = served.connect().await;
    idle.send(GET).await;
    drop(idle.head().await);
    assert_eq!(idle.rest().await, (b"ok".to_vec(), End::Clean));
}

#[tokio::test]
async fn stopping_lets_what_is_open_finish_and_takes_nothing_new() {
    let (upstream, mut asked, answer) = slow().await;
    let served = Served::start(&upstream.url());
    served.wait_ready(true).await;
    let mut idle = served.connect().await;
    let mut busy = served.connect().await;
    busy.send(GET).await;
    asked.recv().await.unwrap();
    served.trigger.request();
    served.wait_ready(false).await;
    assert_eq!(
        idle.rest().await,
        (Vec::new(), End::Clean),
        "closed at once"
    );
    let refused = timeout(SOON, async {
        while TcpStream::connect(served.front).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused.await.unwrap();
    answer.send(()).await.unwrap();
    let head = busy.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(field(&head, "connection"), Some("close"));
    assert_eq!(busy.rest().await, (b"late".to_vec(), End::Clean));
    served.ended().await;
}

#[tokio::test]
async fn it_goes_on_accepting_for_as_long_as_it_is_told() {
    let upstream = ScriptedUpstream::answering(OK).await;
    let served = Served::with(&upstream.url(), |config| {
        config.settings.grace_period = Duration::from_secs(60);
        config.settings.drain_delay = Duration::from_secs(20);
    });
    served.wait_ready(true).await;
    served.trigger.request();
    served.wait_ready(false).await;
    let mut late = served.connect().await;
    late.send(GET).await;
    assert!(late.head().await.unwrap().starts_with("HTTP/1.1 200 "));
    // A second signal ends it at once.
    served.trigger.force();
    served.ended().await;
}
