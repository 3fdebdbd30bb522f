//! A server that only wants to know whether streams are accepted, written frame by frame.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::server::TunnelServer;
use crate::setup::Running;
use testkit::deadline::SOON;

/// Frames of WebSocket, as the server sends them.
const TEXT: u8 = 0x81;
const BINARY: u8 = 0x82;
/// What the multiplexer's frames are, and their flags.
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 1;
const SYN: u16 = 1;
const RST: u16 = 8;

/// More than a multiplexer may have open without their having been acknowledged.
const PROBES: u32 = 300;

/// The server's end, as bytes.
struct Wire<IO> {
    io: IO,
    /// Bytes of the multiplexer that are not read yet.
    unread: Vec<u8>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    async fn send(&mut self, kind: u8, payload: &[u8]) {
        assert!(payload.len() < 126);
        let mut frame = vec![kind, payload.len().try_into().unwrap()];
        frame.extend_from_slice(payload);
        self.io.write_all(&frame).await.unwrap();
        self.io.flush().await.unwrap();
    }

    /// A frame without content about a stream.
    async fn tell(&mut self, flags: u16, stream: u32) {
        let mut frame = vec![0, WINDOW_UPDATE];
        frame.extend_from_slice(&flags.to_be_bytes());
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(&0_u32.to_be_bytes());
        self.send(BINARY, &frame).await;
    }

    /// Adds the next message of the multiplexer to what is unread.
    async fn receive(&mut self) {
        loop {
            let mut start = [0; 2];
            self.io.read_exact(&mut start).await.unwrap();
            let length = match start[1] & 0x7f {
                126 => usize::from(self.io.read_u16().await.unwrap()),
                short => short.into(),
            };
            let mut mask = [0; 4];
            self.io.read_exact(&mut mask).await.unwrap();
            let mut payload = vec![0; length];
            self.io.read_exact(&mut payload).await.unwrap();
            if start[0] == BINARY {
                let plain = payload.iter().zip(mask.iter().cycle());
                self.unread.extend(plain.map(|(byte, mask)| byte ^ mask));
                return;
            }
        }
    }

    /// What the client writes next, and on which stream.
    async fn written(&mut self) -> (u32, Vec<u8>) {
        loop {
            while self.unread.len() < 12 {
                self.receive().await;
            }
            let number =
                |at: usize| u32::from_be_bytes(self.unread[at..at + 4].try_into().unwrap());
            let (kind, stream) = (self.unread[1], number(4));
            let length = if kind == DATA { number(8) as usize } else { 0 };
            while self.unread.len() < 12 + length {
                self.receive().await;
            }
            let content: Vec<u8> = self.unread.drain(..12 + length).skip(12).collect();
            if !content.is_empty() {
                return (stream, content);
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_before_a_request_came_is_nothing_special() {
    let mut server = TunnelServer::start().await;
    let client = Running::start(&server, "http://127.0.0.1:1", |_| {});
    let mut wire = Wire {
        io: server.accept_bytes().await,
        unread: Vec::new(),
    };
    // Streams are accepted before the welcome: this is how a server knows that it may say it.
    let probing = async {
        for stream in (0..PROBES).map(|probe| 2 * probe + 1) {
            wire.tell(SYN, stream).await;
            assert_eq!(wire.written().await, (stream, vec![1]), "accepted");
            wire.tell(RST, stream).await;
        }
    };
    timeout(SOON, probing).await.unwrap();
    let welcome = br#"{"type":"welcome","runtime":"a-b","session":"1","version":"test"}"#;
    wire.send(TEXT, welcome).await;
    client.wait_metric("sessions", 1.0).await;
    client.wait_metric("open_exchanges", 0.0).await;
    for status in ["2xx", "4xx", "5xx", "cancelled"] {
        let series = format!("exchanges_total{{status=\"{status}\"}}");
        client.wait_metric(&series, 0.0).await;
    }
}
