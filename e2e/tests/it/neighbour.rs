//! One runtime at each of its limits, and another beside it under an ordinary load: the first is
//! told its limit by name, and the second does not notice. How quick the second is meanwhile is for
//! a benchmark to say.

use std::time::Duration;

use e2e::{
    entry::Entry,
    load::{Load, Plan},
    payload::Payload,
    platform::PlatformClient,
    raw::{RawClient, RawResponse},
    system::{Options, System},
    upstream::Upstream,
};
use tokio::time::Instant;

const NOISY: &str = "demo-noisy";

/// The two runtimes, the second of them limited, and the load on the first.
struct Beside {
    upstream: Upstream,
    system: System,
    load: Load,
}

impl Beside {
    async fn with_limits(limits: &str) -> Self {
        let tail = format!("[runtime.limits]\n{limits}\n");
        Self::with(|options| options.runtimes_tail(&tail)).await
    }

    async fn with(change: impl FnOnce(Options) -> Options) -> Self {
        let upstream = Upstream::start().await;
        let options = Options::to(&upstream.h2c_url()).and("demo", "noisy", &upstream.url());
        let system = System::with(change(options)).await;
        let load = Load::start(system.entry(), &Plan::every_kind());
        load.wait_progress(5).await;
        Self {
            upstream,
            system,
            load,
        }
    }

    fn noisy(&self) -> Entry {
        self.system.entry_of(NOISY)
    }

    /// The load on the quiet runtime goes on, and nothing of it has failed.
    async fn assert_unnoticed(self) {
        self.load.wait_progress(5).await;
        let report = self.load.finish().await;
        report.assert_none_failed();
        for kind in e2e::load::ExchangeKind::ALL {
            assert_eq!(report.counts(kind).by_protocol, 0, "{report}");
        }
    }
}

fn assert_told(response: &RawResponse, status: u16, reason: &str) {
    let body = String::from_utf8_lossy(&response.content.bytes);
    assert_eq!(response.head.status(), status, "{body}");
    assert!(body.contains(reason), "{body}");
}

#[tokio::test]
async fn exchanges_open_at_once() {
    let beside = Beside::with_limits("exchanges = 8").await;
    let mut held = Vec::new();
    for number in 0..8 {
        let mut client = RawClient::connect(&beside.noisy()).await;
        let target = format!("/hold?{number}");
        client.request("GET", &target, "", b"").await;
        beside.upstream.wait_request(&target).await;
        held.push(client);
    }
    for _ in 0..20 {
        let mut client = RawClient::connect(&beside.noisy()).await;
        let response = client.exchange("GET", "/hold", "").await;
        assert_told(&response, 503, "exchange_limit");
        assert!(response.head.value("retry-after").is_some());
    }
    held.pop();
    beside
        .upstream
        .wait_hang_up("/hold?7", Duration::from_secs(5))
        .await;
    let mut client = PlatformClient::http1(&beside.noisy()).await;
    let again = async || (client.get("/status/200").await.status == 200).then_some(());
    e2e::deadline::eventually(e2e::deadline::SOON, "room again", again).await;
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn exchanges_begun_in_a_second() {
    let beside = Beside::with_limits("exchange_rate = 20").await;
    let mut client = RawClient::connect(&beside.noisy()).await;
    let (mut good, mut refused) = (0, 0);
    for _ in 0..300 {
        let response = client.exchange("GET", "/status/200", "").await;
        if response.head.status() == 200 {
            good += 1;
        } else {
            assert_told(&response, 429, "exchange_rate_limit");
            assert!(response.head.value("retry-after").is_some());
            refused += 1;
        }
    }
    assert!(good >= 20 && refused >= 1, "{good} good, {refused} refused");
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn bytes_in_a_second_either_way() {
    let limits = "upload_rate = \"64KiB\"\ndownload_rate = \"64KiB\"";
    let beside = Beside::with_limits(limits).await;
    // Whatever may come at once: of 256 KiB, three quarters at least are spread over their time.
    let payload = Payload::new(256 * 1024);
    let slow = Duration::from_millis(1_900);

    let mut client = PlatformClient::http1(&beside.noisy()).await;
    let began = Instant::now();
    let answer = client.post("/upload", payload.to_bytes()).await;
    let received: e2e::upstream::Received = answer.json();
    assert_eq!(received.sha256, payload.sha256());
    assert!(began.elapsed() > slow, "up in {:?}", began.elapsed());

    let began = Instant::now();
    let answer = client.get("/download?bytes=262144").await;
    assert_eq!(e2e::payload::sha256(&answer.body), payload.sha256());
    assert!(began.elapsed() > slow, "down in {:?}", began.elapsed());
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn websockets_open_at_once() {
    let beside = Beside::with_limits("websockets = 2").await;
    let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut open = Vec::new();
    for number in 0..10 {
        let mut client = RawClient::connect(&beside.noisy()).await;
        let response = client.exchange("GET", "/websocket", lines).await;
        if number < 2 {
            assert_eq!(response.head.status(), 101);
            open.push(client);
            continue;
        }
        assert_told(&response, 503, "websocket_limit");
    }
    let mut client = RawClient::connect(&beside.noisy()).await;
    let response = client.exchange("GET", "/status/200", "").await;
    assert_eq!(response.head.status(), 200, "other requests go on");
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn bytes_of_a_head() {
    let beside = Beside::with_limits("head_size = \"4KiB\"").await;
    let mut client = RawClient::connect(&beside.noisy()).await;
    let field = |bytes: usize| format!("X-Long: {}\r\n", "x".repeat(bytes));
    let response = client.exchange("GET", "/status/200", &field(1_000)).await;
    assert_eq!(response.head.status(), 200);
    let mut client = RawClient::connect(&beside.noisy()).await;
    let response = client.exchange("GET", "/status/200", &field(6_000)).await;
    assert_told(&response, 431, "head_too_large");
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn requests_that_wait_for_a_client_that_is_away() {
    let flags = ["--limit-waiting", "4", "--offline-wait", "3s"];
    let mut beside = Beside::with(|options| options.server_flags(&flags)).await;
    beside.system.kill_client(NOISY);
    // What is sent before the server has seen that is lost, and waits for no client.
    let admin = beside.system.server().admin();
    admin
        .wait_metric("tunnel_server_runtimes", &["offline"], |count| count > 0.5)
        .await;
    let entry = beside.noisy();
    let ask = async || {
        let mut client = RawClient::connect(&entry).await;
        client.exchange("GET", "/", "").await
    };
    let answers = futures_util::future::join_all((0..20).map(|_| ask())).await;
    let count = |reason: &str| {
        let told = answers.iter().filter(|answer| {
            let body = String::from_utf8_lossy(&answer.content.bytes);
            answer.head.status() == 503 && body.contains(reason)
        });
        told.count()
    };
    assert_eq!((count("runtime_offline"), count("waiting_limit")), (4, 16));
    beside.assert_unnoticed().await;
}

#[tokio::test]
async fn addresses_that_the_client_itself_does_not_allow() {
    let mut beside = Beside::with(|options| options).await;
    beside.system.kill_client(NOISY);
    let flags = ["--allow-from", "192.0.2.0/24"].map(str::to_owned);
    beside.system.client_options(NOISY).flags.extend(flags);
    beside.system.start_client(NOISY).await;
    let lines = "X-Forwarded-For: 192.0.2.7\r\nForwarded: for=192.0.2.7\r\n";
    let mut client = RawClient::connect(&beside.noisy()).await;
    let response = client.exchange("GET", "/", lines).await;
    assert_told(&response, 403, "address_denied");
    beside.assert_unnoticed().await;
}
