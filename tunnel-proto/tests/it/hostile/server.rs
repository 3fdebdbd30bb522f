//! A hostile tunnel server against a session of the client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_tungstenite::tungstenite::Message;
use tunnel_proto::{
    bhttp::{Decoder, Event, Limits, encode},
    exchange::{Informational, Protocol, RecvBody},
    limits,
    problem::Problem,
    session::{Session, SessionEnd, SessionEvent, Side},
};

use crate::{
    content::{TestBody, fed, full, pattern, random, read},
    pair::{Drivers, Handler, serve_with, settle, within},
    peer::{ACK, DATA, FIN, Frame, GO_AWAY, PING, Peer, RST, SYN, WINDOW},
};

/// A client session, whose service answers by path, and its hostile server.
struct Attack {
    drivers: Drivers,
    client: Session,
    peer: Peer,
    serving: JoinSet<()>,
    /// The number of live handlers.
    handlers: Arc<AtomicUsize>,
    /// How the requests that were read to their end have ended.
    uploads: mpsc::Receiver<String>,
}

/// Counts a handler until it is dropped.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Attack {
    async fn start() -> Self {
        let mut drivers = Drivers::default();
        let (client, mut events, peer) = Peer::of(Side::Client, &mut drivers).await;
        let handlers = Arc::new(AtomicUsize::new(0));
        let (report, uploads) = mpsc::channel(1_000);
        let counted = handlers.clone();
        let service = Handler(Arc::new(move |request: Request<RecvBody>| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer(request, Alive(counted.clone()), report.clone())
        }));
        let session = client.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut streams = JoinSet::new();
            while let Some(event) = events.next(&session).await {
                if let SessionEvent::Stream(stream) = event {
                    streams.spawn(serve_with(stream, service.clone()));
                }
            }
            while streams.join_next().await.is_some() {}
        });
        Self {
            drivers,
            client,
            peer,
            serving,
            handlers,
            uploads,
        }
    }

    fn handlers(&self) -> usize {
        self.handlers.load(Ordering::Relaxed)
    }

    /// The client's response on a new stream.
    async fn send_request(&mut self, stream: u32, request: &[u8]) -> Vec<Event> {
        self.peer.frame(Frame::data(SYN, stream, request)).await;
        self.answer(stream).await
    }

    /// The next answer on a stream.
    async fn answer(&mut self, stream: u32) -> Vec<Event> {
        let mut decoder = Decoder::response(Limits::default());
        let mut events = Vec::new();
        loop {
            let frame = self.peer.next_of(stream).await;
            assert_eq!(
                (frame.kind, frame.flags & (RST | FIN)),
                (DATA, 0),
                "it was cut"
            );
            let is_first = frame.flags & ACK != 0;
            decoder.push(frame.body.slice(usize::from(is_first)..));
            while let Some(event) = decoder.next().unwrap() {
                events.push(event);
            }
            if decoder.is_ended() {
                return events;
            }
        }
    }

    /// Checks on this new stream that the session still works.
    async fn is_fine(&mut self, stream: u32) {
        let events = self.send_request(stream, &request("/", &[])).await;
        assert!(matches!(
            &events[..],
            [Event::Response(_), Event::Content(_), Event::End(_)]
        ));
        self.peer.reset(stream).await;
        within(self.client.at_rest()).await;
        assert_eq!(self.handlers(), 0);
    }

    /// How the session ends. Checks that no handler is left.
    async fn end(mut self) -> SessionEnd {
        let (_, end) = self.drivers.next_end().await;
        within(self.serving.join_next()).await.unwrap().unwrap();
        assert_eq!((self.handlers(), self.client.outstanding()), (0, 0));
        end
    }
}

