//! Finds where each request on an HTTP/1 connection starts and ends, and whether it is valid. The rules for one head
//! are in `head.rs`.
//!
//! ```text
//!            +--------------------------------------------------+
//!            v                                                  |
//!   --->  Head  --- content-length --->  Length  --- all read --+
//!          |  |                                                 |
//!          |  +---- chunked --------->  Chunks --> Trailers ----+
//!          |
//!          +------- upgrade --------->  Upgrade  --- refused ---> Head
//!                                          |
//!                                          +------- accepted ---> Raw
//! ```
//!
//! In: the bytes from the client, in pieces of any size. Out: how many of them may be passed on, and the first rule that
//! the rest breaks. A head or a trailer section is passed on only as a whole, after it was checked; content at once.
//!
//! It is needed because hyper's server is lenient where a gateway must not be, and does not report that: a
//! `Content-Length` with a `Transfer-Encoding`, a bare line feed, or a space after a chunk size leaves no trace in hyper's
//! request.
//!
//! It has no clock and no socket, keeps no bytes, and repairs nothing.

use super::chunked::Chunks;
use super::head::{self, Body, Head};
use super::syntax;
use super::violation::Violation;
use crate::trailers::may_trail;

/// Most bytes of a trailer section. Trailers are checksums and a status, not a second head.
const TRAILER_BYTES: usize = 8 * 1024;

/// The limits of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes from the first of the request line to the last of the empty line.
    pub bytes: usize,
    /// Most field lines, in a head or in a trailer section. hyper must be given this number too.
    pub fields: usize,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The head of a request, or the pause before it.
    Head,
    /// The body of a request.
    Body,
    /// Undecided: a client has requested an upgrade that is not answered yet.
    Upgrade,
    /// Another protocol.
    Raw,
}

/// The result of [`Framing::scan`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// How many bytes at the front of the input may be passed on.
    pub pass: usize,
    /// How many heads end among these.
    pub heads: usize,
    /// The rule that the bytes after these break. No more bytes may be passed on.
    pub violation: Option<Violation>,
}

/// The state of one connection, in the direction of requests.
#[derive(Debug)]
pub struct Framing {
    limits: HeadLimits,
    state: State,
    failed: Option<Violation>,
}

#[derive(Debug)]
enum State {
    Head { lines: Lines, head: Head },
    Length { left: u64 },
    Chunks(Chunks),
    Trailers { lines: Lines, fields: usize },
    Upgrade,
    Raw,
}

impl State {
    fn next_head() -> Self {
        Self::Head {
            lines: Lines::default(),
            head: Head::default(),
        }
    }
}

impl Framing {
    /// The state before the first byte of a connection.
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self {
            limits,
            state: State::next_head(),
            failed: None,
        }
    }

    /// What the next byte belongs to.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Head { .. } => Phase::Head,
            State::Length { .. } | State::Chunks(_) | State::Trailers { .. } => Phase::Body,
            State::Upgrade => Phase::Upgrade,
            State::Raw => Phase::Raw,
        }
    }

    /// Whether the head that is being read, or was refused, is that of a request with the method HEAD.
    pub(super) const fn is_head_request(&self) -> bool {
        match &self.state {
            State::Head { head, .. } => head.is_head_request(),
            _ => false,
        }
    }

    /// Scans `input`, which has all received bytes that are not passed on yet. The next call gets the remaining bytes again,
    /// followed by new ones; they are not scanned twice.
    pub fn scan(&mut self, input: &[u8]) -> Scan {
        let mut scan = Scan::default();
        while self.failed.is_none() && scan.pass < input.len() {
            let phase = self.phase();
            match self.step(&input[scan.pass..]) {
                Ok(0) => break,
                Ok(passed) => {
                    scan.pass += passed;
                    scan.heads += usize::from(phase == Phase::Head);
                }
                Err(violation) => self.failed = Some(violation),
            }
        }
        scan.violation = self.failed;
        scan
    }

    /// The client's request for an upgrade was granted: the following bytes are not HTTP.
    pub fn upgraded(&mut self) {
        if self.phase() == Phase::Upgrade {
            self.state = State::Raw;
        }
    }

    /// The client's request for an upgrade was not granted: the following bytes are HTTP.
    pub fn not_upgraded(&mut self) {
        if self.phase() == Phase::Upgrade {
            self.state = State::next_head();
        }
    }

    /// Returns how many bytes may be passed on next; 0 while more bytes are needed.
    fn step(&mut self, input: &[u8]) -> Result<usize, Violation> {
        match &mut self.state {
            State::Head { lines, head } => {
                let Some((bytes, body)) = read_head(lines, head, input, self.limits)? else {
                    return Ok(0);
                };
                self.state = match body {
                    Body::Length(0) => State::next_head(),
                    Body::Length(left) => State::Length { left },
                    Body::Chunked => State::Chunks(Chunks::START),
                    Body::Upgrade => State::Upgrade,
                };
                Ok(bytes)
            }
            State::Length { left } => {
                let taken =
                    usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.state = State::next_head();
                }
                Ok(taken)
            }
            State::Chunks(chunks) => {
                let taken = chunks.read(input)?;
                if chunks.is_ended() {
                    self.state = State::Trailers {
                        lines: Lines::default(),
                        fields: 0,
                    };
                }
                Ok(taken)
            }
            State::Trailers { lines, fields } => {
                let end = read_trailers(lines, fields, input, self.limits.fields)?;
                if end.is_some() {
                    self.state = State::next_head();
                }
                Ok(end.unwrap_or(0))
            }
            State::Upgrade => Ok(0),
            State::Raw => Ok(input.len()),
        }
    }
}

