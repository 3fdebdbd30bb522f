//! Whether an HTTP/1 connection persists behind an answer (RFC 9112 section 9.3), and how its client learns that.
//!
//! In: what request, content and answer say when the answer's head is made, and whether the program leaves. Out: `Connection:
//! close` in that head, or for how long the connection may be idle afterwards. hyper does what the head says; it never
//! has to end a connection that was not announced to end.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::http1::GuardHandle;
use crate::received::UnreadContent;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// By how much the time that `Keep-Alive` announces is shorter than the time after which the connection is closed: longer
/// than a request takes to arrive.
const ANNOUNCED_EARLIER: Duration = Duration::from_secs(5);

/// What all requests of one connection share.
pub(super) struct Persistence {
    /// The value of `Keep-Alive`; `None` if the time is too short to be announced.
    keep_alive: Option<HeaderValue>,
    /// No further request is to come.
    is_leaving: AtomicBool,
    guard: GuardHandle,
}

impl Persistence {
    /// The persistence of a connection that is closed when it is idle for `keep_alive_timeout`.
    pub(super) fn new(keep_alive_timeout: Duration, guard: GuardHandle) -> Arc<Self> {
        Arc::new(Self {
            keep_alive: announced(keep_alive_timeout),
            is_leaving: AtomicBool::new(false),
            guard,
        })
    }

    /// Has the next answer close the connection.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// Completes the head of an answer. `content_is_kept`: what is missing of the request's content can be discarded.
    fn on_answer<B: Body>(
        &self,
        request: RequestPersistence,
        content_is_kept: bool,
        answer: &mut Response<B>,
    ) {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let is_close_delimited = request == RequestPersistence::Http10
            && answer.body().size_hint().exact().is_none()
            && !answer.headers().contains_key(header::CONTENT_LENGTH);
        if is_close_delimited {
            self.guard.close_delimited();
        }
        let headers = answer.headers_mut();
        if !content_is_kept || self.is_leaving.load(Ordering::Relaxed) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        } else if request == RequestPersistence::Persistent
            && let Some(keep_alive) = &self.keep_alive
            && let Entry::Vacant(connection) = headers.entry(header::CONNECTION)
        {
            connection.insert(HeaderValue::from_static("keep-alive"));
            headers.insert(KEEP_ALIVE, keep_alive.clone());
        }
    }
}

/// The value of `Keep-Alive` for a connection that is closed when it is idle for `timeout`: whole seconds, and less than
/// that. `None` if nothing is left.
fn announced(timeout: Duration) -> Option<HeaderValue> {
    let earlier = ANNOUNCED_EARLIER.min(timeout / 2);
    let seconds = (timeout - earlier).as_secs();
    let text = format!("timeout={seconds}");
    (seconds > 0).then(|| HeaderValue::try_from(text).ok())?
}

/// What a request says about the connection that it came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPersistence {
    /// Of HTTP/1.0: hyper decides.
    Http10,
    /// The client closes it behind the answer.
    Last,
    /// It is used again.
    Persistent,
}

impl RequestPersistence {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        if request.version() == Version::HTTP_10 {
            Self::Http10
        } else if is_last(request.headers()) {
            Self::Last
        } else {
            Self::Persistent
        }
    }
}

fn is_last(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let mut options = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

pin_project! {
    /// The answering of one request.
    pub(super) struct Answering<F> {
        #[pin]
        future: F,
        request: RequestPersistence,
        // `None` if the request has no content; passed to the answer's content.
        unread: Option<Arc<UnreadContent>>,
        connection: Arc<Persistence>,
    }
}

impl<F> Answering<F> {
    pub(super) fn new(
        future: F,
        request: RequestPersistence,
        unread: Option<Arc<UnreadContent>>,
        connection: &Arc<Persistence>,
    ) -> Self {
        let connection = Arc::clone(connection);
        Self {
            future,
            request,
            unread,
            connection,
        }
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
    B: Body,
{
    type Output = Result<Response<AnswerBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Ok(mut answer) = ready!(this.future.poll(cx));
        let unread = this.unread.take();
        let content_is_kept = unread.as_ref().is_none_or(|unread| unread.begin_answer());
        this.connection
            .on_answer(*this.request, content_is_kept, &mut answer);
        let unread = unread.map(AnsweredContent);
        Poll::Ready(Ok(answer.map(|body| AnswerBody { body, unread })))
    }
}

/// The content of a request whose answer is being written, until this is dropped.
struct AnsweredContent(Arc<UnreadContent>);

impl Drop for AnsweredContent {
    fn drop(&mut self) {
        self.0.end_answer();
    }
}

pin_project! {
    /// The content of an answer. hyper drops it behind the last byte.
    pub(super) struct AnswerBody<B> {
        #[pin]
        body: B,
        unread: Option<AnsweredContent>,
    }
}

impl<B: Body> Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        if let Some(AnsweredContent(unread)) = this.unread {
            unread.on_answer_progress();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
