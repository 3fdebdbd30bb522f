//! A server that only wants to know whether streams are accepted, written frame by frame.

use testkit::{
    deadline::soon,
    tunnel::{
        server::FakeServer,
        wire::{BINARY, TEXT, Wire},
    },
    yamux::{Frame, RST, SYN, WINDOW},
};
use tunnel_proto::session::Side;

use crate::setup::Running;

/// More than a multiplexer may have open without their having been acknowledged.
const PROBES: u32 = 300;

#[tokio::test]
async fn a_stream_that_is_reset_before_a_request_came_is_nothing_special() {
    let mut server = FakeServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |_| {});
    let mut wire = Wire::new(server.accept_bytes().await, b"", Side::Server);
    let about = |flags, stream| Frame::bare(WINDOW, flags, stream, 0).bytes();
    // Streams are accepted before the welcome: this is how a server knows that it may say it.
    let probing = async {
        for stream in (0..PROBES).map(|probe| 2 * probe + 1) {
            wire.frame(BINARY, &about(SYN, stream)).await;
            let accepted = wire.next_data().await;
            assert_eq!((accepted.stream, &accepted.body[..]), (stream, &[1][..]));
            wire.frame(BINARY, &about(RST, stream)).await;
        }
    };
    soon("the acceptance of all streams", probing).await;
    let welcome = br#"{"type":"welcome","runtime":"a-b","session":"1","version":"test"}"#;
    wire.frame(TEXT, welcome).await;
    client.wait_metric("sessions", 1.0).await;
    client.wait_metric("open_exchanges", 0.0).await;
    for status in ["2xx", "4xx", "5xx", "cancelled"] {
        let series = format!("exchanges_total{{status=\"{status}\"}}");
        client.wait_metric(&series, 0.0).await;
    }
}
