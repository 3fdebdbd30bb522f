//! Connections of an upstream, with servers that do what a test says.

use std::future::poll_fn;
use std::time::Duration;

use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::sleep;
use tunnel_ops::task::Owned;

use super::connection::{CONNECTION_WINDOW, STREAM_WINDOW, STREAMS};
use super::places::{RESET_HOLD, RESETS};
use super::*;
use crate::upstream::outgoing_body::OutgoingBody;
use crate::upstream::progress::Progress;

/// What a gRPC server's defaults allow: two PING frames in less than five minutes without data, not
/// three.
const STRIKES: usize = 2;

impl Http2 {
    /// Places that are taken on all connections, and permits of exclusive ones.
    pub(in crate::upstream) fn places_taken(&self) -> usize {
        let mut connections = self.connections.lock();
        let all = connections.all();
        let places = all.iter().flat_map(|some| some.iter());
        let taken: usize = places.map(|connection| connection.places_taken()).sum();
        taken + EXCLUSIVE - self.exclusive.available_permits()
    }
}

/// A shared connection, and a lease of it.
async fn add(http2: &Http2, socket: Socket, peer: Option<IpAddr>) -> Lease {
    let added = http2.add(socket, peer, Sharing::Shared, "a test".to_owned());
    added.await.unwrap()
}

/// Reads one frame: its type, its flags and its content.
async fn frame(peer: &mut UnixStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    peer.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut content = vec![0; length as usize];
    peer.read_exact(&mut content).await.ok()?;
    Some((head[3], head[4], content))
}

/// A server that answers the first request with a head, says nothing for ten minutes, and then ends
/// the response. As gRPC servers do, it leaves the connection when too many PING frames come.
async fn quiet_server(mut peer: UnixStream) {
    const PING: u8 = 6;
    const HEADERS: u8 = 1;
    let mut preface = [0; 24];
    peer.read_exact(&mut preface).await.unwrap();
    peer.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut pings = 0;
    let quiet = sleep(Duration::from_secs(600));
    tokio::pin!(quiet);
    loop {
        let next = tokio::select! {
            next = frame(&mut peer) => next,
            () = &mut quiet => break,
        };
        match next {
            Some((HEADERS, ..)) => {
                let head = b"\0\0\x01\x01\x04\0\0\0\x01\x88";
                peer.write_all(head).await.unwrap();
            }
            Some((PING, 0, content)) => {
                pings += 1;
                if pings > STRIKES {
                    let leave = b"\0\0\x16\x07\0\0\0\0\0\0\0\0\x01\0\0\0\x0btoo_many_pings";
                    peer.write_all(leave).await.unwrap();
                    return;
                }
                let ack = [b"\0\0\x08\x06\x01\0\0\0\0", &content[..]].concat();
                peer.write_all(&ack).await.unwrap();
            }
            Some(_) => {}
            None => return,
        }
    }
    peer.write_all(b"\0\0\x03\0\x01\0\0\0\x01end")
        .await
        .unwrap();
    while frame(&mut peer).await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_quiet_for_ten_minutes_is_not_cut_for_too_many_pings() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let _server = Owned::spawn("server", quiet_server(theirs));
    let http2 = Http2::default();
    let lease = add(&http2, Socket::Unix(ours), None).await;
    let mut request = Request::new(());
    *request.uri_mut() = http::Uri::from_static("http://a.test/watch");
    let content = OutgoingBody::empty(Progress::of_test());
    let begun = Http2Exchange::begin(lease, request, content, false);
    let mut exchange = begun.ok().unwrap();
    let response = poll_fn(|cx| exchange.poll_head(cx, |_, _| {})).await;
    let mut content = exchange.content(response.unwrap().into_body());
    let mut all = Vec::new();
    while let Some(frame) = poll_fn(|cx| content.poll_frame(cx)).await {
        all.extend(frame.unwrap().into_data().unwrap());
    }
    assert_eq!(all, b"end");
}

