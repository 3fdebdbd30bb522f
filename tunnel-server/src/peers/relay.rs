//! Serves a request that another node has forwarded, by a session of this node.

use std::{
    future::pending,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header, request::Parts};
use http_body::{Body, Frame, SizeHint};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tunnel_ops::telemetry::{TRACE_PARENT, TRACE_STATE, TraceParent};
use tunnel_proto::{
    exchange::{
        AsProblem, BodyError, EncodedHead, ExchangeError, ForwardHints, ForwardNote, HeadEncoder,
        Informational, Opened, Protocol, RecvBody, open,
    },
    problem::{Hop, Problem, Reason},
    session::{OpenError, Session},
};

use super::{
    HELD, PeerListener, ask,
    note::{Hints, Note},
    traced_relay::TracedRelay,
};
use crate::{
    budget::{Permit, pace::Paced, sources},
    registry::Slot,
    tunnel::Tunnel,
};

/// How long a forwarded request waits for a session that is about to join: much longer than etcd's answer takes to come
/// after others have learned of the claim.
const JOINING: Duration = Duration::from_millis(250);

/// How many more sessions of this node are tried when the one that was to have an exchange has just ended.
const OPENINGS: u32 = 2;

/// The session of this node that has a forwarded request.
struct LocalHolder {
    slot: Arc<Slot>,
    tunnel: Arc<Tunnel>,
    session: Session,
}

/// The content of a relayed message.
pub(super) struct RelayedBody {
    body: Paced<RecvBody>,
    /// The runtime's permit, and what the end of the server waits for; held by the response.
    _held: Option<(Permit, TaskTrackerToken)>,
    /// Of the response to a request that is traced.
    traced: Option<Box<TracedRelay>>,
}

/// The content of a response to another node.
pub(super) enum PeerBody {
    Relayed(RelayedBody),
    /// Of this node's own API.
    Admin(axum::body::Body),
}

/// Why a relayed content has ended early.
#[derive(Debug)]
pub(super) struct RelayError(Problem);

/// Answers a request of another node: one that it forwards, or one of its operator.
pub(super) async fn relay(
    shared: Arc<PeerListener>,
    request: Request<RecvBody>,
    informational: Informational,
) -> Result<Response<PeerBody>, Problem> {
    let note = request.extensions().get::<ForwardNote>();
    if note.is_some_and(|note| note.0 == ask::NOTE.as_bytes()) {
        let answer = Box::pin(ask::answer(shared.api.clone(), request)).await;
        return Ok(answer?.map(PeerBody::Admin));
    }
    let served = serve(&shared, request, informational).await;
    shared.metrics.peers.on_served(served.as_ref().err());
    Ok(served?.map(PeerBody::Relayed))
}

async fn serve(
    shared: &PeerListener,
    request: Request<RecvBody>,
    informational: Informational,
) -> Result<Response<RelayedBody>, Problem> {
    let token = shared.lifecycle.public_connections.token();
    let (parts, content) = request.into_parts();
    let note = parts.extensions.get::<ForwardNote>();
    let note = note.and_then(|note| Note::parse(&note.0)).ok_or_else(|| {
        Problem::new(
            Hop::Server,
            Reason::WireMalformed,
            "the note of the forwarding node is unreadable",
        )
    })?;
    let traced = TracedRelay::begin(&shared.tracer, &parts, &note);
    let received = (parts, content, note);
    match carry(shared, received, informational, token, traced.as_deref()).await {
        Ok(mut response) => {
            let status = response.status();
            let body = response.body_mut();
            body.traced = traced;
            if let Some(traced) = &mut body.traced {
                traced.record.on_status(status);
            }
            Ok(response)
        }
        Err(problem) => {
            if let Some(mut traced) = traced {
                traced.record.on_problem(&problem);
            }
            Err(problem)
        }
    }
}

