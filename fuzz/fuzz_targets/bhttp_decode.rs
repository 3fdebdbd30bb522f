//! Any bytes, cut in any way: no panic, and the cuts change nothing.
//!
//! The first byte of the input is the length of the pieces.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tunnel_proto::bhttp::{DecodeError, Decoder, Event, Limits};

fuzz_target!(|input: &[u8]| {
    let Some((length, bytes)) = input.split_first() else {
        return;
    };
    let length = usize::from(*length).max(1);
    let small = Limits {
        head_bytes: 256,
        fields: 4,
        informational: 2,
    };
    for limits in [Limits::default(), small] {
        for decoder in [Decoder::request, Decoder::response] {
            let whole = read(decoder(limits), bytes, usize::MAX);
            let cut = read(decoder(limits), bytes, length);
            assert_eq!(whole, cut);
        }
    }
});

/// Heads and trailers, all content in one, and why it ended.
fn read(mut decoder: Decoder, bytes: &[u8], length: usize) -> (Vec<Event>, BytesMut, DecodeResult) {
    let mut events = Vec::new();
    let mut content = BytesMut::new();
    for piece in bytes.chunks(length) {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(None) => break,
                Ok(Some(Event::Content(data))) => content.extend_from_slice(&data),
                Ok(Some(event)) => events.push(event),
                Err(error) => return (events, content, Err(error)),
            }
        }
    }
    let between = decoder.is_between_messages();
    (events, content, Ok(between))
}

type DecodeResult = Result<bool, DecodeError>;
