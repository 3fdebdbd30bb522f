//! Any bytes of an HTTP/2 peer: no panic, and whatever the pieces in which they are read, all of them come out but for the empty
//! DATA frames in the middle of a stream that is open.
//!
//! The first byte of the input says which end sends, and what the rest is: bytes of the connection, or frames in short form. The
//! second one says how it is cut.

#![no_main]

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::Instant,
};
use tunnel_http::http2::{EmptyFrameFlood, FrameParser, FrameReader, PeerNotes};

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
/// Empty frames that are left out at once.
const EMPTY_FRAMES: usize = 100;

/// What is known of a connection when all of it was read.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    passed: Vec<u8>,
    notes: Option<PeerNotes>,
    small: Vec<u32>,
}

fuzz_target!(|input: &[u8]| {
    let &[choice, cut, ref bytes @ ..] = input else {
        return;
    };
    let is_client = choice & 1 == 0;
    let bytes = match choice & 2 {
        0 => bytes.to_vec(),
        _ => in_frames(bytes),
    };
    let parser = || match is_client {
        true => FrameParser::of_client(),
        false => FrameParser::of_server(),
    };
    let now = Instant::now();
    let expected = passed(&bytes, is_client);
    let whole = parse(parser(), &bytes, usize::MAX, now);
    let pieces = parse(parser(), &bytes, 1 + usize::from(cut), now);
    assert_eq!(whole, pieces);
    match (whole, expected) {
        (Ok(whole), Some(expected)) => {
            assert_eq!(whole.passed, expected);
            assert_eq!(read(parser(), bytes, cut), expected);
        }
        (Err(EmptyFrameFlood), None) => {}
        (whole, expected) => panic!("{whole:?} {expected:?}"),
    }
});

/// Frames, each made of four bytes (type, flags, stream, length) and a payload.
fn in_frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let [kind, flags, stream, length, rest @ ..] = bytes {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(length % 32)));
        out.extend([0, 0, payload.len() as u8, kind % 11, *flags]);
        out.extend([0, 0, 0, stream % 8]);
        out.extend(payload);
        bytes = rest;
    }
    out
}

/// All that is to come out; `None` when there are too many empty frames.
fn passed(mut bytes: &[u8], is_client: bool) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut empty = 0;
    let mut in_field_block = false;
    let mut opened = if is_client { 0 } else { u32::MAX };
    if is_client {
        let (preface, rest) = bytes.split_at(bytes.len().min(PREFACE_BYTES));
        out.extend(preface);
        bytes = rest;
    }
    while let &[a, b, c, kind, flags, d, e, f, g, ..] = bytes {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes([d & 0x7f, e, f, g]);
        if kind == 1 {
            opened = opened.max(stream);
        }
        let is_open = stream % 2 == 1 && stream <= opened;
        let is_empty = kind == 0 && length == 0 && flags & 9 == 0;
        let (frame, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES + length));
        if is_empty && is_open && !in_field_block {
            empty += 1;
        } else {
            out.extend(frame);
        }
        if [1, 5, 9].contains(&kind) {
            in_field_block = flags & 4 == 0;
        }
        bytes = rest;
    }
    out.extend(bytes);
    (empty <= EMPTY_FRAMES).then_some(out)
}

/// Parses pieces of at most this length.
fn parse(
    mut parser: FrameParser,
    bytes: &[u8],
    length: usize,
    now: Instant,
) -> Result<Reading, EmptyFrameFlood> {
    let mut reading = Reading {
        passed: Vec::new(),
        notes: None,
        small: Vec::new(),
    };
    for piece in bytes.chunks(length) {
        let mut piece = [parser.held_back(), piece].concat();
        let kept = parser.parse(&mut piece, || now)?;
        assert!(kept + parser.held_back().len() <= piece.len());
        reading.passed.extend(&piece[..kept]);
        reading.notes = parser.take_news().or(reading.notes);
        reading.small.extend(parser.take_small());
    }
    reading.passed.extend(parser.held_back());
    Ok(reading)
}

/// A connection whose bytes come in pieces, each of another length.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    cut: u8,
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.cut = self.cut.wrapping_mul(5).wrapping_add(1);
        let rest = &self.bytes[self.at..];
        let length = rest
            .len()
            .min(usize::from(self.cut) + 1)
            .min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

/// Reads a connection through the reader, into buffers of several sizes.
fn read(parser: FrameParser, bytes: Vec<u8>, cut: u8) -> Vec<u8> {
    let (mut reader, frames) = FrameReader::new(Pieces { bytes, at: 0, cut }, parser);
    let mut cx = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    for room in [1, 3, 63, 64, 65, 1000].into_iter().cycle() {
        let mut space = vec![0; room];
        let mut buffer = ReadBuf::new(&mut space);
        let Poll::Ready(read) = Pin::new(&mut reader).poll_read(&mut cx, &mut buffer) else {
            // Small frames pause the reading until they are taken.
            assert!(frames.take_small().1);
            continue;
        };
        read.expect("a connection without errors");
        if buffer.filled().is_empty() {
            break;
        }
        all.extend(buffer.filled());
    }
    all
}
