//! Shapes of connections and exchanges that come to nothing.

use std::time::Duration;

use testkit::http2::Frame;
use tokio::time::sleep;

use super::{asked_again, once};
use crate::sweep::{Attack, Place, Protocol, Stage, origin::Exchange};

/// The time between two bytes of a slow handshake.
const DRIP: Duration = Duration::from_millis(200);

/// Connections that are slow at once.
const SLOW: usize = 800;

/// Requests that are given up as soon as they are sent, and answers that are cut.
pub(super) fn cancels(place: Place, protocol: Protocol) -> Option<Attack> {
    const PAUSE: Duration = Duration::from_millis(3);
    let reset = 8_u32.to_be_bytes();
    Some(match place {
        Place::Public | Place::Serve if protocol.is_http2() => Attack::new()
            .by_callers(2, move |peer| async move {
                while !peer.is_over() {
                    let stream = peer.ask("GET", &[], true).await;
                    sleep(PAUSE).await;
                    peer.frame(Frame::RST_STREAM, 0, stream, &reset).await;
                }
            })
            .again(),
        Place::Public | Place::Serve => Attack::new()
            .by_callers(4, |peer| async move {
                peer.send(peer.text_head("GET", &[], true)).await;
                sleep(PAUSE).await;
            })
            .again(),
        Place::Upstream => {
            asked_again(PAUSE).answered(move |Exchange { peer, stream }| async move {
                peer.answer(stream, &[], false).await;
                peer.pieces(stream, b"part", 1).await;
                if peer.protocol().is_http2() {
                    peer.frame(Frame::RST_STREAM, 0, stream, &reset).await;
                }
            })
        }
        Place::TunnelClient | Place::TunnelServer => {
            let attack = if place == Place::TunnelServer {
                Attack::new()
            } else {
                asked_again(PAUSE)
            };
            attack.by_tunnel_end(|mut end| async move {
                let request = end.head(&[]);
                while !end.is_over() {
                    let stream = if end.is_server() {
                        end.look().await;
                        Some(end.open(&request, 16_384).await)
                    } else {
                        end.look().await
                    };
                    if let Some(stream) = stream {
                        sleep(PAUSE).await;
                        end.reset(stream).await;
                    }
                }
            })
        }
    })
}

/// Handshakes of TLS of which a byte comes now and then.
pub(super) fn slow_tls(place: Place, protocol: Protocol) -> Option<Attack> {
    // The start of a ClientHello of 512 bytes.
    const HELLO: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    if !once(protocol) {
        return None;
    }
    let slow = Attack::new()
        .by_callers(SLOW, |peer| async move {
            for byte in HELLO.iter().chain([0; 400].iter()) {
                if !peer.send([*byte]).await {
                    return;
                }
                sleep(DRIP).await;
            }
        })
        .again();
    match place {
        Place::Public => Some(slow.at(Stage::PublicTls)),
        Place::TunnelClient => Some(slow.at(Stage::TunnelListener)),
        Place::Upstream => Some(
            Attack::new()
                .by_callers(8, super::ask_all)
                .at(Stage::UpstreamTls),
        ),
        Place::Serve | Place::TunnelServer => None,
    }
}

/// PROXY headers of which a byte comes now and then.
pub(super) fn slow_proxy_header(place: Place, protocol: Protocol) -> Option<Attack> {
    let drips = Attack::new().by_callers(SLOW, |peer| async move {
        for byte in b"PROXY TCP4 192.0.2.1 192.0.2.2 10 20" {
            if !peer.send([*byte]).await {
                return;
            }
            sleep(DRIP).await;
        }
    });
    (place == Place::Public && once(protocol)).then(|| drips.again().at(Stage::ProxyHeader))
}

/// An upstream that takes no connection; a tunnel client with a wrong token.
pub(super) fn refused_dials(place: Place, protocol: Protocol) -> Option<Attack> {
    match place {
        Place::Public | Place::Serve => None,
        Place::Upstream if protocol == Protocol::WebSocket => None,
        Place::Upstream => Some(asked_again(Duration::from_millis(3)).at(Stage::NoUpstream)),
        Place::TunnelClient if once(protocol) => Some(
            Attack::new()
                .by_callers(8, |_| async {})
                .at(Stage::WrongToken),
        ),
        Place::TunnelServer if once(protocol) => Some(Attack::new().at(Stage::RefusingServer)),
        Place::TunnelClient | Place::TunnelServer => None,
    }
}
