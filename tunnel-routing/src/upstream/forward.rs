//! Forwards one request to an upstream, up to the head of the response.
//!
//! A request is sent a second time only if its connection had been used before and broke, and only if the upstream has
//! certainly not acted on it or repeating it is harmless (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1, RFC 9113
//! section 8.7).

mod upgrades;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::RecvStream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use tokio::time::Instant;
use tunnel_http::answer::keep_end_to_end;
use tunnel_proto::exchange::Protocol;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::body::UpstreamBody;
use super::http1::{Connection, ResponseError};
use super::http2::{Http2Content, Http2Exchange, Http2Failure, Lease, Sharing};
use super::idle::Idle;
use super::outgoing;
use super::outgoing_body::OutgoingBody;
use super::progress::Progress;
use super::routed_request::RoutedRequest;
use super::tls::Offer;
use super::{Link, LinkError, LinkKind, Upstream, failure, response};
use tunnel_ops::alarm::Alarm;

/// Content up to this size is acknowledged by the host of any HTTP/1.1 upstream, whether the upstream reads it or not:
/// receive buffers are larger.
const BUFFERED_BYTES: u64 = 16 * 1024;

/// How often a request is sent again that the upstream has certainly not acted on: as it may meet a connection that the
/// upstream is about to leave each time.
const REPEATS: u32 = 3;

/// Why an upstream gave no response, and what may be done about it.
pub(super) struct ForwardError {
    pub(super) problem: Problem,
    /// Whether the request is intact and may go to another upstream.
    pub(super) may_try_another: bool,
    /// Whether the upstream was not reached, or has certainly not acted on the request.
    pub(super) is_untouched: bool,
    /// Whether the failure is that of a dial by another request, which reports it.
    pub(super) is_shared: bool,
    /// Whether the request, or another one, may have made the upstream end the connection that they shared.
    is_suspect: bool,
}

/// Why one attempt gave no response.
struct AttemptError {
    problem: Problem,
    delivery: Delivery,
    /// See [`ForwardError`].
    is_suspect: bool,
}

/// How much of a request without a response the upstream may have processed.
enum Delivery {
    /// Nothing was sent; this is the content.
    NotSent(Box<OutgoingBody>),
    /// The upstream refused it without acting on it; this is the content, if it was kept.
    Refused(Option<Box<OutgoingBody>>),
    /// Unknown; no byte came back.
    Unknown,
    /// The response began, or took too long.
    Started,
}

impl AttemptError {
    /// Whether the upstream has certainly not acted on the request.
    fn is_untouched(&self) -> bool {
        matches!(self.delivery, Delivery::NotSent(_) | Delivery::Refused(_))
    }
}

impl RoutedRequest {
    /// Converts the failure of an attempt, and puts the content back if the request may be sent again.
    /// `has_no_content` says that it had none to begin with.
    fn failed(&mut self, error: AttemptError, has_no_content: bool) -> ForwardError {
        let is_untouched = error.is_untouched();
        let content = match error.delivery {
            Delivery::NotSent(content) => Some(*content),
            Delivery::Refused(content) => content.map(|content| *content),
            Delivery::Unknown if has_no_content && self.head.method.is_idempotent() => {
                Some(OutgoingBody::empty(Arc::clone(&self.progress)))
            }
            _ => None,
        };
        let may_try_another = content.is_some();
        self.content = content;
        ForwardError {
            problem: error.problem,
            may_try_another,
            is_untouched,
            is_shared: false,
            is_suspect: error.is_suspect,
        }
    }

    /// Converts a failed dial; the request is intact.
    fn unlinked(&mut self, error: LinkError, content: OutgoingBody) -> ForwardError {
        self.content = Some(content);
        error.into()
    }

    /// How much of the request the upstream may have processed, after its connection gave no response.
    fn delivery(&self, error: &ResponseError, connection: &mut Connection) -> Delivery {
        if !matches!(error, ResponseError::Io(_) | ResponseError::Ended) {
            // Polled again, content that failed could seem to have ended.
            return Delivery::Started;
        }
        if let Some(content) = connection.take_back() {
            let empty = || OutgoingBody::empty(Arc::clone(&self.progress));
            return Delivery::NotSent(Box::new(content.unwrap_or_else(empty)));
        }
        if connection.is_silent() && !self.progress.has_informational() {
            Delivery::Unknown
        } else {
            Delivery::Started
        }
    }
}

