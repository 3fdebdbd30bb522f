//! The tunnel server's side of an exchange: sends the request, returns the response.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    AsProblem, BodyError, DETAIL, EncodedHead, ExchangeStream, HOP, PROBLEM, RETRY_AFTER,
    ReadError, RecvBody, SharedStream, UNHEARD,
    send::{SendError, Sender},
};
use crate::{
    bhttp::{Decoder, Event, Limits, ResponseHead},
    close::CloseReason,
    fields,
    problem::{Hop, Problem, Reason},
    session::{OpenError, Outstanding, Session, mux::MuxStream},
};

/// Why an exchange yielded no response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError<E = Infallible> {
    /// No stream could be opened. Nothing of the request has been sent.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The body of the request failed.
    #[error("the request's body failed")]
    RequestBody(E),
    /// The exchange failed after it was opened.
    #[error("{problem}")]
    Failed {
        /// The problem to answer the platform client with.
        problem: Problem,
        /// Whether anything was received for the exchange, if only its acceptance. If not, the request may
        /// be retried, but only as RFC 9110 section 9.2.2 allows: the tunnel client may have received it,
        /// and its bytes may have been lost. Of a failure that another server node names, what that node has
        /// received counts.
        is_heard: bool,
        /// Why the session ended, if that is what ended the exchange.
        close: Option<CloseReason>,
    },
}

/// Sends a request over the session and returns the response once its head has arrived.
///
/// The request's URI is absolute. An upgrade is a `CONNECT` with [`Protocol`](super::Protocol) in its
/// extensions; a successful one is answered by 200, and the two bodies are then the bytes of the two
/// directions. `on_informational` is called for every 1xx response before the final one. If the request's
/// body fails after the response's head has arrived, the response's body ends with that problem. Dropping
/// the future, or the response's body before its end, cancels the exchange, which the tunnel client notices
/// half a round trip later.
///
/// # Errors
/// See [`ExchangeError`]. A failure that the tunnel client names is [`ExchangeError::Failed`].
pub async fn exchange<B>(
    session: &Session,
    request: Request<B>,
    on_informational: impl FnMut(StatusCode, HeaderMap),
) -> Result<Response<RecvBody>, ExchangeError<B::Error>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: AsProblem,
{
    let head = EncodedHead::of(&request);
    let opened = open(session).await?;
    opened
        .carry(&head, request.into_body(), on_informational, pending())
        .await
}

/// An exchange that is counted on a session and has a stream, but has sent nothing of a request. Dropping
/// it has no effect at the other end.
pub struct Opened {
    outstanding: Outstanding,
    stream: MuxStream,
    is_used: bool,
}

/// Counts an exchange on the session and takes a stream for it. After a failure any request may be tried on
/// another session, since nothing was sent.
///
/// # Errors
/// When the session has ended or is draining, or as many exchanges as allowed are open.
pub async fn open(session: &Session) -> Result<Opened, OpenError> {
    let outstanding = session.enter()?;
    let (stream, is_used) = next_stream(session).await?;
    Ok(Opened {
        outstanding,
        stream,
        is_used,
    })
}

impl Opened {
    /// Sends a request as [`exchange`] does, with a head that the caller has encoded and can send again.
    ///
    /// `elsewhere` is polled only while the session is silent and nothing was received for the exchange.
    /// When it resolves, the exchange is cancelled and fails with [`Reason::SessionLost`] and `is_heard`
    /// false, so that the caller can retry it on another session. For a request that may not be retried,
    /// pass a future that never resolves.
    ///
    /// # Errors
    /// See [`ExchangeError`].
    pub async fn carry<B>(
        self,
        head: &EncodedHead,
        body: B,
        on_informational: impl FnMut(StatusCode, HeaderMap),
        elsewhere: impl Future<Output = ()>,
    ) -> Result<Response<RecvBody>, ExchangeError<B::Error>>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem,
    {
        let Self {
            outstanding,
            stream,
            is_used,
        } = self;
        let stream = Arc::new(Mutex::new(ExchangeStream {
            stream: Some(stream),
            decoder: Decoder::response(Limits::default()),
            accepted: is_used,
            is_upgrade: head.is_upgrade,
            sent: false,
            received: false,
            failure: None,
            has_reader: false,
            no_reader_waker: None,
            outstanding: Some(outstanding),
        }));
        let mut sender = if body.is_end_stream() {
            Sender::whole(stream.clone(), head.alone())
        } else {
            Sender::new(stream.clone(), head.start(), body)
        };
        let received =
            receive_head(&stream, &mut sender, on_informational, is_used, elsewhere).await?;
        if let Some(outstanding) = &mut stream.lock().outstanding {
            outstanding.set_answered();
        }
        let response =
            response(&stream, received, head).map_err(|problem| ExchangeError::Failed {
                is_heard: !problem.is_unheard(),
                problem,
                close: None,
            })?;
        if sender.is_done() {
            return Ok(response);
        }
        // Sending has to go on even while the response's body is not read.
        let weak = Arc::downgrade(&stream);
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(SendError::Body(error)) = poll_fn(|cx| sender.poll(cx)).await {
                stream.lock().fail(error.as_problem());
            }
        });
        Ok(response.map(|body| body.sending(task, weak)))
    }
}