/// Sends a request through a session of this node, and receives the head of its response.
async fn carry(
    shared: &PeerListener,
    (parts, content, note): (Parts, RecvBody, Note),
    informational: Informational,
    token: TaskTrackerToken,
    traced: Option<&TracedRelay>,
) -> Result<Response<RelayedBody>, Problem> {
    let hints = parts.extensions.get::<ForwardHints>();
    let hints = hints.map_or_else(Hints::default, |hints| Hints::parse(&hints.0));
    let mut openings = 0..OPENINGS;
    let (holder, mut permit, opened) = loop {
        let holder = holder(shared, &note, hints).await?;
        let permit = admit(&holder, &parts, note.address)?;
        match opened(shared, &holder, hints).await {
            Ok(opened) => break (holder, permit, opened),
            Err(OpenError::Closed) if openings.next().is_some() => {}
            Err(error) => return Err(not_opened(error)),
        }
    };
    if !content.is_end_stream() {
        // The forwarding node sends the content only now: nothing of it is lost if this node had not held the runtime.
        let _ = informational.push(held(), HeaderMap::new());
    }
    let head = encode(&parts, traced.and_then(TracedRelay::on_sent));
    let content = RelayedBody {
        body: Paced::new(content, Some(permit.upload().clone())),
        _held: None,
        traced: None,
    };
    let on_informational = move |status: StatusCode, headers: HeaderMap| {
        if status != held() {
            let _ = informational.push(status, headers);
        }
    };
    let elsewhere = async {
        match hints.may_repeat {
            true => left(shared, &holder).await,
            false => pending().await,
        }
    };
    let response = opened
        .carry(&head, content, on_informational, elsewhere)
        .await;
    let response = response.map_err(failed)?;
    if response.status() != StatusCode::OK {
        permit.not_upgraded();
    }
    let download = permit.download().clone();
    Ok(response.map(|body| RelayedBody {
        body: Paced::new(body, Some(download)),
        _held: Some((permit, token)),
        traced: None,
    }))
}

fn held() -> StatusCode {
    StatusCode::from_u16(HELD).unwrap_or(StatusCode::PROCESSING)
}

/// The session of this node for a forwarded request: one that is not silent, unless the forwarding node has no other way.
/// A tunnel whose claim is older than the one that the forwarding node knows serves nothing. One that is about to join is
/// waited for.
async fn holder(shared: &PeerListener, note: &Note, hints: Hints) -> Result<LocalHolder, Problem> {
    let slot = shared.registry.slot(&note.label).ok_or_else(not_held)?;
    let find = || {
        let tunnel = slot.tunnel()?;
        if tunnel.claim().epoch < note.epoch {
            return None;
        }
        let last_resort = || tunnel.last_resort().filter(|_| !hints.has_other);
        let session = tunnel.session().or_else(last_resort)?;
        Some((tunnel, session))
    };
    let mut found = find();
    let directory = shared.registry.directory().shared();
    if found.is_none()
        && directory.is_some_and(|directory| directory.is_joining(slot.label(), note.epoch))
    {
        // Boxed, since it is rare.
        found = Box::pin(slot.joined_within(JOINING, find)).await;
    }
    let (tunnel, session) = found.ok_or_else(not_held)?;
    Ok(LocalHolder {
        slot,
        tunnel,
        session,
    })
}

/// Whether the runtime may be reached from the platform client's address, and has room for one more exchange.
fn admit(holder: &LocalHolder, parts: &Parts, address: IpAddr) -> Result<Permit, Problem> {
    if let Some(networks) = holder.tunnel.allow_from() {
        sources::admit(networks, address)?;
    }
    let budget = holder.slot.budget();
    budget.admit(address)?;
    let is_upgrade = parts.extensions.get::<Protocol>().is_some();
    budget.enter(is_upgrade, None, || head_bytes(parts))
}

/// Opens an exchange, unless the session becomes silent before, and another one does not.
async fn opened(
    shared: &PeerListener,
    holder: &LocalHolder,
    hints: Hints,
) -> Result<Opened, OpenError> {
    let elsewhere = async {
        match hints.has_other {
            true => left(shared, holder).await,
            false => pending().await,
        }
    };
    tokio::select! {
        biased;
        opened = open(&holder.session) => opened,
        () = elsewhere => Err(OpenError::Closed),
    }
}

