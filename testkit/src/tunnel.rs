//! Fake ends of a tunnel, which speak the real wire: a [`client::FakeClient`] for tests of the server, a
//! [`server::FakeServer`] for tests of the client. Each does only what its test tells it to. A [`wire::Wire`] breaks the
//! protocol, in either role. What is awaited and does not come in time ends the test.

pub mod body;
pub mod client;
pub mod server;
pub mod wire;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::timeout,
};
use tunnel_ops::task::Owned;
use tunnel_proto::{
    control::Control,
    exchange::{AsProblem, ExchangeError, Informational, RecvBody, exchange, serve},
    problem::{Problem, Reason},
    session::{Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side},
};

use crate::deadline::soon;

/// One end of a session, whose bytes a task moves.
pub struct FakeEnd {
    /// Sends, and opens streams.
    pub session: Session,
    /// What the other end sends.
    pub events: SessionEvents,
    /// The task; yields how the session ended.
    pub driver: Owned<SessionEnd>,
}

/// The settings of a session that sends no pings while a test runs.
pub fn without_pings() -> SessionSettings {
    SessionSettings {
        ping_interval: Duration::from_secs(100_000),
        ..SessionSettings::default()
    }
}

impl FakeEnd {
    /// Begins a session on an upgraded connection, of which `unread` was read already.
    pub fn new<IO>(io: IO, unread: Bytes, side: Side, settings: SessionSettings) -> Self
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (session, events, driver) = Session::new(io, unread, side, settings);
        Self {
            session,
            events,
            driver: Owned::spawn("driver", driver),
        }
    }

    /// Sends a control message.
    pub fn send(&self, control: Control) {
        self.session.send(control).unwrap();
    }

    /// The next control message.
    pub async fn receive(&mut self) -> Control {
        match soon("a control message", self.events.next(&self.session)).await {
            Some(SessionEvent::Control(control)) => control,
            Some(SessionEvent::Stream(_)) => panic!("clients open no streams"),
            None => panic!("the session has ended"),
        }
    }

    /// The next control message that is neither the hello nor about routes.
    pub async fn notice(&mut self) -> Control {
        loop {
            match self.receive().await {
                Control::Hello { .. } | Control::Routes(_) => {}
                other => return other,
            }
        }
    }

    /// Whether no such message is received for this time.
    pub async fn is_quiet(&mut self, time: Duration) -> bool {
        timeout(time, self.notice()).await.is_err()
    }

    /// How the session ended.
    pub async fn ended(&mut self) -> SessionEnd {
        soon("the session's end", &mut self.driver).await.unwrap()
    }

    /// Ends the connection without a close frame.
    pub fn lose(&self) {
        self.driver.abort();
    }

    /// One exchange, up to the head of its response, or the problem by which it failed.
    pub async fn ask<B>(&self, request: Request<B>) -> Result<Response<RecvBody>, Problem>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        self.ask_with(request, |_, _| {}).await
    }

    /// As [`FakeEnd::ask`], with a function that gets the informational responses.
    pub async fn ask_with<B>(
        &self,
        request: Request<B>,
        on_informational: impl FnMut(StatusCode, HeaderMap),
    ) -> Result<Response<RecvBody>, Problem>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        let exchange = exchange(&self.session, request, on_informational);
        match soon("a response", exchange).await {
            Ok(response) => Ok(response),
            Err(ExchangeError::Failed { problem, .. }) => Err(problem),
            Err(other) => panic!("{other:?}"),
        }
    }

    /// One exchange that succeeds, with the whole content of its response.
    pub async fn fetch<B>(&self, request: Request<B>) -> Response<String>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        whole(self.ask(request).await.unwrap()).await
    }

    /// The reason why an exchange fails.
    pub async fn failure<B>(&self, request: Request<B>) -> Reason
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: AsProblem + std::fmt::Debug,
    {
        self.ask(request).await.unwrap_err().reason()
    }
}

/// A response with all of its content.
pub async fn whole(response: Response<RecvBody>) -> Response<String> {
    let (head, body) = response.into_parts();
    let body = soon("a content", body.collect()).await.unwrap().to_bytes();
    Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
}

/// Answers each exchange of a session as its client, until the session ends.
pub async fn answer_all<H, F, B>(
    session: Session,
    mut events: SessionEvents,
    answer: H,
    mut on_control: impl FnMut(Control),
) where
    H: Fn(Request<RecvBody>, Informational) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Response<B>, Problem>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: AsProblem + Send,
{
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        match event {
            SessionEvent::Stream(stream) => {
                streams.spawn(serve(stream, answer.clone()));
            }
            SessionEvent::Control(control) => on_control(control),
        }
    }
}
