//! Decodes the content of a response (RFC 9112 sections 6 and 7).
//!
//! In: bytes that were read. Out: data and trailers, and whether the message is complete. It neither reads nor waits.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use httparse::Status;
use tunnel_proto::exchange::BodyError;
use tunnel_proto::limits;

use super::input::{HEAD_BYTES, Input};

/// Longest line of a chunk's size and its extensions, which are ignored.
const SIZE_LINE_BYTES: usize = 4 * 1024;

/// The state of the decoder.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Content {
    /// This many bytes are left.
    Length(u64),
    Chunked(Chunks),
    /// Everything up to the end of the connection.
    ToEnd,
    /// Complete.
    Ended,
}

/// What comes next of a chunked content.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Chunks {
    Size,
    Data(u64),
    DataEnd,
    Trailers,
}

/// Why the content of a response is incomplete.
#[derive(Debug, thiserror::Error)]
pub(in crate::upstream) enum ContentError {
    #[error("the connection ended before the content did")]
    Incomplete,
    #[error("invalid size of a chunk")]
    ChunkSize,
    #[error("no line end after a chunk")]
    ChunkEnd,
    #[error("invalid trailers: {0}")]
    Trailers(String),
    #[error("{0}")]
    Request(BodyError),
    #[error(transparent)]
    Read(#[from] std::io::Error),
}

impl Content {
    pub(super) const fn of_length(length: u64) -> Self {
        match length {
            0 => Self::Ended,
            length => Self::Length(length),
        }
    }

    /// Whether the content is complete and taken.
    pub(in crate::upstream) fn has_ended(&self) -> bool {
        *self == Self::Ended
    }

    /// The next frame; `None` at the end, or when more has to be read.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Option<Frame<Bytes>>, ContentError> {
        loop {
            match self {
                Self::Ended => return Ok(None),
                Self::ToEnd => {
                    let mut left = u64::MAX;
                    return Ok(data(input.bytes(), &mut left));
                }
                Self::Length(left) => {
                    let data = data(input.bytes(), left);
                    if *left == 0 {
                        *self = Self::Ended;
                    }
                    return Ok(data);
                }
                Self::Chunked(Chunks::Data(left)) => {
                    let data = data(input.bytes(), left);
                    if *left == 0 {
                        *self = Self::Chunked(Chunks::DataEnd);
                    }
                    return Ok(data);
                }
                Self::Chunked(chunks) => match chunks.step(input)? {
                    Step::More => return Ok(None),
                    Step::Next(next) => *chunks = next,
                    Step::End(trailers) => {
                        *self = Self::Ended;
                        return Ok(trailers.map(Frame::trailers));
                    }
                },
            }
        }
    }

    /// Takes the end of the content if it was read already, so that it is known with the last data.
    pub(super) fn try_end(&mut self, input: &mut Input) {
        while let Self::Chunked(chunks @ (Chunks::Size | Chunks::DataEnd)) = self {
            match chunks.step(input) {
                Ok(Step::Next(next)) => *chunks = next,
                // The next call finds the error again.
                _ => return,
            }
        }
        if *self == Self::Chunked(Chunks::Trailers) && input.bytes().starts_with(b"\r\n") {
            input.take(2);
            *self = Self::Ended;
        }
    }

    /// The connection has ended.
    pub(super) fn on_end_of_input(&mut self) -> Result<(), ContentError> {
        match std::mem::replace(self, Self::Ended) {
            Self::ToEnd | Self::Ended => Ok(()),
            Self::Length(_) | Self::Chunked(_) => Err(ContentError::Incomplete),
        }
    }
}

/// The result of reading chunk framing.
enum Step {
    More,
    Next(Chunks),
    End(Option<HeaderMap>),
}

impl Chunks {
    /// Reads framing, but no data.
    fn step(&self, input: &mut Input) -> Result<Step, ContentError> {
        match self {
            Self::Size => match httparse::parse_chunk_size(input.bytes()) {
                Ok(Status::Complete((line, size))) => {
                    if !is_size_line(&input.bytes()[..line]) {
                        return Err(ContentError::ChunkSize);
                    }
                    input.bytes().advance(line);
                    Ok(Step::Next(match size {
                        0 => Self::Trailers,
                        size => Self::Data(size),
                    }))
                }
                Ok(Status::Partial) if input.bytes().len() <= SIZE_LINE_BYTES => Ok(Step::More),
                Ok(Status::Partial) | Err(_) => Err(ContentError::ChunkSize),
            },
            Self::DataEnd => match input.bytes()[..] {
                [] | [b'\r'] => Ok(Step::More),
                [b'\r', b'\n', ..] => {
                    input.take(2);
                    Ok(Step::Next(Self::Size))
                }
                _ => Err(ContentError::ChunkEnd),
            },
            Self::Trailers => read_trailers(input),
            Self::Data(_) => Ok(Step::More),
        }
    }
}

/// Whether a line has a size and one line end: the parser reads an empty size as zero, which would be a wrong end of
/// the content.
fn is_size_line(line: &[u8]) -> bool {
    let text = line.strip_suffix(b"\r\n").unwrap_or(b"\n");
    text.first().is_some_and(u8::is_ascii_hexdigit)
        && !text.iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0))
}

