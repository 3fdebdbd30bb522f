//! Where each request on an HTTP/1 connection starts and ends, and whether it may go on.
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
//! In: the bytes that came from the client, in whatever pieces. Out: how many of them may be handed
//! on, and the first rule that the rest breaks. Nothing of a head or of a trailer section may go on
//! before all of it was checked; the content of a body may go on at once.
//!
//! This is needed because hyper's server is lenient where a gateway must not be, and does not show
//! what it was lenient about: of a `Content-Length` beside a `Transfer-Encoding`, of a bare line feed,
//! of a space after a chunk size, nothing is left in the request that it makes.
//!
//! It has no clock and no socket, keeps no bytes, and never repairs anything.

use super::chunked::{self, Chunks};
use super::head::{self, Body, Head};
use super::syntax;
use super::violation::Violation;

/// Most bytes of a trailer section. Trailers are checksums and a status, not a second head.
const TRAILER_BYTES: usize = 8 * 1024;

/// How large the head of a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes from the first of the request line to the last of the empty line.
    pub bytes: usize,
    /// Most field lines, in a head or in a trailer section. hyper must be told the same number.
    pub fields: usize,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The head of a request, or the pause before it.
    Head,
    /// The body of a request.
    Body,
    /// Nobody knows: a client asked for an upgrade, and was not answered yet.
    Upgrade,
    /// Another protocol.
    Raw,
}

/// What [`Framing::scan`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// How many bytes at the front of the input may be handed on.
    pub pass: usize,
    /// How many heads end among these.
    pub heads: usize,
    /// What is wrong with the bytes after these. Nothing may be handed on any more.
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
        Self::Head { lines: Lines::default(), head: Head::default() }
    }
}

impl Framing {
    /// The state before the first byte of a connection.
    #[must_use]
    pub fn new(limits: HeadLimits) -> Self {
        Self { limits, state: State::next_head(), failed: None }
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

    /// Looks at `input`: all bytes that have come and were not passed yet. What was not passed has
    /// to be shown again, with more bytes behind it; it is not read twice.
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

    /// The client's request for an upgrade was granted: what follows is not HTTP any more.
    pub fn upgraded(&mut self) {
        if self.phase() == Phase::Upgrade {
            self.state = State::Raw;
        }
    }

    /// The client's request for an upgrade was answered like any other: what follows is HTTP.
    pub fn not_upgraded(&mut self) {
        if self.phase() == Phase::Upgrade {
            self.state = State::next_head();
        }
    }

    /// Takes what may be passed next, which is nothing while more bytes are needed to tell.
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
                let taken = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.state = State::next_head();
                }
                Ok(taken)
            }
            State::Chunks(chunks) => {
                let taken = chunks.read(input)?;
                if *chunks == Chunks::Ended {
                    self.state = State::Trailers { lines: Lines::default(), fields: 0 };
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
    // Not only for the sake of an early answer: what is sent to the wrong port, a TLS hello for
    // one, may have no line end at all.
    match input.first() {
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
        if !chunked::may_trail(name) {
            return Err(Violation::TrailerForbidden);
        }
        *fields += 1;
        if *fields > most_fields {
            return Err(Violation::TooManyFields);
        }
    }
    if input.len() > TRAILER_BYTES { Err(Violation::TrailersTooLarge) } else { Ok(None) }
}

/// Finds the lines of a section, and remembers how far it got.
#[derive(Debug, Default)]
struct Lines {
    /// Where the line starts that was not taken yet.
    read: usize,
    /// Up to where that line has no end.
    searched: usize,
}

impl Lines {
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
