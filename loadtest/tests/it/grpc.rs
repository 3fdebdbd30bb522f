//! gRPC calls: what goes well, and what fails by its status.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{runtime::Builder, task::LocalSet};

use crate::{
    language::{Measured, Upstream, loadtest, programs, scripted},
    relay::Relay,
};

fn grpc(url: &str, arguments: &str) -> Measured {
    loadtest(&format!(
        "grpc --url {url} --warm-up 0s --duration 500ms --timeout 5s {arguments}"
    ))
}

#[test]
fn calls_of_both_kinds_go_well() {
    let upstream = Upstream::start("");
    for kind in ["unary", "stream --messages 3"] {
        let measured = grpc(
            &upstream.url,
            &format!("--kind {kind} -c 2 --calls 3 --rate 60"),
        );
        measured.assert_sent(30);
        // With the prefix of five bytes.
        let bytes = measured.completed() * 21;
        assert_eq!(measured.run()["bytes_up"], bytes, "{measured:#?}");
        assert_eq!(measured.run()["bytes_down"], bytes, "{measured:#?}");
    }
}

#[test]
fn each_message_takes_a_round_trip() {
    let upstream = Upstream::start("");
    let relay = Relay::start(&upstream.url, "--delay 20ms");
    for kind in ["unary", "stream"] {
        let measured = grpc(&relay.url, &format!("--kind {kind} -c 1 --calls 2"));
        assert_eq!(
            measured.run()["errors"],
            serde_json::json!({}),
            "{measured:#?}"
        );
        assert!(measured.latency("min") >= 0.04, "{measured:#?}");
    }
}

#[test]
fn failed_calls_are_counted_by_status() {
    let address = failing();
    let url = format!("http://{address}/known.Service/Fails");
    for kind in ["unary", "stream --messages 1"] {
        let arguments = format!("--kind {kind} -c 1 --calls 1 --rate 40");
        let measured = grpc(&url, &arguments);
        // On a machine that is busy the last may come to their turn after the window.
        let sent = 20 - measured.errors("not_sent");
        assert!(sent > 10, "{measured:#?}");
        assert_eq!(
            measured.errors("grpc_status_14"),
            sent.div_ceil(4),
            "{measured:#?}"
        );
        assert_eq!(
            measured.errors("grpc_status_7"),
            (sent - 1).div_ceil(4),
            "{measured:#?}"
        );
        let failed = sent.div_ceil(4) + (sent - 1).div_ceil(4);
        assert_eq!(measured.completed(), sent - failed, "{measured:#?}");
    }
}

#[test]
fn what_speaks_no_http2_is_an_error_of_each_call() {
    let address = scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let measured = grpc(&format!("http://{address}"), "-c 1 --calls 1");
    assert_eq!(
        (measured.completed(), measured.code),
        (0, 1),
        "{measured:#?}"
    );
    assert!(
        !measured.run()["errors"].as_object().unwrap().is_empty(),
        "{measured:#?}"
    );
}

#[test]
fn a_tunnel_carries_calls() {
    let programs = programs();
    for kind in ["unary", "stream"] {
        let measured = loadtest(&format!(
            "grpc --self-contained --programs {} --warm-up 0s --duration 500ms -c 1 --calls 2 \
             --rate 20 --kind {kind}",
            programs.display()
        ));
        measured.assert_sent(10);
    }
}

/// A server of whose calls every fourth fails with status 14 in its trailers, and every fourth
/// with status 7 in its head.
fn failing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let calls = Arc::new(AtomicU64::new(0));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let calls = calls.clone();
                let service = service_fn(move |request| answer(request, calls.clone()));
                let served = http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                tokio::task::spawn_local(served);
            }
        });
    });
    address
}

type Frames = futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

async fn answer(
    request: Request<Incoming>,
    calls: Arc<AtomicU64>,
) -> Result<Response<StreamBody<Frames>>, Infallible> {
    let message = request.into_body().collect().await.unwrap().to_bytes();
    let call = calls.fetch_add(1, Ordering::Relaxed);
    let trailers = |status| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(status));
        Ok(Frame::trailers(trailers))
    };
    let frames = match call % 4 {
        0 => vec![trailers("14")],
        1 => vec![],
        _ => vec![Ok(Frame::data(message)), trailers("0")],
    };
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(frames)));
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    if call % 4 == 1 {
        headers.insert("grpc-status", HeaderValue::from_static("7"));
    }
    Ok(response)
}
