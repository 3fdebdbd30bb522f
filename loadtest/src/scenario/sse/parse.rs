//! Server-Sent Events out of bytes as they come, in pieces of any size. Pure.

/// The longest line; a source of longer ones does not send events.
const LONGEST: usize = 1024 * 1024;

/// An event, as far as this program cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Its `id:` when that is a number.
    pub(super) id: Option<u64>,
    /// The number at the beginning of its first `data:` line.
    pub(super) sent_ns: Option<u64>,
    /// Bytes of its lines.
    pub(super) bytes: u64,
}

/// What was read of an event that is not over yet.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_return: bool,
}

/// A line is longer than any event's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Parser {
    /// Takes a piece, and hands each event that it completes to `found`.
    pub(super) fn push(
        &mut self,
        piece: &[u8],
        mut found: impl FnMut(Event),
    ) -> Result<(), TooLong> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (before, after) = rest.split_at(end);
            // A line feed right after a carriage return belongs to its line end.
            let is_second = self.after_return && before.is_empty() && after.first() == Some(&b'\n');
            self.after_return = after.first() == Some(&b'\r');
            self.event.bytes += before.len() as u64 + 1;
            if !is_second {
                self.extend(before)?;
                self.end_line(&mut found);
            }
            rest = &after[1..];
        }
        self.after_return &= rest.is_empty();
        self.event.bytes += rest.len() as u64;
        self.extend(rest)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + part.len() > LONGEST {
            return Err(TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self, found: &mut impl FnMut(Event)) {
        if self.line.is_empty() {
            // An event without data is none, such as a comment that keeps the connection alive.
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                found(event);
            }
            return;
        }
        let line = std::mem::take(&mut self.line);
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" if !self.has_data => {
                self.has_data = true;
                self.event.sent_ns = number(value);
            }
            b"id" => self.event.id = number(value),
            _ => {}
        }
        // The memory serves the next line.
        self.line = line;
        self.line.clear();
    }
}

/// The digits that a value begins with, when a blank or nothing follows them.
fn number(value: &[u8]) -> Option<u64> {
    let end = value
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(value.len());
    str::from_utf8(&value[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pieces: &[&[u8]]) -> Vec<(Option<u64>, Option<u64>)> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for piece in pieces {
            parser
                .push(piece, |event| found.push((event.id, event.sent_ns)))
                .unwrap();
        }
        found
    }

    const STREAM: &[u8] =
        b": hello\n\nid: 7\ndata: 123 xxx\n\nretry: 5\n\ndata:456\r\nid:8\r\n\r\n\
        event: other\rdata: no number\rdata: 9\r\rdata: 10\n";

    #[test]
    fn events_end_with_an_empty_line() {
        let expected = [(Some(7), Some(123)), (Some(8), Some(456)), (None, None)];
        // The last has no end yet.
        assert_eq!(parse(&[STREAM]), expected);
    }

    #[test]
    fn pieces_may_be_cut_anywhere() {
        let whole = parse(&[STREAM]);
        for cut in 0..STREAM.len() {
            let (first, second) = STREAM.split_at(cut);
            assert_eq!(parse(&[first, second]), whole, "cut at {cut}");
        }
        let bytes: Vec<_> = STREAM.chunks(1).collect();
        assert_eq!(parse(&bytes), whole);
    }

    #[test]
    fn bytes_of_an_event_are_all_of_its_lines() {
        let mut parser = Parser::default();
        let mut bytes = 0;
        parser.push(b"data: 1\n", |_| panic!("no end yet")).unwrap();
        parser.push(b"\n", |event| bytes = event.bytes).unwrap();
        assert_eq!(bytes, "data: 1\n\n".len() as u64);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; LONGEST];
        assert_eq!(parser.push(&piece, |_| {}), Ok(()));
        assert_eq!(parser.push(b"x", |_| {}), Err(TooLong));
    }
}
