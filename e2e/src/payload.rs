//! Long contents that need no memory: bytes that follow from their position, and their digest.
//!
//! Both ends of a transfer can make or check a gibibyte of it piece by piece. The pattern repeats
//! only after `PERIOD` bytes, a prime, so that a lost, doubled or misplaced frame of any usual
//! size changes the digest.

use std::sync::LazyLock;

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// Length of the pattern: the largest prime below 64 KiB.
const PERIOD: usize = 65_521;

/// Two periods, so that a whole period can be sliced from any place in the first.
static PATTERN: LazyLock<Bytes> = LazyLock::new(|| {
    let mut state = 0x9E37_79B9_u32;
    let mut pattern = Vec::with_capacity(2 * PERIOD);
    for _ in 0..PERIOD {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        pattern.push(state.to_le_bytes()[0]);
    }
    pattern.extend_from_within(..);
    pattern.into()
});

/// The first `length` bytes of the endless pattern, in pieces that share one buffer.
#[derive(Clone, Debug)]
pub struct Payload {
    position: u64,
    length: u64,
}

impl Payload {
    /// A payload of `length` bytes.
    pub fn new(length: u64) -> Self {
        Self {
            position: 0,
            length,
        }
    }

    /// All of it in one piece; for short payloads.
    pub fn to_bytes(&self) -> Bytes {
        self.clone().flatten().collect()
    }

    /// SHA-256 of all of it, in hexadecimal.
    pub fn sha256(&self) -> String {
        let mut digest = Sha256::new();
        for piece in self.clone() {
            digest.update(&piece);
        }
        hex(&digest.finalize())
    }
}

impl Iterator for Payload {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let rest = self.length - self.position;
        let piece = usize::try_from(rest).unwrap_or(PERIOD).min(PERIOD);
        let start = usize::try_from(self.position % PERIOD as u64).unwrap();
        self.position += piece as u64;
        (piece > 0).then(|| PATTERN.slice(start..start + piece))
    }
}

/// SHA-256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_bytes() {
        let payload = Payload::new(200_000);
        assert_eq!(payload.to_bytes().len(), 200_000);
        assert_eq!(payload.sha256(), sha256(&payload.to_bytes()));
        assert_eq!(sha256(b""), Payload::new(0).sha256());
    }
}
