//! The frames of an HTTP/2 connection as they are read, between the socket and the `h2` crate.
//!
//! In: bytes of the peer. Out: the bytes for `h2`, and what `h2` does not show of them: the peer's settings and its GOAWAY,
//! and the streams with small DATA frames, which `h2` keeps one by one until they are read. Empty DATA frames, of which `h2`
//! takes a hundred in the life of a connection, are left out. Heads of frames are parsed in place; nothing is copied but
//! for the payloads of SETTINGS and GOAWAY, and a head that a read has split.

use tokio::time::Instant;

/// The bytes that a client sends first (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;
/// Length of a frame's head (RFC 9113 section 4.1).
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Payload from which on a DATA frame that waits costs not much more than it brings: it keeps the read buffer of `h2`
/// alive of which it is a slice, of 8 KiB, however much has come beside it.
const SMALL_BYTES: usize = 4 * 1024;

/// Empty DATA frames that are left out at once, and each second. Flushes of servers cause a few; more is a flood.
const EMPTY_FRAMES: f64 = 100.0;

/// Bytes of a GOAWAY's debug data that are kept for the log.
const DEBUG_BYTES: usize = 128;

/// What ended the reading of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer floods the connection with empty DATA frames")]
pub struct EmptyFrameFlood;

/// The settings of a peer, as far as they concern requests (RFC 9113 section 6.5.2, RFC 8441 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSettings {
    /// Streams that it allows at once.
    pub max_concurrent_streams: u32,
    /// The largest head that it accepts: the bytes of names and values, and 32 for each field; none if it does not say.
    pub max_header_list_size: u32,
    /// Whether it accepts extended CONNECT.
    pub enable_connect_protocol: bool,
    /// Whether they have arrived. Before, they are those that a client may assume.
    pub has_arrived: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            // What RFC 9113 advises servers to allow at least.
            max_concurrent_streams: 100,
            max_header_list_size: u32::MAX,
            enable_connect_protocol: false,
            has_arrived: false,
        }
    }
}

/// A GOAWAY frame (RFC 9113 section 6.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoAway {
    /// The error code.
    pub code: u32,
    /// The start of its debug data, for a person.
    pub debug: String,
}

/// What the peer's frames say, apart from their content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerNotes {
    /// Its settings.
    pub settings: PeerSettings,
    /// Its last GOAWAY.
    pub go_away: Option<GoAway>,
}

/// What comes next of the peer's bytes.
#[derive(Debug)]
enum Next {
    /// This many bytes of the preface.
    Preface(usize),
    Head,
    /// This many bytes of a payload that nobody needs here.
    Payload(usize),
    /// A payload that is kept: its type, what has come, and how much is missing.
    Kept {
        kind: u8,
        payload: Vec<u8>,
        missing: usize,
    },
}

/// The parser of a peer's frames. It has no I/O.
#[derive(Debug)]
pub struct FrameParser {
    next: Next,
    /// The start of a head that a read has split, which is held back: it may be that of a frame to leave out.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Whether a head of a message continues, so that every other frame is an error that `h2` finds.
    in_field_block: bool,
    /// The greatest stream that a client has opened. Data before that is an error that `h2` finds.
    opened: u32,
    notes: PeerNotes,
    has_news: bool,
    /// Streams of the small DATA frames since they were taken, in order.
    small: Vec<u32>,
    /// Empty frames that may be left out, at this time.
    empty_frames: f64,
    empty_since: Option<Instant>,
}

impl FrameParser {
    /// A parser of what a server sends.
    pub fn of_server() -> Self {
        // The streams are those of this end.
        Self::starting_with(Next::Head, u32::MAX)
    }

    /// A parser of what a client sends.
    pub fn of_client() -> Self {
        Self::starting_with(Next::Preface(PREFACE_BYTES), 0)
    }

    fn starting_with(next: Next, opened: u32) -> Self {
        Self {
            next,
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            in_field_block: false,
            opened,
            notes: PeerNotes::default(),
            has_news: false,
            small: Vec::new(),
            empty_frames: EMPTY_FRAMES,
            empty_since: None,
        }
    }