/// Resolves when the session is silent and another one can have the request, here or at another node. Boxed when it is first
/// polled, which few requests see.
async fn left(shared: &PeerListener, holder: &LocalHolder) {
    let LocalHolder {
        slot,
        tunnel,
        session,
    } = holder;
    let directory = shared.registry.directory().shared();
    let is_elsewhere = || {
        directory.is_some_and(|directory| {
            let own = directory.incarnation();
            let holders = directory.holders(slot.label().as_str());
            holders
                .is_some_and(|(_, holders)| holders.iter().any(|holder| holder.incarnation != own))
        })
    };
    Box::pin(slot.better_than(tunnel, session, is_elsewhere)).await;
}

fn not_held() -> Problem {
    let detail = "this node has no session of the runtime";
    Problem::new(Hop::Server, Reason::NotHeld, detail)
}

fn not_opened(error: OpenError) -> Problem {
    match error {
        OpenError::Closed => not_held(),
        OpenError::TooMany => {
            let detail = "max-exchanges are open";
            Problem::new(Hop::Server, Reason::ExchangeLimit, detail)
        }
    }
}

fn failed(error: ExchangeError<RelayError>) -> Problem {
    match error {
        ExchangeError::NotOpened(error) => not_opened(error),
        ExchangeError::Failed {
            problem,
            is_heard: false,
            ..
        } if problem.reason() == Reason::SessionLost => problem.unheard(),
        ExchangeError::RequestBody(RelayError(problem)) | ExchangeError::Failed { problem, .. } => {
            problem
        }
    }
}

/// The head for the tunnel client, as the forwarding node has sent it, but for the fields of a trace.
fn encode(parts: &Parts, trace: Option<(TraceParent, bool)>) -> EncodedHead {
    let authority = parts.headers.get(header::HOST);
    let authority = authority.and_then(|host| host.to_str().ok());
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let protocol = parts.extensions.get().copied();
    let mut head = HeadEncoder::new(
        &parts.method,
        "http",
        authority.unwrap_or_default(),
        path,
        protocol,
    );
    let is_replaced = |name: &HeaderName| {
        trace.is_some_and(|(_, keeps_state)| {
            *name == TRACE_PARENT || *name == TRACE_STATE && !keeps_state
        })
    };
    for (name, value) in &parts.headers {
        if *name != header::HOST && !is_replaced(name) {
            head.field(name, value.as_bytes());
        }
    }
    if let Some((parent, _)) = trace {
        head.field(&TRACE_PARENT, parent.as_str().as_bytes());
    }
    head.finish()
}

/// The size of the head, as HTTP/1.1 writes it.
fn head_bytes(parts: &Parts) -> usize {
    const FIELD: usize = ": \r\n".len();
    let fields = parts.headers.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    fields.sum::<usize>() + parts.uri.path().len()
}

impl Body for RelayedBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let frame = frame.map_err(|error: BodyError| RelayError(error.problem(Hop::Server)));
        if let Some(traced) = &mut self.traced {
            match &frame {
                Poll::Ready(Some(Ok(frame))) => {
                    let data = frame.data_ref();
                    traced.record.on_bytes(data.map_or(0, Bytes::len));
                }
                Poll::Ready(Some(Err(RelayError(problem)))) => traced.record.on_problem(problem),
                Poll::Ready(None) => traced.record.on_whole(),
                Poll::Pending => {}
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RelayedBody {
    fn drop(&mut self) {
        if let Some(traced) = &mut self.traced
            && self.body.is_end_stream()
        {
            traced.record.on_whole();
        }
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = RelayError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RelayError>>> {
        match &mut *self {
            Self::Relayed(body) => Pin::new(body).poll_frame(cx),
            Self::Admin(body) => Pin::new(body).poll_frame(cx).map_err(|error| {
                let problem = Problem::new(Hop::Server, Reason::InternalError, error.to_string());
                RelayError(problem)
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Relayed(body) => body.is_end_stream(),
            Self::Admin(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Relayed(body) => body.size_hint(),
            Self::Admin(body) => body.size_hint(),
        }
    }
}

impl AsProblem for RelayError {
    fn as_problem(&self) -> Problem {
        self.0.clone()
    }
}