impl Upstream {
    /// Sends a request and waits for the head of the response.
    ///
    /// # Errors
    /// With the problem that the platform client is sent.
    pub(crate) async fn forward(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        self.try_forward(request)
            .await
            .map_err(|failed| failed.problem)
    }

    /// Sends a request and waits for the head of the response. An error says whether another upstream may be tried.
    pub(super) async fn try_forward(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        request.on_attempt(self.url());
        // Rare cases are boxed, so that the future of a usual exchange has no room for them.
        let result = match request.head.extensions.get::<Protocol>().copied() {
            Some(protocol) => Box::pin(self.forward_upgrade(request, protocol)).await,
            None if request.head.method == Method::CONNECT => {
                let detail = "CONNECT to anywhere but a protocol of this host";
                Err(Problem::new(Hop::Client, Reason::MethodNotAllowed, detail).into())
            }
            None => self.forward_with_retry(request).await,
        };
        if let Err(failed) = &result {
            request.on_attempt_failed(&failed.problem);
        }
        result
    }

    /// A connection for the request: one that is open, or a new one.
    async fn link(&self, request: &mut RoutedRequest, offer: Offer) -> Result<Link, LinkError> {
        if let Some(link) = self.used_link(offer)
            && link.may_bring(&request.head)
        {
            return Ok(link);
        }
        let dialling = Box::pin(async {
            if offer != Offer::Http1 && outgoing::is_hazardous(&request.head, u32::MAX) {
                return Ok(self.exclusive_link(offer).await?);
            }
            let link = self.dialled_link(offer).await?;
            if link.may_bring(&request.head) {
                return Ok(link);
            }
            // Only now it is known what the upstream accepts.
            Ok(self.exclusive_link(offer).await?)
        });
        RoutedRequest::wait(&mut request.waited, dialling).await
    }

    /// Attempts once, and again as long as that is safe: up to [`REPEATS`] times if the upstream has certainly not acted on
    /// the request, and once over HTTP/1.1, and where that is unknown, if the connection had been used before.
    async fn forward_with_retry(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let mut content = request.take_content();
        if let Some(bytes) = self.max_body {
            content.limit(bytes)?;
        }
        let has_no_content = content.is_end_stream();
        let offer = self.offer(&request.head);
        let mut linked = self.link(request, offer).await;
        let new_offer = self.offer(&request.head);
        if linked.is_err() && new_offer != offer {
            // The upstream speaks other versions than before.
            linked = self.link(request, new_offer).await;
        }
        let link = match linked {
            Ok(link) => link,
            Err(error) => return Err(request.unlinked(error, content)),
        };
        let (is_used, is_http2) = (link.is_used, matches!(link.connection, LinkKind::Http2(_)));
        let failed = match self.attempt(request, content, link.connection).await {
            Ok(response) => return Ok(response),
            Err(error) => request.failed(error, has_no_content),
        };
        let repeats = match failed.is_untouched && is_http2 {
            true => REPEATS,
            false => u32::from(is_used),
        };
        if repeats == 0 || !failed.may_try_another {
            return Err(failed);
        }
        Box::pin(self.retry(request, failed, repeats, has_no_content, is_http2)).await
    }

    /// Attempts again: after HTTP/1.1 on a new connection; after HTTP/2 on one that is open or is dialled for all requests
    /// that have lost theirs, so that an upstream which refuses streams does not get a connection for each of them. A
    /// request that may have made the upstream end a shared connection gets one to itself.
    async fn retry(
        &self,
        request: &mut RoutedRequest,
        mut failed: ForwardError,
        repeats: u32,
        has_no_content: bool,
        is_http2: bool,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        for _ in 0..repeats {
            request.on_attempt_failed(&failed.problem);
            request.on_attempt(self.url());
            let content = request.take_content();
            let offer = self.offer(&request.head);
            let linked = if is_http2 && !failed.is_suspect {
                self.link(request, offer).await
            } else {
                let linking = async {
                    if is_http2 {
                        return self.exclusive_link(offer).await;
                    }
                    self.new_link(offer, Sharing::Shared).await
                };
                let linked = RoutedRequest::wait(&mut request.waited, linking).await;
                linked.map_err(LinkError::from)
            };
            let link = match linked {
                Ok(link) => link,
                Err(error) => return Err(request.unlinked(error, content)),
            };
            failed = match self.attempt(request, content, link.connection).await {
                Ok(response) => return Ok(response),
                Err(error) => request.failed(error, has_no_content),
            };
            if !failed.may_try_another || !failed.is_untouched {
                break;
            }
        }
        Err(failed)
    }

