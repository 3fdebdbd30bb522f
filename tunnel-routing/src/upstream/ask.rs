//! One request to an upstream, up to the head of its response.
//!
//! A request is sent a second time only on a connection that was used before and broke, and only
//! when the upstream has surely not acted on the first, or acting on it twice does no harm (RFC 9110
//! section 9.2.2, RFC 9112 section 9.3.1, RFC 9113 section 8.7).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
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
use super::http1::{Connection, Framing, NoAnswer};
use super::http2::Lease;
use super::idle::Idle;
use super::outgoing::{self, Http2Content, OutgoingBody};
use super::progress::Progress;
use super::tls::Offer;
use super::upgrade::{self, Switched};
use super::{Link, LinkKind, NoLink, Upstream, answer, failure};
use crate::request::{IncomingBody, Informational};
use crate::url::UpstreamScheme;
use tunnel_ops::alarm::Alarm;

/// Content up to this many bytes is acknowledged by the host of any HTTP/1.1 upstream, whether the
/// upstream reads it or not: receive buffers are larger.
const BUFFERED_BYTES: u64 = 16 * 1024;

/// What is asked of an upstream.
pub struct Asked {
    head: Parts,
    /// Until it is sent.
    content: Option<OutgoingBody>,
    informational: Informational,
    progress: Arc<Progress>,
    /// Time that passed while the upstream was dialled, or waited for.
    waited: Duration,
}

/// Why a request has no response from an upstream.
pub(super) struct Failed {
    pub(super) problem: Problem,
    /// Another upstream may be asked the same, which is as it was before.
    pub(super) may_ask_another: bool,
    /// The upstream was not even reached, or has surely not acted on it.
    pub(super) is_untouched: bool,
    /// Somebody else has dialled in vain, and told of it already.
    pub(super) is_known: bool,
}

/// Why a request has no response.
struct Unanswered {
    problem: Problem,
    seen: Seen,
}

/// What the upstream has seen of a request that it did not answer.
enum Seen {
    /// Nothing; here is the content.
    Nothing(Box<OutgoingBody>),
    /// It has surely not acted on it.
    Refused,
    /// Nobody knows, but no byte came back.
    Perhaps,
    /// It began to answer, or took too long.
    Something,
}

impl Asked {
    /// A request. `progress` is told how far its content has come.
    pub fn new(
        request: Request<IncomingBody>,
        informational: Informational,
        progress: Arc<Progress>,
    ) -> Self {
        let (head, content) = request.into_parts();
        Self {
            head,
            content: Some(OutgoingBody::new(content, Arc::clone(&progress))),
            informational,
            progress,
            waited: Duration::ZERO,
        }
    }

    /// A request of our own, without content: nobody waits for what comes before its response.
    pub(super) fn bare(head: Parts) -> Self {
        let progress = Arc::new(Progress::uncounted());
        Self {
            head,
            content: None,
            informational: Informational::default(),
            progress,
            waited: Duration::ZERO,
        }
    }

    /// The request's head.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// The request's head, for a route to change in place. The host, if there is one, must stay the
    /// first of the fields.
    pub(crate) fn head_mut(&mut self) -> &mut Parts {
        &mut self.head
    }

    /// The request's content; none when it was taken before.
    fn take_content(&mut self) -> OutgoingBody {
        let content = self.content.take();
        content.unwrap_or_else(|| OutgoingBody::empty(Arc::clone(&self.progress)))
    }

    /// Time that passed while the upstream was dialled, or waited for.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What failed, with the content put back if it may be asked again. `is_bare` for a request without
    /// content.
    fn failed(&mut self, unanswered: Unanswered, is_bare: bool) -> Failed {
        let is_untouched = matches!(unanswered.seen, Seen::Nothing(_) | Seen::Refused);
        let content = match unanswered.seen {
            Seen::Nothing(content) => Some(*content),
            Seen::Refused if is_bare => Some(OutgoingBody::empty(Arc::clone(&self.progress))),
            Seen::Perhaps if is_bare && self.head.method.is_idempotent() => {
                Some(OutgoingBody::empty(Arc::clone(&self.progress)))
            }
            _ => None,
        };
        let may_ask_another = content.is_some();
        self.content = content;
        Failed {
            problem: unanswered.problem,
            may_ask_another,
            is_untouched,
            is_known: false,
        }
    }

    /// There was no connection to ask over: nothing has become of it.
    fn unlinked(&mut self, no_link: NoLink, content: OutgoingBody) -> Failed {
        self.content = Some(content);
        no_link.into()
    }

