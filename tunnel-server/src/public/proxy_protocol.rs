//! The PROXY protocol, versions 1 and 2: a load balancer in front of us says who its client is.
//!
//! In: the first bytes of a connection. Out: the addresses they name, or that there are none to know.
//! What is behind the header is given back untouched. It does not decide whose word is taken for it:
//! the caller reads a header only from a trusted address, and from such a one always, because a
//! header that may be absent is one that a client can write itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

/// Longest header of version 1, its line end included, as the specification has it.
const V1_BYTES: usize = 107;
const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Fixed part of a version 2 header.
const V2_FIXED_BYTES: usize = 16;
/// Most bytes behind the fixed part: what the specification says must always fit in one segment.
/// Beside two addresses of a Unix socket that leaves 304 bytes for what nobody here reads.
const V2_BYTES: usize = 520;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Nothing about a client: the sender speaks for itself (a health check), or does not know, or
    /// knows something that is not the address of a TCP connection.
    Local,
    /// The connection was made by `source`, and to `destination`.
    Proxied {
        /// The client.
        source: SocketAddr,
        /// The address that the client connected to.
        destination: SocketAddr,
    },
}

/// How far [`parse`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole header, and how many bytes it takes.
    Complete {
        /// What it says.
        header: Header,
        /// Where it ends.
        len: usize,
    },
    /// The start of a header; more bytes are needed.
    Incomplete,
}

/// Why some bytes are not a header, nor the start of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each says the same in words")]
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
    /// What came is not a header.
    #[error(transparent)]
    Malformed(#[from] Error),
    /// The header did not come to an end in time.
    #[error("PROXY header did not come in time, only {received} bytes of it")]
    TimedOut {
        /// How much came.
        received: usize,
    },
    /// The connection ended first.
    #[error("connection closed after {received} bytes, before the end of its PROXY header")]
    Closed {
        /// How much came.
        received: usize,
    },
    /// Reading failed.
    #[error("cannot read the PROXY header: {0}")]
    Io(#[from] io::Error),
}

/// Reads a header from `io`, and gives it back with what was read behind it.
///
/// # Errors
/// When there is none, or none that is whole by `deadline`.
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
/// When no further bytes could make it one.
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
        // Whatever follows the word is to be ignored.
        Some(b"UNKNOWN") => Header::Local,
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

/// A port as the specification has it: digits, no sign, no leading zero.
fn v1_port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain && (word == "0" || !word.starts_with('0')) {
        word.parse().ok()
    } else {
        None
    }
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, Error> {
    // Judged as soon as it is there, so that a wrong byte is not waited upon.
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

/// Reads the addresses, and sees that the extensions behind them are whole.
fn v2_addresses(family: u8, rest: &[u8]) -> Result<Header, Error> {
    let addresses = match family >> 4 {
        0x1 => 12,
        0x2 => 36,
        0x3 => 216,
        // Nothing is known of what follows, neither addresses nor extensions.
        _ => return Ok(Header::Local),
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
        _ => Header::Local,
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

/// Walks over extensions: a type, two bytes of length, and as many bytes as that says.
fn check_extensions(mut extensions: &[u8]) -> Result<(), Error> {
    while let [_, rest @ ..] = extensions {
        let (&length, rest) = rest.split_first_chunk::<2>().ok_or(Error::ExtensionCut)?;
        let length = usize::from(u16::from_be_bytes(length));
        extensions = rest.get(length..).ok_or(Error::ExtensionCut)?;
    }
    Ok(())
}