/// An idle stream or a new one, and whether the tunnel client has accepted it before.
async fn next_stream(session: &Session) -> Result<(MuxStream, bool), OpenError> {
    let idle = session.idle().lock().take();
    match idle {
        Some(stream) => Ok((stream, true)),
        None => Ok((session.open_stream().await?, false)),
    }
}

/// Sends the request and reads up to the final head, concurrently.
async fn receive_head<B>(
    stream: &SharedStream,
    sender: &mut Sender<B>,
    mut on_informational: impl FnMut(StatusCode, HeaderMap),
    is_used: bool,
    elsewhere: impl Future<Output = ()>,
) -> Result<ResponseHead, ExchangeError<B::Error>>
where
    B: Body<Data = Bytes>,
{
    let mut elsewhere = pin!(elsewhere);
    let mut sending = true;
    // The acceptance of a reused stream says nothing about this exchange.
    let mut is_heard = false;
    poll_fn(move |cx| {
        if sending {
            match sender.poll(cx) {
                Poll::Ready(Err(SendError::Body(error))) => {
                    return Poll::Ready(Err(ExchangeError::RequestBody(error)));
                }
                // Cut or done: either way the response decides.
                Poll::Ready(Ok(()) | Err(SendError::Cut)) => sending = false,
                Poll::Pending => {}
            }
        }
        loop {
            let mut stream = stream.lock();
            let polled = stream.poll_event(cx);
            is_heard |= stream.accepted && !is_used;
            let is_in_doubt = polled.is_pending() && !is_heard && stream.is_silent();
            drop(stream);
            let Poll::Ready(event) = polled else {
                // The driver wakes this task when the session becomes silent.
                if is_in_doubt && elsewhere.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(abandoned()));
                }
                return Poll::Pending;
            };
            match event {
                Ok(Event::Response(head)) => return Poll::Ready(Ok(head)),
                Ok(Event::Informational(head)) => {
                    is_heard = true;
                    on_informational(head.status, head.fields.map);
                }
                Ok(_) => return Poll::Ready(Err(failed(&ReadError::Cut(None), is_heard))),
                Err(error) => return Poll::Ready(Err(failed(&error, is_heard))),
            }
        }
    })
    .await
}

fn failed<E>(error: &ReadError, is_heard: bool) -> ExchangeError<E> {
    let mut close = None;
    let problem = match error {
        ReadError::Cut(reason) => {
            close = *reason;
            Problem::new(Hop::Server, Reason::SessionLost, lost(close))
        }
        ReadError::Malformed(error) => {
            Problem::new(Hop::Server, Reason::WireMalformed, error.to_string())
        }
        ReadError::MemoryLimit => Problem::new(
            Hop::Server,
            Reason::MemoryLimit,
            "too many received bytes of the exchange were unread",
        ),
        ReadError::NotAccepted => Problem::new(
            Hop::Server,
            Reason::WireMalformed,
            "the tunnel client did not accept the exchange",
        ),
        ReadError::Failed(problem) => (**problem).clone(),
    };
    ExchangeError::Failed {
        problem,
        is_heard,
        close,
    }
}

/// The failure of an exchange without any answer on a silent session, which is to be retried on another.
fn abandoned<E>() -> ExchangeError<E> {
    let detail = "nothing is received on the session";
    ExchangeError::Failed {
        problem: Problem::new(Hop::Server, Reason::SessionLost, detail),
        is_heard: false,
        close: None,
    }
}

/// Describes for a person how an exchange was lost.
fn lost(close: Option<CloseReason>) -> String {
    close.map_or_else(
        || "the exchange was cut before the response".to_owned(),
        |reason| {
            let name = reason.name();
            format!("the session ended before the response ({name})")
        },
    )
}

/// The failure that another node has met.
fn of_node(problem: Problem, head: &ResponseHead) -> Problem {
    let after = head.fields.pseudo(RETRY_AFTER);
    let after = after.and_then(|after| std::str::from_utf8(after).ok()?.parse().ok());
    let mut problem = problem.met_by(Hop::Server);
    if head.fields.pseudo(UNHEARD).is_some() {
        problem = problem.unheard();
    }
    match after {
        Some(seconds) => problem.retry_after(Duration::from_secs(seconds)),
        None => problem,
    }
}

fn response(
    stream: &SharedStream,
    head: ResponseHead,
    request: &EncodedHead,
) -> Result<Response<RecvBody>, Problem> {
    if let Some(reason) = head.fields.pseudo(PROBLEM) {
        // This reads the message's end, so that the stream can be reused.
        drop(RecvBody::new(stream, None));
        let detail = head.fields.pseudo(DETAIL).map(AsRef::as_ref);
        let problem = Problem::from_wire(reason, detail);
        // Only another node may speak as a server.
        let is_of_node = request.is_forwarded && head.fields.pseudo(HOP).is_some();
        return Err(match is_of_node {
            true => of_node(problem, &head),
            false => problem,
        });
    }
    let declared = fields::content_length(&head.fields.map)
        .map_err(|error| Problem::new(Hop::Server, Reason::WireMalformed, error.to_string()))?;
    // RFC 9110 section 6.4.1: these have no content, whatever their fields say.
    let is_empty = request.is_head
        || head.status == StatusCode::NO_CONTENT
        || head.status == StatusCode::NOT_MODIFIED;
    let body = RecvBody::new(stream, if is_empty { Some(0) } else { declared })
        .map_err(|error: BodyError| error.problem(Hop::Server))?;
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.fields.map;
    Ok(response)
}