    async fn attempt(
        &self,
        request: &mut RoutedRequest,
        mut content: OutgoingBody,
        connection: LinkKind,
    ) -> Result<Response<UpstreamBody>, AttemptError> {
        match connection {
            LinkKind::Http1(mut connection) => {
                connection.send(&request.head.method, content, |out, content| {
                    outgoing::write_http1(out, &request.head, &self.destination, content)
                });
                let response = self.over_http1(request, &mut connection).await?;
                Ok(self.response_http1(response, connection, request)?)
            }
            LinkKind::Http2(lease) => {
                if outgoing::expects_continue(&request.head) {
                    // Many servers send no 100 over HTTP/2, and the platform client may wait for it.
                    let _ = request
                        .informational
                        .push(StatusCode::CONTINUE, HeaderMap::new());
                }
                let message = outgoing::http2(&request.head, &self.destination, &content)?;
                content.keep(&self.shared.memory);
                let (response, exchange) =
                    self.over_http2(request, message, content, *lease).await?;
                let (head, stream) = response.into_parts();
                let response = Response::from_parts(head, ());
                Ok(self.response_http2(response, exchange.content(stream), request)?)
            }
        }
    }

    /// The idle timer of the exchange, if the route has a limit.
    fn watch(&self, request: &RoutedRequest) -> Option<Box<Idle>> {
        let limit = self.idle_timeout?;
        Some(Idle::new(limit, &request.progress))
    }

