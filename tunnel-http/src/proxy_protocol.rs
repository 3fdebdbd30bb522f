//! The PROXY protocol, versions 1 and 2: a load balancer in front of the listener names the address of its client.
//!
//! In: the first bytes of a connection. Out: the addresses in the header, if it has any, and the bytes after the header,
//! unchanged. The caller decides about trust: it requires a header from each trusted address and reads none from others,
//! since a client could write an optional header itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

/// Longest header of version 1 by the specification, with its line end.
const V1_BYTES: usize = 107;
const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Fixed part of a version 2 header.
const V2_FIXED_BYTES: usize = 16;
/// Most bytes after the fixed part: those that fit into one segment by the specification. With two addresses of a Unix
/// socket that leaves 304 bytes for extensions, which are not read.
const V2_BYTES: usize = 520;

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The connection is the sender's own, such as a health check.
    Local,
    /// The connection is that of a client without a known TCP address.
    Unknown,
    /// The connection was made by `source`, and to `destination`.
    Proxied {
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole header, and how many bytes it takes.
    Complete {
        /// Its content.
        header: Header,
        /// Its length in bytes.
        len: usize,
    },
    /// The start of a header; more bytes are needed.
    Incomplete,
}

/// Why some bytes are neither a header nor the start of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each has a message")]
pub enum Error {
    #[error("connection does not start with a PROXY protocol header")]
    Absent,
    #[error("PROXY header of version 1 does not end within {V1_BYTES} bytes")]
    LineTooLong,
    #[error("PROXY header of version 1 is malformed")]
    Line,
    #[error("PROXY header of version 2 has an unknown version or command")]
    VersionOrCommand,
    #[error("PROXY header of version 2 has an unknown address family or transport")]
    FamilyOrTransport,
    #[error("PROXY header of version 2 is longer than {} bytes", V2_FIXED_BYTES + V2_BYTES)]
    TooLong,
    #[error("PROXY header of version 2 ends inside of its addresses")]
    AddressesCut,
    #[error("PROXY header of version 2 ends inside of an extension")]
    ExtensionCut,
}

