//! Reads Server-Sent Events from the bytes of a response.
//!
//! In: bytes as they come. Out: whole events. Comments and the reconnection time are left out.

use std::mem;

/// Largest event, in bytes: several times that with the longest path.
pub const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// One event of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedEvent {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data; lines are joined by line feeds.
    pub data: String,
    /// Its id.
    pub id: Option<String>,
}

/// What was received of a stream.
#[derive(Debug, Default)]
pub struct EventParser {
    /// What follows the last whole line.
    unread: Vec<u8>,
    /// What was read of `unread`, up to a whole line.
    position: usize,
    /// The event that is not whole yet.
    event: ReceivedEvent,
}

/// An event exceeds [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {MAX_EVENT_BYTES} bytes")]
pub struct EventTooLarge;

impl EventParser {
    /// Takes bytes that were received. The whole events among them are to be taken before the next bytes.
    ///
    /// # Errors
    /// When an event is too large.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), EventTooLarge> {
        self.unread.drain(..mem::take(&mut self.position));
        let held = self.unread.len() + self.event.data.len();
        if held + bytes.len() > MAX_EVENT_BYTES {
            return Err(EventTooLarge);
        }
        self.unread.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole event.
    pub fn next_event(&mut self) -> Option<ReceivedEvent> {
        loop {
            let rest = &self.unread[self.position..];
            let length = rest.iter().position(|byte| *byte == b'\n')?;
            let line = String::from_utf8_lossy(&rest[..length]).into_owned();
            self.position += length + 1;
            let line = line.trim_end_matches('\r');
            if line.is_empty() {
                let event = mem::take(&mut self.event);
                if event != ReceivedEvent::default() {
                    return Some(event);
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.name),
                "id" => self.event.id = Some(value.to_owned()),
                "data" => {
                    if !self.event.data.is_empty() {
                        self.event.data.push('\n');
                    }
                    self.event.data.push_str(value);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_their_bytes_come() {
        let text = ": opening\nretry: 1000\n\nid: 7\nevent: exchange\ndata: {\"a\":1}\n\n: still here\n\ndata:one\r\ndata: two\r\n\r\n";
        for size in 1..text.len() {
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            for bytes in text.as_bytes().chunks(size) {
                parser.receive(bytes).unwrap();
                events.extend(std::iter::from_fn(|| parser.next_event()));
            }
            let first = ReceivedEvent {
                name: "exchange".to_owned(),
                data: "{\"a\":1}".to_owned(),
                id: Some("7".to_owned()),
            };
            let second = ReceivedEvent {
                data: "one\ntwo".to_owned(),
                ..ReceivedEvent::default()
            };
            assert_eq!(events, [first, second], "{size}");
        }
    }

    #[test]
    fn an_event_is_bounded() {
        let mut parser = EventParser::default();
        let line = [b"data: ".as_slice(), &[b'x'; 1024], b"\n"].concat();
        let mut lines = 0;
        while parser.receive(&line).is_ok() {
            assert_eq!(parser.next_event(), None);
            lines += 1;
        }
        assert!((1_000..1_024).contains(&lines), "{lines}");
    }
}
