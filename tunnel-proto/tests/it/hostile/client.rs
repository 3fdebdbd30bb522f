//! A hostile tunnel client against a session of the server.

use std::{future::poll_fn, pin::Pin, task::Poll};

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::Body as _;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tunnel_proto::{
    bhttp::encode,
    close::CloseReason,
    exchange::{BodyError, ExchangeError, exchange},
    limits,
    memory::MemoryAccount,
    problem::{Problem, Reason},
    session::{MuxError, Session, SessionEnd, Side},
};

use crate::{
    content::{Arrived, frames, full, get, pattern, random, read, request},
    pair::{Drivers, settle, within},
    peer::{ACK, DATA, FIN, Frame, GO_AWAY, PING, Peer, RST, SYN, WINDOW},
};

/// The close code for a protocol error.
const BROKEN: Option<u16> = Some(4004);

/// A server session and its hostile client.
struct Attack {
    drivers: Drivers,
    server: Session,
    peer: Peer,
    exchanges: JoinSet<Result<(Response<()>, Arrived), Problem>>,
}

impl Attack {
    async fn start() -> Self {
        let mut drivers = Drivers::default();
        let (server, _events, peer) = Peer::of(Side::Server, &mut drivers).await;
        Self {
            drivers,
            server,
            peer,
            exchanges: JoinSet::new(),
        }
    }

    /// Starts an exchange; the stream that it uses.
    async fn start_exchange(&mut self) -> u32 {
        let server = self.server.clone();
        self.exchanges.spawn(async move {
            match exchange(&server, get("/"), |_, _| {}).await {
                Ok(response) => {
                    let (head, body) = response.into_parts();
                    Ok((Response::from_parts(head, ()), read(body).await))
                }
                Err(ExchangeError::Failed { problem, .. }) => Err(problem),
                Err(other) => panic!("{other}"),
            }
        });
        self.peer.next_data().await.stream
    }

    async fn answer(&mut self) -> Result<(Response<()>, Arrived), Problem> {
        within(self.exchanges.join_next()).await.unwrap().unwrap()
    }

    /// Checks that the session still works.
    async fn is_fine(&mut self) {
        let stream = self.start_exchange().await;
        self.peer.answer(stream, &response(200, &[], b"fine")).await;
        let (_, arrived) = self.answer().await.unwrap();
        assert_eq!(arrived.content, "fine");
        assert!(arrived.error.is_none());
    }

    async fn end(&mut self) -> SessionEnd {
        let (_, end) = self.drivers.next_end().await;
        assert!(self.server.is_closed());
        end
    }
}

fn head(status: u16, fields: &[(&str, &str)]) -> BytesMut {
    let mut out = BytesMut::new();
    encode::response_start(&mut out);
    // Bypasses the encoder's check of the status.
    out.extend_from_slice(&(0x4000 | status).to_be_bytes());
    for (name, value) in fields {
        encode::field(&mut out, name.as_bytes(), value.as_bytes());
    }
    encode::end_fields(&mut out);
    out
}

fn response(status: u16, fields: &[(&str, &str)], content: &[u8]) -> BytesMut {
    let mut out = head(status, fields);
    encode::chunk(&mut out, content);
    encode::end_content(&mut out);
    encode::end_fields(&mut out);
    out
}