#[tokio::test]
async fn a_sweep_keeps_what_is_used_and_one_to_spare() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http2 = Http2::default();
    let mut leases = Vec::new();
    for _ in 0..4 {
        let stream = TcpStream::connect(address).await.unwrap();
        leases.push(add(&http2, Socket::Plain(stream), None).await);
    }
    let count = || http2.connections.lock().shared.len();
    http2.sweep();
    assert_eq!(count(), 4);
    leases.truncate(1);
    http2.sweep();
    assert_eq!(count(), 2);
    leases.clear();
    http2.sweep();
    assert_eq!(count(), 1);
}

/// All leases that there are.
fn take_all(http2: &Http2) -> Vec<Lease> {
    std::iter::from_fn(|| http2.take()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_connection_has_as_many_streams_as_its_upstream_allows_and_its_window_has_room_for() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let http2 = Http2::default();
    let first = add(&http2, Socket::Unix(ours), None).await;
    assert!(http2.take().is_none(), "one until it says more");
    drop(first);
    let one = http2.take();
    assert!(one.is_some() && http2.take().is_none());
    // It says nothing: what servers are advised to allow at least.
    sleep(Duration::from_secs(1)).await;
    drop(one);
    assert_eq!(take_all(&http2).len(), 100);
    for (settings, expected) in [
        (&b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x05"[..], 5),
        (b"\0\0\x06\x04\0\0\0\0\0\0\x03\xff\xff\xff\xff", STREAMS),
    ] {
        theirs.write_all(settings).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        let leases = take_all(&http2);
        assert_eq!(leases.len(), expected);
        assert!(leases.len() * STREAM_WINDOW as usize <= CONNECTION_WINDOW as usize);
    }
}

/// Wears a connection out, by as many exchanges as it takes that are given up after they have begun.
fn wear_out(lease: Lease) {
    let connection = Arc::clone(lease.connection());
    drop(lease);
    for _ in 0..RESETS {
        let mut lease = connection.leased();
        lease.on_begin();
    }
}

#[tokio::test(start_paused = true)]
async fn worn_out_connections_are_replaced_and_dials_wait_while_there_are_many() {
    let http2 = Http2::default();
    let mut theirs = Vec::new();
    let mut connect = || {
        let (ours, peer) = UnixStream::pair().unwrap();
        theirs.push(peer);
        Socket::Unix(ours)
    };
    let start = Instant::now();
    for count in 1..=WORN_OUT {
        http2.leave_worn_out().await;
        assert_eq!(start.elapsed(), Duration::ZERO, "{count}");
        let lease = add(&http2, connect(), None).await;
        wear_out(lease);
        assert!(http2.take().is_none(), "{count}");
    }
    http2.leave_worn_out().await;
    assert_eq!(start.elapsed(), RESET_HOLD);
    let name = "a test".to_owned();
    let lease = http2.add(connect(), None, Sharing::Exclusive, name).await;
    wear_out(lease.unwrap());
    sleep(RESET_HOLD).await;
    assert!(http2.take_exclusive().is_none());
}

#[tokio::test]
async fn a_connection_to_a_lost_address_is_shared_no_more_and_ends_with_its_last_use() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http2 = Http2::default();
    let stream = TcpStream::connect(address).await.unwrap();
    let socket = Socket::Plain(stream);
    let lease = add(&http2, socket, Some(address.ip())).await;
    http2.retain_addresses(&[address.ip()]);
    assert!(!http2.is_empty());
    http2.retain_addresses(&[]);
    assert!(http2.is_empty() && http2.take().is_none());
    assert!(!lease.connection().is_left(), "what is under way goes on");
    let (mut theirs, _) = listener.accept().await.unwrap();
    drop(lease);
    let mut rest = Vec::new();
    let _ = theirs.read_to_end(&mut rest).await;
}
