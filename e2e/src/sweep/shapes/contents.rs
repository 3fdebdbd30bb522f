//! Shapes of contents: how they are cut, how they are read, and where they end.

use std::{sync::Arc, time::Duration};

use testkit::http2::Frame;
use tokio::time::sleep;

use super::{
    answer_in, ask_all, asked, before, by_message, connections, is_http, once, speak, upload_all,
};
use crate::sweep::{
    Attack, Place, Protocol,
    origin::Exchange,
    peer::{LARGEST_WINDOW, Peer, Reads},
    tunnel_end::{TunnelEnd, chunks},
};

/// Bytes of a content that is cut into small pieces: more than windows let through.
const CONTENT: usize = 256 * 1024;

/// The longest frame of the multiplexer that the tunnel ends send.
const FRAME: usize = 16 * 1024;

/// Content in frames, or messages, of one byte.
pub(super) fn small_frames(place: Place, protocol: Protocol) -> Option<Attack> {
    Some(match place {
        _ if is_http(place) && protocol == Protocol::Http1 => return None,
        Place::Public | Place::Serve => {
            Attack::new().by_callers(connections(place, protocol).min(50), |peer| async move {
                upload_all(peer, &[], 1, CONTENT).await;
            })
        }
        Place::Upstream => {
            asked(place, protocol).answered(|exchange| answer_in(exchange, 1, CONTENT))
        }
        Place::TunnelClient | Place::TunnelServer => by_message(
            before(place, protocol),
            &[],
            &chunks(32 * 1024, 64 * 1024),
            1,
        ),
    })
}

/// Frames, or messages, without content.
pub(super) fn empty_frames(place: Place, protocol: Protocol) -> Option<Attack> {
    let is_websocket = protocol == Protocol::WebSocket;
    Some(match place {
        _ if is_http(place) && protocol == Protocol::Http1 => return None,
        Place::Public | Place::Serve => Attack::new()
            .by_callers(4, move |peer| async move {
                let stream = peer.ask("POST", &[], false).await;
                peer.pieces(stream, b"", 100).await;
                sleep(Duration::from_secs(1)).await;
                peer.pieces(stream, b"", if is_websocket { 100_000 } else { 2_000 })
                    .await;
            })
            .again(),
        Place::Upstream if is_websocket => {
            asked(place, protocol).answered(|Exchange { peer, stream }| async move {
                peer.answer(stream, &[], false).await;
                peer.pieces(stream, b"", 100_000).await;
                std::future::pending().await
            })
        }
        // A flush without content in each answer, as some servers do.
        Place::Upstream => super::asked_again(Duration::from_millis(40)).answered(
            |Exchange { peer, stream }| async move {
                peer.answer(stream, &[], false).await;
                peer.pieces(stream, b"", 1).await;
                peer.frame(Frame::DATA, Frame::END_STREAM, stream, b"hello")
                    .await;
            },
        ),
        Place::TunnelClient | Place::TunnelServer if once(protocol) => before(place, protocol)
            .by_tunnel_end(|mut end| async move {
                let empty = testkit::yamux::Frame::data(0, 1, b"").bytes().repeat(1_000);
                if end.is_server() {
                    let head = end.head(&[]);
                    end.open(&head, FRAME).await;
                }
                while !end.is_over() {
                    end.look().await;
                    end.send_pieces(1_000, &empty).await;
                }
            }),
        Place::TunnelClient | Place::TunnelServer => return None,
    })
}

/// Content in chunks of one byte.
pub(super) fn tiny_chunks(place: Place, protocol: Protocol) -> Option<Attack> {
    Some(match place {
        _ if is_http(place) && protocol != Protocol::Http1 => return None,
        Place::Public | Place::Serve => {
            Attack::new().by_callers(connections(place, protocol), |peer| async move {
                upload_all(peer, &[], 1, CONTENT).await;
            })
        }
        Place::Upstream => {
            asked(place, protocol).answered(|exchange| answer_in(exchange, 1, CONTENT))
        }
        Place::TunnelClient | Place::TunnelServer => {
            by_message(before(place, protocol), &[], &chunks(1, CONTENT / 2), FRAME)
        }
    })
}

/// Nothing is read of contents, whatever the windows say.
pub(super) fn slow_readers(place: Place, protocol: Protocol) -> Option<Attack> {
    Some(match place {
        Place::Public | Place::Serve => asked_all(place, protocol)
            .that_read(Reads::Nothing, LARGEST_WINDOW)
            .answered(|exchange| answer_in(exchange, FRAME, usize::MAX)),
        Place::Upstream => {
            Attack::new().by_callers(connections(place, protocol), |peer| async move {
                upload_all(peer, &[], FRAME, 1 << 20).await;
            })
        }
        Place::TunnelClient => uploads(place, protocol).by_tunnel_end(|mut end| async move {
            end.gives = false;
            while !end.is_over() {
                end.look().await;
            }
        }),
        Place::TunnelServer => downloads().by_tunnel_end(|mut end| async move {
            end.gives = false;
            let request = [&end.head(&[])[..], &[0, 0]].concat();
            speak(end, &request, FRAME, 1_000).await;
        }),
    })
}

