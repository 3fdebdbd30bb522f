//! Any bytes from the other end of a session: no panic, no hang, and nothing left of it in the end.
//!
//! The first byte of the input says which end of the session is ours, and what the rest is: bytes of
//! the connection; or bytes of the multiplexer, in binary messages; or frames of it, in short form,
//! so that what lies behind the multiplexer is reached too.

#![no_main]

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    runtime::Builder,
    task::JoinSet,
    time::timeout,
};
use tunnel_proto::{
    exchange::{AsProblem, Informational, RecvBody, exchange, serve},
    problem::{Hop, Problem, Reason},
    session::{Session, SessionEvent, SessionEvents, SessionSettings, Side},
};

/// Bytes of the multiplexer in one message.
const MESSAGE_BYTES: usize = 100;

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    let side = if choice & 1 == 0 {
        Side::Server
    } else {
        Side::Client
    };
    let sent = match choice / 2 % 3 {
        0 => bytes.to_vec(),
        1 => in_messages(bytes, side),
        _ => in_messages(&in_frames(bytes), side),
    };
    // With paused time whoever waits for nothing but time is at its end at once.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(receive(side, sent));
});

/// Frames of yamux, each made of four bytes (type, flags, stream, length) and a body.
fn in_frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [kind, flags, stream, length, rest @ ..] = bytes {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        let length = if kind % 4 == 0 {
            body.len() as u8
        } else {
            *length
        };
        out.extend_from_slice(&[
            0,
            kind % 4,
            0,
            flags % 16,
            0,
            0,
            0,
            stream % 8,
            0,
            0,
            0,
            length,
        ]);
        let body = if kind % 4 == 0 { body } else { &[] };
        out.extend_from_slice(body);
        bytes = rest;
    }
    out
}

/// Binary messages, masked with zeros when they go to a server.
fn in_messages(bytes: &[u8], side: Side) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(MESSAGE_BYTES) {
        let length = piece.len() as u8;
        match side {
            Side::Server => out.extend_from_slice(&[0x82, 0x80 | length, 0, 0, 0, 0]),
            Side::Client => out.extend_from_slice(&[0x82, length]),
        }
        out.extend_from_slice(piece);
    }
    out
}

async fn receive(side: Side, sent: Vec<u8>) {
    let (ours, theirs) = duplex(1024);
    let settings = SessionSettings::default();
    let (session, events, driver) = Session::new(ours, Bytes::new(), side, settings);
    let mut tasks = JoinSet::new();
    match side {
        Side::Server => ask(&session, &mut tasks),
        Side::Client => drop(tasks.spawn(serve_all(session.clone(), events))),
    }
    let (mut from, mut to) = tokio::io::split(theirs);
    tasks.spawn(async move {
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        drop(from.read(&mut [0]).await);
    });
    tasks.spawn(async move {
        let _ = to.write_all(&sent).await;
        let _ = to.shutdown().await;
    });
    let end = timeout(Duration::from_secs(600), driver).await;
    let _ = end.expect("the session ends with its connection").reason();
    assert!(session.is_closed());
    let over = async { while tasks.join_next().await.is_some() {} };
    timeout(Duration::from_secs(600), over)
        .await
        .expect("everything ends with its session");
    assert_eq!(session.outstanding(), 0);
}

/// Two exchanges, their answers read to whatever end.
fn ask(session: &Session, tasks: &mut JoinSet<()>) {
    for _ in 0..2 {
        let session = session.clone();
        tasks.spawn(async move {
            let request = Request::get("http://a.test/").body(Empty::<Bytes>::new());
            let request = request.expect("a request");
            if let Ok(response) = exchange(&session, request, |_, _| {}).await {
                let _ = response.into_body().collect().await;
            }
        });
    }
}

async fn serve_all(session: Session, mut events: SessionEvents) {
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        if let SessionEvent::Stream(stream) = event {
            streams.spawn(serve(stream, echo));
        }
    }
    while streams.join_next().await.is_some() {}
}

/// Answers with what was sent, or not at all, by path.
async fn echo(
    request: Request<RecvBody>,
    _: Informational,
) -> Result<Response<Never<Full<Bytes>>>, Problem> {
    if request.uri().path() == "/n" {
        std::future::pending::<()>().await;
    }
    let content = request.into_body().collect().await;
    let content = content.map_err(|error| error.problem(Hop::Client))?;
    Ok(Response::new(
        Full::new(content.to_bytes()).map_err(never as fn(_) -> _),
    ))
}

type Never<B> = http_body_util::combinators::MapErr<B, fn(Infallible) -> Broken>;

fn never(error: Infallible) -> Broken {
    match error {}
}

/// A failure that does not happen.
struct Broken;

impl AsProblem for Broken {
    fn as_problem(&self) -> Problem {
        Problem::new(Hop::Client, Reason::InternalError, "")
    }
}
