//! Forwards one request to an upstream, up to the head of the response.
//!
//! A request is sent a second time only if its connection had been used before and broke, and only if the upstream has
//! certainly not acted on it or repeating it is harmless (RFC 9110 section 9.2.2, RFC 9112 section 9.3.1, RFC 9113
//! section 8.7).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;
use hyper::client::conn::TrySendError;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tunnel_http::answer::keep_end_to_end;
use tunnel_http::received::ReceivedBody;
use tunnel_proto::exchange::Protocol;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::body::UpstreamBody;
use super::http1::{Connection, Framing, ResponseError};
use super::http2::Lease;
use super::idle::Idle;
use super::outgoing::{self, Http2Content};
use super::outgoing_body::OutgoingBody;
use super::progress::Progress;
use super::routed_request::RoutedRequest;
use super::settings::UpstreamHttp;
use super::tls::Offer;
use super::upgrade::{self, UpgradedConnection};
use super::{Link, LinkError, LinkKind, Upstream, failure, response};
use crate::url::UpstreamScheme;
use tunnel_ops::alarm::Alarm;

/// Content up to this size is acknowledged by the host of any HTTP/1.1 upstream, whether the upstream reads it or not:
/// receive buffers are larger.
const BUFFERED_BYTES: u64 = 16 * 1024;

/// Why an upstream gave no response, and what may be done about it.
pub(super) struct ForwardError {
    pub(super) problem: Problem,
    /// Whether the request is intact and may go to another upstream.
    pub(super) may_try_another: bool,
    /// Whether the upstream was not reached, or has certainly not acted on the request.
    pub(super) is_untouched: bool,
    /// Whether the failure is that of a dial by another request, which reports it.
    pub(super) is_shared: bool,
}

/// Why one attempt gave no response.
struct AttemptError {
    problem: Problem,
    delivery: Delivery,
}

/// How much of a request without a response the upstream may have processed.
enum Delivery {
    /// Nothing was sent; this is the content.
    NotSent(Box<OutgoingBody>),
    /// The upstream refused it without acting on it.
    Refused,
    /// Unknown; no byte came back.
    Unknown,
    /// The response began, or took too long.
    Started,
}

