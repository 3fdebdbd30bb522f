//! Reads the ClientHello of a connection before TLS begins: the name and the protocols that decide whose it is.
//!
//! In: a connection. Out: what its first message offers, and the bytes that were read, which precede the next ones. TLS
//! itself reads them again. What is no ClientHello is left to TLS, which refuses it with an alert.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::{Instant, timeout_at},
};
use tokio_rustls::rustls::server::Acceptor;

/// Bytes read at once: most messages have fewer.
const READ_BYTES: usize = 2 * 1024;

/// Most bytes that are read; TLS takes no longer message.
const MAX_BYTES: usize = 64 * 1024;

/// What a ClientHello offers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClientHello {
    /// The name of the server (SNI, RFC 6066 section 3).
    pub(super) server_name: Option<String>,
    /// Whether HTTP/2 is among the protocols (ALPN, RFC 7301).
    pub(super) offers_http2: bool,
}

/// Reads a ClientHello; `front` was read of the connection already.
///
/// # Errors
/// When it does not come by `deadline`, or the connection ends before.
pub(super) async fn read(
    io: &mut (impl AsyncRead + Unpin),
    front: Bytes,
    deadline: Instant,
) -> io::Result<(ClientHello, Bytes)> {
    let mut acceptor = Acceptor::default();
    let mut bytes = BytesMut::from(front);
    let mut parsed = 0;
    loop {
        let mut unread = &bytes[parsed..];
        let mut hello = None;
        while hello.is_none() && !unread.is_empty() {
            let read = acceptor.read_tls(&mut unread)?;
            hello = match acceptor.accept() {
                Ok(Some(accepted)) => Some(offers(&accepted.client_hello())),
                Ok(None) if read > 0 => None,
                Ok(None) | Err(_) => Some(ClientHello::default()),
            };
        }
        parsed = bytes.len();
        if parsed >= MAX_BYTES {
            hello.get_or_insert_default();
        }
        if let Some(hello) = hello {
            return Ok((hello, bytes.freeze()));
        }
        bytes.reserve(READ_BYTES);
        if timeout_at(deadline, io.read_buf(&mut bytes)).await?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn offers(hello: &tokio_rustls::rustls::server::ClientHello<'_>) -> ClientHello {
    let mut protocols = hello.alpn().into_iter().flatten();
    ClientHello {
        server_name: hello.server_name().map(str::to_owned),
        offers_http2: protocols.any(|protocol| protocol == b"h2"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio_rustls::rustls::{ClientConnection, pki_types::ServerName};
    use tunnel_ops::tls_files::{Roots, client_config};

    use super::*;

    /// The first bytes of a TLS client.
    fn first_message(name: &str, alpn: &[&[u8]]) -> Vec<u8> {
        let authority = crate::certs::NodeAuthority::generate(1).unwrap();
        let roots = Roots::from_pem(&authority.pem).unwrap();
        let config = client_config(&roots, None, alpn).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    async fn read_pieces(pieces: &[&[u8]]) -> io::Result<(ClientHello, Bytes)> {
        let (mut client, mut server) = tokio::io::duplex(128 * 1024);
        let front = Bytes::copy_from_slice(pieces[0]);
        let send = async {
            for piece in &pieces[1..] {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            client.shutdown().await.unwrap();
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        tokio::join!(send, read(&mut server, front, deadline)).1
    }

    #[tokio::test]
    async fn name_and_protocols_are_read_however_the_bytes_come() {
        let bytes = first_message("register.test", &[b"h2", b"http/1.1"]);
        let offered = ClientHello {
            server_name: Some("register.test".to_owned()),
            offers_http2: true,
        };
        for split in [0, 1, 5, 40, bytes.len()] {
            let (start, end) = bytes.split_at(split);
            let (hello, read) = read_pieces(&[start, end]).await.unwrap();
            assert_eq!((&hello, &read[..]), (&offered, &bytes[..]), "{split}");
        }
        let bytes = first_message("192.0.2.1", &[b"http/1.1"]);
        let (hello, _) = read_pieces(&[b"", &bytes]).await.unwrap();
        assert_eq!(hello, ClientHello::default());
    }

    #[tokio::test]
    async fn what_is_no_hello_is_left_to_tls() {
        let (hello, read) = read_pieces(&[b"", b"GET / HTTP/1.1\r\n"]).await.unwrap();
        assert_eq!(hello, ClientHello::default());
        assert_eq!(&read[..], b"GET / HTTP/1.1\r\n");
        let bytes = first_message("register.test", &[]);
        let cut = read_pieces(&[b"", &bytes[..20]]).await.unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
