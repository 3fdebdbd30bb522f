//! Tunnel clients that do whatever they like: it costs their own session or that one request, and
//! the runtime beside them never notices.

use std::time::Duration;

use e2e::{
    deadline::SOON,
    http1::End,
    peers::curl::curl,
    raw::RawClient,
    stranger::{
        Stranger,
        wire::{Frame, RST, response, response_head, section, string},
    },
    system::{Options, System},
};
use tokio::task::JoinSet;

/// What each of the two programs may hold at most, whatever is done to it.
const MEMORY: u64 = 64 * 1024 * 1024;

/// A system with runtime `demo-app`, to be hostile, and `demo-good`, which answers.
async fn system() -> (System, JoinSet<()>) {
    let options = Options::to("http://127.0.0.1:1").and("demo", "good", "http://127.0.0.1:1");
    let mut system = System::with(options.not_connected()).await;
    let token = system.token_of("demo-good");
    let mut good = Stranger::dial(&system.tunnel_entry(), &token)
        .await
        .unwrap();
    good.greet().await;
    let mut answering = JoinSet::new();
    answering.spawn(async move { good.answer_all(&response(200, &[], b"good")).await });
    (system, answering)
}

async fn dial(system: &mut System) -> Stranger {
    let token = system.token_of("demo-app");
    let mut stranger = Stranger::dial(&system.tunnel_entry(), &token)
        .await
        .unwrap();
    stranger.greet().await;
    stranger
}

/// The other runtime is served, quickly, and the server has not grown.
async fn assert_unharmed(system: &System, after: &str) {
    let url = system.entry_of("demo-good").url("/");
    let output = curl(["--max-time", "2", &url]).await;
    assert_eq!(
        (output.code, output.text().as_str()),
        (0, "good"),
        "after {after}"
    );
    let memory = system.server().program().memory();
    assert!(memory.peak_bytes < MEMORY, "{memory:?} after {after}");
}

/// Answers that no tunnel client may give.
fn bad_answers() -> Vec<(&'static str, Vec<u8>)> {
    let good = response(200, &[], b"x");
    let mut informational = vec![3];
    for _ in 0..100_000 {
        informational.extend(section(103, &[("link", "</a.css>")]));
    }
    let mut endless = response_head(200, &[]);
    endless.pop();
    for number in 0..100_000 {
        endless.extend(string(format!("x-{number}").as_bytes()));
        endless.extend(string(b"value"));
    }
    let mut huge = response_head(200, &[]);
    huge.pop();
    // A name that says it is four exbibytes long.
    huge.extend([0xff; 64]);
    vec![
        ("another form", [vec![9], good].concat()),
        (
            "a switch that nobody asked for",
            response(101, &[("upgrade", "x")], b""),
        ),
        ("informational responses without end", informational),
        ("a head without end", endless),
        ("a name without end", huge),
        ("an impossible status", response(99, &[], b"")),
        ("a status too high", response(1000, &[], b"")),
        ("a name in capitals", response(200, &[("Upper", "x")], b"")),
        ("a name with a space", response(200, &[("a b", "x")], b"")),
        (
            "a line break in a value",
            response(200, &[("a", "x\r\nset-cookie: y")], b""),
        ),
        (
            "a zero byte in a value",
            response(200, &[("a", "x\0y")], b""),
        ),
        (
            "a field of the next hop",
            response(200, &[("transfer-encoding", "chunked")], b"x"),
        ),
        (
            "another length than promised",
            response(200, &[("content-length", "5")], b"x"),
        ),
        (
            "two lengths",
            response(
                200,
                &[("content-length", "1"), ("content-length", "2")],
                b"x",
            ),
        ),
        (
            "a length that is no number",
            response(200, &[("content-length", "+1")], b"x"),
        ),
        (
            "a pseudo-field after others",
            response(200, &[("a", "b"), (":problem", "x")], b"x"),
        ),
    ]
}

#[tokio::test]
async fn a_bad_answer_costs_one_request() {
    let (mut system, _good) = system().await;
    for (name, bytes) in bad_answers() {
        let mut stranger = dial(&mut system).await;
        let (output, ()) = tokio::join!(curl(["--max-time", "10", &system.url("/")]), async {
            let request = stranger.next_request().await;
            stranger.answer(request.stream, &bytes).await;
        });
        // Either there was still time to say so, or the answer was cut: never a clean end.
        let refused = output.code == 0 && output.head().status() == 502;
        assert!(
            refused || [18, 52, 56].contains(&output.code),
            "{name}: {output:?}"
        );
        assert_unharmed(&system, name).await;
    }
}

#[tokio::test]
async fn a_response_that_breaks_off_is_never_whole() {
    let (mut system, _good) = system().await;
    let mut stranger = dial(&mut system).await;
    let mut client = RawClient::connect(&system.entry()).await;
    client.request("GET", "/", "", b"").await;
    let request = stranger.next_request().await;
    let mut half = response_head(200, &[]);
    half.extend(string(b"half of it"));
    stranger.answer(request.stream, &half).await;
    let head = client.head().await.unwrap();
    let reset = Frame::data(RST, request.stream, b"").bytes();
    let framing = head.response_framing("GET");
    let (content, ()) = tokio::join!(client.content(framing), stranger.send_bytes(reset));
    assert_eq!(head.status(), 200);
    assert_ne!(content.end, End::Clean, "{content:?}");

    let (output, ()) = tokio::join!(curl([system.url("/")]), async {
        stranger.next_request().await;
        drop(stranger);
    });
    assert_eq!(output.status(), 502);
    assert!(output.text().contains("session_lost"), "{output:?}");
    assert_unharmed(&system, "a lost session").await;
}

#[tokio::test]
async fn a_client_that_knows_no_windows_loses_its_session() {
    let (mut system, _good) = system().await;
    let mut stranger = dial(&mut system).await;
    let flooded = async {
        let request = stranger.next_request().await;
        let mut head = response_head(200, &[]);
        head.extend([0xc0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        stranger.answer(request.stream, &head).await;
        let piece = vec![b'x'; 64 * 1024];
        for _ in 0..1_000 {
            if !stranger.is_open() {
                break;
            }
            stranger
                .send_bytes(Frame::data(0, request.stream, &piece).bytes())
                .await;
        }
        stranger.wait_close(SOON).await
    };
    // The reader is slow, so that the flood has nowhere to go.
    let reader = curl([
        "--limit-rate",
        "1k",
        "--max-time",
        "3",
        "--output",
        "-",
        &system.url("/"),
    ]);
    let (_, code) = tokio::join!(
        reader,
        tokio::time::timeout(Duration::from_secs(30), flooded)
    );
    assert!(matches!(code, Ok(Some(4004) | None)), "{code:?}");
    assert_unharmed(&system, "a flood").await;
}