    /// Waits for the response over HTTP/1.1.
    async fn over_http1(
        &self,
        request: &mut RoutedRequest,
        connection: &mut Connection,
    ) -> Result<Response<()>, AttemptError> {
        let mut alarm = std::mem::take(&mut connection.alarm);
        let watch = self.watch(request);
        let expects = outgoing::expects_continue(&request.head);
        let RoutedRequest {
            informational,
            progress,
            waited,
            ..
        } = request;
        let pass = |status, mut headers: HeaderMap| {
            keep_end_to_end(&mut headers);
            progress.on_informational(informational.push(status, headers));
        };
        let head = |cx: &mut Context<'_>| {
            let head = connection.poll_head(cx, pass);
            if progress.bytes() > BUFFERED_BYTES {
                connection.limit_unacknowledged(false);
            }
            head
        };
        let result = self
            .head_in_time(progress, waited, &mut alarm, watch, expects, head)
            .await?;
        connection.alarm = alarm;
        result.map_err(|error| AttemptError {
            problem: failure::response_error(&error),
            delivery: request.delivery(&error, connection),
            is_suspect: false,
        })
    }

    async fn over_http2(
        &self,
        request: &mut RoutedRequest,
        message: Request<()>,
        content: OutgoingBody,
        lease: Lease,
    ) -> Result<(Response<RecvStream>, Http2Exchange), AttemptError> {
        // On a shared connection there are none, see `outgoing::is_hazardous`; an upgrade has none.
        let has_trailers = outgoing::announces_trailers(&request.head)
            && message.extensions().get::<h2::ext::Protocol>().is_none();
        let mut exchange = match Http2Exchange::begin(lease, message, content, has_trailers) {
            Ok(exchange) => exchange,
            Err(failure) => return Err(self.no_response(request, *failure)),
        };
        let mut alarm = Alarm::default();
        let watch = self.watch(request);
        let RoutedRequest {
            informational,
            progress,
            waited,
            ..
        } = request;
        let head = |cx: &mut Context<'_>| {
            exchange.poll_head(cx, |status, mut headers| {
                keep_end_to_end(&mut headers);
                // That is made here, see above.
                if status != StatusCode::CONTINUE {
                    progress.on_informational(informational.push(status, headers));
                }
            })
        };
        let result = self.head_in_time(progress, waited, &mut alarm, watch, false, head);
        match result.await? {
            Ok(response) => Ok((response, exchange)),
            Err(error) => Err(self.no_response(request, exchange.fail(error))),
        }
    }

    /// Classifies the failure of a request over HTTP/2, and gives out a lost connection no more.
    fn no_response(&self, request: &RoutedRequest, failure: Http2Failure) -> AttemptError {
        let Http2Failure {
            mut lease,
            error,
            mut content,
            is_unsent,
        } = failure;
        let error = match (request.progress.failure(), error) {
            // This side reset the stream.
            (Some(failure), _) => return failure.clone().into(),
            (None, Some(error)) => error,
            (None, None) => h2::Reason::CANCEL.into(),
        };
        if error.is_remote() && error.is_reset() {
            // The upstream has ended the stream itself.
            lease.on_whole();
        }
        let left = lease.go_away();
        let is_lost = is_unsent || failure::is_lost(&error);
        if is_lost {
            self.http2.on_lost(&lease);
        }
        let delivery = if is_unsent {
            Delivery::NotSent(Box::new(content))
        } else if failure::is_untouched(&error) {
            Delivery::Refused(content.rewind().then(|| Box::new(content)))
        } else if is_lost && !request.progress.has_informational() {
            Delivery::Unknown
        } else {
            Delivery::Started
        };
        AttemptError {
            problem: failure::no_response(&error, left.as_ref()),
            delivery,
            is_suspect: is_lost && left.is_some_and(|left| left.code != 0),
        }
    }

    fn response_http1(
        &self,
        mut response: Response<()>,
        connection: Box<Connection>,
        request: &RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        response::check(&mut response)?;
        let watch = self.watch(request);
        Ok(response.map(|()| UpstreamBody::http1(connection, &self.pool).watched(watch)))
    }

    fn response_http2(
        &self,
        mut response: Response<()>,
        content: Http2Content,
        request: &RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        response::check(&mut response)?;
        response::check_declared(&response, content.is_end_stream(), &request.head.method)?;
        let (watch, progress) = (self.watch(request), &request.progress);
        Ok(response.map(|()| UpstreamBody::http2(content, progress).watched(watch)))
    }

    /// Waits for a head. The limit counts from the end of the request: how long the request takes is up to the
    /// platform client, as long as it makes progress, which `watch` checks. `expects` says that the platform client
    /// waits for a 100 of the upstream.
    async fn head_in_time<T>(
        &self,
        progress: &Progress,
        waited: &mut Duration,
        alarm: &mut Alarm,
        mut watch: Option<Box<Idle>>,
        expects: bool,
        mut poll_head: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Problem> {
        let started = Instant::now();
        let mut due = started + self.head_timeout;
        let mut counts = progress.has_ended();
        let result = poll_fn(|cx| {
            let head = poll_head(cx);
            if progress.is_flooded() {
                let detail = "more informational responses than allowed";
                return Poll::Ready(Err(problem(Reason::ResponseInvalid, detail)));
            }
            if let Poll::Ready(head) = head {
                return Poll::Ready(Ok(head));
            }
            if let Some(watch) = &mut watch
                && !progress.has_ended()
                && let Poll::Ready(problem) = watch.poll(cx)
            {
                let is_let_wait = expects && !progress.has_informational() && progress.bytes() == 0;
                return Poll::Ready(Err(if progress.is_starved() && !is_let_wait {
                    let detail = format!("the request stopped coming: {}", problem.detail());
                    self::problem(Reason::RequestIncomplete, detail)
                } else {
                    problem
                }));
            }
            while alarm.poll(cx, due).is_ready() {
                if counts {
                    let detail = format!("no answer within {:?}", self.head_timeout);
                    return Poll::Ready(Err(problem(Reason::ResponseTimeout, detail)));
                }
                counts = progress.has_ended();
                due = Instant::now() + self.head_timeout;
            }
            Poll::Pending
        })
        .await;
        *waited += started.elapsed();
        result
    }
}

fn problem(reason: Reason, detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(Hop::Client, reason, detail)
}

impl From<LinkError> for ForwardError {
    /// Nothing was sent, and the content is where it was.
    fn from(LinkError { problem, is_shared }: LinkError) -> Self {
        Self {
            problem,
            may_try_another: true,
            is_untouched: true,
            is_shared,
            is_suspect: false,
        }
    }
}

impl From<Problem> for ForwardError {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            may_try_another: false,
            is_untouched: false,
            is_shared: false,
            is_suspect: false,
        }
    }
}

impl From<Problem> for AttemptError {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            delivery: Delivery::Started,
            is_suspect: false,
        }
    }
}
