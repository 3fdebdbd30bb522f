//! The content of a response, observed until its end.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tunnel_ops::signals::Shutdown;

use super::{OwnResponse, ResponseContent, make_response, switching_protocols};
use crate::access_log::Observer;
use crate::connection::is_given_up;
use crate::http1::InFlight;
use crate::long_streams::{Carrier, Hold, LongStream, StreamFormat};

/// The content of a response. `B` is the forwarded content, `C` its carrier, and `O` observes the exchange.
pub struct ResponseBody<B: Body, C, O: Observer<B::Error>> {
    source: Source<B, C>,
    /// The error of the content, kept until hyper has sent the bytes before it: it drops them when content fails, and sends
    /// them when content is pending.
    failure: Option<Box<B::Error>>,
    /// Observes the exchange until the response ends.
    observer: Option<O>,
    /// Dropped at the end of the exchange, for the guard of an HTTP/1 connection.
    _in_flight: Option<InFlight>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "most content is forwarded; a box would cost an allocation each time"
)]
enum Source<B: Body, C> {
    Forwarded(B),
    /// A forwarded content that can end early in order.
    Long(Box<LongStream<B, C>>),
    Own(Option<Bytes>),
    /// No content, but a `Content-Length`. Over HTTP/1 hyper keeps that field only if the body does not report its end.
    LengthOnly,
}

impl<B, C, O> ResponseBody<B, C, O>
where
    B: Hold<Data = Bytes> + Unpin,
    C: Carrier<B::Error> + Unpin,
    O: Observer<B::Error> + Unpin,
{
    /// Content of the program itself.
    pub fn own(content: impl Into<Bytes>) -> Self {
        let content = content.into();
        Self::new(Source::Own((!content.is_empty()).then_some(content)))
    }

    /// A received response as it is forwarded: without connection-specific fields, and without content if its status
    /// has none.
    ///
    /// # Errors
    /// A description, if the status or the length is not valid.
    pub fn forward(
        received: Response<B>,
        method: &Method,
        is_http1: bool,
    ) -> Result<Response<Self>, &'static str> {
        let (mut parts, body) = received.into_parts();
        let source = match make_response(&mut parts, method, is_http1)? {
            ResponseContent::Received => Source::Forwarded(body),
            ResponseContent::None => Source::Own(None),
            ResponseContent::LengthOnly => Source::LengthOnly,
        };
        Ok(Response::from_parts(parts, Self::new(source)))
    }

    /// A response of the program itself.
    #[must_use]
    pub fn own_response(own: OwnResponse) -> Response<Self> {
        let mut response = Response::new(Self::own(own.content));
        *response.status_mut() = own.status;
        *response.headers_mut() = own.headers;
        response
    }

    /// The response to a request with `Max-Forwards: 0`, which is not forwarded (RFC 9110 section 7.6.2).
    #[must_use]
    pub fn last_hop() -> Response<Self> {
        let mut response = Response::new(Self::own(Bytes::new()));
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }

    /// The response that grants an upgrade, with the upstream's fields. `has_key`: the request has a `Sec-WebSocket-Key`.
    #[must_use]
    pub fn switching_protocols(
        headers: HeaderMap,
        is_http2: bool,
        has_key: bool,
    ) -> Response<Self> {
        let mut response = Response::new(Self::own(Bytes::new()));
        *response.headers_mut() = headers;
        *response.status_mut() = switching_protocols(response.headers_mut(), is_http2, has_key);
        response
    }

    fn new(source: Source<B, C>) -> Self {
        Self {
            source,
            failure: None,
            observer: None,
            _in_flight: None,
        }
    }

    /// Ends a forwarded content of this format early and in order when `stage` is reached or its carrier has left.
    pub fn follow(&mut self, format: StreamFormat, carrier: C, stage: &Shutdown) {
        self.source = match std::mem::replace(&mut self.source, Source::LengthOnly) {
            Source::Forwarded(body) => {
                Source::Long(Box::new(LongStream::new(body, format, carrier, stage)))
            }
            other => other,
        };
    }

    /// Observes the exchange, and keeps it in flight, until the content's end.
    pub fn observe(&mut self, observer: Option<O>, in_flight: Option<InFlight>) {
        self.observer = observer;
        self._in_flight = in_flight;
        if self.is_over()
            && let Some(observer) = &mut self.observer
        {
            observer.record().on_whole();
        }
    }

    fn is_over(&self) -> bool {
        self.failure.is_none()
            && match &self.source {
                Source::Forwarded(body) => body.is_end_stream(),
                Source::Long(body) => body.is_end_stream(),
                Source::Own(content) => content.is_none(),
                Source::LengthOnly => true,
            }
    }

    fn poll_source(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.source {
            Source::Forwarded(body) => Pin::new(body).poll_frame(cx),
            Source::Long(body) => Pin::new(&mut **body).poll_frame(cx),
            Source::Own(content) => {
                Poll::Ready(content.take().map(|content| Ok(Frame::data(content))))
            }
            Source::LengthOnly => Poll::Ready(None),
        }
    }

    /// Reports the next frame to the observer.
    fn report(&mut self, frame: Option<&Result<Frame<Bytes>, B::Error>>) {
        let is_over = self.is_over();
        let Some(observer) = &mut self.observer else {
            return;
        };
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    observer.on_bytes(data.len());
                }
            }
            Some(Err(error)) => observer.on_error(error),
            None => {}
        }
        if matches!(&self.source, Source::Long(body) if body.has_ended_early()) {
            observer.record().on_moved();
        } else if frame.is_none() || is_over {
            // hyper does not poll again when the end is known.
            observer.record().on_whole();
        }
    }
}

impl<B: Body, C, O: Observer<B::Error>> Drop for ResponseBody<B, C, O> {
    fn drop(&mut self) {
        if let Some(observer) = &mut self.observer
            && is_given_up()
        {
            observer.record().on_not_taken(O::HOP);
        }
    }
}

impl<B, C, O> Body for ResponseBody<B, C, O>
where
    B: Hold<Data = Bytes> + Unpin,
    C: Carrier<B::Error> + Unpin,
    O: Observer<B::Error> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = match self.failure.take() {
            Some(failure) => Some(Err(*failure)),
            None => match ready!(self.poll_source(cx)) {
                Some(Err(failure)) => {
                    self.failure = Some(Box::new(failure));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                frame => frame,
            },
        };
        self.report(frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_over() && !matches!(self.source, Source::LengthOnly)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Forwarded(body) => body.size_hint(),
            Source::Own(content) => {
                SizeHint::with_exact(content.as_ref().map_or(0, |content| content.len() as u64))
            }
            Source::Long(_) | Source::LengthOnly => SizeHint::default(),
        }
    }
}

impl<B: Body, C, O: Observer<B::Error>> fmt::Debug for ResponseBody<B, C, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").finish_non_exhaustive()
    }
}