    /// The bytes of a head that are held back. They come before those of the next read.
    pub fn held_back(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    /// Parses bytes that were read, which begin with those that were held back. Moves what is for `h2` to the start, and
    /// returns its length; the rest is held back or left out. `now` is called for frames that are left out.
    ///
    /// # Errors
    /// When there are too many empty frames.
    pub fn parse(
        &mut self,
        bytes: &mut [u8],
        now: impl Fn() -> Instant,
    ) -> Result<usize, EmptyFrameFlood> {
        self.head_bytes = 0;
        let (mut read, mut kept) = (0, 0);
        while let Some(rest) = bytes.get(read..).filter(|rest| !rest.is_empty()) {
            let taken = match &mut self.next {
                Next::Preface(missing) | Next::Payload(missing) => {
                    let taken = rest.len().min(*missing);
                    *missing -= taken;
                    if *missing == 0 {
                        self.next = Next::Head;
                    }
                    taken
                }
                Next::Kept {
                    payload, missing, ..
                } => {
                    let taken = rest.len().min(*missing);
                    *missing -= taken;
                    payload.extend_from_slice(&rest[..taken]);
                    if *missing == 0 {
                        self.on_kept();
                    }
                    taken
                }
                Next::Head => {
                    let Some(head) = rest.first_chunk::<HEAD_BYTES>().copied() else {
                        self.head_bytes = rest.len();
                        self.head[..rest.len()].copy_from_slice(rest);
                        break;
                    };
                    if self.is_left_out(&head) {
                        self.count_empty(now())?;
                        read += HEAD_BYTES;
                        continue;
                    }
                    self.on_head(&head);
                    HEAD_BYTES
                }
            };
            if kept != read {
                bytes.copy_within(read..read + taken, kept);
            }
            (read, kept) = (read + taken, kept + taken);
        }
        Ok(kept)
    }

    /// The peer has ended the connection: what was held back is all there is.
    pub(super) fn on_end(&mut self) {
        self.head_bytes = 0;
    }

    /// What the frames say, if that is new.
    pub fn take_news(&mut self) -> Option<PeerNotes> {
        std::mem::take(&mut self.has_news).then(|| self.notes.clone())
    }

    /// The streams of the small DATA frames since the last call, one entry for each frame.
    pub fn take_small(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.small)
    }

    /// Whether this is the head of a DATA frame that says nothing: empty, and not the last.
    fn is_left_out(&self, head: &[u8; HEAD_BYTES]) -> bool {
        let [_, _, _, kind, flags, ..] = *head;
        !self.in_field_block
            && kind == DATA
            && flags & (END_STREAM | PADDED) == 0
            && length(head) == 0
            // Only those of clients are ever opened.
            && stream(head) % 2 == 1
            && stream(head) <= self.opened
    }

    /// Counts a frame that is left out.
    fn count_empty(&mut self, now: Instant) -> Result<(), EmptyFrameFlood> {
        let since = self.empty_since.replace(now).unwrap_or(now);
        let earned = now.saturating_duration_since(since).as_secs_f64() * EMPTY_FRAMES;
        self.empty_frames = (self.empty_frames + earned).min(EMPTY_FRAMES) - 1.0;
        if self.empty_frames < 0.0 {
            return Err(EmptyFrameFlood);
        }
        Ok(())
    }

    fn on_head(&mut self, head: &[u8; HEAD_BYTES]) {
        let [_, _, _, kind, flags, ..] = *head;
        let length = length(head);
        if kind == HEADERS {
            self.opened = self.opened.max(stream(head));
        }
        match kind {
            HEADERS | PUSH_PROMISE | CONTINUATION => self.in_field_block = flags & END_HEADERS == 0,
            DATA if length < SMALL_BYTES || flags & PADDED != 0 => self.small.push(stream(head)),
            _ => {}
        }
        let is_kept = kind == GOAWAY || kind == SETTINGS && flags & ACK == 0;
        self.next = match length {
            // `h2` refuses longer ones: they would have to be larger than any frame that it allows.
            1.. if is_kept && length <= 16 * 1024 => Next::Kept {
                kind,
                payload: Vec::with_capacity(length),
                missing: length,
            },
            1.. => Next::Payload(length),
            0 => Next::Head,
        };
        if kind == SETTINGS && flags & ACK == 0 && length == 0 {
            self.on_settings(&[]);
        }
    }