    /// What the upstream has seen of this when its connection gave no answer.
    fn seen(&self, error: &NoAnswer, connection: &mut Connection) -> Seen {
        if !matches!(error, NoAnswer::Io(_) | NoAnswer::Ended) {
            // A content that failed must not be asked again: it would look like one that has ended.
            return Seen::Something;
        }
        if let Some(content) = connection.take_back() {
            let empty = || OutgoingBody::empty(Arc::clone(&self.progress));
            return Seen::Nothing(Box::new(content.unwrap_or_else(empty)));
        }
        if connection.is_silent() && !self.progress.was_heard() {
            Seen::Perhaps
        } else {
            Seen::Something
        }
    }

    /// Waits, and counts the time.
    async fn wait<T>(waited: &mut Duration, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        *waited += started.elapsed();
        done
    }
}

impl Upstream {
    /// Sends a request, and waits for the head of its response.
    pub(crate) async fn ask(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Problem> {
        self.try_ask(asked).await.map_err(|failed| failed.problem)
    }

    /// The same, and says of a failure whether another upstream may be asked.
    pub(super) async fn try_ask(
        &self,
        asked: &mut Asked,
    ) -> Result<Response<UpstreamBody>, Failed> {
        // Whatever is rare is boxed here and below, so that not every exchange has room for it.
        match asked.head.extensions.get::<Protocol>().copied() {
            Some(protocol) => Box::pin(self.ask_upgrade(asked, protocol)).await,
            None if asked.head.method == Method::CONNECT => {
                let detail = "CONNECT to anywhere but a protocol of this host";
                Err(Problem::new(Hop::Client, Reason::MethodNotAllowed, detail).into())
            }
            None => self.ask_twice(asked).await,
        }
    }

    /// A connection to ask over.
    async fn link(&self, asked: &mut Asked) -> Result<Link, NoLink> {
        match self.used_link() {
            Some(link) => Ok(link),
            None => Asked::wait(&mut asked.waited, Box::pin(self.dialled_link())).await,
        }
    }

    /// Asks once, and once more if that is safe.
    async fn ask_twice(&self, asked: &mut Asked) -> Result<Response<UpstreamBody>, Failed> {
        let mut content = asked.take_content();
        if let Some(bytes) = self.max_body {
            content.limit(bytes)?;
        }
        let is_bare = content.is_end_stream();
        let Link {
            is_used,
            connection,
        } = match self.link(asked).await {
            Ok(link) => link,
            Err(no_link) => return Err(asked.unlinked(no_link, content)),
        };
        let is_http2 = matches!(connection, LinkKind::Http2(_));
        let failed = match self.ask_once(asked, content, connection).await {
            Ok(response) => return Ok(response),
            Err(unanswered) => asked.failed(unanswered, is_bare),
        };
        if !is_used || !failed.may_ask_another {
            return Err(failed);
        }
        Box::pin(self.ask_again(asked, is_bare, is_http2)).await
    }

    /// Asks once more: over HTTP/1.1 on a connection that nobody has used; after HTTP/2 on one that is
    /// there, or is made for all who have lost theirs. So an upstream that refuses streams gets no
    /// connection for each of them.
    async fn ask_again(
        &self,
        asked: &mut Asked,
        is_bare: bool,
        is_http2: bool,
    ) -> Result<Response<UpstreamBody>, Failed> {
        let content = asked.take_content();
        let linking = async {
            if is_http2 {
                return self.dialled_link().await;
            }
            Ok(self.new_link().await?)
        };
        match Asked::wait(&mut asked.waited, linking).await {
            Ok(link) => {
                let answered = self.ask_once(asked, content, link.connection).await;
                answered.map_err(|unanswered| asked.failed(unanswered, is_bare))
            }
            Err(no_link) => Err(asked.unlinked(no_link, content)),
        }
    }

    async fn ask_once(
        &self,
        asked: &mut Asked,
        content: OutgoingBody,
        connection: LinkKind,
    ) -> Result<Response<UpstreamBody>, Unanswered> {
        match connection {
            LinkKind::Http1(mut connection) => {
                connection.send(&asked.head.method, content, |out, content| {
                    outgoing::write_http1(out, &asked.head, &self.destination, content)
                });
                let response = self.over_http1(asked, &mut connection).await?;
                Ok(self.answer_http1(response, connection, asked)?)
            }
            LinkKind::Http2(mut lease) => {
                if outgoing::expects_continue(&asked.head) {
                    // hyper shows no informational response of HTTP/2, so the one that a platform
                    // client may wait for is made here.
                    let _ = asked
                        .informational
                        .push(StatusCode::CONTINUE, HeaderMap::new());
                }
                let request = outgoing::http2(&asked.head, &self.destination, content)?;
                let response = self.over_http2(asked, request, &mut lease).await?;
                Ok(self.answer_http2(response, lease, asked)?)
            }
        }
    }

    /// The watch over an exchange, where there is a limit.
    fn watch(&self, asked: &Asked) -> Option<Box<Idle>> {
        let limit = self.idle_timeout?;
        Some(Idle::new(limit, &asked.progress))
    }

    /// Waits for the response to what was sent.
    async fn over_http1(
        &self,
        asked: &mut Asked,
        connection: &mut Connection,
    ) -> Result<Response<()>, Unanswered> {
        let mut alarm = std::mem::take(&mut connection.alarm);
        let watch = self.watch(asked);
        let expects = outgoing::expects_continue(&asked.head);
        let Asked {
            informational,
            progress,
            waited,
            ..
        } = asked;
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
        let answered = self
            .head_in_time(progress, waited, &mut alarm, watch, expects, head)
            .await?;
        connection.alarm = alarm;
        answered.map_err(|error| Unanswered {
            problem: failure::no_answer(&error),
            seen: asked.seen(&error, connection),
        })
    }

    async fn over_http2(
        &self,
        asked: &mut Asked,
        request: Request<Http2Content>,
        lease: &mut Lease,
    ) -> Result<Response<ReceivedBody>, Unanswered> {
        let mut head = pin!(lease.sender.try_send_request(request));
        let mut alarm = Alarm::default();
        let watch = self.watch(asked);
        let (progress, waited) = (&asked.progress, &mut asked.waited);
        let head = |cx: &mut Context<'_>| head.as_mut().poll(cx);
        let answered = self.head_in_time(progress, waited, &mut alarm, watch, false, head);
        let answered = answered.await?;
        let answered = answered.map(|response| response.map(ReceivedBody::http2_response));
        answered.map_err(|error| match asked.progress.failure() {
            // What hyper tells is that the stream was reset, not that it was us, nor why.
            Some(failure) => failure.clone().into(),
            None => {
                let (unanswered, is_lost) = Unanswered::new(error);
                if is_lost {
                    self.http2.let_go(lease);
                }
                unanswered
            }
        })
    }

    fn answer_http1(
        &self,
        mut response: Response<()>,
        connection: Box<Connection>,
        asked: &Asked,
    ) -> Result<Response<UpstreamBody>, Problem> {
        answer::check(&mut response)?;
        let watch = self.watch(asked);
        Ok(response.map(|()| UpstreamBody::http1(connection, &self.pool).watched(watch)))
    }

    fn answer_http2(
        &self,
        mut response: Response<ReceivedBody>,
        lease: Lease,
        asked: &Asked,
    ) -> Result<Response<UpstreamBody>, Problem> {
        answer::check(&mut response)?;
        answer::check_declared(&response, &asked.head.method)?;
        let (watch, progress) = (self.watch(asked), &asked.progress);
        Ok(response.map(|incoming| UpstreamBody::http2(incoming, lease, progress).watched(watch)))
    }

    /// Waits for a head, but no longer than allowed once all of the request is sent: how long that
    /// takes is up to the platform client, as long as it goes on. `watch` sees to that. `expects` for one
    /// that waits for a 100 from the upstream.
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
        let answered = poll_fn(|cx| {
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
                let is_let_wait = expects && !progress.was_heard() && progress.bytes() == 0;
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
        answered
    }

    /// Asks for an upgrade. Nothing of the content is touched before the upstream has agreed.
    async fn ask_upgrade(
        &self,
        asked: &mut Asked,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, Failed> {
        let lease = match self.destination.scheme() {
            UpstreamScheme::Http => None,
            // Most that speak HTTP/2 over TLS still take upgrades over HTTP/1.1 only.
            UpstreamScheme::Https => self.http2.take().filter(Lease::is_extended_connect_known),
            UpstreamScheme::H2c => return self.ask_upgrade_any(asked, protocol).await,
        };
        if let Some(lease) = lease {
            return Ok(self.upgrade_http2(asked, protocol, lease).await?);
        }
        let dialled = Asked::wait(&mut asked.waited, self.dial(Offer::Http1)).await;
        let (socket, peer) = match dialled {
            Ok(dialled) => dialled,
            // Perhaps it speaks HTTP/2 alone.
            Err(problem) if problem.reason() == Reason::TlsProtocolError => {
                return self.ask_upgrade_any(asked, protocol).await;
            }
            Err(problem) => return Err(NoLink::from(problem).into()),
        };
        let connection = Box::new(Connection::new(socket, peer, self.dialler.memory()));
        Ok(self.upgrade_http1(asked, protocol, connection).await?)
    }

    /// Asks for an upgrade over whatever the upstream speaks.
    async fn ask_upgrade_any(
        &self,
        asked: &mut Asked,
        protocol: Protocol,
    ) -> Result<Response<UpstreamBody>, Failed> {
        match self.link(asked).await?.connection {
            LinkKind::Http1(connection) => {
                Ok(self.upgrade_http1(asked, protocol, connection).await?)
            }
            LinkKind::Http2(mut lease) => {
                if !Asked::wait(&mut asked.waited, lease.has_extended_connect()).await {
                    let detail = "the upstream takes no upgrades over HTTP/2 (RFC 8441)";
                    return Err(upgrade::failed(detail).into());
                }
                Ok(self.upgrade_http2(asked, protocol, lease).await?)
            }
        }
    }

    async fn upgrade_http1(
        &self,
        asked: &mut Asked,
        protocol: Protocol,
        mut connection: Box<Connection>,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let (request, key) = upgrade::http1(&asked.head, protocol, &self.destination)?;
        let none = OutgoingBody::empty(Arc::clone(&asked.progress));
        connection.send(request.method(), none, |out, _| {
            outgoing::write_as_is(out, &request);
            Framing::Length
        });
        let answered = self.over_http1(asked, &mut connection).await;
        let response = answered.map_err(|unanswered| unanswered.problem)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            upgrade::check_declined(response.status())?;
            return self.answer_http1(response, connection, asked);
        }
        let head = upgrade::check_switch(response.into_parts().0.headers, protocol, &key)?;
        let (socket, unread) = connection.into_parts();
        let content = asked.take_content();
        let switched = Switched::new(socket, unread, content, &self.shared.half_closed, None);
        let watch = self.watch(asked);
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }

    async fn upgrade_http2(
        &self,
        asked: &mut Asked,
        protocol: Protocol,
        mut lease: Lease,
    ) -> Result<Response<UpstreamBody>, Problem> {
        let request = upgrade::http2(&asked.head, protocol, &self.destination, &asked.progress)?;
        let answered = self.over_http2(asked, request, &mut lease).await;
        let mut response = answered.map_err(|unanswered| unanswered.problem)?;
        let upgraded = hyper::upgrade::on(&mut response);
        let (status, watch) = (response.status(), self.watch(asked));
        if status != StatusCode::OK {
            upgrade::check_declined(status)?;
            return self.answer_http2(response, lease, asked);
        }
        answer::check(&mut response)?;
        let head = upgrade::http2_agreed(response.into_parts().0.headers, &asked.head)?;
        let io = upgraded
            .await
            .map_err(|error| upgrade::failed(error.to_string()))?;
        let content = asked.take_content();
        let (io, unread) = (TokioIo::new(io), bytes::Bytes::new());
        let half_closed = &self.shared.half_closed;
        let switched = Switched::new(io, unread, content, half_closed, Some(lease));
        Ok(head.map(|()| UpstreamBody::upgraded(switched).watched(watch)))
    }
}

fn problem(reason: Reason, detail: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem::new(Hop::Client, reason, detail)
}

impl Unanswered {
    /// Over HTTP/2, where a refusal says more than silence; and whether the connection is lost for all
    /// who use it.
    fn new(mut error: TrySendError<Request<Http2Content>>) -> (Self, bool) {
        let problem = failure::no_response(error.error());
        let message = error.take_message();
        // A connection that takes no more is gone.
        let is_lost = message.is_some() || failure::is_lost(error.error());
        let seen = match message {
            Some(request) => Seen::Nothing(Box::new(request.into_body().into_inner())),
            None if failure::is_untouched(error.error()) => Seen::Refused,
            None if is_lost => Seen::Perhaps,
            None => Seen::Something,
        };
        (Self { problem, seen }, is_lost)
    }
}

impl From<NoLink> for Failed {
    /// Before anything was sent, and with the content where it was.
    fn from(NoLink { problem, is_known }: NoLink) -> Self {
        Self {
            problem,
            may_ask_another: true,
            is_untouched: true,
            is_known,
        }
    }
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            may_ask_another: false,
            is_untouched: false,
            is_known: false,
        }
    }
}

impl From<Problem> for Unanswered {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            seen: Seen::Something,
        }
    }
}
