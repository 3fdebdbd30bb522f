//! Where an answer ends: its head, and the three ways in which content is framed. Pure: bytes in,
//! how many were used out.

use std::mem::MaybeUninit;

use httparse::{ParserConfig, Response, Status};

use crate::measure::errors::{Failure, FailureKind};

/// The most fields of a head; more is taken for nonsense.
const MOST_FIELDS: usize = 128;

/// The answer breaks HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        FailureKind::Protocol.into()
    }
}

/// What matters of an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// Whether the connection may carry another request.
    pub(super) keeps_open: bool,
}

impl Head {
    /// Whether no other head follows for the request.
    pub(super) fn is_final(self) -> bool {
        self.status >= 200 || self.status == 101
    }
}

/// How much content is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Until the connection closes.
    Close,
    /// A chunk's size line comes next.
    ChunkSize,
    /// So many bytes of a chunk, and the line's end after it.
    Chunk(u64),
    /// Trailers, up to an empty line.
    Trailers,
}

/// The head at the start of `bytes`, how long it is, and how content is framed; none when more
/// bytes are needed.
pub(super) fn head(
    bytes: &[u8],
    is_head: bool,
) -> Result<Option<(usize, Head, Framing)>, Malformed> {
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = Response::new(&mut []);
    let config = ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields);
    let used = match parsed.map_err(|_| Malformed)? {
        Status::Complete(used) => used,
        Status::Partial => return Ok(None),
    };
    let status = response.code.ok_or(Malformed)?;
    let mut head = Head {
        status,
        keeps_open: response.version == Some(1),
    };
    let mut framing = Framing::Close;
    for field in response.headers.iter() {
        let is = |name: &str| field.name.eq_ignore_ascii_case(name);
        if is("content-length") && framing != Framing::ChunkSize {
            framing = Framing::Length(number(field.value)?);
        } else if is("transfer-encoding") {
            framing = match last_item(field.value) {
                item if item.eq_ignore_ascii_case(b"chunked") => Framing::ChunkSize,
                _ => Framing::Close,
            };
        } else if is("connection") {
            let mut items = field
                .value
                .split(|byte| *byte == b',')
                .map(<[u8]>::trim_ascii);
            if items.any(|item| item.eq_ignore_ascii_case(b"close")) {
                head.keeps_open = false;
            }
        }
    }
    if is_head || status < 200 || status == 204 || status == 304 {
        framing = Framing::Length(0);
    }
    Ok(Some((used, head, framing)))
}

impl Framing {
    /// Takes what it can of `bytes`: how many were used, and how many of those were content.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<(usize, u64), Malformed> {
        let mut used = 0;
        let mut content = 0;
        loop {
            let rest = &bytes[used..];
            match self {
                Self::Length(left) => {
                    let taken = take(left, rest);
                    return Ok((used + taken, content + taken as u64));
                }
                Self::Close => return Ok((bytes.len(), content + rest.len() as u64)),
                Self::ChunkSize => {
                    let parsed = httparse::parse_chunk_size(rest).map_err(|_| Malformed)?;
                    let Status::Complete((length, size)) = parsed else {
                        return Ok((used, content));
                    };
                    used += length;
                    *self = match size {
                        0 => Self::Trailers,
                        size => Self::Chunk(size),
                    };
                }
                Self::Chunk(0) => match rest {
                    [] | [b'\r'] => return Ok((used, content)),
                    [b'\r', b'\n', ..] => {
                        used += 2;
                        *self = Self::ChunkSize;
                    }
                    _ => return Err(Malformed),
                },
                Self::Chunk(left) => {
                    let taken = take(left, rest);
                    if taken == 0 {
                        return Ok((used, content));
                    }
                    used += taken;
                    content += taken as u64;
                }
                Self::Trailers => {
                    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
                    let parsed = httparse::parse_headers(rest, &mut fields);
                    let Status::Complete((length, _)) = parsed.map_err(|_| Malformed)? else {
                        return Ok((used, content));
                    };
                    used += length;
                    *self = Self::Length(0);
                }
            }
        }
    }

    /// Whether all has come.
    pub(super) fn is_done(self) -> bool {
        self == Self::Length(0)
    }

    /// Whether only the connection's end says that all has come.
    pub(super) fn is_until_close(self) -> bool {
        self == Self::Close
    }

    /// How many bytes are sure to come, for the size of a buffer.
    pub(super) fn wants(self) -> u64 {
        match self {
            Self::Length(left) | Self::Chunk(left) => left,
            Self::Close => u64::MAX,
            Self::ChunkSize | Self::Trailers => 0,
        }
    }
}

