//! Shapes of frames that carry no content, but have to be read or answered.

use testkit::{http2::Frame, yamux};

use super::{Attack, Place, Protocol, asked, before, is_http, once};
use crate::sweep::{
    encode::{literal, message},
    origin::Exchange,
    peer::Peer,
    shapes::connections,
};

/// The most frames in which HTTP/2 libraries take a head of usual size, beside the first.
const FRAMES: usize = 8;

/// How many are written at once.
const BATCH: usize = 200;

/// Pings of HTTP/2, of WebSocket, and of the multiplexer.
pub(super) fn pings(place: Place, protocol: Protocol) -> Option<Attack> {
    if !is_http(place) {
        return once(protocol).then(|| {
            before(place, protocol).by_tunnel_end(|mut end| async move {
                let ping = yamux::Frame::bare(yamux::PING, yamux::SYN, 0, 7);
                while !end.is_over() {
                    end.look().await;
                    end.send_pieces(BATCH, &ping.bytes().repeat(BATCH)).await;
                    end.websocket(0x89, b"ping").await;
                }
            })
        });
    }
    flood(place, protocol, |peer| match peer.protocol() {
        Protocol::WebSocket => message(0x89, b"ping", !peer.is_server()),
        _ => Frame::new(Frame::PING, 0, 0, b"00000000").bytes(),
    })
}

/// Settings, which have to be acknowledged.
pub(super) fn settings(place: Place, protocol: Protocol) -> Option<Attack> {
    if !protocol.is_http2() || !is_http(place) {
        return None;
    }
    flood(place, protocol, |_| {
        Frame::new(Frame::SETTINGS, 0, 0, &[0, 3, 0, 0, 3, 232]).bytes()
    })
}

/// Priorities of streams that never begin.
pub(super) fn priority(place: Place, protocol: Protocol) -> Option<Attack> {
    if !protocol.is_http2() || !is_http(place) {
        return None;
    }
    flood(place, protocol, |peer| {
        let stream = if peer.is_server() { 1 } else { peer.next() };
        Frame::new(Frame::PRIORITY, 0, stream, &[0, 0, 0, 0, 16]).bytes()
    })
}

/// A head in many frames: from a platform client without end, from an upstream as many as it may.
pub(super) fn continuation(place: Place, protocol: Protocol) -> Option<Attack> {
    if !protocol.is_http2() || !is_http(place) {
        return None;
    }
    Some(match place {
        Place::Upstream => {
            asked(place, protocol).answered(|Exchange { peer, stream }| async move {
                let mut frames =
                    Frame::new(Frame::HEADERS, Frame::END_STREAM, stream, &[0x88]).bytes();
                let mut block = Vec::new();
                literal(&mut block, "x-long", &"v".repeat(64));
                let pieces: Vec<_> = block.chunks(block.len().div_ceil(FRAMES)).collect();
                for (number, piece) in pieces.iter().enumerate() {
                    let is_last = number + 1 == pieces.len();
                    let flags = if is_last { Frame::END_HEADERS } else { 0 };
                    frames.extend(Frame::new(Frame::CONTINUATION, flags, stream, piece).bytes());
                }
                peer.send(frames).await;
            })
        }
        _ => Attack::new()
            .by_callers(connections(place, protocol), |peer| async move {
                let stream = peer.next();
                let block = peer.block("GET", &[]);
                peer.frame(Frame::HEADERS, Frame::END_STREAM, stream, &block)
                    .await;
                let mut field = Vec::new();
                literal(&mut field, "x-a", "v");
                let more = Frame::new(Frame::CONTINUATION, 0, stream, &field).bytes();
                while peer.send_pieces(BATCH, &more.repeat(BATCH)).await && !peer.is_over() {}
            })
            .again(),
    })
}

/// A frame without end: from platform clients beside an open exchange, from an upstream as soon as it is asked.
fn flood(place: Place, protocol: Protocol, frame: fn(&Peer) -> Vec<u8>) -> Option<Attack> {
    if protocol == Protocol::Http1 {
        return None;
    }
    let send = async move |peer: &Peer| {
        while !peer.is_over() && peer.send_pieces(BATCH, &frame(peer).repeat(BATCH)).await {
            tokio::task::yield_now().await;
        }
    };
    Some(match place {
        Place::Upstream => {
            asked(place, protocol).answered(move |Exchange { peer, stream }| async move {
                if peer.protocol() == Protocol::WebSocket {
                    peer.answer(stream, &[], false).await;
                    send(&peer).await;
                } else if stream == 1 || stream % 100 == 1 {
                    // One of the connection's exchanges does it, and slowly: what is too fast is an end of the connection.
                    while peer.send(frame(&peer)).await && !peer.is_over() {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                    }
                }
            })
        }
        _ => Attack::new()
            .by_callers(8, move |peer| async move {
                peer.ask("GET", &[], true).await;
                send(&peer).await;
            })
            .again(),
    })
}
