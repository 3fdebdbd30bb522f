//! The tunnel server's side of an exchange: a request in, the response out.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::{
    AsProblem, BodyError, DETAIL, EncodedHead, PROBLEM, RecvBody, SharedWire, Wire, WireError,
    send::{SendError, Sender},
};
use crate::{
    bhttp::{Decoder, Event, Limits, ResponseHead},
    close::CloseReason,
    fields,
    problem::{Hop, Problem, Reason},
    session::{OpenError, Outstanding, Session, mux::MuxStream},
};

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError<E = Infallible> {
    /// No stream could be opened: nothing of the request has left this end.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The body of the request failed.
    #[error("the request's body failed")]
    RequestBody(E),
    /// The exchange failed after it was opened.
    #[error("{problem}")]
    Failed {
        /// What to tell the platform client.
        problem: Problem,
        /// Whether anything was heard of the exchange: that it was accepted, or more. If not, it may
        /// be tried again, but only as RFC 9110 section 9.2.2 allows: what the tunnel client said
        /// may have been lost on the way.
        is_heard: bool,
        /// Why the session ended, if that is what ended the exchange.
        close: Option<CloseReason>,
    },
}

/// Carries one request over the session and returns the response's head, its body following.
///
/// The request's URI is absolute. An upgrade is a `CONNECT` with [`Protocol`](super::Protocol) in its extensions; a
/// successful one is answered by 200, and the two bodies are then the bytes of the two directions.
/// `on_informational` sees every 1xx response before the final one. When the request's body fails behind the
/// response's head, the response's body ends with that problem. Dropping the future, or the
/// response's body before its end, cancels the exchange at the tunnel client within a round trip.
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

/// An exchange that has its place and its stream on a session. Nothing of a request has left this end:
/// dropped, it leaves no trace.
pub struct Opened {
    outstanding: Outstanding,
    stream: MuxStream,
    is_used: bool,
}

/// Takes a place and a stream for an exchange. What fails here can be tried on another session,
/// whatever the request is.
///
/// # Errors
/// When the session takes no exchange.
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
    /// Does what [`exchange`] does for a head that the caller has encoded. It is only read, so that it can
    /// be sent again.
    ///
    /// `elsewhere` is polled only while the session is suspect and nothing was heard of the exchange. When it
    /// resolves, the exchange is cancelled and fails as lost and unheard, so that the caller can repeat it on
    /// another session; for a request that may not be repeated, pass a future that never resolves.
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
        let wire = Arc::new(Mutex::new(Wire {
            stream: Some(stream),
            decoder: Decoder::response(Limits::default()),
            accepted: is_used,
            sent: false,
            received: false,
            failure: None,
            is_read: false,
            unread: None,
            outstanding: Some(outstanding),
        }));
        let mut sender = if body.is_end_stream() {
            Sender::whole(wire.clone(), head.alone())
        } else {
            Sender::new(wire.clone(), head.start(), body)
        };
        let received =
            receive_head(&wire, &mut sender, on_informational, is_used, elsewhere).await?;
        if let Some(outstanding) = &mut wire.lock().outstanding {
            outstanding.answered();
        }
        let response =
            response(&wire, received, head.is_head).map_err(|problem| ExchangeError::Failed {
                problem,
                is_heard: true,
                close: None,
            })?;
        if sender.is_done() {
            return Ok(response);
        }
        // Sending must go on even while nobody takes the response's bytes.
        let weak = Arc::downgrade(&wire);
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(SendError::Body(error)) = poll_fn(|cx| sender.poll(cx)).await {
                wire.lock().fail(error.as_problem());
            }
        });
        Ok(response.map(|body| body.sending(task, weak)))
    }
}

/// A stream at rest, or a new one; and whether the tunnel client has accepted it before.
async fn next_stream(session: &Session) -> Result<(MuxStream, bool), OpenError> {
    let resting = session.idle().lock().take();
    match resting {
        Some(stream) => Ok((stream, true)),
        None => Ok((session.open_stream().await?, false)),
    }
}