async fn answer(
    request: Request<RecvBody>,
    alive: Alive,
    report: mpsc::Sender<String>,
) -> Result<Response<TestBody>, Problem> {
    let _alive = alive;
    assert!(request.extensions().get::<Protocol>().is_none());
    match request.uri().path() {
        "/never" => std::future::pending().await,
        "/flood" => {
            let (feed, body) = fed();
            let mut feeding = JoinSet::new();
            feeding.spawn(async move {
                while feed
                    .send(Ok(http_body::Frame::data(pattern(10_000))))
                    .await
                    .is_ok()
                {}
                let _ = report.try_send("the response is dropped".into());
            });
            feeding.detach_all();
            Ok(Response::new(body))
        }
        "/early" => {
            let informational = request.extensions().get::<Informational>().unwrap();
            for number in b'0'..b'4' {
                let large = HeaderValue::from_bytes(&[number; 100_000]).unwrap();
                let fields = HeaderMap::from_iter([(HeaderName::from_static("x"), large)]);
                assert!(informational.push(StatusCode::EARLY_HINTS, fields));
                settle().await;
            }
            Ok(Response::new(full("final")))
        }
        "/read" => {
            let arrived = read(request.into_body()).await;
            let end = arrived
                .error
                .map_or_else(|| "whole".into(), |error| error.to_string());
            let _ = report.try_send(end.clone());
            Ok(Response::new(full(end)))
        }
        _ => Ok(Response::new(full("fine"))),
    }
}

/// A request's head; its content follows.
fn head(path: &str, fields: &[(&str, &str)]) -> BytesMut {
    let mut out = BytesMut::new();
    encode::request_head(&mut out, "POST", "http", b"a.test", path.as_bytes());
    encode::field(&mut out, b":content", b"unknown");
    for (name, value) in fields {
        encode::field(&mut out, name.as_bytes(), value.as_bytes());
    }
    encode::end_fields(&mut out);
    out
}

fn request(path: &str, fields: &[(&str, &str)]) -> BytesMut {
    let mut out = head(path, fields);
    encode::end_content(&mut out);
    encode::end_fields(&mut out);
    out
}

#[tokio::test(start_paused = true)]
async fn unreadable_requests_reset_only_their_stream() {
    let attacks: [(&str, BytesMut); 8] = [
        (
            "garbage",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..].into(),
        ),
        ("a response", b"\x03\x40\xc8\0\0\0"[..].into()),
        ("known length", b"\x00\x00\x00"[..].into()),
        ("a path that is none", request("path", &[])),
        ("an address", request("http://169.254.169.254/", &[])),
        ("hop by hop", request("/", &[("connection", "close")])),
        ("line end", request("/", &[("a", "b\r\nc: d")])),
        (
            "too large",
            request("/", &[("a", &"b".repeat(limits::HEAD_BYTES))]),
        ),
    ];
    let mut attack = Attack::start().await;
    let mut stream = 1;
    for (what, bytes) in attacks {
        attack.peer.frame(Frame::data(SYN, stream, &bytes)).await;
        let accepted = attack.peer.next_of(stream).await;
        assert_eq!(
            (accepted.kind, &accepted.body[..]),
            (DATA, &[1][..]),
            "{what}"
        );
        // The window is updated as bytes are read, before the limit is exceeded.
        let mut reset = attack.peer.next_of(stream).await;
        if reset.kind == WINDOW {
            reset = attack.peer.next_of(stream).await;
        }
        assert_eq!((reset.kind, reset.flags), (DATA, RST), "{what}");
        stream += 2;
    }
    attack.is_fine(stream).await;
}

#[tokio::test(start_paused = true)]
async fn invalid_requests_are_answered_with_a_problem() {
    let mut attack = Attack::start().await;
    let attacks = [
        request("/", &[(":protocol", "h2c")]),
        request("/", &[("content-length", "1"), ("content-length", "1")]),
        request("/", &[("content-length", "-1")]),
    ];
    for (number, bytes) in (0..).zip(attacks) {
        let events = attack.send_request(1 + 2 * number, &bytes).await;
        let [Event::Response(head), Event::End(_)] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(head.status.as_u16(), 502);
        let problem = head.fields.pseudo(":problem").map(|name| &name[..]);
        assert_eq!(problem, Some(&b"wire_malformed"[..]), "request {number}");
    }
    attack.is_fine(101).await;
}

