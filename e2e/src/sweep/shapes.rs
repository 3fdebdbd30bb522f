//! The shapes of hostility, each one item of [`SHAPES`] and one small function.
//!
//! What does not depend on the protocol stands under HTTP/1.1. A peer that breaks a rule of the connection loses that
//! connection; where that is an upstream's only one, it loses its own requests. So shapes of upstreams keep the rules.

mod connections;
mod contents;
mod frames;
mod heads;

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{
    Attack, Place, Protocol, Shape,
    origin::Exchange,
    peer::{Fields, LARGEST_WINDOW, Peer, Reads},
    tunnel_end::TunnelEnd,
};

/// All shapes.
pub const SHAPES: [Shape; 20] = [
    Shape {
        name: "small frames",
        attack: contents::small_frames,
    },
    Shape {
        name: "empty frames",
        attack: contents::empty_frames,
    },
    Shape {
        name: "tiny chunks",
        attack: contents::tiny_chunks,
    },
    Shape {
        name: "large heads (HPACK)",
        attack: heads::large_heads,
    },
    Shape {
        name: "many fields",
        attack: heads::many_fields,
    },
    Shape {
        name: "slow readers, large windows",
        attack: contents::slow_readers,
    },
    Shape {
        name: "slow readers, 1-byte windows",
        attack: contents::one_byte_windows,
    },
    Shape {
        name: "cancels",
        attack: connections::cancels,
    },
    Shape {
        name: "half-open uploads",
        attack: contents::half_open,
    },
    Shape {
        name: "early answers",
        attack: contents::early_answers,
    },
    Shape {
        name: "trailers",
        attack: heads::trailers,
    },
    Shape {
        name: "pings",
        attack: frames::pings,
    },
    Shape {
        name: "settings",
        attack: frames::settings,
    },
    Shape {
        name: "CONTINUATION",
        attack: frames::continuation,
    },
    Shape {
        name: "PRIORITY",
        attack: frames::priority,
    },
    Shape {
        name: "many options and ranges",
        attack: heads::options_and_ranges,
    },
    Shape {
        name: "cookies",
        attack: heads::cookies,
    },
    Shape {
        name: "slow TLS",
        attack: connections::slow_tls,
    },
    Shape {
        name: "slow PROXY header",
        attack: connections::slow_proxy_header,
    },
    Shape {
        name: "refused dials",
        attack: connections::refused_dials,
    },
];

/// Open exchanges of each hostile connection of HTTP/2.
const STREAMS: usize = 100;

/// Hostile connections. `serve` has no shares of addresses: what is left from several phases leaves most of its 1,024 exchanges
/// free.
fn connections(place: Place, protocol: Protocol) -> usize {
    let is_serve = place == Place::Serve;
    match protocol {
        Protocol::Http1 if is_serve => 100,
        Protocol::Http1 => 300,
        Protocol::WebSocket if is_serve => 50,
        Protocol::WebSocket => 100,
        Protocol::Http2 | Protocol::Grpc if is_serve => 1,
        Protocol::Http2 | Protocol::Grpc => 8,
    }
}

/// How many exchanges a connection has open.
fn streams(peer: &Peer) -> usize {
    if peer.protocol().is_http2() {
        STREAMS
    } else {
        1
    }
}

/// Where the protocol is spoken by the hostile peer itself.
fn is_http(place: Place) -> bool {
    matches!(place, Place::Public | Place::Serve | Place::Upstream)
}

/// Where something that no protocol changes is shown.
fn once(protocol: Protocol) -> bool {
    protocol == Protocol::Http1
}

/// Those who ask for what a hostile upstream or tunnel client answers, and read nothing of it.
fn asked(place: Place, protocol: Protocol) -> Attack {
    Attack::new()
        .by_callers(connections(place, protocol).min(200), ask_all)
        .that_read(Reads::Nothing, LARGEST_WINDOW)
}

/// As [`asked`], with readers that read everything, one request after the other.
fn asked_again(pause: Duration) -> Attack {
    Attack::new()
        .by_callers(2, move |peer| async move {
            if peer.protocol().is_http2() {
                while peer.ask("GET", &[], true).await > 0 && !peer.is_over() {
                    sleep(pause).await;
                }
            } else {
                peer.ask("GET", &[], true).await;
                sleep(pause).await;
            }
        })
        .again()
}

/// Asks as often as a connection can have exchanges.
pub(super) async fn ask_all(peer: Arc<Peer>) {
    for _ in 0..streams(&peer) {
        peer.ask("GET", &[], true).await;
    }
}

/// Asks with content that the upstream does not read, in pieces of this length and so many bytes in all.
pub(super) async fn upload_all(peer: Arc<Peer>, fields: Fields<'_>, length: usize, total: usize) {
    let piece = vec![b'm'; length];
    let one = async || {
        let stream = peer.ask("POST", fields, false).await;
        peer.pieces(stream, &piece, total / length.max(1)).await;
    };
    futures_util::future::join_all((0..streams(&peer)).map(|_| one())).await;
}

/// Answers in pieces of this length, so many bytes in all, and then rests.
pub(super) async fn answer_in(exchange: Exchange, length: usize, total: usize) {
    let Exchange { peer, stream } = exchange;
    let piece = vec![b'm'; length];
    peer.answer(stream, &[], false).await;
    peer.pieces(stream, &piece, total / length).await;
    std::future::pending().await
}

/// Answers with these fields and nothing else.
async fn answer_with(exchange: Exchange, fields: Fields<'_>) {
    exchange.peer.answer(exchange.stream, fields, true).await;
}

/// Answers each request with a message, or asks by it `count` times: in frames of the multiplexer of this length.
async fn speak(mut end: TunnelEnd, message: &[u8], frame: usize, count: usize) {
    let mut left = count;
    while !end.is_over() {
        if end.is_server() && left > 0 {
            left -= 1;
            end.open(message, frame).await;
        }
        if let Some(stream) = end.look().await {
            end.write(stream, message, frame).await;
        }
    }
}

/// A tunnel's end that speaks in one way: content behind a head with these fields.
fn by_message(attack: Attack, fields: Fields<'_>, content: &[u8], frame: usize) -> Attack {
    let fields = fields
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let said = Arc::new((fields.collect::<Vec<_>>(), content.to_vec()));
    attack.by_tunnel_end(move |end| {
        let said = Arc::clone(&said);
        async move {
            let (fields, content) = &*said;
            let fields = fields
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()));
            let head = end.head(&fields.collect::<Vec<_>>());
            speak(end, &[&head[..], content].concat(), frame, 1_000).await;
        }
    })
}

/// Those who ask for what a tunnel's end does: nobody, where that asks itself.
fn before(place: Place, protocol: Protocol) -> Attack {
    if place == Place::TunnelServer {
        Attack::new()
    } else {
        asked(place, protocol)
    }
}
