//! Shapes of heads and trailers.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{answer_with, asked, before, by_message, connections};
use crate::sweep::{
    Attack, Place, Protocol,
    encode::{head_frames, indexed, literal},
    origin::Exchange,
    peer::Peer,
};

/// Length of a long field's value: with its name and what it costs an entry below the table's 4,096 bytes.
const VALUE: usize = 3_900;

/// How many such fields the longest head has: 128 KiB at the server, 64 KiB at `serve`.
fn long_fields(place: Place) -> usize {
    if place == Place::Serve { 15 } else { 30 }
}

/// Heads that are as long as they may be. Over HTTP/2 they are few bytes: one field is sent once, and repeated.
pub(super) fn large_heads(place: Place, protocol: Protocol) -> Option<Attack> {
    let count = long_fields(place);
    let value = "v".repeat(VALUE);
    Some(match place {
        Place::Public | Place::Serve => {
            let connections = match protocol {
                Protocol::Http1 if place == Place::Public => 800,
                _ => connections(place, protocol),
            };
            Attack::new().by_callers(connections, move |peer| {
                let fields: Vec<_> = (0..count).map(|_| ("x-a", value.clone())).collect();
                async move {
                    let fields: Vec<_> = fields
                        .iter()
                        .map(|(name, value)| (*name, value.as_str()))
                        .collect();
                    for number in 0..super::streams(&peer) {
                        if peer.protocol() == Protocol::Http2 {
                            let mut block = peer.block("GET", &[]);
                            repeat(&mut block, fields[0].1, count, number == 0);
                            peer.ask_block(&block, true).await;
                        } else {
                            peer.ask("GET", &fields, true).await;
                        }
                    }
                }
            })
        }
        Place::Upstream if protocol == Protocol::WebSocket => return None,
        Place::Upstream => asked(place, protocol).answered(move |Exchange { peer, stream }| {
            let value = value.clone();
            async move {
                if peer.protocol().is_http2() {
                    let mut block = vec![0x88];
                    repeat(&mut block, &value, 15, true);
                    peer.send(head_frames(stream, &block, true)).await;
                    return;
                }
                let fields = vec![("x-a", value.as_str()); 30];
                answer_with(Exchange { peer, stream }, &fields).await;
            }
        }),
        Place::TunnelClient | Place::TunnelServer => {
            let fields = vec![("x-a", value.as_str()); 30];
            by_message(before(place, protocol), &fields, &[0, 0], 16 * 1024)
        }
    })
}

/// Appends a field to a block so often. The first time on a connection it enters the table.
fn repeat(block: &mut Vec<u8>, value: &str, count: usize, is_first: bool) {
    if is_first {
        indexed(block, "x-a", value);
    }
    block.extend(std::iter::repeat_n(0xbe, count - usize::from(is_first)));
}

/// As many fields as a head may have.
pub(super) fn many_fields(place: Place, protocol: Protocol) -> Option<Attack> {
    let names: Arc<Vec<String>> = Arc::new((0..990).map(|number| format!("x-{number}")).collect());
    let fields = |count: usize| -> Vec<(&str, &str)> {
        names[..count]
            .iter()
            .map(|name| (name.as_str(), "v"))
            .collect()
    };
    Some(match place {
        Place::Public | Place::Serve => {
            let names = Arc::clone(&names);
            Attack::new().by_callers(connections(place, protocol), move |peer| {
                let names = Arc::clone(&names);
                async move {
                    let fields: Vec<_> = names[..90]
                        .iter()
                        .map(|name| (name.as_str(), "v"))
                        .collect();
                    for _ in 0..super::streams(&peer) {
                        peer.ask("GET", &fields, true).await;
                    }
                }
            })
        }
        Place::Upstream if protocol == Protocol::WebSocket => return None,
        Place::Upstream => {
            let names = Arc::clone(&names);
            asked(place, protocol).answered(move |exchange| {
                let names = Arc::clone(&names);
                async move {
                    let fields: Vec<_> =
                        names[..].iter().map(|name| (name.as_str(), "v")).collect();
                    answer_with(exchange, &fields).await;
                }
            })
        }
        Place::TunnelClient => {
            by_message(before(place, protocol), &fields(990), &[0, 0], 16 * 1024)
        }
        Place::TunnelServer => {
            by_message(before(place, protocol), &fields(990), &[0, 0], 16 * 1024)
        }
    })
}

