//! Parts of binary HTTP messages (RFC 9292), written by hand, so that a test can break every rule.

/// A number of variable length (RFC 9000 section 16).
pub fn number(number: u64) -> Vec<u8> {
    let (length, prefix) = match number {
        0..=0x3f => (1, 0x00),
        0x40..=0x3fff => (2, 0x40),
        0x4000..=0x3fff_ffff => (4, 0x80),
        _ => (8, 0xc0),
    };
    let mut bytes = number.to_be_bytes()[8 - length..].to_vec();
    bytes[0] |= prefix;
    bytes
}

/// A string with its length before it; as content, one chunk of it.
pub fn string(string: &[u8]) -> Vec<u8> {
    [&number(string.len() as u64), string].concat()
}

/// A field line.
pub fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [string(name), string(value)].concat()
}

/// A response: its framing, and then what the test wants.
pub fn response(parts: &[&[u8]]) -> Vec<u8> {
    [&[3][..], &parts.concat()].concat()
}