/// Up to `left` bytes of data.
fn data(bytes: &mut BytesMut, left: &mut u64) -> Option<Frame<Bytes>> {
    let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= taken as u64;
    (taken > 0).then(|| Frame::data(bytes.split_to(taken).freeze()))
}

fn read_trailers(input: &mut Input) -> Result<Step, ContentError> {
    let invalid = |what: &dyn std::fmt::Display| ContentError::Trailers(what.to_string());
    if input.bytes().starts_with(b"\r\n") {
        input.take(2);
        return Ok(Step::End(None));
    }
    let Some(end) = input.empty_line() else {
        if input.bytes().len() > HEAD_BYTES {
            return Err(invalid(&"too large"));
        }
        return Ok(Step::More);
    };
    let bytes = input.take(end);
    let mut space = vec![httparse::EMPTY_HEADER; limits::FIELDS];
    let found = match httparse::parse_headers(&bytes, &mut space) {
        Ok(Status::Complete((read, found))) if read == end => found,
        Ok(_) => return Err(invalid(&"an empty line in between")),
        Err(error) => return Err(invalid(&error)),
    };
    let mut trailers = HeaderMap::with_capacity(found.len());
    for field in found {
        let name =
            HeaderName::from_bytes(field.name.as_bytes()).map_err(|error| invalid(&error))?;
        let value = HeaderValue::from_bytes(field.value).map_err(|error| invalid(&error))?;
        trailers.append(name, value);
    }
    Ok(Step::End(Some(trailers)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKED: Content = Content::Chunked(Chunks::Size);

    /// Data, trailers, what is left over.
    type Decoded = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

    /// What comes out when the bytes come in these pieces.
    fn decoded(mut content: Content, pieces: &[&[u8]]) -> Result<Decoded, ContentError> {
        let (mut input, mut all, mut trailers) = (Input::of_test(b""), Vec::new(), None);
        for piece in pieces {
            input.bytes().extend_from_slice(piece);
            while let Some(frame) = content.next(&mut input)? {
                content.try_end(&mut input);
                match frame.into_data() {
                    Ok(data) => all.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
            }
        }
        content.on_end_of_input()?;
        Ok((all, trailers, input.bytes().to_vec()))
    }

    #[test]
    fn a_length_ends_where_it_says() {
        let (data, _, rest) = decoded(Content::Length(3), &[b"ab", b"cd"]).unwrap();
        assert_eq!((&data[..], &rest[..]), (&b"abc"[..], &b"d"[..]));
        let short = decoded(Content::Length(3), &[b"ab"]);
        assert!(matches!(short, Err(ContentError::Incomplete)));
        let (data, ..) = decoded(Content::ToEnd, &[b"ab", b"cd"]).unwrap();
        assert_eq!(data, b"abcd");
    }

    #[test]
    fn an_end_that_is_there_is_known_with_the_last_data() {
        let mut input = Input::of_test(b"2\r\nab\r\n0\r\n\r\n");
        let mut content = CHUNKED;
        assert!(content.next(&mut input).unwrap().unwrap().is_data());
        content.try_end(&mut input);
        assert!(content.has_ended() && input.is_empty());
    }

    #[test]
    fn broken_chunks_are_errors() {
        for text in [
            "x\r\n",
            "-1\r\n",
            "\r\n\r\n",
            ";x\r\n\r\n",
            "5\r\nhello\r\n\r\n\r\n",
            "0\n\r\n",
            "1;a\nb\r\na\r\n0\r\n\r\n",
            "fffffffffffffffff\r\n",
            "1\r\nabc",
            "1\r\na\n0\r\n\r\n",
            "0\r\n\nx: y\r\n\r\n",
            "0\r\nno colon\r\n\r\n",
            "1\r\na\r\n0\r\n",
            "1\r\na",
        ] {
            assert!(decoded(CHUNKED, &[text.as_bytes()]).is_err(), "{text:?}");
        }
        let endless = format!("1;{}", "x".repeat(SIZE_LINE_BYTES));
        assert!(decoded(CHUNKED, &[endless.as_bytes()]).is_err());
    }

    proptest! {
        #[test]
        fn chunks_come_out_alike_however_they_come_in(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..5),
            has_trailers: bool,
            cuts in prop::collection::vec(0usize..200, 0..20),
        ) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x};a=b\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            let end: &[u8] = if has_trailers { b"0\r\nx: 1\r\ny: 2\r\n\r\n" } else { b"0\r\n\r\n" };
            bytes.extend_from_slice(end);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % bytes.len()).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let (data, trailers, rest) = decoded(CHUNKED, &pieces).unwrap();
            prop_assert_eq!(data, chunks.concat());
            prop_assert_eq!(trailers.map(|trailers| trailers.len()), has_trailers.then_some(2));
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decoded(CHUNKED, &[&noise]);
            let _ = decoded(CHUNKED, &[b"0\r\n", &noise]);
        }
    }
}