/// Messages with trailers: from a platform client one after the other, from others to readers that read nothing.
pub(super) fn trailers(place: Place, protocol: Protocol) -> Option<Attack> {
    if protocol == Protocol::WebSocket {
        return None;
    }
    let value = "t".repeat(VALUE);
    Some(match place {
        Place::Public | Place::Serve => Attack::new()
            .by_callers(4, |peer| async move {
                let stream = peer.ask("POST", &[("trailer", "x-t")], false).await;
                if peer.protocol() == Protocol::Http1 {
                    peer.send("3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n").await;
                } else {
                    peer.pieces(stream, b"abc", 1).await;
                    let mut block = Vec::new();
                    literal(&mut block, "x-t", "1");
                    peer.send(head_frames(stream, &block, true)).await;
                }
                sleep(Duration::from_millis(20)).await;
            })
            .again()
            .answered(|exchange| async move { answer_with(exchange, &[]).await }),
        Place::Upstream => asked(place, protocol).answered(move |Exchange { peer, stream }| {
            let value = value.clone();
            async move {
                peer.answer(stream, &[("trailer", "x-t")], false).await;
                peer.pieces(stream, b"abc", 1).await;
                if peer.protocol() == Protocol::Http1 {
                    peer.send(format!(
                        "0\r\n{}\r\n",
                        format!("X-T: {value}\r\n").repeat(15)
                    ))
                    .await;
                    std::future::pending().await
                } else {
                    let mut block = Vec::new();
                    repeat(&mut block, &value, 15, true);
                    peer.send(head_frames(stream, &block, true)).await;
                }
            }
        }),
        Place::TunnelClient | Place::TunnelServer => {
            use testkit::bhttp::field;
            let lines = field(b"x-t", value.as_bytes()).repeat(30);
            let content = [&b"\x03abc\0"[..], &lines, b"\0"].concat();
            by_message(
                before(place, protocol),
                &[("trailer", "x-t")],
                &content,
                16 * 1024,
            )
        }
    })
}

/// Lists with many members, which cost those who read them.
pub(super) fn options_and_ranges(place: Place, protocol: Protocol) -> Option<Attack> {
    let list = |count: usize, of: fn(usize) -> String| -> String {
        (0..count).map(of).collect::<Vec<_>>().join(", ")
    };
    let options = list(60, |number| format!("x-{number}"));
    let ranges = format!(
        "bytes={}",
        list(2_000, |number| format!("{number}-{number}"))
    );
    Some(match place {
        Place::Public | Place::Serve => Attack::new()
            .by_callers(4, move |peer| {
                let (options, ranges) = (options.clone(), ranges.clone());
                async move {
                    let fields = [
                        ("range", &*ranges),
                        ("accept", &*ranges),
                        ("connection", &*options),
                    ];
                    let count = if peer.protocol() == Protocol::Http1 {
                        3
                    } else {
                        2
                    };
                    ask_several(&peer, &fields[..count], 20).await;
                }
            })
            .again()
            .answered(|exchange| async move { answer_with(exchange, &[]).await }),
        Place::Upstream if protocol == Protocol::WebSocket => return None,
        Place::Upstream => {
            super::asked_again(Duration::from_millis(10)).answered(move |exchange| {
                let options = options.clone();
                async move {
                    let name = if exchange.peer.protocol().is_http2() {
                        "vary"
                    } else {
                        "connection"
                    };
                    answer_with(exchange, &[(name, &*options)]).await;
                }
            })
        }
        Place::TunnelClient => {
            let fields = [("vary", &*options), ("accept-ranges", &*ranges)];
            by_message(before(place, protocol), &fields, &[0, 0], 16 * 1024)
        }
        Place::TunnelServer => {
            let fields = [("range", &*ranges), ("accept", &*ranges)];
            by_message(before(place, protocol), &fields, &[0, 0], 16 * 1024)
        }
    })
}

async fn ask_several(peer: &Arc<Peer>, fields: &[(&str, &str)], count: usize) {
    for _ in 0..if peer.protocol().is_http2() { count } else { 1 } {
        peer.ask("GET", fields, true).await;
        sleep(Duration::from_millis(10)).await;
    }
}

/// Cookies in many lines, or as long as they may be.
pub(super) fn cookies(place: Place, protocol: Protocol) -> Option<Attack> {
    Some(match place {
        Place::Public | Place::Serve => {
            Attack::new().by_callers(connections(place, protocol), |peer| async move {
                let long = "c=".to_owned() + &"1".repeat(50_000);
                let fields = if peer.protocol().is_http2() {
                    vec![("cookie", "c=123456"); 3_000]
                } else {
                    vec![("cookie", &*long)]
                };
                for _ in 0..super::streams(&peer) {
                    peer.ask("GET", &fields, true).await;
                }
            })
        }
        Place::Upstream if protocol == Protocol::WebSocket => return None,
        Place::Upstream => asked(place, protocol).answered(|exchange| async move {
            answer_with(exchange, &vec![("set-cookie", "c=123456; Path=/"); 400]).await;
        }),
        Place::TunnelClient => {
            let fields = vec![("set-cookie", "c=123456; Path=/"); 900];
            by_message(before(place, protocol), &fields, &[0, 0], 16 * 1024)
        }
        Place::TunnelServer => {
            let fields = vec![("cookie", "c=123456; d=1"); 900];
            by_message(before(place, protocol), &fields, &[0, 0], 16 * 1024)
        }
    })
}