/// Windows grow by a byte at a time; where there are none, a byte at a time is read.
pub(super) fn one_byte_windows(place: Place, protocol: Protocol) -> Option<Attack> {
    Some(match place {
        Place::Public | Place::Serve => {
            let callers = Attack::new().by_callers(connections(place, protocol), take_bytes);
            let reads = match protocol.is_http2() {
                true => Reads::Frames,
                false => Reads::Nothing,
            };
            callers
                .that_read(reads, 1)
                .answered(|exchange| answer_in(exchange, FRAME, usize::MAX))
        }
        Place::Upstream => uploads(place, protocol).answered(read_bytes),
        Place::TunnelClient => uploads(place, protocol).by_tunnel_end(give_bytes),
        Place::TunnelServer => downloads().by_tunnel_end(give_bytes),
    })
}

/// The time between two bytes.
const PAUSE: Duration = Duration::from_millis(50);

/// A platform client asks, and takes a byte of each answer at a time.
async fn take_bytes(peer: Arc<Peer>) {
    ask_all(Arc::clone(&peer)).await;
    while !peer.is_over() {
        sleep(PAUSE).await;
        for stream in peer.streams() {
            let one = 1_u32.to_be_bytes();
            peer.frame(Frame::WINDOW_UPDATE, 0, stream, &one).await;
        }
        if !peer.protocol().is_http2() && !peer.read_byte().await {
            return;
        }
    }
}

/// An upstream takes a byte of a request at a time.
async fn read_bytes(Exchange { peer, stream }: Exchange) {
    let is_http2 = peer.protocol().is_http2();
    if is_http2 {
        let window = [0, 4, 0, 0, 0, 1];
        peer.frame(Frame::SETTINGS, 0, 0, &window).await;
    } else if peer.protocol() == Protocol::WebSocket {
        peer.answer(stream, &[], false).await;
    }
    let one = 1_u32.to_be_bytes();
    while !peer.is_over() {
        sleep(PAUSE).await;
        let goes_on = match is_http2 {
            true => peer.frame(Frame::WINDOW_UPDATE, 0, stream, &one).await,
            false => peer.read_byte().await,
        };
        if !goes_on {
            return;
        }
    }
}

/// The end of a tunnel gives a byte of window at a time; that of a server asks first.
async fn give_bytes(mut end: TunnelEnd) {
    end.gives = false;
    let request = [&end.head(&[])[..], &[0, 0]].concat();
    for _ in 0..if end.is_server() { 300 } else { 0 } {
        end.open(&request, FRAME).await;
        end.look().await;
    }
    while !end.is_over() {
        for stream in end.streams() {
            end.look().await;
            end.give(stream, 1).await;
        }
        end.look().await;
        sleep(PAUSE).await;
    }
}

/// A part of a content, and then nothing.
pub(super) fn half_open(place: Place, protocol: Protocol) -> Option<Attack> {
    const LENGTH: [(&str, &str); 1] = [("content-length", "1000000")];
    Some(match place {
        Place::Public | Place::Serve => {
            Attack::new().by_callers(connections(place, protocol), |peer| async move {
                let is_websocket = peer.protocol() == Protocol::WebSocket;
                let fields = if is_websocket { &[][..] } else { &LENGTH };
                let part = [b'x'; 100];
                for _ in 0..super::streams(&peer) {
                    let stream = peer.ask("POST", fields, false).await;
                    let _is_open = match peer.protocol() {
                        Protocol::Http1 => peer.send(part).await,
                        // A message of which more is announced than comes.
                        Protocol::WebSocket => {
                            let head = [0x82, 0xfe, 0xff, 0xff, 0, 0, 0, 0];
                            peer.send([&head[..], &part].concat()).await
                        }
                        Protocol::Http2 | Protocol::Grpc => peer.pieces(stream, &part, 1).await,
                    };
                }
            })
        }
        Place::Upstream => {
            asked(place, protocol).answered(|exchange| answer_in(exchange, 100, 100))
        }
        Place::TunnelClient | Place::TunnelServer => {
            let fields = if place == Place::TunnelClient {
                &LENGTH[..]
            } else {
                &[]
            };
            by_message(before(place, protocol), fields, &chunks(100, 100), FRAME)
        }
    })
}

/// Answers before content that goes on.
pub(super) fn early_answers(place: Place, protocol: Protocol) -> Option<Attack> {
    if protocol == Protocol::WebSocket {
        return None;
    }
    let early = async |Exchange { peer, stream }: Exchange| {
        peer.answer(stream, &[], true).await;
        std::future::pending().await
    };
    Some(match place {
        Place::Public | Place::Serve | Place::Upstream => Attack::new()
            .by_callers(connections(place, protocol), |peer| async move {
                upload_all(peer, &[], FRAME, 1 << 20).await;
            })
            .answered(early),
        Place::TunnelClient => by_message(uploads(place, protocol), &[], &[0, 0], FRAME),
        Place::TunnelServer => {
            let content = chunks(FRAME, 192 * 1024);
            by_message(Attack::new(), &[], &content, FRAME).answered(early)
        }
    })
}

/// Platform clients that send a content of 1 MiB in each exchange.
fn uploads(place: Place, protocol: Protocol) -> Attack {
    Attack::new().by_callers(connections(place, protocol), |peer| async move {
        upload_all(peer, &[], FRAME, 1 << 20).await;
    })
}

/// Platform clients with as many requests as their connections can have.
fn asked_all(place: Place, protocol: Protocol) -> Attack {
    Attack::new().by_callers(connections(place, protocol), ask_all)
}

/// An upstream that answers without end.
fn downloads() -> Attack {
    Attack::new().answered(|exchange| answer_in(exchange, FRAME, usize::MAX))
}
