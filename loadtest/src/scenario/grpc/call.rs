//! Calls: what is sent, and what must come back for it to have gone well.

use bytes::Bytes;
use futures_util::stream;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::message::{self, Messages, PREFIX};
use crate::{
    client::{body, connection::Http2, shared::Shared, template::Template},
    load::{BodyBytes, Client},
    measure::errors::{Failure, FailureKind},
    upstream::grpc::is_grpc,
};

/// Makes calls of one message or many. Each message is answered before the next is sent.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) template: Template,
    /// The message, behind its prefix.
    pub(super) message: Bytes,
    /// Whether each message must come back as it is.
    pub(super) is_echoed: bool,
    /// Messages of a call.
    pub(super) messages: u64,
    /// The connections, each for several calls.
    pub(super) shared: Shared,
}

/// A connection, and the call that is going on.
#[derive(Debug)]
pub(super) struct CallConnection {
    connection: Http2,
    call: Option<Call>,
}

#[derive(Debug)]
struct Call {
    /// None once the last message was sent.
    sender: Option<mpsc::Sender<Bytes>>,
    answer: CallResponse,
    sent: u64,
}

impl Client for Calls {
    type Connection = CallConnection;

    async fn connect(&self, worker: usize) -> Result<CallConnection, Failure> {
        Ok(CallConnection {
            connection: self.shared.connect(&self.template.dialer, worker).await?,
            call: None,
        })
    }

    async fn exchange(&self, state: &mut CallConnection) -> Result<BodyBytes, Failure> {
        let CallConnection { connection, call } = state;
        // A call that fails is not put back, so the next message begins another.
        let mut current = match call.take() {
            Some(mut current) => {
                current.send(self.message.clone()).await;
                current
            }
            None => self.begin(connection).await?,
        };
        let is_last = current.sent >= self.messages;
        if is_last {
            // The target hears of the end together with the last message.
            current.sender = None;
        }
        let Some(message) = current.answer.message(connection).await? else {
            // A call that fails has a status and no message.
            current.answer.end(connection).await?;
            let kind = if current.sent == 1 {
                "no_message"
            } else {
                "ended_early"
            };
            return Err(Failure::harmless(FailureKind::Other(kind)));
        };
        if self.is_echoed && self.message.get(PREFIX..) != Some(&message[..]) {
            return Err(Failure::harmless(FailureKind::Other("wrong_message")));
        }
        if is_last {
            current.answer.end(connection).await?;
        } else {
            *call = Some(current);
        }
        Ok(BodyBytes {
            up: self.message.len() as u64,
            down: (PREFIX + message.len()) as u64,
        })
    }

    fn is_open(state: &mut CallConnection) -> bool {
        state.connection.is_open()
    }
}

impl Calls {
    /// Begins a call with its first message: a target may wait for it before it answers.
    async fn begin(&self, connection: &mut Http2) -> Result<Call, Failure> {
        let (sender, content) = if self.messages > 1 {
            let (sender, mut receiver) = mpsc::channel(1);
            // There is room for one.
            drop(sender.try_send(self.message.clone()));
            let received = stream::poll_fn(move |context| receiver.poll_recv(context));
            (Some(sender), body::stream(received))
        } else {
            (None, body::full(self.message.clone()))
        };
        let answer = connection.send(self.template.request(content)).await?;
        Ok(Call {
            sender,
            answer: CallResponse::new(answer)?,
            sent: 1,
        })
    }
}

impl Call {
    async fn send(&mut self, message: Bytes) {
        if let Some(sender) = &self.sender {
            // When it is not taken, the call is over, and its answer says why.
            drop(sender.send(message).await);
        }
        self.sent += 1;
    }
}

/// What comes back of one call.
#[derive(Debug)]
struct CallResponse {
    content: Incoming,
    messages: Messages,
    status: Option<Result<(), FailureKind>>,
}

impl CallResponse {
    fn new(answer: Response<Incoming>) -> Result<Self, Failure> {
        if answer.status() != StatusCode::OK {
            return Err(Failure::harmless(FailureKind::Status(
                answer.status().as_u16(),
            )));
        }
        if !is_grpc(answer.headers()) {
            return Err(Failure::harmless(FailureKind::Other("no_grpc")));
        }
        Ok(Self {
            // A call that fails at once may have its status here, and no trailers.
            status: message::status(answer.headers()),
            content: answer.into_body(),
            messages: Messages::default(),
        })
    }

    /// The next message; none when no more come.
    async fn message(&mut self, connection: &Http2) -> Result<Option<Bytes>, Failure> {
        loop {
            let message = self.messages.next();
            let message = message.map_err(|_| Failure::harmless(FailureKind::Protocol))?;
            if message.is_some() {
                return Ok(message);
            }
            let Some(frame) = self.content.frame().await else {
                return Ok(None);
            };
            let frame = frame.map_err(|error| connection.failure(&error))?;
            match frame.into_data() {
                Ok(data) => self.messages.push(&data),
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.status = message::status(&trailers).or(self.status);
                    }
                }
            }
        }
    }

    /// Waits for the end, which has no more messages and a good status.
    async fn end(&mut self, connection: &Http2) -> Result<(), Failure> {
        let extra = self.message(connection).await?;
        match self.status {
            None => Err(Failure::harmless(FailureKind::Other("grpc_status_missing"))),
            Some(Err(kind)) => Err(Failure::harmless(kind)),
            Some(Ok(())) if extra.is_some() || self.messages.is_cut() => {
                Err(Failure::harmless(FailureKind::Other("wrong_message")))
            }
            Some(Ok(())) => Ok(()),
        }
    }
}
