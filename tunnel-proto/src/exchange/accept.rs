//! The tunnel client's side of an exchange: passes the request to a service, sends its response.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use http::{HeaderMap, Request, Response, StatusCode, header, uri::PathAndQuery};
use http_body::Body;
use parking_lot::Mutex;

use super::{
    BodyError, CONTENT, ExchangeStream, FORWARD, FORWARD_HINTS, PROTOCOL, Protocol, RecvBody,
    SharedStream, encode_problem,
    send::{SendError, Sender},
};
use crate::{
    bhttp::{Decoder, Event, Limits, RequestHead, encode},
    fields, limits,
    memory::{HeadsFull, HeldHead},
    problem::{Hop, Problem, Reason},
    session::{AcceptedStream, Outstanding, acceptance::ACCEPTED, mux::MuxStream},
};

/// Room for a usual response head and a small content, in bytes.
const HEAD_CAPACITY: usize = 1024;

/// Serves the exchanges of one stream, one after another, until the stream ends.
///
/// A request's URI is its path and query; its authority, unless empty, is `host`, the first of the fields.
/// An upgrade is a `CONNECT` with [`Protocol`] in its extensions. The future of `answer` and the response's
/// body are dropped as soon as the tunnel server cancels the exchange. If the response ends first, the
/// exchange continues until the request has ended; what is left of it when its body was dropped is discarded.
pub async fn serve<F, A, B>(accepted: AcceptedStream, mut answer: F)
where
    F: FnMut(Request<RecvBody>, Informational) -> A,
    A: Future<Output = Result<Response<B>, Problem>>,
    B: Body<Data = Bytes>,
    B::Error: AsProblem,
{
    let AcceptedStream { stream, session } = accepted;
    let Some(stream) = accept(stream).await else {
        return;
    };
    let mut informational = Informational::default();
    loop {
        let Ok(event) = poll_fn(|cx| stream.lock().poll_event(cx)).await else {
            return;
        };
        let Event::Request(head) = event else { return };
        if !declares_content(&head) && !poll_fn(|cx| poll_end(&stream, cx)).await {
            return;
        }
        let outstanding = Outstanding::new(session.clone());
        informational.begin();
        match serve_one(&stream, head, &informational, &mut answer).await {
            Some(()) if stream.lock().begin_next() => drop(outstanding),
            // Dropping the stream resets it, unless it was whole.
            _ => return,
        }
    }
}

/// Accepts the stream; `None` when it was reset before.
async fn accept(mut stream: MuxStream) -> Option<SharedStream> {
    poll_fn(|cx| stream.poll_write(cx, &mut &[ACCEPTED][..]))
        .await
        .ok()?;
    Some(Arc::new(Mutex::new(ExchangeStream {
        stream: Some(stream),
        decoder: Decoder::request(Limits::default()).with_host(),
        accepted: true,
        is_upgrade: false,
        sent: false,
        received: false,
        failure: None,
        has_reader: false,
        no_reader_waker: None,
        outstanding: None,
    })))
}

/// Whether the head declares content.
fn declares_content(head: &RequestHead) -> bool {
    let pseudo = |name| head.fields.pseudo(name).is_some();
    pseudo(CONTENT) || pseudo(PROTOCOL) || head.fields.map.contains_key(header::CONTENT_LENGTH)
}

/// Reads the end of a message without content, which may arrive after the head; false if anything else
/// follows.
fn poll_end(stream: &SharedStream, cx: &mut Context<'_>) -> Poll<bool> {
    let event = stream.lock().poll_event(cx);
    event.map(|event| matches!(event, Ok(Event::End(end)) if end.is_empty()))
}

/// Serves one exchange; `None` when it was cut.
async fn serve_one<F, A, B>(
    stream: &SharedStream,
    head: RequestHead,
    informational: &Informational,
    answer: &mut F,
) -> Option<()>
where
    F: FnMut(Request<RecvBody>, Informational) -> A,
    A: Future<Output = Result<Response<B>, Problem>>,
    B: Body<Data = Bytes>,
    B::Error: AsProblem,
{
    let cancellation = Cancellation { stream };
    // Do not call the service for a cancelled exchange.
    if poll_fn(|cx| Poll::Ready(cancellation.poll(cx).is_ready())).await {
        return None;
    }
    let answer = match request(stream, head) {
        Ok(request) => {
            let mut answered = pin!(answer(request, informational.clone()));
            cancellation
                .or(|cx| {
                    let answer = answered.as_mut().poll(cx).map(Some);
                    if answer.is_pending() {
                        informational.send(stream, cx);
                    }
                    answer
                })
                .await?
        }
        Err(problem) => Err(problem),
    };
    let head = informational.head();
    match answer {
        Ok(response) => {
            let (head, body) = encode_response(head, response);
            let mut sender = Sender::new(stream.clone(), head, body);
            cancellation.or(|cx| poll_send(&mut sender, cx)).await?;
        }
        Err(problem) => {
            let head = encode_failure(head, &problem);
            let mut sender = Sender::new(stream.clone(), head, NoBody);
            poll_fn(|cx| sender.poll(cx)).await.ok()?;
        }
    }
    cancellation.or(|cx| poll_request_over(stream, cx)).await
}

