//! A message that is cut anywhere, by any cause, never looks whole to whoever gets it: answers of
//! HTTP/1.1 and HTTP/2 upstreams to the wire and to `serve`'s platform clients, and uploads the other way.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tunnel_ops::task::Owned;

use crate::serve::Served;
use crate::setup::{Setup, get, post_fed};
use testkit::deadline::SOON;
use testkit::http1;
use testkit::http2::Frame;
use testkit::scripted::{ScriptedConnection, ScriptedUpstream};
use testkit::tunnel::body::data;

/// The head of an answer over HTTP/2 (RFC 7541 section 6.1).
const STATUS_200: &[u8] = b"\x88";

/// How a test ends a message of HTTP/2 behind so much of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Trailers,
    /// Less than was declared.
    Short,
    /// Nothing, although a length was declared.
    Bare,
    Reset(Reason),
    Lost,
}

const ENDS: [End; 8] = [
    End::Whole,
    End::Trailers,
    End::Short,
    End::Bare,
    End::Reset(Reason::NO_ERROR),
    End::Reset(Reason::CANCEL),
    End::Reset(Reason::INTERNAL_ERROR),
    End::Lost,
];

impl End {
    fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Trailers)
    }
}

/// An h2c upstream whose every connection answers one request, and ends that answer like this once the
/// first half of its content has been read.
struct Answering {
    url: String,
    half_read: Arc<Notify>,
    _serving: Owned<()>,
}

async fn answering(end: End, has_length: bool) -> Answering {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    let half_read = Arc::new(Notify::new());
    let is_half_read = Arc::clone(&half_read);
    let serving = Owned::spawn("upstream", async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let is_half_read = Arc::clone(&is_half_read);
            connections.spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
                let mut head = Response::builder();
                if has_length || matches!(end, End::Short | End::Bare) {
                    head = head.header("content-length", "8");
                }
                let head = head.body(()).unwrap();
                if end == End::Bare {
                    respond.send_response(head, true).unwrap();
                    while connection.accept().await.is_some() {}
                    return;
                }
                let mut stream = respond.send_response(head, false).unwrap();
                stream
                    .send_data(Bytes::from_static(b"half"), false)
                    .unwrap();
                let (went, mut gone) = mpsc::channel::<()>(1);
                let ending = async move {
                    is_half_read.notified().await;
                    match end {
                        End::Whole => stream.send_data(Bytes::from_static(b"half"), true).unwrap(),
                        End::Trailers => {
                            stream
                                .send_data(Bytes::from_static(b"half"), false)
                                .unwrap();
                            stream.send_trailers(HeaderMap::new()).unwrap();
                        }
                        End::Short => stream.send_data(Bytes::new(), true).unwrap(),
                        End::Reset(reason) => stream.send_reset(reason),
                        End::Bare | End::Lost => drop(went),
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = ending => {}
                    _ = gone.recv() => {}
                    _ = connection.accept() => {}
                }
            });
        }
    });
    Answering {
        url,
        half_read,
        _serving: serving,
    }
}

/// Whether an answer through a session is whole.
async fn is_whole_over_wire(upstream: &Answering) -> bool {
    let setup = Setup::new(&upstream.url).await;
    let Ok(response) = setup.session.ask(get("/")).await else {
        return false;
    };
    let mut body = response.into_body();
    while let Some(frame) = timeout(SOON, body.frame()).await.unwrap() {
        if frame.is_err() {
            return false;
        }
        upstream.half_read.notify_one();
    }
    true
}

/// Whether an answer over HTTP/2 is whole to `serve`'s platform client.
async fn is_whole_over_http2(upstream: &Answering) -> bool {
    let served = Served::start(&upstream.url);
    let socket = TcpStream::connect(served.front).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    let _driver = Owned::spawn("h2", async move {
        let _ = connection.await;
    });
    let request = Request::get("http://a/").body(()).unwrap();
    let (response, _) = send.send_request(request, true).unwrap();
    let Ok(response) = timeout(SOON, response).await.unwrap() else {
        return false;
    };
    let is_ok = response.status() == 200;
    let mut body = response.into_body();
    while let Some(data) = timeout(SOON, body.data()).await.unwrap() {
        if data.is_err() {
            return false;
        }
        upstream.half_read.notify_one();
    }
    is_ok && body.trailers().await.is_ok()
}