#[tokio::test(start_paused = true)]
async fn messages_that_break_the_protocol_end_the_session() {
    let large = Bytes::from(vec![b' '; limits::MESSAGE_BYTES + 1]);
    let text = |text: &str| Message::Text(text.into());
    let attacks = [
        Message::Binary(Bytes::from_static(&[0xff; 100])),
        Message::Binary(pattern(100_000)),
        text("garbage"),
        text("{}"),
        text("[1]"),
        text(r#"{"type":"refresh-token"}"#),
        text(&format!(
            r#"{{"type":"x","y":"{}"}}"#,
            "y".repeat(limits::CONTROL_BYTES)
        )),
        Message::Binary(large.clone()),
        text(std::str::from_utf8(&large).unwrap()),
    ];
    for (number, message) in attacks.into_iter().enumerate() {
        let mut attack = Attack::start().await;
        let stream = attack.start_exchange().await;
        attack.peer.send(message).await;
        assert_eq!(
            attack.peer.close_code().await,
            BROKEN,
            "attack {number} on {stream}"
        );
        let end = attack.end().await;
        assert_eq!(
            end.reason(),
            CloseReason::ProtocolError,
            "attack {number}: {end}"
        );
        assert_eq!(
            attack.answer().await.unwrap_err().reason(),
            Reason::SessionLost
        );
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_break_the_protocol_end_the_session() {
    let attacks = [
        // Streams of its own, of either numbering, and one that exists.
        Frame::data(SYN, 2, b"hello"),
        Frame::bare(WINDOW, SYN, 2, 0),
        Frame::data(SYN, 3, b"hello"),
        Frame::data(SYN, 0, b"hello"),
        Frame::bare(WINDOW, SYN, 1, 0),
        // More than the window allows, as a body and as a header only; a window that overflows.
        Frame::data(ACK, 1, &vec![1; limits::STREAM_WINDOW_BYTES + 1]),
        Frame::bare(DATA, ACK, 1, 16 * 1024 * 1024),
        Frame::bare(WINDOW, ACK, 1, u32::MAX),
        // Answers to pings that were not sent; go away; an unknown type and version.
        Frame::bare(PING, ACK, 0, 77),
        Frame::bare(GO_AWAY, 0, 0, 0),
        Frame::bare(GO_AWAY, 0, 0, 2),
        Frame::bare(9, 0, 1, 0),
    ];
    for (number, frame) in attacks.into_iter().enumerate() {
        let mut attack = Attack::start().await;
        assert_eq!(attack.start_exchange().await, 1);
        let mut bytes = BytesMut::new();
        frame.write(&mut bytes);
        for piece in bytes.chunks(200_000) {
            attack.peer.bytes(Bytes::copy_from_slice(piece)).await;
        }
        assert_eq!(attack.peer.close_code().await, BROKEN, "attack {number}");
        let end = attack.end().await;
        let is_named = matches!(
            end,
            SessionEnd::Mux(MuxError::Protocol(_) | MuxError::Ended) | SessionEnd::Protocol(_)
        );
        assert!(is_named, "attack {number}: {end}");
        assert_eq!(
            attack.answer().await.unwrap_err().reason(),
            Reason::SessionLost
        );
    }
}

#[tokio::test(start_paused = true)]
async fn floods_of_valid_frames_do_no_harm() {
    let mut attack = Attack::start().await;
    let pings = (0..50_000).map(|number| Frame::bare(PING, SYN, 0, number));
    let resets = (0..50_000).map(|number| Frame::bare(DATA, RST, number, 0));
    let windows = (0..50_000).map(|number| Frame::bare(WINDOW, ACK, number, 1));
    let empty = (0..50_000).map(|_| Frame::data(0, 1, b""));
    let stream = attack.start_exchange().await;
    for frames in [
        Box::new(pings) as Box<dyn Iterator<Item = Frame> + Send>,
        Box::new(resets.filter(|frame| frame.stream != 1)),
        Box::new(windows),
        Box::new(empty),
    ] {
        assert!(attack.peer.frames(frames).await);
    }
    for _ in 0..10_000 {
        assert!(
            attack
                .peer
                .send(Message::Ping(Bytes::from_static(&[1; 125])))
                .await
        );
        assert!(
            attack
                .peer
                .send(Message::Pong(Bytes::from_static(b"12345678")))
                .await
        );
        assert!(attack.peer.send(Message::Binary(Bytes::new())).await);
    }
    attack
        .peer
        .answer(stream, &response(200, &[], b"fine"))
        .await;
    assert_eq!(attack.answer().await.unwrap().1.content, "fine");
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_send_still_reads_past_pings() {
    let mut attack = Attack::start().await;
    let server = attack.server.clone();
    attack.exchanges.spawn(async move {
        let mut given = JoinSet::new();
        // More uploads than the output takes.
        for _ in 0..10 {
            let (server, body) = (server.clone(), full(pattern(250_000)));
            let request = request(http::Method::POST, "/", body);
            given.spawn(async move {
                let response = exchange(&server, request, |_, _| {}).await.unwrap();
                read(response.into_body()).await.content.len()
            });
        }
        let lengths = given.join_all().await;
        assert_eq!(lengths, [200_000; 10]);
        Ok((Response::new(()), Arrived::default()))
    });
    settle().await;
    // The peer does not read, but everything it sends is received.
    let content = pattern(200_000);
    for number in 0..10 {
        assert!(attack.peer.frame(Frame::bare(PING, SYN, 0, number)).await);
        let answer = response(200, &[], &content);
        assert!(attack.peer.answer(1 + 2 * number, &answer).await);
    }
    attack.answer().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unreadable_responses_fail_only_their_exchange() {
    let hop = |name| response(200, &[(name, "x")], b"a");
    let attacks: [(&str, BytesMut); 14] = [
        ("101", response(101, &[], b"a")),
        ("status 99", response(99, &[], b"a")),
        ("status 600", response(600, &[], b"a")),
        (
            "a request",
            b"\x02\x03GET\x04http\x01a\x01/\0\0\0"[..].into(),
        ),
        ("known length", b"\x01\0\0"[..].into()),
        ("unknown framing", b"\x07\0\0"[..].into()),
        ("connection", hop("connection")),
        ("transfer-encoding", hop("transfer-encoding")),
        ("upper case", hop("X-Upper")),
        ("no token", hop("a b")),
        ("line end", response(200, &[("a", "b\r\nc: d")], b"a")),
        (
            "two lengths",
            response(
                200,
                &[("content-length", "1"), ("content-length", "1")],
                b"a",
            ),
        ),
        ("a list", response(200, &[("content-length", "1,1")], b"a")),
        (
            "huge name",
            b"\x03\x40\xc8\xff\xff\xff\xff\xff\xff\xff\xff"[..].into(),
        ),
    ];
    let mut attack = Attack::start().await;
    for (what, bytes) in attacks {
        let stream = attack.start_exchange().await;
        attack.peer.answer(stream, &bytes).await;
        let problem = attack.answer().await.expect_err(what);
        assert_eq!(problem.reason(), Reason::WireMalformed, "{what}: {problem}");
        let reset = attack.peer.next_of(stream).await;
        assert_eq!((reset.kind, reset.flags), (DATA, RST), "{what}");
    }
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn forbidden_trailers_are_removed() {
    let mut attack = Attack::start().await;
    let stream = attack.start_exchange().await;
    let mut bytes = head(200, &[]);
    encode::end_content(&mut bytes);
    for name in [
        "x-sum",
        "host",
        "content-length",
        "set-cookie",
        "grpc-status",
    ] {
        encode::field(&mut bytes, name.as_bytes(), b"0");
    }
    encode::end_fields(&mut bytes);
    attack.peer.answer(stream, &bytes).await;
    let trailers = attack.answer().await.unwrap().1.trailers.unwrap();
    let names: Vec<_> = trailers.keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["x-sum", "grpc-status"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_accepted_fails_only_its_exchange() {
    let mut attack = Attack::start().await;
    for byte in [0, 2, 3, 0xff] {
        let stream = attack.start_exchange().await;
        attack
            .peer
            .frame(Frame::data(ACK, stream, &[byte, 1, 1]))
            .await;
        assert_eq!(
            attack.answer().await.unwrap_err().reason(),
            Reason::WireMalformed
        );
    }
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn endless_heads_and_informational_responses_are_refused_at_a_limit() {
    let mut attack = Attack::start().await;
    // One byte at a time, in a field of the largest length that could still fit.
    let stream = attack.start_exchange().await;
    attack.peer.answer(stream, b"\x03\x40\xc8").await;
    let endless = std::iter::repeat_n(Frame::data(0, stream, b"\x01a\x01b"), 50_000);
    attack.peer.frames(endless).await;
    assert_eq!(
        attack.answer().await.unwrap_err().reason(),
        Reason::WireMalformed
    );
    let stream = attack.start_exchange().await;
    attack
        .peer
        .answer(stream, b"\x03\x40\xc8\x01a\x80\x02\x70\x00")
        .await;
    let endless = std::iter::repeat_n(Frame::data(0, stream, b"b"), limits::HEAD_BYTES + 1_000);
    attack.peer.frames(endless).await;
    settle().await;
    assert_eq!(
        attack.answer().await.unwrap_err().reason(),
        Reason::WireMalformed
    );
    // 100,000 informational responses of three bytes; and as many as allowed, without a final one.
    let stream = attack.start_exchange().await;
    attack.peer.answer(stream, b"\x03").await;
    let early = std::iter::repeat_n(Frame::data(0, stream, b"\x40\x67\0"), 100_000);
    attack.peer.frames(early).await;
    assert_eq!(
        attack.answer().await.unwrap_err().reason(),
        Reason::WireMalformed
    );
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_after_a_response_never_reach_the_next_exchange() {
    let mut attack = Attack::start().await;
    let surplus = response(200, &[("x-smuggled", "1")], b"smuggled");
    // Together with the end; after it, when the stream is idle; and only a head.
    for late in [false, true] {
        let stream = attack.start_exchange().await;
        let mut bytes = response(200, &[], b"right");
        if !late {
            bytes.extend_from_slice(&surplus);
        }
        attack.peer.answer(stream, &bytes).await;
        let (_, arrived) = attack.answer().await.unwrap();
        assert_eq!(arrived.content, "right");
        if late {
            attack.peer.frame(Frame::data(0, stream, &surplus)).await;
            settle().await;
        }
        let next = attack.start_exchange().await;
        assert_ne!(next, stream, "late: {late}");
        attack.peer.answer(next, &response(200, &[], b"own")).await;
        let (head, arrived) = attack.answer().await.unwrap();
        assert!(head.headers().is_empty());
        assert_eq!(arrived.content, "own");
        // So that the next round starts on a new stream.
        attack.peer.reset(next).await;
        settle().await;
    }
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_in_any_state_is_an_error_and_never_an_end() {
    let whole = [
        &b"\x01"[..],
        &response(200, &[("content-length", "4")], b"1234"),
    ]
    .concat();
    let chunked = [&b"\x01"[..], &response(200, &[], b"1234")].concat();
    for flag in [RST, FIN] {
        let mut attack = Attack::start().await;
        for bytes in [&whole, &chunked] {
            let head_bytes = bytes.len() - b"\x041234\0\0".len();
            for cut in 0..bytes.len() {
                let stream = attack.start_exchange().await;
                attack
                    .peer
                    .frame(Frame::data(ACK, stream, &bytes[..cut]))
                    .await;
                settle().await;
                attack.peer.frame(Frame::bare(DATA, flag, stream, 0)).await;
                match attack.answer().await {
                    Err(problem) => {
                        assert_eq!(problem.reason(), Reason::SessionLost, "cut at {cut}");
                        assert!(cut < head_bytes, "cut at {cut}");
                    }
                    Ok((_, arrived)) => {
                        assert!(
                            matches!(arrived.error, Some(BodyError::Cut(None))),
                            "cut at {cut}"
                        );
                        assert!(cut >= head_bytes, "cut at {cut}");
                    }
                }
            }
        }
        attack.is_fine().await;
        assert_eq!(attack.server.outstanding(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_received_before_the_reset_is_complete() {
    let mut attack = Attack::start().await;
    let stream = attack.start_exchange().await;
    let answer = [&b"\x01"[..], &response(413, &[], &pattern(50_000))].concat();
    let frames = [
        Frame::data(ACK, stream, &answer),
        Frame::bare(DATA, RST, stream, 0),
    ];
    attack.peer.frames(frames).await;
    let (head, arrived) = attack.answer().await.unwrap();
    assert_eq!(head.status(), 413);
    assert!(arrived.error.is_none(), "{:?}", arrived.error);
    assert_eq!(arrived.content, pattern(50_000));
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn random_frames_cause_no_panic_and_no_hang() {
    let mut state = 3;
    for round in 0..300 {
        let mut attack = Attack::start().await;
        let stream = attack.start_exchange().await;
        attack.peer.answer(stream, &head(200, &[])).await;
        for _ in 0..40 {
            let body = vec![random(&mut state) as u8; random(&mut state) as usize % 50];
            let mut frame = Frame::data(random(&mut state) as u16 & 14, stream, &body);
            if random(&mut state).is_multiple_of(4) {
                frame.stream = random(&mut state) as u32 % 6;
                frame.kind = random(&mut state) as u8 % 5;
            }
            if !attack.peer.frame(frame).await {
                break;
            }
        }
        attack.peer.send(Message::Close(None)).await;
        attack.end().await;
        if let Err(problem) = attack.answer().await {
            let named = [Reason::SessionLost, Reason::WireMalformed];
            assert!(
                named.contains(&problem.reason()),
                "round {round}: {problem}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_close_code_is_reported_or_a_protocol_error() {
    use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};
    for code in [1000, 1001, 1011, 3000, 4000, 4002, 4006, 4999] {
        let mut attack = Attack::start().await;
        let frame = CloseFrame {
            code: CloseCode::from(code),
            reason: "x".into(),
        };
        attack.peer.send(Message::Close(Some(frame))).await;
        let end = attack.end().await;
        assert!(matches!(end, SessionEnd::ClosedByPeer(_)), "{end}");
        assert_eq!(end.reason().code(), code);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_exchange_gets_a_stream_as_soon_as_one_may_be_opened() {
    const PLACES: u32 = 256;
    let mut attack = Attack::start().await;
    let mut opened = Vec::new();
    for _ in 0..PLACES {
        opened.push(attack.start_exchange().await);
    }
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        let server = attack.server.clone();
        waiting.spawn(async move { exchange(&server, get("/"), |_, _| {}).await.map(drop) });
    }
    let last = waiting.spawn({
        let server = attack.server.clone();
        async move { exchange(&server, get("/"), |_, _| {}).await.map(drop) }
    });
    assert!(attack.peer.is_silent().await);
    // One of the waiting exchanges is cancelled before its turn.
    last.abort();
    settle().await;
    // A stream is accepted, one is reset by the client, one is cancelled by the server.
    attack.peer.answer(opened[0], b"").await;
    assert_eq!(within(attack.peer.opened()).await.stream, 2 * PLACES + 1);
    attack.peer.reset(opened[1]).await;
    assert_eq!(within(attack.peer.opened()).await.stream, 2 * PLACES + 3);
    attack.exchanges.abort_all();
    assert_eq!(within(attack.peer.opened()).await.stream, 2 * PLACES + 5);
    assert!(!attack.server.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_request_larger_than_the_window_waits_for_the_client() {
    let mut attack = Attack::start().await;
    let server = attack.server.clone();
    attack.exchanges.spawn(async move {
        let body = frames(vec![Ok(http_body::Frame::data(pattern(300_000)))]);
        let request = request(http::Method::POST, "/", body);
        let response = exchange(&server, request, |_, _| {}).await.unwrap();
        let (head, body) = response.into_parts();
        Ok((Response::from_parts(head, ()), read(body).await))
    });
    let mut received = 0;
    let stream = loop {
        let frame = attack.peer.next_data().await;
        received += frame.body.len();
        if received == limits::STREAM_WINDOW_BYTES {
            break frame.stream;
        }
    };
    assert!(attack.peer.is_silent().await, "the window is full");
    attack
        .peer
        .frame(Frame::bare(WINDOW, ACK, stream, 1_000_000))
        .await;
    while received < 300_000 {
        received += attack.peer.next_data().await.body.len();
    }
    attack
        .peer
        .answer(stream, &response(200, &[], b"fine"))
        .await;
    assert_eq!(attack.answer().await.unwrap().1.content, "fine");
}

#[tokio::test(start_paused = true)]
async fn unread_responses_stay_within_their_account_and_fail_with_a_problem() {
    const LIMIT: usize = 2 * 1024 * 1024;
    let mut attack = Attack::start().await;
    let account = MemoryAccount::new(LIMIT);
    attack.server.set_account(&account);
    let mut bodies = Vec::new();
    let content = pattern(200_000);
    for _ in 0..30 {
        let server = attack.server.clone();
        let mut asking = JoinSet::new();
        asking.spawn(async move { exchange(&server, get("/"), |_, _| {}).await });
        let stream = attack.peer.next_data().await.stream;
        attack.peer.answer(stream, &head(200, &[])).await;
        let answered = within(asking.join_next()).await.unwrap().unwrap();
        bodies.push(answered.unwrap().into_body());
        for piece in content.chunks(4 * 1024) {
            let mut chunk = BytesMut::new();
            encode::chunk(&mut chunk, piece);
            attack.peer.answer(stream, &chunk).await;
        }
        settle().await;
    }
    assert!(account.held() <= LIMIT, "{}", account.held());
    let (mut ended, mut left_alone) = (0, 0);
    for mut body in bodies {
        loop {
            match poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    assert!(matches!(error, BodyError::Memory), "{error:?}");
                    ended += 1;
                    break;
                }
                other => {
                    assert!(other.is_pending());
                    left_alone += 1;
                    break;
                }
            }
        }
    }
    assert!(ended >= 20, "{ended} were ended");
    assert!(left_alone > 4, "{left_alone} were left alone");
    attack.is_fine().await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_with_more_than_the_window_ends_the_session() {
    let mut attack = Attack::start().await;
    let stream = attack.start_exchange().await;
    let frame = Frame::bare(DATA, RST, stream, 1_000_000);
    attack.peer.frame(frame).await;
    assert_eq!(attack.peer.close_code().await, BROKEN);
    attack.end().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_for_streams_that_never_existed_end_the_session() {
    let mut attack = Attack::start().await;
    let stream = attack.start_exchange().await;
    let frame = Frame::data(0, stream + 100, &[0; 12_000]);
    attack.peer.frame(frame).await;
    assert_eq!(attack.peer.close_code().await, BROKEN);
    attack.end().await;
}