    fn on_kept(&mut self) {
        let Next::Kept { kind, payload, .. } = std::mem::replace(&mut self.next, Next::Head) else {
            return;
        };
        if kind == SETTINGS {
            self.on_settings(&payload);
        } else if let Some((fixed, debug)) = payload.split_first_chunk::<8>() {
            let [_, _, _, _, code @ ..] = *fixed;
            let debug = &debug[..debug.len().min(DEBUG_BYTES)];
            self.notes.go_away = Some(GoAway {
                code: u32::from_be_bytes(code),
                debug: String::from_utf8_lossy(debug).escape_debug().to_string(),
            });
            self.has_news = true;
        }
    }

    fn on_settings(&mut self, payload: &[u8]) {
        let settings = &mut self.notes.settings;
        if !settings.has_arrived {
            // Without the setting there is no limit.
            settings.max_concurrent_streams = u32::MAX;
        }
        for entry in payload.chunks_exact(6) {
            let &[i, d, a, b, c, e] = entry else { continue };
            let value = u32::from_be_bytes([a, b, c, e]);
            match u16::from_be_bytes([i, d]) {
                3 => settings.max_concurrent_streams = value,
                6 => settings.max_header_list_size = value,
                8 => settings.enable_connect_protocol = value == 1,
                _ => {}
            }
        }
        settings.has_arrived = true;
        self.has_news = true;
    }
}

fn length(head: &[u8; HEAD_BYTES]) -> usize {
    let [a, b, c, ..] = *head;
    u32::from_be_bytes([0, a, b, c]) as usize
}