/// Whether an answer over HTTP/1.1 is.
async fn is_whole_over_http1(upstream: &Answering) -> bool {
    let served = Served::start(&upstream.url);
    let mut ingress = served.connect().await;
    ingress
        .send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await;
    let head = ingress.head().await.unwrap();
    if !head.starts_with("HTTP/1.1 200") {
        return false;
    }
    let mut text = String::new();
    while !text.ends_with("half") {
        text.push_str(std::str::from_utf8(&ingress.bytes(1).await).unwrap());
    }
    upstream.half_read.notify_one();
    let (rest, end) = ingress.rest().await;
    text.push_str(std::str::from_utf8(&rest).unwrap());
    let is_ended = text.ends_with("\r\n0\r\n\r\n") || text == "halfhalf";
    is_ended && end == http1::End::Clean
}

#[tokio::test]
async fn an_answer_over_http2_is_whole_only_when_its_stream_has_ended() {
    for end in ENDS {
        for has_length in [false, true] {
            let what = format!("{end:?}, length {has_length}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_wire(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "wire: {what}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_http1(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "HTTP/1.1: {what}");
            let upstream = answering(end, has_length).await;
            let is_whole = is_whole_over_http2(&upstream).await;
            assert_eq!(is_whole, end.is_whole(), "HTTP/2: {what}");
        }
    }
}

#[tokio::test]
async fn an_answer_over_http1_that_is_cut_at_any_byte_is_never_whole() {
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n4\r\nhalf\r\n0\r\n\r\n";
    let length = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalfhalf";
    for answer in [chunked, length] {
        for is_reset in [false, true] {
            let upstream =
                ScriptedUpstream::start(move |mut connection: ScriptedConnection| async move {
                    connection.head().await.unwrap();
                    let cut = connection.number.min(answer.len());
                    connection.send(&answer[..cut]).await;
                    if is_reset {
                        connection.reset();
                    }
                })
                .await;
            let setup = Setup::new(&upstream.url()).await;
            for cut in 0..=answer.len() {
                let is_whole = match setup.session.ask(get("/")).await {
                    Ok(response) => {
                        let collected = response.into_body().collect();
                        timeout(SOON, collected).await.unwrap().is_ok()
                    }
                    Err(_) => false,
                };
                let is_all = cut == answer.len();
                assert!(!is_whole || is_all, "{cut} of {answer:?}");
                assert!(is_whole || !is_all || is_reset, "all of {answer:?}");
            }
        }
    }
}

/// The frames of whole answers over HTTP/2. The last one ends the stream.
fn answers_over_http2() -> Vec<Vec<Vec<u8>>> {
    // RFC 7541 section 6: `:status: 200`, `content-length: 8` and `x: 1`.
    let heads = [STATUS_200, b"\x88\x0f\x0d\x018"];
    let trailers = b"\0\x01x\x011";
    let half = frame(Frame::DATA, 0, b"half");
    let last_half = frame(Frame::DATA, Frame::END_STREAM, b"half");
    let ending_head = Frame::END_STREAM | Frame::END_HEADERS;
    let trailers = frame(Frame::HEADERS, ending_head, trailers);
    let mut answers = Vec::new();
    for head in heads {
        let head = frame(Frame::HEADERS, Frame::END_HEADERS, head);
        answers.push(vec![head.clone(), half.clone(), last_half.clone()]);
        answers.push(vec![head, half.clone(), half.clone(), trailers.clone()]);
    }
    answers
}

/// A frame of a connection's first stream.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    Frame::new(kind, flags, 1, payload).bytes()
}