/// Why no header could be read from a connection.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The received bytes are not a header.
    #[error(transparent)]
    Malformed(#[from] Error),
    /// The header was not complete in time.
    #[error("PROXY header did not come in time, only {received} bytes of it")]
    TimedOut {
        /// How much came.
        received: usize,
    },
    /// The connection ended before the header was complete.
    #[error("connection closed after {received} bytes, before the end of its PROXY header")]
    Closed {
        /// How much came.
        received: usize,
    },
    /// Reading failed.
    #[error("cannot read the PROXY header: {0}")]
    Io(#[from] io::Error),
}

/// Reads a header from `io`. Returns `io` with the bytes that were read after the header.
///
/// # Errors
/// When there is no complete header by `deadline`.
pub async fn read<IO: AsyncRead + Unpin>(
    io: &mut IO,
    deadline: Instant,
) -> Result<(Header, Bytes), ReadError> {
    let mut read = BytesMut::with_capacity(V2_FIXED_BYTES + V2_BYTES);
    loop {
        match timeout_at(deadline, io.read_buf(&mut read)).await {
            Err(_) => {
                return Err(ReadError::TimedOut {
                    received: read.len(),
                });
            }
            Ok(Ok(0)) => {
                return Err(ReadError::Closed {
                    received: read.len(),
                });
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.into()),
        }
        if let Parsed::Complete { header, len } = parse(&read)? {
            return Ok((header, read.freeze().slice(len..)));
        }
    }
}

/// Reads a header at the start of `bytes`.
///
/// # Errors
/// When `bytes` are not the start of a header.
pub fn parse(bytes: &[u8]) -> Result<Parsed, Error> {
    let starts_like = |start: &[u8]| {
        let compared = bytes.len().min(start.len());
        bytes[..compared] == start[..compared]
    };
    if starts_like(V2_START) {
        parse_v2(bytes)
    } else if starts_like(V1_START) {
        parse_v1(bytes)
    } else {
        Err(Error::Absent)
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Parsed, Error> {
    let bytes = &bytes[..bytes.len().min(V1_BYTES)];
    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return if bytes.len() == V1_BYTES {
            Err(Error::LineTooLong)
        } else {
            Ok(Parsed::Incomplete)
        };
    };
    let mut words = bytes[V1_START.len()..end].split(|&byte| byte == b' ');
    let header = match words.next() {
        // The specification says to ignore the rest of the line.
        Some(b"UNKNOWN") => Header::Unknown,
        Some(b"TCP4") => v1_addresses::<Ipv4Addr>(words).ok_or(Error::Line)?,
        Some(b"TCP6") => v1_addresses::<Ipv6Addr>(words).ok_or(Error::Line)?,
        _ => return Err(Error::Line),
    };
    Ok(Parsed::Complete {
        header,
        len: end + 2,
    })
}

/// Reads `source destination source-port destination-port`, and nothing after it.
fn v1_addresses<'a, Ip>(words: impl Iterator<Item = &'a [u8]>) -> Option<Header>
where
    Ip: std::str::FromStr + Into<IpAddr>,
{
    let mut words = words.map_while(|word| std::str::from_utf8(word).ok());
    let source = words.next()?.parse::<Ip>().ok()?.into();
    let destination = words.next()?.parse::<Ip>().ok()?.into();
    let source = SocketAddr::new(source, v1_port(words.next()?)?);
    let destination = SocketAddr::new(destination, v1_port(words.next()?)?);
    words.next().is_none().then_some(Header::Proxied {
        source,
        destination,
    })
}

/// A port in the specification's format: digits, no sign, no leading zero.
fn v1_port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain && (word == "0" || !word.starts_with('0')) {
        word.parse().ok()
    } else {
        None
    }
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, Error> {
    // Checked as soon as it is received, so that an invalid header fails without further bytes.
    let is_local = match bytes.get(12) {
        None => return Ok(Parsed::Incomplete),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(Error::VersionOrCommand),
    };
    let Some(&family) = bytes.get(13) else {
        return Ok(Parsed::Incomplete);
    };
    if family >> 4 > 3 || family & 0xf > 2 {
        return Err(Error::FamilyOrTransport);
    }
    let Some(&[high, low]) = bytes.get(14..V2_FIXED_BYTES) else {
        return Ok(Parsed::Incomplete);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > V2_BYTES {
        return Err(Error::TooLong);
    }
    let len = V2_FIXED_BYTES + length;
    let Some(rest) = bytes.get(V2_FIXED_BYTES..len) else {
        return Ok(Parsed::Incomplete);
    };
    let header = if is_local {
        Header::Local
    } else {
        v2_addresses(family, rest)?
    };
    Ok(Parsed::Complete { header, len })
}

/// Reads the addresses, and checks that the extensions behind them are whole.
fn v2_addresses(family: u8, rest: &[u8]) -> Result<Header, Error> {
    let addresses = match family >> 4 {
        0x1 => 12,
        0x2 => 36,
        0x3 => 216,
        // The format of the rest is not specified.
        _ => return Ok(Header::Unknown),
    };
    let (addresses, extensions) = rest
        .split_at_checked(addresses)
        .ok_or(Error::AddressesCut)?;
    check_extensions(extensions)?;
    Ok(match (family, addresses) {
        (0x11, &[a, b, c, d, e, f, g, h, sp0, sp1, dp0, dp1]) => Header::Proxied {
            source: SocketAddr::from(([a, b, c, d], u16::from_be_bytes([sp0, sp1]))),
            destination: SocketAddr::from(([e, f, g, h], u16::from_be_bytes([dp0, dp1]))),
        },
        (0x21, addresses) => v2_ipv6(addresses).ok_or(Error::AddressesCut)?,
        // A Unix socket, or datagrams.
        _ => Header::Unknown,
    })
}

fn v2_ipv6(addresses: &[u8]) -> Option<Header> {
    let (source, rest) = addresses.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    let (source_port, rest) = rest.split_first_chunk::<2>()?;
    let destination_port = rest.first_chunk::<2>()?;
    Some(Header::Proxied {
        source: SocketAddr::from((*source, u16::from_be_bytes(*source_port))),
        destination: SocketAddr::from((*destination, u16::from_be_bytes(*destination_port))),
    })
}

/// Checks that extensions are complete: each has a type, two bytes of length, and that many bytes.
fn check_extensions(mut extensions: &[u8]) -> Result<(), Error> {
    while let [_, rest @ ..] = extensions {
        let (&length, rest) = rest.split_first_chunk::<2>().ok_or(Error::ExtensionCut)?;
        let length = usize::from(u16::from_be_bytes(length));
        extensions = rest.get(length..).ok_or(Error::ExtensionCut)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;

    fn proxied(source: &str, destination: &str) -> Header {
        Header::Proxied {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    /// A version 2 header with `rest` behind its fixed part.
    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2_START, &[command, family], &length, rest].concat()
    }

    const IPV4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];

    fn ipv6() -> Vec<u8> {
        let source = "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets();
        let destination = "2001:db8::2".parse::<Ipv6Addr>().unwrap().octets();
        [&source[..], &destination, &[0xdc, 0x04, 0x01, 0xbb]].concat()
    }

    /// Parses `bytes`, having seen that no start of them says anything but that more is needed.
    fn parse_whole(bytes: &[u8]) -> Result<Header, Error> {
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                Ok(Parsed::Incomplete) => {}
                Ok(complete) => panic!("{complete:?} at {end} of {}", bytes.escape_ascii()),
                Err(error) => return Err(error),
            }
        }
        match parse(bytes)? {
            Parsed::Complete { header, len } => {
                assert_eq!(len, bytes.len(), "{}", bytes.escape_ascii());
                let more = [bytes, b"GET / HTTP/1.1\r\n"].concat();
                assert_eq!(parse(&more), Ok(Parsed::Complete { header, len }));
                Ok(header)
            }
            Parsed::Incomplete => panic!("{} is not whole", bytes.escape_ascii()),
        }
    }

    #[test]
    fn version_1() {
        for (line, header) in [
            (
                "TCP4 192.0.2.1 198.51.100.2 56324 443",
                proxied("192.0.2.1:56324", "198.51.100.2:443"),
            ),
            (
                "TCP4 0.0.0.0 255.255.255.255 0 65535",
                proxied("0.0.0.0:0", "255.255.255.255:65535"),
            ),
            (
                "TCP6 2001:db8::1 ::1 56324 443",
                proxied("[2001:db8::1]:56324", "[::1]:443"),
            ),
            ("UNKNOWN", Header::Unknown),
            (
                "UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535",
                Header::Unknown,
            ),
            ("UNKNOWN \u{e4} \n", Header::Unknown),
        ] {
            assert_eq!(
                parse_whole(format!("PROXY {line}\r\n").as_bytes()),
                Ok(header),
                "{line}"
            );
        }
    }

    #[test]
    fn version_1_malformed() {
        for line in [
            "",
            " TCP4 192.0.2.1 198.51.100.2 1 2",
            "TCP",
            "TCP4",
            "tcp4 192.0.2.1 198.51.100.2 1 2",
            "UDP4 192.0.2.1 198.51.100.2 1 2",
            "TCP4  192.0.2.1 198.51.100.2 1 2",
            "TCP4 192.0.2.1 198.51.100.2 1",
            "TCP4 192.0.2.1 198.51.100.2 1 ",
            "TCP4 192.0.2.1 198.51.100.2 1 2 ",
            "TCP4 192.0.2.1 198.51.100.2 1 2 3",
            "TCP4 192.0.2.1 198.51.100.2 01 2",
            "TCP4 192.0.2.1 198.51.100.2 +1 2",
            "TCP4 192.0.2.1 198.51.100.2 -1 2",
            "TCP4 192.0.2.1 198.51.100.2 1 65536",
            "TCP4 192.0.2.01 198.51.100.2 1 2",
            "TCP4 192.0.2 198.51.100.2 1 2",
            "TCP4 ::1 ::1 1 2",
            "TCP6 192.0.2.1 198.51.100.2 1 2",
            "TCP6 fe80::1%eth0 ::1 1 2",
            "TCP6 [::1] ::1 1 2",
            "TCP4 192.0.2.1\t198.51.100.2 1 2",
            "TCP4 192.0.2.1 198.51.100.2 1 2\n",
            "TCP4 192.0.2.\u{e4} 198.51.100.2 1 2",
        ] {
            let header = format!("PROXY {line}\r\n");
            assert_eq!(parse_whole(header.as_bytes()), Err(Error::Line), "{line:?}");
        }
    }

    #[test]
    fn version_1_has_an_end() {
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES - 16));
        assert_eq!(
            (longest.len(), parse_whole(longest.as_bytes())),
            (107, Ok(Header::Unknown))
        );
        let longer = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES - 15));
        assert_eq!(parse_whole(longer.as_bytes()), Err(Error::LineTooLong));
    }

    #[test]
    fn version_2() {
        let (v4, v6) = (
            proxied("192.0.2.1:56324", "198.51.100.2:443"),
            proxied("[2001:db8::1]:56324", "[2001:db8::2]:443"),
        );
        let extension = [0x01, 0x00, 0x02, b'h', b'2', 0x04, 0x00, 0x00];
        for (bytes, header) in [
            (v2(0x21, 0x11, &IPV4), v4),
            (v2(0x21, 0x21, &ipv6()), v6),
            (v2(0x21, 0x11, &[&IPV4[..], &extension].concat()), v4),
            (v2(0x21, 0x21, &[&ipv6()[..], &extension].concat()), v6),
            (
                v2(
                    0x21,
                    0x11,
                    &[&IPV4[..], &[0xee, 0x01, 0xf9], &[0; 505]].concat(),
                ),
                v4,
            ),
            (v2(0x20, 0x00, &[]), Header::Local),
            (v2(0x20, 0x11, &IPV4), Header::Local),
            (v2(0x20, 0x11, &[1, 2, 3]), Header::Local),
            (v2(0x21, 0x00, &[1, 2, 3]), Header::Unknown),
            (v2(0x21, 0x31, &[0; 216]), Header::Unknown),
            (v2(0x21, 0x12, &IPV4), Header::Unknown),
            (v2(0x21, 0x22, &ipv6()), Header::Unknown),
        ] {
            assert_eq!(parse_whole(&bytes), Ok(header), "{bytes:x?}");
        }
    }

    #[test]
    fn version_2_malformed() {
        for (bytes, error) in [
            (v2(0x11, 0x11, &IPV4), Error::VersionOrCommand),
            (v2(0x22, 0x11, &IPV4), Error::VersionOrCommand),
            (v2(0x31, 0x11, &IPV4), Error::VersionOrCommand),
            (v2(0x21, 0x41, &IPV4), Error::FamilyOrTransport),
            (v2(0x21, 0x13, &IPV4), Error::FamilyOrTransport),
            (v2(0x21, 0x11, &IPV4[..11]), Error::AddressesCut),
            (v2(0x21, 0x11, &[]), Error::AddressesCut),
            (v2(0x21, 0x21, &IPV4), Error::AddressesCut),
            (v2(0x21, 0x31, &[0; 215]), Error::AddressesCut),
            (
                v2(0x21, 0x11, &[&IPV4[..], &[1]].concat()),
                Error::ExtensionCut,
            ),
            (
                v2(0x21, 0x11, &[&IPV4[..], &[1, 0]].concat()),
                Error::ExtensionCut,
            ),
            (
                v2(0x21, 0x11, &[&IPV4[..], &[1, 0, 1]].concat()),
                Error::ExtensionCut,
            ),
            (
                v2(0x21, 0x21, &[&ipv6()[..], &[1, 1, 0, 1]].concat()),
                Error::ExtensionCut,
            ),
            (v2(0x20, 0x00, &[0; 521]), Error::TooLong),
        ] {
            assert_eq!(parse_whole(&bytes), Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn anything_else_is_known_at_its_first_wrong_byte() {
        for bytes in [
            "G",
            "p",
            " ",
            "PROXY\t",
            "PROXYT",
            "\r\nG",
            "\r\n\r\n\0\r\nQUIT\r",
        ] {
            let start = &bytes[..bytes.len() - 1];
            assert_eq!(parse(start.as_bytes()), Ok(Parsed::Incomplete), "{start:?}");
            assert_eq!(parse(bytes.as_bytes()), Err(Error::Absent), "{bytes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_behind_the_header_is_given_back() {
        let request = b"GET / HTTP/1.1\r\n";
        for header in [
            b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n".to_vec(),
            v2(0x21, 0x11, &IPV4),
        ] {
            let stream = [&header[..], request].concat();
            for cut in 0..stream.len() {
                let (mut client, mut server) = tokio::io::duplex(1024);
                let (first, second) = stream.split_at(cut);
                let send = async {
                    client.write_all(first).await.unwrap();
                    tokio::task::yield_now().await;
                    client.write_all(second).await.unwrap();
                    client.shutdown().await.unwrap();
                };
                let deadline = Instant::now() + Duration::from_secs(1);
                let receive = async {
                    let (header, rest) = read(&mut server, deadline).await.unwrap();
                    let mut all = rest.to_vec();
                    server.read_to_end(&mut all).await.unwrap();
                    (header, all)
                };
                let ((), (header, rest)) = tokio::join!(send, receive);
                assert_eq!(header, proxied("192.0.2.1:56324", "198.51.100.2:443"));
                assert_eq!(rest, request);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_come_ends_the_wait() {
        for start in [
            &b""[..],
            b"P",
            b"PROXY TCP4 ",
            V2_START,
            &v2(0x21, 0x11, &IPV4)[..27],
        ] {
            let (mut client, mut server) = tokio::io::duplex(1024);
            client.write_all(start).await.unwrap();
            let deadline = Instant::now() + Duration::from_secs(1);
            let error = read(&mut server, deadline).await.unwrap_err();
            assert!(matches!(error, ReadError::TimedOut { received } if received == start.len()));
            assert_eq!(Instant::now(), deadline);

            let (mut client, mut server) = tokio::io::duplex(1024);
            client.write_all(start).await.unwrap();
            drop(client);
            let deadline = Instant::now() + Duration::from_secs(1);
            let error = read(&mut server, deadline).await.unwrap_err();
            assert!(matches!(error, ReadError::Closed { received } if received == start.len()));
        }
        let (mut client, mut server) = tokio::io::duplex(1024);
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        let error = read(&mut server, Instant::now() + Duration::from_secs(1))
            .await
            .unwrap_err();
        assert!(matches!(error, ReadError::Malformed(Error::Absent)));
    }

    fn address() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let ports = any::<(u16, u16)>();
        prop_oneof![
            (any::<(Ipv4Addr, Ipv4Addr)>(), ports)
                .prop_map(|((a, b), (c, d))| ((a, c).into(), (b, d).into())),
            (any::<(Ipv6Addr, Ipv6Addr)>(), ports)
                .prop_map(|((a, b), (c, d))| ((a, c).into(), (b, d).into())),
        ]
    }

    proptest! {
        #[test]
        fn any_addresses_are_read_back(
            (source, destination) in address(),
            extensions in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let header = Header::Proxied { source, destination };
            let (family, word) = if source.is_ipv4() { (0x11, "TCP4") } else { (0x21, "TCP6") };
            let line = format!(
                "PROXY {word} {} {} {} {}\r\n",
                source.ip(), destination.ip(), source.port(), destination.port(),
            );
            prop_assert_eq!(parse_whole(line.as_bytes()), Ok(header));

            let mut rest = Vec::new();
            for address in [source, destination] {
                match address.ip() {
                    IpAddr::V4(ip) => rest.extend_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => rest.extend_from_slice(&ip.octets()),
                }
            }
            rest.extend_from_slice(&source.port().to_be_bytes());
            rest.extend_from_slice(&destination.port().to_be_bytes());
            for (kind, value) in extensions {
                rest.extend_from_slice(&[kind, 0, u8::try_from(value.len()).unwrap()]);
                rest.extend_from_slice(&value);
            }
            prop_assert_eq!(parse_whole(&v2(0x21, family, &rest)), Ok(header));
        }

        #[test]
        fn noise_never_panics_and_never_takes_more_than_it_is(
            start in 0..3usize,
            noise in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let start = [&b""[..], V1_START, V2_START][start];
            let bytes = [start, &noise].concat();
            if let Ok(Parsed::Complete { len, .. }) = parse(&bytes) {
                prop_assert!(len <= bytes.len() && len <= V2_FIXED_BYTES + V2_BYTES);
            }
            if bytes.len() >= V2_FIXED_BYTES + V2_BYTES {
                prop_assert_ne!(parse(&bytes), Ok(Parsed::Incomplete));
            }
        }
    }
}