/// Sends the response. If its body fails, ends the message with the problem.
fn poll_send<B>(sender: &mut Sender<B>, cx: &mut Context<'_>) -> Poll<Option<()>>
where
    B: Body<Data = Bytes>,
    B::Error: AsProblem,
{
    loop {
        match sender.poll(cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(Some(())),
            Poll::Ready(Err(SendError::Cut)) => return Poll::Ready(None),
            Poll::Ready(Err(SendError::Body(error))) => sender.abort(&error.as_problem()),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// Ready when the request has been received to its end; `None` when it was cut. What is left of it when its body was dropped
/// is discarded: were the stream reset, the tunnel server, which may have sent all of it, would have used the stream for its
/// next request. A tunnel server that has not sent all of it cancels the exchange at the end of the response. Only an upgraded
/// connection is over when its body was dropped.
fn poll_request_over(stream: &SharedStream, cx: &mut Context<'_>) -> Poll<Option<()>> {
    let mut stream = stream.lock();
    while !stream.received {
        if stream.has_reader {
            stream.no_reader_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if stream.is_upgrade || ready!(stream.poll_event(cx)).is_err() {
            return Poll::Ready(None);
        }
    }
    Poll::Ready(Some(()))
}

/// Detects that the tunnel server cancels the exchange or breaks the protocol.
struct Cancellation<'a> {
    stream: &'a SharedStream,
}

impl Cancellation<'_> {
    /// The result of the function, or `None` when the exchange is cancelled before there is one.
    async fn or<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<Option<T>>) -> Option<T> {
        poll_fn(|cx| match poll(cx) {
            Poll::Pending => self.poll(cx).map(|()| None),
            ready => ready,
        })
        .await
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.lock().poll_cancelled(cx)
    }
}

impl ExchangeStream {
    /// Prepares the next exchange, if the stream may carry one. Its request may be there: the tunnel server sends it as soon
    /// as it has the response, when the end of the last request may be unread here.
    fn begin_next(&mut self) -> bool {
        let is_reusable = self.sent && self.received && !self.is_upgrade;
        if is_reusable {
            self.decoder.reset();
            self.sent = false;
            self.received = false;
        }
        is_reusable
    }
}

/// Fields of a head that cost nothing beyond their bytes: as many as a tunnel server passes on. One that breaks this rule
/// may send ten times as many.
const USUAL_FIELDS: usize = 100;

/// Bytes that a header map keeps for each field beyond its name and value: an entry of 104 bytes and its index.
const FIELD_BYTES: usize = 128;

/// Counts a long head in the account of the session, a quarter of which may be heads.
fn hold_head(
    stream: &SharedStream,
    head: &RequestHead,
) -> Result<Option<Arc<HeldHead>>, HeadsFull> {
    let fields = head.fields.map.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
    let entries = head.fields.map.len().saturating_sub(USUAL_FIELDS) * FIELD_BYTES;
    let bytes = head.path.len() + fields.sum::<usize>() + entries;
    let stream = stream.lock();
    let account = stream.stream.as_ref().and_then(MuxStream::account);
    let held = account.map(|account| account.hold_head(bytes, account.limit() / 4));
    Ok(held.transpose()?.flatten().map(Arc::new))
}

fn request(stream: &SharedStream, head: RequestHead) -> Result<Request<RecvBody>, Problem> {
    let held = hold_head(stream, &head)
        .map_err(|full| Problem::new(Hop::Client, Reason::MemoryLimit, full.to_string()))?;
    let malformed = |what: String| Problem::new(Hop::Client, Reason::WireMalformed, what);
    let declared =
        fields::content_length(&head.fields.map).map_err(|error| malformed(error.to_string()))?;
    let protocol = match head.fields.pseudo(PROTOCOL) {
        Some(name) => {
            Some(Protocol::from_wire(name).map_err(|error| malformed(error.to_string()))?)
        }
        None => None,
    };
    stream.lock().is_upgrade = protocol.is_some();
    let note = head.fields.pseudo(FORWARD).cloned();
    let hints = head.fields.pseudo(FORWARD_HINTS).cloned();
    let body =
        RecvBody::new(stream, declared).map_err(|error: BodyError| error.problem(Hop::Client))?;
    let mut request = Request::new(body);
    *request.method_mut() = head.method;
    let path = PathAndQuery::from_maybe_shared(head.path);
    *request.uri_mut() = path.map_err(|error| malformed(error.to_string()))?.into();
    *request.headers_mut() = head.fields.map;
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(protocol);
    }
    if let Some(note) = note {
        request.extensions_mut().insert(ForwardNote(note));
    }
    if let Some(hints) = hints {
        request.extensions_mut().insert(ForwardHints(hints));
    }
    if let Some(held) = held {
        // For as long as the request's head is kept.
        request.extensions_mut().insert(held);
    }
    Ok(request)
}

fn encode_response<B>(mut head: BytesMut, response: Response<B>) -> (BytesMut, B) {
    let (parts, body) = response.into_parts();
    encode::final_status(&mut head, parts.status.as_u16());
    encode::end_to_end_fields(&mut head, &parts.headers);
    encode::end_fields(&mut head);
    (head, body)
}

fn encode_failure(mut head: BytesMut, problem: &Problem) -> BytesMut {
    encode::final_status(&mut head, problem.status().as_u16());
    encode_problem(&mut head, problem);
    encode::end_fields(&mut head);
    head
}

/// Metadata that a forwarding node attaches to a request, in the request's extensions. A platform client cannot send it:
/// names of fields do not begin with a colon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardNote(pub Bytes);

/// Metadata beside a [`ForwardNote`] that the receiving node may ignore, in the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardHints(pub Bytes);

/// Converts the failure of a message's body into a problem.
pub trait AsProblem {
    /// The problem for this failure. A response's problem is sent to the tunnel server; a request's problem
    /// ends the response.
    fn as_problem(&self) -> Problem;
}

impl AsProblem for Problem {
    fn as_problem(&self) -> Problem {
        self.clone()
    }
}

/// A body in memory does not fail.
impl AsProblem for std::convert::Infallible {
    fn as_problem(&self) -> Problem {
        match *self {}
    }
}

/// The empty body of a response that names a problem.
struct NoBody;

impl Body for NoBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }
}

