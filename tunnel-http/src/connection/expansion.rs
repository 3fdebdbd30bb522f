//! How much larger the heads of an HTTP/2 connection are than what was received of it.
//!
//! HPACK sends a field that was sent before as one byte, so that 44 bytes can become a head of 128 KiB, which is then
//! forwarded. A client that repeats no field within a head has at most [`FREE_BYTES`] from its table of sent fields, and
//! the rest of each head is on the wire, at more than half of its length.
//!
//! In: the bytes that the socket gives, and the head of each request. Out: whether the heads are within [`EXPANSION`]
//! times the bytes; a request beyond it is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Uri};

/// What each head may have beside: a table of sent fields, of 4 KiB by default, and the names of fields.
const FREE_BYTES: usize = 5 * 1024;

/// Bytes of heads, beyond [`FREE_BYTES`] of each, that one received byte allows.
const EXPANSION: usize = 10;

/// Most bytes that are allowed in advance, by what was received long ago: some heads of the largest size.
const CREDIT_BYTES: usize = 2 * 1024 * 1024;

/// A mark of a request whose head is larger than its connection allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpandedHead;

/// The bytes of heads that a connection still allows.
#[derive(Debug, Default)]
pub(super) struct HeadCredit(AtomicUsize);

impl HeadCredit {
    /// Bytes were received.
    pub(super) fn on_received(&self, bytes: usize) {
        let more = |credit: usize| {
            let more = credit.saturating_add(bytes.saturating_mul(EXPANSION));
            (credit < CREDIT_BYTES).then_some(more.min(CREDIT_BYTES))
        };
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes the bytes of a head; `false` if there are not so many.
    pub(super) fn take(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let fields = headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        let target = uri.path_and_query().map_or(0, |path| path.as_str().len());
        let bytes = target + fields.sum::<usize>();
        let Some(bytes) = bytes.checked_sub(FREE_BYTES).filter(|bytes| *bytes > 0) else {
            return true;
        };
        let less = |credit: usize| credit.checked_sub(bytes);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn head(lines: usize, length: usize) -> HeaderMap {
        let value = HeaderValue::try_from("v".repeat(length)).unwrap();
        let mut headers = HeaderMap::new();
        for _ in 0..lines {
            headers.append("x-a", value.clone());
        }
        headers
    }

    #[test]
    fn heads_are_within_ten_times_of_what_was_received() {
        let credit = HeadCredit::default();
        let large = head(30, 4_000);
        let (mut received, mut forwarded) = (0, 0);
        credit.on_received(4_100);
        received += 4_100;
        for _ in 0..10_000 {
            credit.on_received(60);
            received += 60;
            forwarded += usize::from(credit.take(&large, &Uri::from_static("/"))) * 30 * 4_003;
        }
        assert!(forwarded > 5 * received, "{forwarded} of {received}");
        assert!(forwarded <= 11 * received, "{forwarded} of {received}");
    }

    #[test]
    fn heads_of_a_client_that_repeats_no_field_in_a_head_are_allowed() {
        let credit = HeadCredit::default();
        // From the table alone, each in few bytes.
        for _ in 0..10_000 {
            credit.on_received(15);
            assert!(credit.take(&head(2, 2_000), &Uri::from_static("/")));
        }
        // Beside the table, in Huffman's shortest code.
        for length in [1_000, 8_000, 120_000] {
            credit.on_received(length * 5 / 8);
            assert!(credit.take(&head(1, length + 4_000), &Uri::from_static("/")));
        }
        // And not by what was received long ago.
        credit.on_received(1 << 40);
        let large = head(30, 4_000);
        let allowed = (0..1_000)
            .filter(|_| credit.take(&large, &Uri::from_static("/")))
            .count();
        assert!(allowed < 20, "{allowed}");
    }
}
