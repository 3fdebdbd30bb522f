//! Bytes of HTTP/2, HPACK and WebSocket as peers write them, without any check.

use testkit::http2::Frame;

/// Takes a whole frame of HTTP/2 from the front of `buffer`.
pub(super) fn take_frame(buffer: &mut bytes::BytesMut) -> Option<Frame> {
    let head = *buffer.first_chunk::<9>()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    if buffer.len() < 9 + length {
        return None;
    }
    let frame = buffer.split_to(9 + length);
    let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
    Some(Frame::new(head[3], head[4], stream, &frame[9..]))
}

/// A head in as many frames as it needs.
pub fn head_frames(stream: u32, block: &[u8], is_last: bool) -> Vec<u8> {
    let end = if is_last { Frame::END_STREAM } else { 0 };
    let count = block.len().div_ceil(16_384).max(1);
    let mut frames = Vec::new();
    for number in 0..count {
        let piece = block.chunks(16_384).nth(number).unwrap_or_default();
        let (kind, mut flags) = if number == 0 {
            (Frame::HEADERS, end)
        } else {
            (Frame::CONTINUATION, 0)
        };
        if number + 1 == count {
            flags |= Frame::END_HEADERS;
        }
        frames.extend(Frame::new(kind, flags, stream, piece).bytes());
    }
    frames
}

/// A field as a literal that enters no table (RFC 7541 section 6.2.2), without Huffman coding.
pub fn literal(block: &mut Vec<u8>, name: &str, value: &str) {
    literal_by(0, block, name, value);
}

/// A field that enters the dynamic table (RFC 7541 section 6.2.1): `0xbe` repeats the last one.
pub fn indexed(block: &mut Vec<u8>, name: &str, value: &str) {
    literal_by(0x40, block, name, value);
}

fn literal_by(kind: u8, block: &mut Vec<u8>, name: &str, value: &str) {
    block.push(kind);
    for text in [name, value] {
        // An integer with a prefix of seven bits (RFC 7541 section 5.1).
        match text.len() {
            short @ ..127 => block.push(short as u8),
            long => {
                block.push(127);
                let mut rest = long - 127;
                while rest >= 128 {
                    block.push((rest % 128 + 128) as u8);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
        }
        block.extend(text.as_bytes());
    }
}

/// A frame of WebSocket (RFC 6455 section 5.2). A mask of zeros changes nothing.
pub fn message(first: u8, payload: &[u8], is_masked: bool) -> Vec<u8> {
    let mask = if is_masked { 0x80 } else { 0 };
    let mut frame = vec![first];
    match payload.len() {
        short @ ..126 => frame.push(mask | short as u8),
        long => {
            frame.push(mask | 126);
            frame.extend((long as u16).to_be_bytes());
        }
    }
    if is_masked {
        frame.extend([0; 4]);
    }
    frame.extend_from_slice(payload);
    frame
}