#[tokio::test]
async fn an_answer_over_http2_that_is_cut_at_any_byte_behind_a_goaway_is_never_whole() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let to_send = Arc::clone(&sent);
    let upstream = ScriptedUpstream::start(move |mut connection: ScriptedConnection| {
        let bytes = to_send.lock().clone();
        async move {
            connection.begin_http2_server().await;
            while connection.http2_frame().await.unwrap().kind != Frame::HEADERS {}
            connection.send(bytes).await;
            connection.finish().await;
            connection.rest().await;
        }
    })
    .await;
    let setup = Setup::new(&format!("h2c://{}", upstream.address())).await;
    for answer in answers_over_http2() {
        for position in 0..=answer.len() {
            // Of a stream that is below the last one, and of one that is not.
            for last_stream in [0, 1] {
                let payload = [0, 0, 0, last_stream, 0, 0, 0, 0];
                let goaway = Frame::new(Frame::GOAWAY, 0, 0, &payload).bytes();
                let before = answer[..position].concat();
                let behind = answer[position..].concat();
                let first = before.len();
                let all = [before, goaway, behind].concat();
                for cut in first..=all.len() {
                    let what = format!("{cut} of {all:?}");
                    all[..cut].clone_into(&mut sent.lock());
                    let dialled = upstream.connections();
                    let is_whole = match setup.session.ask(get("/")).await {
                        Ok(response) => {
                            let collected = response.into_body().collect();
                            timeout(SOON, collected).await.unwrap().is_ok()
                        }
                        Err(_) => false,
                    };
                    // A stream above the last one was not touched, so the request is sent again.
                    let repeats = if last_stream == 0 { 3 } else { 0 };
                    let dials = upstream.connections() - dialled;
                    assert!((1..=1 + repeats).contains(&dials), "{dials}: {what}");
                    let has_ended = position == answer.len() || cut == all.len();
                    assert!(!is_whole || has_ended, "{what}");
                    assert!(is_whole || !has_ended || last_stream == 0, "{what}");
                }
            }
        }
    }
}

/// The protocol that an upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

impl Protocol {
    /// How an upload that was cut ends for an upstream. A reset with `NO_ERROR` would be an end in order
    /// to upstreams that are made with hyper.
    fn cut(self) -> UploadEnd {
        match self {
            Self::Http1 => UploadEnd::Closed,
            Self::Http2 => UploadEnd::Reset(Reason::CANCEL),
        }
    }
}

/// How an upload ended for its upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadEnd {
    /// With its last chunk, with all 7 bytes that its head declares, or with its stream's end.
    Whole,
    /// With its connection.
    Closed,
    /// With a reset of its stream.
    Reset(Reason),
}

/// An upstream that reads uploads, one at a time.
struct Uploads {
    url: String,
    /// Each upload's content so far, chunk sizes and all; `None` until its head has come.
    contents: watch::Receiver<Vec<Option<String>>>,
    ends: mpsc::Receiver<UploadEnd>,
    is_answering: bool,
    _upstream: ScriptedUpstream,
}

/// Reads one upload, and tells of it.
#[derive(Clone)]
struct Reader {
    contents: watch::Sender<Vec<Option<String>>>,
    ends: mpsc::Sender<UploadEnd>,
    /// Gives half an answer as soon as the head has come.
    is_answering: bool,
}

impl Uploads {
    async fn start(protocol: Protocol, is_answering: bool) -> Self {
        let (told, contents) = watch::channel(Vec::new());
        let (ended, ends) = mpsc::channel(8);
        let reader = Reader {
            contents: told,
            ends: ended,
            is_answering,
        };
        let upstream = ScriptedUpstream::start(move |connection: ScriptedConnection| {
            let reader = reader.clone();
            async move {
                match protocol {
                    Protocol::Http1 => reader.read_http1(connection).await,
                    Protocol::Http2 => reader.read_http2(connection).await,
                }
            }
        })
        .await;
        let scheme = match protocol {
            Protocol::Http1 => "http",
            Protocol::Http2 => "h2c",
        };
        Self {
            url: format!("{scheme}://{}", upstream.address()),
            contents,
            ends,
            is_answering,
            _upstream: upstream,
        }
    }

    /// Uploads so far. Over HTTP/1.1 one begins with its connection.
    fn count(&self) -> usize {
        self.contents.borrow().len()
    }

