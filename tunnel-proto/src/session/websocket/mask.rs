//! Masking of client frames (RFC 6455 section 5.3).

/// Random bytes fetched from the system at once: one call for each frame would cost more than the masking.
const POOL_BYTES: usize = 256;

/// A source of unpredictable masking keys.
pub(super) struct Masks {
    pool: [u8; POOL_BYTES],
    used: usize,
}

impl Masks {
    pub(super) fn new() -> Self {
        Self {
            pool: [0; POOL_BYTES],
            used: POOL_BYTES,
        }
    }

    /// The next masking key. Fails when the system yields no random bytes.
    pub(super) fn next(&mut self) -> Result<[u8; 4], getrandom::Error> {
        if self.used == POOL_BYTES {
            getrandom::fill(&mut self.pool)?;
            self.used = 0;
        }
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.pool[self.used..self.used + 4]);
        self.used += 4;
        Ok(mask)
    }
}

/// Masks or unmasks bytes, which is one operation.
pub(super) fn apply(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([
        mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3],
    ]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Unmasks a piece of a payload, and rotates the mask to the start of the next piece.
pub(super) fn unmask(piece: &mut [u8], mask: &mut Option<[u8; 4]>) {
    if let Some(mask) = mask {
        apply(piece, *mask);
        mask.rotate_left(piece.len() % 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmasking_in_pieces_equals_unmasking_the_whole() {
        let mask = [1, 2, 4, 8];
        let plain: Vec<u8> = (0..200).collect();
        let masked: Vec<u8> = plain
            .iter()
            .enumerate()
            .map(|(at, byte)| byte ^ mask[at % 4])
            .collect();
        for piece in 1..plain.len() {
            let (mut got, mut turned) = (masked.clone(), Some(mask));
            got.chunks_mut(piece)
                .for_each(|piece| unmask(piece, &mut turned));
            assert_eq!(got, plain, "in pieces of {piece}");
        }
    }

    #[test]
    fn masks_differ() {
        let mut masks = Masks::new();
        let mut all: Vec<_> = (0..200).map(|_| masks.next().unwrap()).collect();
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > 190);
    }
}
