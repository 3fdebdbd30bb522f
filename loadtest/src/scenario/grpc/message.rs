//! Messages behind their prefix of five bytes, and what a call's status is called. Pure.

use anyhow::Context as _;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::HeaderMap;

use crate::measure::errors::FailureKind;

/// A flag for compression, and four bytes of length.
pub(super) const PREFIX: usize = 5;

/// Longest message: the default limit of gRPC libraries is 4 MiB.
const LONGEST: usize = 64 * 1024 * 1024;

/// Where a call's status is, in trailers or in the head of a call that failed at once.
const STATUS: &str = "grpc-status";

/// The highest status that gRPC knows.
const LAST_STATUS: u8 = 16;

/// A message behind its prefix.
pub(super) fn with_prefix(message: &[u8]) -> anyhow::Result<Bytes> {
    let length = u32::try_from(message.len()).context("a message has less than 4 GiB")?;
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    bytes.put_u32(length);
    bytes.put_slice(message);
    Ok(bytes.freeze())
}

/// A message that cannot be read: compressed, which was not requested, or too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedMessage;

/// Messages out of bytes as they come, in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Messages {
    buffer: BytesMut,
}

impl Messages {
    /// Takes a piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next message that is complete, without its prefix.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, MalformedMessage> {
        let Some(mut prefix) = self.buffer.get(..PREFIX) else {
            return Ok(None);
        };
        let is_compressed = prefix.get_u8() != 0;
        let length = prefix.get_u32() as usize;
        if is_compressed || length > LONGEST {
            return Err(MalformedMessage);
        }
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        self.buffer.advance(PREFIX);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Whether a message was begun and not ended.
    pub(super) fn is_cut(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// The status in these fields; none when there is none. The error is what to count.
pub(super) fn status(fields: &HeaderMap) -> Option<Result<(), FailureKind>> {
    let status = fields.get(STATUS)?;
    let code = status.to_str().ok().and_then(|status| status.parse().ok());
    Some(match code {
        Some(0) => Ok(()),
        Some(code @ 1..=LAST_STATUS) => Err(FailureKind::GrpcStatus(code)),
        Some(_) | None => Err(FailureKind::Other("grpc_status_unknown")),
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn messages_come_back_however_they_are_cut() {
        let mut stream = with_prefix(b"hello").unwrap().to_vec();
        stream.extend_from_slice(&with_prefix(b"").unwrap());
        stream.extend_from_slice(&with_prefix(&[7; 300]).unwrap());
        for size in [1, 2, 3, 7, 311, 1000] {
            let mut messages = Messages::default();
            let mut found = Vec::new();
            for piece in stream.chunks(size) {
                messages.push(piece);
                while let Some(message) = messages.next().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(
                found,
                [&b"hello"[..], b"", &[7; 300]],
                "in pieces of {size}"
            );
            assert!(!messages.is_cut());
        }
    }

    #[test]
    fn what_cannot_be_a_message_is_refused() {
        for prefix in [[1, 0, 0, 0, 1], [0, 0xff, 0, 0, 0]] {
            let mut messages = Messages::default();
            messages.push(&prefix);
            assert_eq!(messages.next(), Err(MalformedMessage));
        }
    }

    #[test]
    fn a_status_is_counted_by_its_number() {
        let of = |text: &'static str| {
            let fields = [(
                http::HeaderName::from_static(STATUS),
                HeaderValue::from_static(text),
            )];
            status(&fields.into_iter().collect())
        };
        assert_eq!(of("0"), Some(Ok(())));
        assert_eq!(of("14"), Some(Err(FailureKind::GrpcStatus(14))));
        assert_eq!(
            of("99"),
            Some(Err(FailureKind::Other("grpc_status_unknown")))
        );
        assert_eq!(
            of("x"),
            Some(Err(FailureKind::Other("grpc_status_unknown")))
        );
        assert_eq!(status(&HeaderMap::new()), None);
    }
}