/// Takes as many of `left` as there are bytes.
fn take(left: &mut u64, bytes: &[u8]) -> usize {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    taken
}

fn number(value: &[u8]) -> Result<u64, Malformed> {
    let digits = std::str::from_utf8(value.trim_ascii()).map_err(|_| Malformed)?;
    digits.parse().map_err(|_| Malformed)
}

fn last_item(value: &[u8]) -> &[u8] {
    let items = value.rsplit(|byte| *byte == b',');
    items.map(<[u8]>::trim_ascii).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The content's length, and how many bytes follow it; none when it is incomplete.
    type Content = Result<Option<(u64, usize)>, Malformed>;

    fn read(answer: &[u8], pieces: usize) -> Content {
        let Some((used, head, mut framing)) = head(answer, false)? else {
            return Ok(None);
        };
        assert!(head.is_final());
        let mut length = 0;
        let mut pending = Vec::new();
        let mut rest = answer[used..].chunks(pieces);
        loop {
            let (used, content) = framing.advance(&pending)?;
            length += content;
            pending.drain(..used);
            if framing.is_done() {
                let rest: usize = rest.map(<[u8]>::len).sum();
                return Ok(Some((length, pending.len() + rest)));
            }
            match rest.next() {
                Some(piece) => pending.extend_from_slice(piece),
                None if framing.is_until_close() => return Ok(Some((length, 0))),
                None => return Ok(None),
            }
        }
    }

    #[test]
    fn every_framing_ends_where_it_should() {
        let ok = "HTTP/1.1 200 OK\r\n";
        let cases: [(&str, Content); 11] = [
            ("content-length: 3\r\n\r\nabcX", Ok(Some((3, 1)))),
            ("content-length: 3\r\n\r\nab", Ok(None)),
            ("content-length: 0\r\n\r\n", Ok(Some((0, 0)))),
            ("\r\nuntil the end", Ok(Some((13, 0)))),
            (
                "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nX",
                Ok(Some((3, 1))),
            ),
            (
                "Transfer-Encoding: gzip, Chunked\r\n\r\na;x=y\r\n0123456789\r\n0\r\n\r\n",
                Ok(Some((10, 0))),
            ),
            (
                "transfer-encoding: chunked\r\n\r\n0\r\ntrailer: x\r\n\r\n",
                Ok(Some((0, 0))),
            ),
            ("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", Ok(None)),
            (
                "transfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
                Err(Malformed),
            ),
            ("transfer-encoding: chunked\r\n\r\nxyz\r\n", Err(Malformed)),
            ("content-length: -1\r\n\r\n", Err(Malformed)),
        ];
        for (rest, expected) in cases {
            for pieces in [1, 2, 1000] {
                let answer = format!("{ok}{rest}");
                assert_eq!(read(answer.as_bytes(), pieces), expected, "{rest:?}");
            }
        }
    }

    #[test]
    fn heads_say_whether_the_connection_goes_on() {
        let cases = [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\n\r\n", false),
        ];
        for (answer, expected) in cases {
            let (_, head, _) = head(answer.as_bytes(), false).unwrap().unwrap();
            assert_eq!(head.keeps_open, expected, "{answer:?}");
        }
    }

    #[test]
    fn some_answers_have_no_content_whatever_they_announce() {
        for status in ["204 No Content", "304 Not Modified", "100 Continue"] {
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n");
            let (_, _, framing) = head(answer.as_bytes(), false).unwrap().unwrap();
            assert!(framing.is_done(), "{status}");
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        let (_, _, framing) = head(answer, true).unwrap().unwrap();
        assert!(framing.is_done(), "the answer to HEAD");
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(answer: Vec<u8>, pieces in 1..50_usize) {
            let _ = read(&answer, pieces);
            let mut chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            chunked.extend_from_slice(&answer);
            let _ = read(&chunked, pieces);
        }
    }
}
