//! Finds the positions between two events of an event stream.
//!
//! An event ends with a blank line; lines end with LF, CR or both (HTML, section 9.2.5). Comments, which
//! begin with a colon, belong to no event.

use super::Units;

/// The position in an event stream.
#[derive(Debug, Default)]
pub struct Events {
    line: LinePosition,
    /// Whether the last byte was a CR, which an LF may follow.
    has_cr: bool,
    /// Whether an LF has followed a CR. Then the lines of the stream end with CR LF, and a CR is half of a line end.
    is_crlf: bool,
    /// Whether there are lines of an event that has not ended.
    is_within: bool,
}

/// Where in a line the last byte was.
#[derive(Debug, Default, PartialEq, Eq)]
enum LinePosition {
    #[default]
    Start,
    Within,
}

impl Units for Events {
    fn step(&mut self, bytes: &[u8]) -> usize {
        let first = bytes[0];
        if std::mem::take(&mut self.has_cr) && first == b'\n' {
            self.is_crlf = true;
            return 1;
        }
        if self.line == LinePosition::Start {
            match first {
                b'\r' | b'\n' => {
                    self.is_within = false;
                    self.has_cr = first == b'\r';
                    return 1;
                }
                b':' => {}
                _ => self.is_within = true,
            }
            self.line = LinePosition::Within;
        }
        let Some(end) = memchr::memchr2(b'\r', b'\n', bytes) else {
            return bytes.len();
        };
        self.line = LinePosition::Start;
        self.has_cr = bytes[end] == b'\r';
        end + 1
    }

    fn is_between(&self) -> bool {
        self.line == LinePosition::Start && !self.is_within && !(self.has_cr && self.is_crlf)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_between(text: &str) -> bool {
        let mut events = Events::default();
        events.advance(text.as_bytes());
        events.is_between()
    }

    #[test]
    fn an_event_ends_with_a_blank_line() {
        for whole in [
            "",
            "data: x\n\n",
            "data: x\r\n\r\n",
            "data: x\r\r",
            "event: a\ndata: x\ndata\n\n",
            ": comment\n",
            "data: x\n\n: comment\n",
            "\n\n\n",
            "data: x\n\nid\n\n",
        ] {
            assert!(is_between(whole), "{whole:?}");
        }
        for part in [
            "d",
            "data: x",
            "data: x\n",
            "data: x\r\n",
            "data: x\r\n\r",
            "data: x\n: comment\n",
            "data: x\n\n: comm",
            "data: x\n\nd",
            "\u{feff}",
        ] {
            assert!(!is_between(part), "{part:?}");
        }
    }

    #[test]
    fn a_stream_that_is_to_end_does_so_behind_the_first_whole_event() {
        let mut events = Events::default();
        events.advance(b"data: a");
        assert_eq!(events.advance_to_end(b"b\n\ndata: c\n\n"), Some(3));
        assert_eq!(events.advance_to_end(b"data: c\ndata: d\n"), None);
        assert_eq!(events.advance_to_end(b"\n"), Some(1));
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_bytes_are_cut(
            text in "[dx:\r\n]{0,60}",
            cuts in prop::collection::vec(1_usize..8, 0..60),
        ) {
            let mut rest = text.as_bytes();
            let mut events = Events::default();
            for cut in cuts {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                events.advance(piece);
                rest = behind;
            }
            events.advance(rest);
            prop_assert_eq!(events.is_between(), is_between(&text));
        }
    }
}
