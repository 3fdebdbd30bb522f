//! The rules for a chunked body: sizes, extensions, data, and which trailer fields may end it.
//!
//! In: the bytes of the body, in pieces of any size. Out: how many of them are valid. It keeps no bytes. Extensions are
//! checked and otherwise ignored.

use super::syntax;
use super::violation::Violation;

/// Most digits of a chunk size: those of a number of 64 bits.
const SIZE_DIGITS: u8 = 16;
/// Most bytes of the extensions of one chunk, and of a body. They have no use, and make small chunks costly. The second is
/// less than the 16 KiB at which hyper ends a body, which would look incomplete.
const EXTENSION_BYTES: u16 = 1024;
const EXTENSIONS_BYTES: u16 = 15 * 1024;

/// A chunked body that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    position: Position,
    /// Bytes of extensions so far.
    extensions: u16,
}

/// The position of the next byte in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Size {
        size: u64,
        digits: u8,
    },
    Extension {
        size: u64,
        bytes: u16,
        has_name: bool,
    },
    SizeLineFeed {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCarriageReturn,
    DataLineFeed,
    /// The last chunk was read; the trailer section follows.
    Ended,
}

impl Chunks {
    /// The state before the first chunk.
    pub(super) const START: Self = Self {
        position: Position::START,
        extensions: 0,
    };

    /// Whether the last chunk was read; the trailer section follows.
    pub(super) fn is_ended(&self) -> bool {
        self.position == Position::Ended
    }

    /// Reads `input` up to its end, the end of the last chunk, or an invalid byte. Returns the number of valid bytes. The next
    /// call fails if it begins with the invalid byte.
    pub(super) fn read(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let mut good = 0;
        while good < input.len() && !self.is_ended() {
            if let Position::Data { left } = &mut self.position {
                let rest = input.len() - good;
                let taken = usize::try_from(*left).map_or(rest, |left| left.min(rest));
                *left -= taken as u64;
                if *left == 0 {
                    self.position = Position::DataCarriageReturn;
                }
                good += taken;
                continue;
            }
            match self.next(input[good]) {
                Ok(next) => *self = next,
                Err(violation) if good == 0 => return Err(violation),
                Err(_) => break,
            }
            good += 1;
        }
        Ok(good)
    }

    fn next(self, byte: u8) -> Result<Self, Violation> {
        let position = self.position.next(byte)?;
        let is_counted = matches!(position, Position::Extension { bytes, .. } if bytes > 0);
        if is_counted && self.extensions == EXTENSIONS_BYTES {
            return Err(Violation::ChunkExtensionsTooLong);
        }
        Ok(Self {
            position,
            extensions: self.extensions + u16::from(is_counted),
        })
    }
}

impl Position {
    /// The state before each chunk.
    const START: Self = Self::Size { size: 0, digits: 0 };

    /// The state after `byte`, which is not one of the data.
    fn next(self, byte: u8) -> Result<Self, Violation> {
        match self {
            Self::Size { size, digits } => Self::after_size_byte(size, digits, byte),
            Self::Extension {
                size,
                bytes,
                has_name,
            } => match byte {
                b'\r' if has_name => Ok(Self::SizeLineFeed { size }),
                _ if bytes == EXTENSION_BYTES => Err(Violation::ChunkExtensionTooLong),
                b' ' | b'\t' => Ok(Self::Extension {
                    size,
                    bytes: bytes + 1,
                    has_name,
                }),
                _ if !has_name && !syntax::is_token_byte(byte) => Err(Violation::ChunkExtension),
                _ if byte < b' ' || byte == 0x7f => Err(Violation::ChunkExtension),
                _ => Ok(Self::Extension {
                    size,
                    bytes: bytes + 1,
                    has_name: true,
                }),
            },
            Self::SizeLineFeed { .. } if byte != b'\n' => Err(Violation::ChunkLineEnding),
            Self::SizeLineFeed { size: 0 } => Ok(Self::Ended),
            Self::SizeLineFeed { size } => Ok(Self::Data { left: size }),
            Self::DataCarriageReturn if byte == b'\r' => Ok(Self::DataLineFeed),
            Self::DataLineFeed if byte == b'\n' => Ok(Self::START),
            Self::DataCarriageReturn | Self::DataLineFeed => Err(Violation::ChunkDataEnding),
            Self::Data { .. } | Self::Ended => Ok(self),
        }
    }

    fn after_size_byte(size: u64, digits: u8, byte: u8) -> Result<Self, Violation> {
        match (char::from(byte).to_digit(16), byte) {
            (Some(_), _) if digits == SIZE_DIGITS => Err(Violation::ChunkSizeTooLong),
            (Some(digit), _) => Ok(Self::Size {
                size: size << 4 | u64::from(digit),
                digits: digits + 1,
            }),
            (None, b'\r') if digits > 0 => Ok(Self::SizeLineFeed { size }),
            (None, b';') if digits > 0 => Ok(Self::Extension {
                size,
                bytes: 0,
                has_name: false,
            }),
            (None, b'\n') if digits > 0 => Err(Violation::ChunkLineEnding),
            _ => Err(Violation::ChunkSize),
        }
    }
}