/// Reads the lines of a head, and at its end returns its length and what follows it.
fn read_head(
    lines: &mut Lines,
    head: &mut Head,
    input: &[u8],
    limits: HeadLimits,
) -> Result<Option<(usize, Body)>, Violation> {
    // One empty line in front of a request is ignored (RFC 9112 section 2.2): some clients send a line end behind
    // content. It is passed on in front of the head, where every reader ignores it.
    let start = match input {
        [b'\r'] => return Ok(None),
        [b'\r', b'\n', ..] => 2,
        _ => 0,
    };
    lines.begin_at(start);
    // Checked before the end of the line, since bytes of another protocol, such as a TLS hello, may have no line end.
    match input.get(start) {
        Some(b'\r' | b'\n') => return Err(Violation::LeadingEmptyLine),
        Some(&byte) if !syntax::is_token_byte(byte) => return Err(Violation::MethodSyntax),
        _ => {}
    }
    while let Some(line) = lines.next(input, limits.bytes)? {
        if line.is_empty() {
            return Ok(Some((lines.read, head.end()?)));
        }
        head.line(line, limits.fields)?;
    }
    if input.len() <= limits.bytes {
        Ok(None)
    } else if head.has_request_line() {
        Err(Violation::HeadTooLarge)
    } else {
        Err(Violation::TargetTooLong)
    }
}

/// Reads the lines of a trailer section, and at its end returns its length.
fn read_trailers(
    lines: &mut Lines,
    fields: &mut usize,
    input: &[u8],
    most_fields: usize,
) -> Result<Option<usize>, Violation> {
    while let Some(line) = lines.next(input, TRAILER_BYTES)? {
        if line.is_empty() {
            return Ok(Some(lines.read));
        }
        let (name, _) = head::field(line)?;
        if !may_trail(name) {
            return Err(Violation::TrailerForbidden);
        }
        *fields += 1;
        if *fields > most_fields {
            return Err(Violation::TooManyFields);
        }
    }
    if input.len() > TRAILER_BYTES {
        Err(Violation::TrailersTooLarge)
    } else {
        Ok(None)
    }
}

/// Finds the lines of a section, and remembers the position of the search.
#[derive(Debug, Default)]
struct Lines {
    /// The start of the next line.
    read: usize,
    /// The position up to which the line's end was searched.
    searched: usize,
}

impl Lines {
    /// Skips the first `start` bytes, unless they were searched already.
    fn begin_at(&mut self, start: usize) {
        self.read = self.read.max(start);
        self.searched = self.searched.max(start);
    }

    /// The next whole line within the first `most` bytes of `input`, without its end.
    fn next<'a>(&mut self, input: &'a [u8], most: usize) -> Result<Option<&'a [u8]>, Violation> {
        let input = &input[..input.len().min(most)];
        let Some(found) = memchr::memchr2(b'\r', b'\n', &input[self.searched..]) else {
            self.searched = input.len();
            return Ok(None);
        };
        let end = self.searched + found;
        self.searched = end;
        match &input[end..] {
            [b'\r'] => Ok(None),
            [b'\r', b'\n', ..] => {
                let line = &input[self.read..end];
                self.read = end + 2;
                self.searched = self.read;
                Ok(Some(line))
            }
            [b'\r', ..] => Err(Violation::BareCarriageReturn),
            _ => Err(Violation::BareLineFeed),
        }
    }
}

#[cfg(test)]
mod tests;