impl RoutedRequest {
    /// Converts the failure of an attempt, and puts the content back if the request may be sent again.
    /// `has_no_content` says that it had none to begin with.
    fn failed(&mut self, error: AttemptError, has_no_content: bool) -> ForwardError {
        let is_untouched = matches!(error.delivery, Delivery::NotSent(_) | Delivery::Refused);
        let content = match error.delivery {
            Delivery::NotSent(content) => Some(*content),
            Delivery::Refused if has_no_content => {
                Some(OutgoingBody::empty(Arc::clone(&self.progress)))
            }
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
    async fn link(&self, request: &mut RoutedRequest) -> Result<Link, LinkError> {
        let offer = self.offer(&request.head);
        match self.used_link(offer) {
            Some(link) => Ok(link),
            None => {
                let dialling = Box::pin(self.dialled_link(offer));
                RoutedRequest::wait(&mut request.waited, dialling).await
            }
        }
    }

    /// Attempts once, and once more if that is safe.
    async fn forward_with_retry(
        &self,
        request: &mut RoutedRequest,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let mut content = request.take_content();
        if let Some(bytes) = self.max_body {
            content.limit(bytes)?;
        }
        let has_no_content = content.is_end_stream();
        let Link {
            is_used,
            connection,
        } = match self.link(request).await {
            Ok(link) => link,
            Err(error) => return Err(request.unlinked(error, content)),
        };
        let is_http2 = matches!(connection, LinkKind::Http2(_));
        let failed = match self.attempt(request, content, connection).await {
            Ok(response) => return Ok(response),
            Err(error) => request.failed(error, has_no_content),
        };
        if !is_used || !failed.may_try_another {
            return Err(failed);
        }
        request.on_attempt_failed(&failed.problem);
        request.on_attempt(self.url());
        Box::pin(self.retry(request, has_no_content, is_http2)).await
    }

    /// Attempts once more: after HTTP/1.1 on a new connection; after HTTP/2 on one that is open or is dialled for all
    /// requests that have lost theirs, so that an upstream which refuses streams does not get a connection for each of
    /// them.
    async fn retry(
        &self,
        request: &mut RoutedRequest,
        has_no_content: bool,
        is_http2: bool,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let content = request.take_content();
        let offer = self.offer(&request.head);
        let linking = async {
            if is_http2 {
                return self.dialled_link(offer).await;
            }
            Ok(self.new_link(offer).await?)
        };
        match RoutedRequest::wait(&mut request.waited, linking).await {
            Ok(link) => {
                let result = self.attempt(request, content, link.connection).await;
                result.map_err(|error| request.failed(error, has_no_content))
            }
            Err(error) => Err(request.unlinked(error, content)),
        }
    }

    async fn attempt(
        &self,
        request: &mut RoutedRequest,
        content: OutgoingBody,
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
            LinkKind::Http2(mut lease) => {
                if outgoing::expects_continue(&request.head) {
                    // hyper shows no informational response of HTTP/2, so the one that a platform
                    // client may wait for is made here.
                    let _ = request
                        .informational
                        .push(StatusCode::CONTINUE, HeaderMap::new());
                }
                let message = outgoing::http2(&request.head, &self.destination, content)?;
                let response = self.over_http2(request, message, &mut lease).await?;
                Ok(self.response_http2(response, lease, request)?)
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
        })
    }

    async fn over_http2(
        &self,
        request: &mut RoutedRequest,
        message: Request<Http2Content>,
        lease: &mut Lease,
    ) -> Result<Response<ReceivedBody>, AttemptError> {
        let mut head = pin!(lease.sender.try_send_request(message));
        let mut alarm = Alarm::default();
        let watch = self.watch(request);
        let (progress, waited) = (&request.progress, &mut request.waited);
        let head = |cx: &mut Context<'_>| head.as_mut().poll(cx);
        let result = self.head_in_time(progress, waited, &mut alarm, watch, false, head);
        let result = result.await?;
        let result = result.map(|response| response.map(ReceivedBody::http2_response));
        result.map_err(|error| match request.progress.failure() {
            // hyper reports the reset of the stream, not that this side caused it, nor why.
            Some(failure) => failure.clone().into(),
            None => {
                let (error, is_lost) = AttemptError::new(error);
                if is_lost {
                    self.http2.remove(lease);
                }
                error
            }
        })
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
        mut response: Response<ReceivedBody>,
        lease: Lease,
        request: &RoutedRequest,
    ) -> Result<Response<UpstreamBody>, Problem> {
        response::check(&mut response)?;
        response::check_declared(&response, &request.head.method)?;
        let (watch, progress) = (self.watch(request), &request.progress);
        Ok(response.map(|incoming| UpstreamBody::http2(incoming, lease, progress).watched(watch)))
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

    /// Asks for an upgrade. None of the content is touched before the upstream has agreed.
    async fn forward_upgrade(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let lease = match self.destination.scheme() {
            UpstreamScheme::Http => None,
            // Most that speak HTTP/2 over TLS still take upgrades over HTTP/1.1 only.
            UpstreamScheme::Https if self.http == UpstreamHttp::Http2 => {
                self.http2.take().filter(Lease::is_extended_connect_known)
            }
            UpstreamScheme::Https => None,
            UpstreamScheme::H2c => return self.forward_upgrade_http2(request, protocol).await,
        };
        if let Some(lease) = lease {
            return Ok(self.upgrade_http2(request, protocol, lease).await?);
        }
        let dialled = RoutedRequest::wait(&mut request.waited, self.dial(Offer::Http1)).await;
        let (socket, peer) = match dialled {
            Ok(dialled) => dialled,
            Err(problem)
                if problem.reason() == Reason::ProtocolRefused
                    && self.http != UpstreamHttp::Http1 =>
            {
                return self.forward_upgrade_http2(request, protocol).await;
            }
            Err(problem) => return Err(LinkError::from(problem).into()),
        };
        let connection = self.http1_connection(socket, peer);
        Ok(self.upgrade_http1(request, protocol, connection).await?)
    }

    /// Forwards an upgrade to an upstream that speaks HTTP/2 alone.
    async fn forward_upgrade_http2(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, ForwardError> {
        let link = match self.used_link(Offer::Http2) {
            Some(link) => link,
            None => {
                let dialling = Box::pin(self.shared_link(Offer::Http2));
                RoutedRequest::wait(&mut request.waited, dialling).await?
            }
        };
        let LinkKind::Http2(mut lease) = link.connection else {
            return Err(upgrade::failed("the upstream does not speak HTTP/2").into());
        };
        if !RoutedRequest::wait(&mut request.waited, lease.has_extended_connect()).await {
            let detail = "the upstream takes no upgrades over HTTP/2 (RFC 8441)";
            return Err(upgrade::failed(detail).into());
        }
        Ok(self.upgrade_http2(request, protocol, lease).await?)
    }

    async fn upgrade_http1(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
        mut connection: Box<Connection>,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let (message, key) = upgrade::http1(&request.head, protocol, &self.destination)?;
        let none = OutgoingBody::empty(Arc::clone(&request.progress));
        connection.send(message.method(), none, |out, _| {
            outgoing::write_as_is(out, &message);
            Framing::Length
        });
        let result = self.over_http1(request, &mut connection).await;
        let response = result.map_err(|error| error.problem)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            upgrade::check_declined(response.status())?;
            return self.response_http1(response, connection, request);
        }
        let head = upgrade::check_switch(response.into_parts().0.headers, protocol, &key)?;
        let Some((socket, unread)) = connection.into_parts() else {
            return Err(upgrade::failed("the connection is gone"));
        };
        let content = request.take_content();
        let switched =
            UpgradedConnection::new(socket, unread, content, &self.shared.half_closed, None);
        let watch = self.watch(request);
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }

    async fn upgrade_http2(
        &self,
        request: &mut RoutedRequest,
        protocol: Protocol,
        mut lease: Lease,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let message = upgrade::http2(
            &request.head,
            protocol,
            &self.destination,
            &request.progress,
        )?;
        let result = self.over_http2(request, message, &mut lease).await;
        let mut response = result.map_err(|error| error.problem)?;
        let upgraded = hyper::upgrade::on(&mut response);
        let (status, watch) = (response.status(), self.watch(request));
        if status != StatusCode::OK {
            upgrade::check_declined(status)?;
            return self.response_http2(response, lease, request);
        }
        response::check(&mut response)?;
        let head = upgrade::http2_agreed(response.into_parts().0.headers, &request.head)?;
        let io = upgraded
            .await
            .map_err(|error| upgrade::failed(error.to_string()))?;
        let content = request.take_content();
        let (io, unread) = (TokioIo::new(io), bytes::Bytes::new());
        let half_closed = &self.shared.half_closed;
        let switched = UpgradedConnection::new(io, unread, content, half_closed, Some(lease));
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }
}

fn problem(reason: Reason, detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(Hop::Client, reason, detail)
}

impl AttemptError {
    /// Classifies an error of HTTP/2, and says whether the connection is lost for all of its requests.
    fn new(mut error: TrySendError<Request<Http2Content>>) -> (Self, bool) {
        let problem = failure::no_response(error.error());
        let message = error.take_message();
        // A connection that takes no more requests is lost.
        let is_lost = message.is_some() || failure::is_lost(error.error());
        let delivery = match message {
            Some(message) => Delivery::NotSent(Box::new(message.into_body().into_inner())),
            None if failure::is_untouched(error.error()) => Delivery::Refused,
            None if is_lost => Delivery::Unknown,
            None => Delivery::Started,
        };
        (Self { problem, delivery }, is_lost)
    }
}

impl From<LinkError> for ForwardError {
    /// Nothing was sent, and the content is where it was.
    fn from(LinkError { problem, is_shared }: LinkError) -> Self {
        Self {
            problem,
            may_try_another: true,
            is_untouched: true,
            is_shared,
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
        }
    }
}

impl From<Problem> for AttemptError {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            delivery: Delivery::Started,
        }
    }
}
