//! Unique ids of requests, cheap to generate.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hexadecimal digits of each half of an id: the one of the process, and the counter.
const HALF: usize = 12;

/// Random for each process, so that ids of several nodes, and of one node before and after a restart, do
/// not collide.
static PROCESS: LazyLock<[u8; HALF]> = LazyLock::new(|| hex(process_number()));

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The id of one request: 24 hexadecimal digits, unique within a process. It is predictable, so it must not
/// serve as a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId([u8; 2 * HALF]);

impl RequestId {
    /// A new id.
    #[expect(clippy::new_without_default, reason = "each call gives another value")]
    pub fn new() -> Self {
        let mut digits = [0; 2 * HALF];
        let (process, number) = digits.split_at_mut(HALF);
        process.copy_from_slice(&*PROCESS);
        number.copy_from_slice(&hex(NEXT.fetch_add(1, Ordering::Relaxed)));
        Self(digits)
    }

    /// The id's text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn process_number() -> u64 {
    // Without a source of randomness, the time and the process id still distinguish processes.
    getrandom::u64().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let nanoseconds = since.map_or(0, |since| {
            since.as_secs() ^ u64::from(since.subsec_nanos()) << 16
        });
        nanoseconds ^ u64::from(std::process::id()) << 32
    })
}

/// The lowest hexadecimal digits of a number.
fn hex(mut number: u64) -> [u8; HALF] {
    let mut digits = [0; HALF];
    for digit in digits.iter_mut().rev() {
        *digit = match (number & 0xf) as u8 {
            value @ 0..=9 => b'0' + value,
            value => b'a' + value - 10,
        };
        number >>= 4;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_within_one_process() {
        let (first, second) = (RequestId::new(), RequestId::new());
        assert_ne!(first, second);
        assert_eq!(first.as_str()[..HALF], second.as_str()[..HALF]);
        assert!(first.as_str() < second.as_str());
        assert!(
            first
                .as_str()
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        );
    }

    #[test]
    fn numbers_are_written_in_hexadecimal() {
        assert_eq!(&hex(0), b"000000000000");
        assert_eq!(&hex(0x1f_00ab), b"0000001f00ab");
        assert_eq!(&hex(u64::MAX), b"ffffffffffff");
    }
}