    /// Waits until there were more uploads than so many.
    async fn begun(&mut self, than: usize) {
        let has_begun = |contents: &Vec<_>| contents.len() > than;
        timeout(SOON, self.contents.wait_for(has_begun))
            .await
            .unwrap()
            .unwrap();
    }

    /// Waits until the head of an upload has come, and so many times `abc`.
    async fn came(&mut self, number: usize, pieces: usize) {
        let has_come = |contents: &Vec<Option<String>>| {
            let content = contents.get(number).and_then(Option::as_ref);
            content.is_some_and(|content| content.matches("abc").count() == pieces)
        };
        timeout(SOON, self.contents.wait_for(has_come))
            .await
            .unwrap()
            .unwrap();
    }

    /// The next end of an upload.
    async fn end(&mut self) -> UploadEnd {
        timeout(SOON, self.ends.recv()).await.unwrap().unwrap()
    }
}

impl Reader {
    /// Another upload; its number.
    fn begin(&self) -> usize {
        let mut number = 0;
        self.contents.send_modify(|contents| {
            number = contents.len();
            contents.push(None);
        });
        number
    }

    fn on_content(&self, number: usize, content: &str) {
        (self.contents).send_modify(|contents| contents[number] = Some(content.to_owned()));
    }

    /// One upload, up to its end or that of its connection.
    async fn read_http1(self, mut connection: ScriptedConnection) {
        let number = self.begin();
        let mut text = String::new();
        let mut end = UploadEnd::Closed;
        while end != UploadEnd::Whole
            && let Ok(bytes) = connection.read_some().await
        {
            let had_head = text.contains("\r\n\r\n");
            text.push_str(std::str::from_utf8(&bytes).unwrap());
            let Some((head, content)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            if self.is_answering && !had_head {
                let half = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf";
                connection.send(half).await;
            }
            let has_length = head.contains("content-length");
            if has_length && content.len() >= 7 || content.ends_with("0\r\n\r\n") {
                end = UploadEnd::Whole;
            }
            self.on_content(number, content);
        }
        self.ends.send(end).await.unwrap();
    }

    /// All uploads of a connection. An `h2` server would not tell an end that a reset follows.
    async fn read_http2(self, mut connection: ScriptedConnection) {
        let mut uploads = HashMap::new();
        connection.begin_http2_server().await;
        while let Some(frame) = connection.http2_frame().await {
            let is_upload = frame.stream != 0;
            if is_upload && frame.kind == Frame::HEADERS && !uploads.contains_key(&frame.stream) {
                uploads.insert(frame.stream, (self.begin(), String::new()));
                if self.is_answering {
                    let head =
                        Frame::new(Frame::HEADERS, Frame::END_HEADERS, frame.stream, STATUS_200);
                    let half = Frame::new(Frame::DATA, 0, frame.stream, b"half");
                    connection.send([head.bytes(), half.bytes()].concat()).await;
                }
            }
            let Some((number, content)) = uploads.get_mut(&frame.stream) else {
                continue;
            };
            let end = match frame.kind {
                Frame::DATA | Frame::HEADERS => {
                    if frame.kind == Frame::DATA {
                        content.push_str(std::str::from_utf8(&frame.payload).unwrap());
                    }
                    self.on_content(*number, content);
                    let is_last = frame.flags & Frame::END_STREAM != 0;
                    is_last.then_some(UploadEnd::Whole)
                }
                Frame::RST_STREAM => {
                    let code = u32::from_be_bytes(frame.payload.try_into().unwrap());
                    Some(UploadEnd::Reset(code.into()))
                }
                _ => None,
            };
            if let Some(end) = end {
                uploads.remove(&frame.stream);
                self.ends.send(end).await.unwrap();
            }
        }
        for _ in uploads {
            self.ends.send(UploadEnd::Closed).await.unwrap();
        }
    }
}

/// Whether an upload's stream is reset, or its session lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireCut {
    Reset,
    Lost,
}

