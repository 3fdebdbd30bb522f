//! Variable-length integers (RFC 9000 section 16): bytes to number, number to bytes.
//!
//! The first two bits of the first byte give the length of the integer: 1, 2, 4 or 8 bytes. Writes the
//! shortest form; reads any form.

use bytes::{BufMut, BytesMut};

/// The largest number that can be written.
pub(super) const MAX: u64 = (1 << 62) - 1;

/// Bytes of the longest form.
pub(super) const MAX_LENGTH: usize = 8;

/// Length of the integer that starts with this byte.
pub(super) fn length(first: u8) -> usize {
    1 << (first >> 6)
}

/// The integer at the start of `bytes` and its length; `None` when it is incomplete.
pub(super) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let (first, rest) = bytes.split_first()?;
    let length = length(*first);
    let start = u64::from(first & 0x3f);
    if length == 1 {
        return Some((start, 1));
    }
    let rest = rest.get(..length - 1)?;
    Some((
        rest.iter()
            .fold(start, |value, byte| value << 8 | u64::from(*byte)),
        length,
    ))
}

/// Appends the shortest form of `value`, which is at most [`MAX`].
pub(super) fn write(out: &mut BytesMut, value: u64) {
    debug_assert!(value <= MAX, "no length in memory comes near the limit");
    let bytes = value.to_be_bytes();
    match value {
        0..0x40 => out.put_u8(bytes[7]),
        0x40..0x4000 => out.put_slice(&[bytes[6] | 0x40, bytes[7]]),
        0x4000..0x4000_0000 => {
            out.put_slice(&[bytes[4] | 0x80, bytes[5], bytes[6], bytes[7]]);
        }
        _ => out.put_u64(value | 0xc000_0000_0000_0000),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(value: u64) -> BytesMut {
        let mut out = BytesMut::new();
        write(&mut out, value);
        out
    }

    #[test]
    fn the_examples_of_rfc_9000_are_read() {
        let examples: [(&[u8], u64); 5] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in examples {
            assert_eq!(read(bytes), Some((value, bytes.len())));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), None);
            }
        }
    }

    #[test]
    fn the_shortest_form_is_written() {
        let lengths = [
            (0, 1),
            (0x3f, 1),
            (0x40, 2),
            (0x3fff, 2),
            (0x4000, 4),
            (0x3fff_ffff, 4),
            (0x4000_0000, 8),
            (MAX, 8),
        ];
        for (value, length) in lengths {
            assert_eq!(written(value).len(), length, "{value:#x}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value in 0..=MAX, shift in 0..62u32) {
            let value = value >> shift;
            let out = written(value);
            prop_assert_eq!(length(out[0]), out.len());
            prop_assert_eq!(read(&out), Some((value, out.len())));
        }
    }
}