fn stream(head: &[u8; HEAD_BYTES]) -> u32 {
    let [_, _, _, _, _, id @ ..] = *head;
    u32::from_be_bytes(id) & (u32::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// What `h2` gets of these bytes when they are read in pieces of this length.
    fn read(parser: &mut FrameParser, all: &[u8], piece: usize) -> Vec<u8> {
        let mut given = Vec::new();
        for piece in all.chunks(piece) {
            let mut bytes = [parser.held_back(), piece].concat();
            let kept = parser.parse(&mut bytes, Instant::now).unwrap();
            given.extend(&bytes[..kept]);
        }
        given.extend(parser.held_back());
        given
    }

    fn connection() -> (Vec<u8>, Vec<u8>) {
        let settings = [
            0, 3, 0, 0, 0, 7, 0, 6, 0, 0, 32, 0, 0, 8, 0, 0, 0, 1, 0, 4, 0, 0, 0, 9,
        ];
        let go_away = [&[0, 0, 0, 5, 0, 0, 0, 11][..], b"calm\ndown"].concat();
        let frames = [
            (frame(SETTINGS, 0, 0, &settings), true),
            (frame(SETTINGS, ACK, 0, &[]), true),
            (frame(HEADERS, END_HEADERS, 1, b"head"), true),
            (frame(HEADERS, END_HEADERS, 3, b"head"), true),
            (frame(DATA, 0, 1, &[]), false),
            (frame(DATA, 0, 1, b"small"), true),
            (frame(DATA, 0, 3, &[7; SMALL_BYTES]), true),
            (frame(DATA, 0, 3, &[]), false),
            (frame(DATA, END_STREAM, 3, &[]), true),
            (frame(DATA, PADDED, 5, &[0]), true),
            // Errors, which are for `h2` to find.
            (frame(DATA, 0, 0, &[]), true),
            (frame(HEADERS, 0, 7, b"head"), true),
            (frame(DATA, 0, 7, &[]), true),
            (frame(CONTINUATION, END_HEADERS, 7, b"head"), true),
            (frame(GOAWAY, 0, 0, &go_away), true),
            (frame(DATA, 0, 7, &[]), false),
            (vec![0, 0, 4, DATA], true),
        ];
        let all = frames.iter().flat_map(|(frame, _)| frame.clone());
        let given = frames.iter().filter(|(_, is_given)| *is_given);
        let given = given.flat_map(|(frame, _)| frame.clone());
        (all.collect(), given.collect())
    }

    #[test]
    fn empty_data_frames_are_left_out_and_all_else_is_passed_on_however_it_is_read() {
        let (all, expected) = connection();
        for piece in 1..=all.len() {
            let mut parser = FrameParser::of_server();
            assert_eq!(read(&mut parser, &all, piece), expected, "{piece}");
            let notes = parser.take_news().unwrap();
            let settings = PeerSettings {
                max_concurrent_streams: 7,
                max_header_list_size: 8192,
                enable_connect_protocol: true,
                has_arrived: true,
            };
            let go_away = GoAway {
                code: 11,
                debug: "calm\\ndown".to_owned(),
            };
            assert_eq!((notes.settings, notes.go_away), (settings, Some(go_away)));
            assert_eq!(parser.take_news(), None);
            // The empty ones among them are the last of a stream, or errors.
            assert_eq!(parser.take_small(), [1, 3, 5, 0, 7], "{piece}");
        }
    }

    #[test]
    fn a_clients_preface_is_no_frame() {
        let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let (frames, expected) = connection();
        all.extend(frames);
        for piece in [1, 5, 24, 25, 1000] {
            let given = read(&mut FrameParser::of_client(), &all, piece);
            assert_eq!(&given[24..], expected);
        }
    }

    #[test]
    fn empty_data_frames_of_streams_that_no_client_has_opened_are_errors_to_be_found() {
        let mut parser = FrameParser::of_client();
        read(&mut parser, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
        read(&mut parser, &frame(HEADERS, END_HEADERS, 5, b"head"), 100);
        for (stream, is_given) in [(0, true), (4, true), (5, false), (3, false), (7, true)] {
            let empty = frame(DATA, 0, stream, &[]);
            let given = read(&mut parser, &empty, 100);
            assert_eq!(!given.is_empty(), is_given, "{stream}");
        }
    }

    #[test]
    fn a_hundred_empty_frames_a_second_are_left_out_and_more_are_a_flood() {
        let empty = frame(DATA, 0, 1, &[]);
        let mut parser = FrameParser::of_server();
        let start = Instant::now();
        for number in 0..1_000 {
            let now = start + number * Duration::from_millis(20);
            assert_eq!(parser.parse(&mut empty.clone(), || now), Ok(0));
        }
        let end = start + Duration::from_secs(60);
        for _ in 0..100 {
            assert_eq!(parser.parse(&mut empty.clone(), || end), Ok(0));
        }
        let flood = parser.parse(&mut empty.clone(), || end);
        assert_eq!(flood, Err(EmptyFrameFlood));
    }

    #[test]
    fn settings_hold_until_others_come_and_those_left_out_are_unlimited() {
        let mut parser = FrameParser::of_server();
        assert_eq!(parser.notes.settings.max_concurrent_streams, 100);
        read(&mut parser, &frame(SETTINGS, 0, 0, &[]), 100);
        let settings = parser.take_news().unwrap().settings;
        assert!(settings.has_arrived);
        assert_eq!(settings.max_concurrent_streams, u32::MAX);
        read(
            &mut parser,
            &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 4]),
            100,
        );
        read(
            &mut parser,
            &frame(SETTINGS, 0, 0, &[0, 6, 0, 0, 1, 0]),
            100,
        );
        let settings = parser.take_news().unwrap().settings;
        assert_eq!(settings.max_concurrent_streams, 4);
        assert_eq!(settings.max_header_list_size, 256);
    }
}
