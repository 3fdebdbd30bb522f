//! Received bytes of a stream that are not decoded yet.
//!
//! In: pieces as they arrive. Out: a contiguous view of the requested number of bytes, and parts of it as
//! slices. Knows nothing of messages.
//!
//! ```text
//!     partial (copied)         whole (the piece that arrived last)
//!   [ start of an item ]    [ rest of it | items ...................... ]
//! ```
//!
//! Decoded items are slices of the received pieces. Only an item that spans two pieces is copied, and of
//! the second piece only the part that belongs to the item. So each byte is copied at most once (and moved
//! a constant number of times when `partial` grows), however small the pieces are.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};

use super::varint;

/// Received bytes, read from the front.
#[derive(Default)]
pub(super) struct Input {
    /// Comes before `whole`. Empty, except while an item is incomplete.
    partial: BytesMut,
    whole: Bytes,
    /// Total bytes copied, which is the cost that small pieces cause.
    #[cfg(test)]
    pub(super) copied: usize,
}

impl Input {
    /// Appends a piece. Cheapest when all earlier bytes were taken, or `fill` has failed.
    pub(super) fn push(&mut self, data: Bytes) {
        if !self.whole.is_empty() {
            self.join(self.whole.len());
        }
        self.whole = data;
    }

    pub(super) fn len(&self) -> usize {
        self.partial.len() + self.whole.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the next `length` bytes contiguous; false when there are fewer.
    pub(super) fn fill(&mut self, length: usize) -> bool {
        if self.partial.is_empty() {
            if self.whole.len() >= length {
                return true;
            }
            // Copied, so that the piece that it arrived in can be freed.
            self.join(self.whole.len());
            return false;
        }
        let missing = length.saturating_sub(self.partial.len());
        self.join(missing.min(self.whole.len()));
        self.partial.len() >= length
    }

    /// The contiguous bytes at the front: at least as many as the last `fill` granted.
    pub(super) fn front(&self) -> &[u8] {
        if self.partial.is_empty() {
            &self.whole
        } else {
            &self.partial
        }
    }

    /// The integer at offset `at` from the front and the offset of its end; `None` when it is incomplete.
    pub(super) fn varint_at(&mut self, at: usize) -> Option<(u64, usize)> {
        // Most integers are one byte that is already contiguous. Without this fast path, decoding a whole
        // head takes a fifth longer.
        if let Some(first) = self.front().get(at)
            && varint::length(*first) == 1
        {
            return Some((u64::from(*first), at + 1));
        }
        if !self.fill(at + 1) || !self.fill(at + varint::length(self.front()[at])) {
            return None;
        }
        let (value, length) = varint::read(&self.front()[at..])?;
        Some((value, at + length))
    }

    /// The ranges of name and value of the field line at the front, if it lies in one piece and its lengths
    /// take one or two bytes. `None` for others, which take the general path.
    pub(super) fn usual_line(&self) -> Option<(Range<usize>, Range<usize>)> {
        if !self.partial.is_empty() {
            return None;
        }
        let whole = &self.whole[..];
        let name_end = match *whole.first()? {
            length @ 1..=63 => 1 + usize::from(length),
            _ => return None,
        };
        let (length, start) = match *whole.get(name_end)? {
            length @ 0..=63 => (usize::from(length), name_end + 1),
            high @ 64..=127 => {
                let low = *whole.get(name_end + 1)?;
                (usize::from(high - 64) << 8 | usize::from(low), name_end + 2)
            }
            _ => return None,
        };
        let end = start + length;
        (end <= whole.len()).then_some((1..name_end, start..end))
    }

    /// Drops bytes from the front, no more than [`Input::front`] has.
    pub(super) fn advance(&mut self, length: usize) {
        if self.partial.is_empty() {
            self.skip(length);
        } else {
            self.partial.advance(length);
        }
    }

    /// Takes bytes from the front, no more than [`Input::front`] has, without a copy.
    pub(super) fn take(&mut self, length: usize) -> Bytes {
        if self.partial.is_empty() {
            self.whole.split_to(length)
        } else {
            self.partial.split_to(length).freeze()
        }
    }

    /// Drops `skip` bytes and takes the `length` bytes after them, all within [`Input::front`].
    pub(super) fn take_after(&mut self, skip: usize, length: usize) -> Bytes {
        self.advance(skip);
        self.take(length)
    }

    /// Takes the chunks at the front that lie whole in one piece, have fewer than `short` bytes, and fit into `most` bytes
    /// together with `first`. Returns `first` followed by their content, which is copied unless there is no such chunk.
    pub(super) fn join_chunks(&mut self, first: Bytes, short: usize, most: usize) -> Bytes {
        if !self.partial.is_empty() {
            return first;
        }
        let whole = &self.whole[..];
        let mut joined = BytesMut::new();
        let mut end = 0;
        while let Some((length @ 1.., prefix)) = varint::read(&whole[end..]) {
            let start = end + prefix;
            let content = usize::try_from(length)
                .ok()
                .filter(|length| *length < short)
                .and_then(|length| whole.get(start..start + length));
            let Some(content) = content else { break };
            if end == 0 {
                joined.reserve(most.min(first.len() + whole.len()));
                joined.extend_from_slice(&first);
            }
            if joined.len() + content.len() > most {
                break;
            }
            joined.extend_from_slice(content);
            end = start + content.len();
        }
        if end == 0 {
            return first;
        }
        self.skip(end);
        joined.freeze()
    }

    /// Gives back the memory of a copy that is no longer needed.
    pub(super) fn shrink(&mut self) {
        if self.partial.is_empty() {
            self.partial = BytesMut::new();
        }
    }

    /// Moves bytes from the start of `whole` to the end of `partial`.
    fn join(&mut self, length: usize) {
        if length == 0 {
            return;
        }
        self.partial.extend_from_slice(&self.whole[..length]);
        self.skip(length);
        #[cfg(test)]
        {
            self.copied += length;
        }
    }

    fn skip(&mut self, length: usize) {
        self.whole.advance(length);
        if self.whole.is_empty() {
            // Even an empty slice would keep the memory of the whole piece.
            self.whole = Bytes::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_in_one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"abcdef");
        let mut input = Input::default();
        input.push(piece.clone());
        assert!(input.fill(4));
        input.advance(1);
        let taken = input.take(3);
        assert_eq!(taken.as_ptr(), piece[1..].as_ptr());
        assert_eq!(input.copied, 0);
        assert_eq!(input.front(), b"ef");
    }

    #[test]
    fn only_an_item_across_two_pieces_is_copied() {
        let mut input = Input::default();
        input.push(Bytes::from_static(b"abc"));
        assert!(!input.fill(5));
        let second = Bytes::from_static(b"defgh");
        input.push(second.clone());
        assert!(input.fill(5));
        assert_eq!(input.take(5), &b"abcde"[..]);
        assert_eq!(input.copied, 5);
        assert_eq!(input.take(3).as_ptr(), second[2..].as_ptr());
        assert!(input.is_empty());
    }

    #[test]
    fn pieces_pushed_without_a_look_keep_their_order() {
        let mut input = Input::default();
        for piece in [&b"a"[..], b"", b"bc", b"d"] {
            input.push(Bytes::from_static(piece));
        }
        assert_eq!(input.len(), 4);
        assert!(!input.fill(5));
        assert!(input.fill(4));
        assert_eq!(input.front(), b"abcd");
    }

    #[test]
    fn an_integer_is_found_across_pieces() {
        let mut input = Input::default();
        for piece in [&[0xff, 0x9d][..], &[0x7f, 0x3e], &[0x7d, 0xff]] {
            assert_eq!(input.varint_at(1), None);
            input.push(Bytes::copy_from_slice(piece));
        }
        assert_eq!(input.varint_at(1), Some((494_878_333, 5)));
        assert_eq!(input.len(), 6);
    }
}