#[tokio::test(start_paused = true)]
async fn content_of_a_wrong_length_is_an_error_to_the_service() {
    let mut attack = Attack::start().await;
    for (number, content) in (0..).zip(["1", "123"]) {
        let mut bytes = head("/read", &[("content-length", "2")]);
        encode::chunk(&mut bytes, content.as_bytes());
        encode::end_content(&mut bytes);
        encode::end_fields(&mut bytes);
        attack.send_request(1 + 2 * number, &bytes).await;
        assert!(
            within(attack.uploads.recv())
                .await
                .unwrap()
                .contains("not as long")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_before_the_end_of_the_last_one_resets_the_stream() {
    let mut attack = Attack::start().await;
    let never = request("/never", &[]);
    // Together with the first one; and later, while the service handles it.
    for (stream, is_late) in [(1, true), (3, false)] {
        let first = if is_late {
            never.clone()
        } else {
            [&never[..], &never].concat()[..].into()
        };
        attack.peer.frame(Frame::data(SYN, stream, &first)).await;
        settle().await;
        if is_late {
            assert_eq!(attack.handlers(), 1);
            attack.peer.frame(Frame::data(0, stream, &never)).await;
            settle().await;
        }
        assert_eq!(attack.handlers(), 0, "the first is dropped");
        within(attack.client.at_rest()).await;
    }
    attack.is_fine(5).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_with_the_unread_end_of_the_last_one_is_handled() {
    let mut attack = Attack::start().await;
    let first = head("/", &[]);
    let events = attack.send_request(1, &first).await;
    assert!(matches!(events.last(), Some(Event::End(_))), "{events:?}");
    // The response is whole, so the end of the request and the next one may come in one piece, wherever it is split.
    let rest = [&request("/", &[])[first.len()..], &head("/", &[])].concat();
    for split in 0..rest.len() {
        let (start, end) = rest.split_at(split);
        attack.peer.frame(Frame::data(0, 1, start)).await;
        attack.peer.frame(Frame::data(0, 1, end)).await;
        let events = attack.answer(1).await;
        assert!(matches!(events.last(), Some(Event::End(_))), "{events:?}");
    }
    attack.peer.reset(1).await;
    attack.is_fine(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_in_any_state_drops_the_handler_within_a_second() {
    let mut whole = head("/read", &[]);
    encode::chunk(&mut whole, b"1234");
    encode::end_content(&mut whole);
    encode::end_fields(&mut whole);
    let never = request("/never", &[]);
    let flood = request("/flood", &[]);
    for flag in [RST, FIN] {
        let mut attack = Attack::start().await;
        let mut stream = 1;
        let read = (0..whole.len()).map(|cut| &whole[..cut]);
        for bytes in read.chain([&never[..], &flood]) {
            attack.peer.frame(Frame::data(SYN, stream, bytes)).await;
            settle().await;
            let start = Instant::now();
            attack.peer.frame(Frame::bare(DATA, flag, stream, 0)).await;
            within(attack.client.at_rest()).await;
            assert!(
                start.elapsed() < Duration::from_secs(1),
                "{:?}",
                start.elapsed()
            );
            assert_eq!(attack.handlers(), 0);
            stream += 2;
        }
        settle().await;
        while let Ok(end) = attack.uploads.try_recv() {
            assert_ne!(end, "whole");
        }
        attack.is_fine(stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_unread_response_is_slowed_down_and_can_be_cancelled() {
    let mut attack = Attack::start().await;
    for stream in [1, 3, 5] {
        attack
            .peer
            .frame(Frame::data(SYN, stream, &request("/flood", &[])))
            .await;
    }
    let mut received = 0;
    while !attack.peer.is_silent().await {
        received += attack.peer.next_data().await.body.len();
    }
    assert_eq!(
        received,
        3 * limits::STREAM_WINDOW_BYTES,
        "no more than its window each"
    );
    let start = Instant::now();
    attack.peer.reset(3).await;
    assert_eq!(
        within(attack.uploads.recv()).await.unwrap(),
        "the response is dropped"
    );
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(attack.client.outstanding(), 2);
    attack.peer.reset(1).await;
    attack.peer.reset(5).await;
    attack.is_fine(7).await;
}

#[tokio::test(start_paused = true)]
async fn informational_responses_that_wait_for_the_window_are_not_lost() {
    let mut attack = Attack::start().await;
    attack
        .peer
        .frame(Frame::data(SYN, 1, &request("/early", &[])))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The service has answered by now, but the rest does not fit into the window.
    assert_eq!(attack.handlers(), 0);
    attack
        .peer
        .frame(Frame::bare(WINDOW, 0, 1, 1_000_000))
        .await;
    let events = attack.answer(1).await;
    for (event, number) in events.iter().zip(b'0'..b'4') {
        let Event::Informational(head) = event else {
            panic!("{event:?}")
        };
        assert_eq!(head.fields.map["x"].as_bytes(), [number; 100_000]);
    }
    assert!(matches!(
        &events[4..],
        [Event::Response(_), Event::Content(_), Event::End(_)]
    ));
}

#[tokio::test(start_paused = true)]
async fn frames_that_break_the_protocol_end_the_session() {
    let attacks = [
        Frame::data(SYN, 2, b"even"),
        Frame::data(SYN, 1, b"again"),
        Frame::bare(WINDOW, SYN, 1, 0),
        Frame::data(0, 1, &vec![0; limits::STREAM_WINDOW_BYTES]),
        Frame::data(SYN, 3, &vec![0; limits::STREAM_WINDOW_BYTES + 1]),
        Frame::bare(WINDOW, SYN, 3, u32::MAX),
        Frame::bare(WINDOW, 0, 1, u32::MAX),
        Frame::bare(PING, ACK, 0, 77),
        Frame::bare(GO_AWAY, 0, 0, 1),
        Frame::bare(77, 0, 1, 0),
    ];
    for (number, frame) in attacks.into_iter().enumerate() {
        let mut attack = Attack::start().await;
        attack
            .peer
            .frame(Frame::data(SYN, 1, &head("/never", &[])))
            .await;
        settle().await;
        assert_eq!(attack.handlers(), 1);
        let mut bytes = BytesMut::new();
        frame.write(&mut bytes);
        for piece in bytes.chunks(200_000) {
            attack.peer.bytes(Bytes::copy_from_slice(piece)).await;
        }
        assert_eq!(
            attack.peer.close_code().await,
            Some(4004),
            "attack {number}"
        );
        let end = attack.end().await;
        assert!(matches!(end, SessionEnd::Mux(_)), "attack {number}: {end}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_streams_beyond_the_limit_are_reset() {
    let mut attack = Attack::start().await;
    let requests = request("/never", &[]);
    let count = limits::STREAMS as u32;
    let opening = (0..=count).map(|n| Frame::data(SYN, 1 + 2 * n, &requests));
    assert!(attack.peer.frames(opening).await);
    let refused = attack.peer.next_of(1 + 2 * count).await;
    assert_eq!((refused.kind, refused.flags), (DATA, RST));
    settle().await;
    assert_eq!(attack.handlers(), limits::STREAMS);
}

#[tokio::test(start_paused = true)]
async fn streams_opened_and_reset_without_end_leave_nothing_behind() {
    let mut attack = Attack::start().await;
    let never = request("/never", &[]);
    for round in 0..100 {
        let streams = (0..1_000).map(|number| 1 + 2 * (round * 1_000 + number));
        let frames = streams.flat_map(|stream| {
            [
                Frame::data(SYN, stream, &never),
                Frame::bare(DATA, RST, stream, 0),
            ]
        });
        assert!(attack.peer.frames(frames).await);
        settle().await;
        // The session reads everything; the test reads its answers.
        while !attack.peer.is_silent().await {
            attack.peer.next().await;
        }
        assert_eq!((attack.client.outstanding(), attack.handlers()), (0, 0));
    }
    attack.is_fine(900_001).await;
}

#[tokio::test(start_paused = true)]
async fn random_frames_cause_no_panic_and_no_hang() {
    let mut state = 5;
    let paths = ["/", "/never", "/read", "/flood"];
    for _ in 0..300 {
        let mut attack = Attack::start().await;
        for _ in 0..60 {
            let (choice, stream) = (
                random(&mut state) % 8,
                random(&mut state) as u32 % 4 * 2 + 1,
            );
            let path = paths[random(&mut state) as usize % 4];
            let frame = match choice {
                0 | 1 => Frame::data(
                    SYN,
                    stream + 8 * (random(&mut state) as u32 % 4),
                    &request(path, &[]),
                ),
                2 => Frame::data(SYN, stream, &head(path, &[])),
                3 => Frame::data(
                    0,
                    stream,
                    &vec![random(&mut state) as u8; random(&mut state) as usize % 50],
                ),
                4 => Frame::data(random(&mut state) as u16 & 14, stream, b""),
                5 => Frame::bare(WINDOW, 0, stream, random(&mut state) as u32 % 1_000_000),
                6 => Frame::data(0, stream, &request(path, &[])),
                _ => Frame::bare(
                    random(&mut state) as u8 % 5,
                    0,
                    random(&mut state) as u32 % 3,
                    0,
                ),
            };
            if !attack.peer.frame(frame).await {
                break;
            }
        }
        attack.peer.send(Message::Close(None)).await;
        attack.end().await;
    }
}