#[tokio::test]
async fn an_upload_that_is_cut_on_the_wire_never_reaches_an_upstream_whole() {
    for protocol in PROTOCOLS {
        for is_answering in [false, true] {
            let mut uploads = Uploads::start(protocol, is_answering).await;
            for cut in [WireCut::Reset, WireCut::Lost] {
                for has_length in [false, true] {
                    for pieces in 0..3 {
                        let end = cut_on_wire(&mut uploads, cut, has_length, pieces).await;
                        let what = format!("{cut:?} after {pieces}, length {has_length}");
                        let what = format!("{protocol:?}, answering {is_answering}: {what}");
                        assert_eq!(end, protocol.cut(), "{what}");
                    }
                }
            }
        }
    }
}

/// How an upload ends that is cut when so many pieces have come.
async fn cut_on_wire(
    uploads: &mut Uploads,
    cut: WireCut,
    has_length: bool,
    pieces: usize,
) -> UploadEnd {
    let setup = Setup::new(&uploads.url).await;
    let (sender, mut request) = post_fed();
    if has_length {
        (request.headers_mut()).insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
    }
    for _ in 0..pieces {
        sender.send(data("abc")).await.unwrap();
    }
    let (number, answered) = (uploads.count(), Notify::new());
    let mut asking = Box::pin(async {
        let _answer = setup.session.ask(request).await.unwrap();
        answered.notify_one();
        std::future::pending::<()>().await;
    });
    let is_under_way = async {
        uploads.came(number, pieces).await;
        if uploads.is_answering {
            answered.notified().await;
        }
    };
    tokio::select! {
        () = &mut asking => {}
        () = is_under_way => {}
    }
    match cut {
        WireCut::Reset => drop(asking),
        WireCut::Lost => setup.session.lose(),
    }
    uploads.end().await
}

#[tokio::test]
async fn an_upload_over_http1_that_is_cut_at_any_byte_never_reaches_an_upstream_whole() {
    let head = "POST / HTTP/1.1\r\nhost: a\r\n";
    for protocol in PROTOCOLS {
        let mut uploads = Uploads::start(protocol, false).await;
        let served = Served::start(&uploads.url);
        for request in [
            format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"),
            format!("{head}content-length: 7\r\n\r\nabcdefg"),
        ] {
            let first = request.find("\r\n\r\n").unwrap() + 4;
            for cut in first..request.len() {
                for is_reset in [false, true] {
                    let mut socket = TcpStream::connect(served.front).await.unwrap();
                    let number = uploads.count();
                    socket.write_all(&request.as_bytes()[..cut]).await.unwrap();
                    // A reset overtakes what was not read.
                    uploads.begun(number).await;
                    if is_reset {
                        socket.set_zero_linger().unwrap();
                    }
                    drop(socket);
                    let what = format!("{cut} of {request:?}, reset {is_reset}");
                    assert_eq!(uploads.end().await, protocol.cut(), "{protocol:?}: {what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_upload_over_http2_that_is_cut_never_reaches_an_upstream_whole() {
    const TIMES: usize = 10;
    let cuts = ENDS
        .into_iter()
        .filter(|end| matches!(end, End::Reset(_) | End::Lost));
    for (protocol, end) in PROTOCOLS
        .into_iter()
        .flat_map(|protocol| cuts.clone().map(move |end| (protocol, end)))
    {
        let mut uploads = Uploads::start(protocol, false).await;
        let served = Served::start(&uploads.url);
        for has_length in [false, true] {
            for _ in 0..TIMES {
                let socket = TcpStream::connect(served.front).await.unwrap();
                let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
                let driver = Owned::spawn("h2", async move {
                    let _ = connection.await;
                });
                let mut request = Request::post("http://a/");
                if has_length {
                    request = request.header("content-length", "7");
                }
                let number = uploads.count();
                let request = request.body(()).unwrap();
                let (_response, mut stream) = send.send_request(request, false).unwrap();
                stream.send_data(Bytes::from_static(b"abc"), false).unwrap();
                uploads.begun(number).await;
                match end {
                    End::Reset(reason) => stream.send_reset(reason),
                    _ => drop(driver),
                }
                let what = format!("{end:?}, length {has_length}");
                assert_eq!(uploads.end().await, protocol.cut(), "{protocol:?}: {what}");
            }
        }
    }
}