/// Sends informational (1xx) responses before the final one.
#[derive(Clone, Default)]
pub struct Informational {
    queue: Arc<InformationalQueue>,
}

#[derive(Default)]
struct InformationalQueue {
    state: Mutex<InformationalState>,
    waker: AtomicWaker,
}

#[derive(Default)]
struct InformationalState {
    waiting: VecDeque<(StatusCode, HeaderMap)>,
    /// Number queued in this exchange.
    count: usize,
    /// Encoded and not yet written.
    out: BytesMut,
    started: bool,
}

impl Informational {
    /// Queues an informational response; false when there were too many, or the status is not 1xx or is
    /// 101.
    #[must_use]
    pub fn push(&self, status: StatusCode, headers: HeaderMap) -> bool {
        let mut state = self.queue.state.lock();
        if state.count >= limits::INFORMATIONAL
            || !status.is_informational()
            || status == StatusCode::SWITCHING_PROTOCOLS
        {
            return false;
        }
        state.count += 1;
        state.waiting.push_back((status, headers));
        drop(state);
        self.queue.waker.wake();
        true
    }

    /// Writes what is queued, as far as possible. The rest is sent with the final head.
    fn send(&self, stream: &SharedStream, cx: &mut Context<'_>) {
        self.queue.waker.register(cx.waker());
        let mut state = self.queue.state.lock();
        if state.encode_waiting() {
            let _ = stream.lock().poll_write(cx, &mut state.out);
        }
    }

    /// Prepares the next exchange. If the service of the last one still holds a clone, starts a new queue.
    fn begin(&mut self) {
        match Arc::get_mut(&mut self.queue) {
            Some(queue) => queue.state.get_mut().begin(),
            None => *self = Self::default(),
        }
    }

    /// The start of the final head: the informational responses that are not written yet.
    fn head(&self) -> BytesMut {
        let mut state = self.queue.state.lock();
        state.encode_waiting();
        // Informational responses are too late from now on.
        state.count = limits::INFORMATIONAL;
        let mut head = std::mem::take(&mut state.out);
        head.reserve(HEAD_CAPACITY);
        if !state.started {
            encode::response_start(&mut head);
        }
        head
    }
}

impl InformationalState {
    fn begin(&mut self) {
        self.waiting.clear();
        self.count = 0;
        self.out.clear();
        self.started = false;
    }

    /// Encodes what is queued; whether there is anything to write.
    fn encode_waiting(&mut self) -> bool {
        while let Some((status, headers)) = self.waiting.pop_front() {
            if !self.started {
                encode::response_start(&mut self.out);
                self.started = true;
            }
            encode::informational(&mut self.out, status.as_u16());
            encode::fields(&mut self.out, &headers);
            encode::end_fields(&mut self.out);
        }
        !self.out.is_empty()
    }
}