/// Sends the request and reads up to the final head, side by side.
async fn receive_head<B>(
    wire: &SharedWire,
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
    // On a stream that is used again, having been accepted says nothing.
    let mut is_heard = false;
    poll_fn(move |cx| {
        if sending {
            match sender.poll(cx) {
                Poll::Ready(Err(SendError::Body(error))) => {
                    return Poll::Ready(Err(ExchangeError::RequestBody(error)));
                }
                // Cut or done: either way what the other end says counts.
                Poll::Ready(Ok(()) | Err(SendError::Cut)) => sending = false,
                Poll::Pending => {}
            }
        }
        loop {
            let mut wire = wire.lock();
            let polled = wire.poll_event(cx);
            is_heard |= wire.accepted && !is_used;
            let is_in_doubt = polled.is_pending() && !is_heard && wire.is_suspect();
            drop(wire);
            let Poll::Ready(event) = polled else {
                // The driver wakes this task when the session becomes suspect.
                if is_in_doubt && elsewhere.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(given_up()));
                }
                return Poll::Pending;
            };
            match event {
                Ok(Event::Response(head)) => return Poll::Ready(Ok(head)),
                Ok(Event::Informational(head)) => {
                    is_heard = true;
                    on_informational(head.status, head.fields.map);
                }
                Ok(_) => return Poll::Ready(Err(failed(&WireError::Cut(None), is_heard))),
                Err(error) => return Poll::Ready(Err(failed(&error, is_heard))),
            }
        }
    })
    .await
}

fn failed<E>(error: &WireError, is_heard: bool) -> ExchangeError<E> {
    let mut close = None;
    let problem = match error {
        WireError::Cut(reason) => {
            close = *reason;
            Problem::new(Hop::Server, Reason::SessionLost, lost(close))
        }
        WireError::Malformed(error) => {
            Problem::new(Hop::Server, Reason::WireMalformed, error.to_string())
        }
        WireError::Shed => Problem::new(
            Hop::Server,
            Reason::MemoryLimit,
            "too much was held for the exchange",
        ),
        WireError::NotAccepted => Problem::new(
            Hop::Server,
            Reason::WireMalformed,
            "the tunnel client did not accept the exchange",
        ),
        WireError::Failed(problem) => (**problem).clone(),
    };
    ExchangeError::Failed {
        problem,
        is_heard,
        close,
    }
}

/// An exchange of which nothing was heard on a suspect session, and which is to be repeated elsewhere.
fn given_up<E>() -> ExchangeError<E> {
    let detail = "nothing is heard on the session";
    ExchangeError::Failed {
        problem: Problem::new(Hop::Server, Reason::SessionLost, detail),
        is_heard: false,
        close: None,
    }
}

/// For a person, how an exchange was lost.
fn lost(close: Option<CloseReason>) -> String {
    close.map_or_else(
        || "the exchange was cut before the response".to_owned(),
        |reason| {
            let name = reason.name();
            format!("the session ended before the response ({name})")
        },
    )
}

fn response(
    wire: &SharedWire,
    head: ResponseHead,
    is_head: bool,
) -> Result<Response<RecvBody>, Problem> {
    if let Some(reason) = head.fields.pseudo(PROBLEM) {
        // It takes the message's end, so that the stream can be used again.
        drop(RecvBody::new(wire, None));
        return Err(Problem::from_wire(
            reason,
            head.fields.pseudo(DETAIL).map(AsRef::as_ref),
        ));
    }
    let declared = fields::content_length(&head.fields.map)
        .map_err(|error| Problem::new(Hop::Server, Reason::WireMalformed, error.to_string()))?;
    // RFC 9110 section 6.4.1: these have no content, whatever their fields say.
    let is_empty =
        is_head || head.status == StatusCode::NO_CONTENT || head.status == StatusCode::NOT_MODIFIED;
    let body = RecvBody::new(wire, if is_empty { Some(0) } else { declared })
        .map_err(|error: BodyError| error.problem(Hop::Server))?;
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.fields.map;
    Ok(response)
}
