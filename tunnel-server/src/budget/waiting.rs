//! Limits on the requests that wait for a runtime to come back: their number, and their memory.
//!
//! In: the memory of a request while it waits, in bytes. Out: a permit, or the limit that is exceeded. The memory is
//! estimated once, as the most that the request can use, so that it need not be updated while the request waits.

use super::Count;

/// Most memory of a waiting request apart from its head and content: its task, its timer, its state at the connection.
const BASE_BYTES: usize = 8 * 1024;

/// The memory of a waiting request, in bytes. Its head may be kept twice: as it is forwarded, and as it was received,
/// which the server's own responses and log lines use. Content is kept in its read buffers, which it does not fill: 1.3
/// times its length was measured for HTTP/2 frames of 16 KiB, 2.2 times for frames of 256 bytes.
#[must_use]
pub fn weight(head_bytes: usize, content_bytes: usize) -> usize {
    let head = head_bytes.saturating_mul(2);
    let content = content_bytes.saturating_mul(5) / 2;
    head.saturating_add(content).saturating_add(BASE_BYTES)
}

/// The waiting requests and their limits; initially without limits.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    requests: Count,
    bytes: Count,
}

/// Why another request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingFull {
    /// The greatest number of requests is waiting.
    Requests(usize),
    /// With this request, the waiting ones would hold too much memory.
    Bytes(usize),
}

/// The permit of a waiting request; returned when dropped.
#[derive(Debug)]
pub(super) struct WaitingPermit<'a> {
    room: &'a WaitingRoom,
    bytes: usize,
}

impl WaitingRoom {
    pub(super) fn unlimited() -> Self {
        Self {
            requests: Count::unlimited(),
            bytes: Count::unlimited(),
        }
    }

    /// Changes the limits; requests that are waiting already continue to.
    pub(super) fn limit(&self, requests: Option<u32>, bytes: Option<u64>) {
        self.requests.limit(requests.map(u64::from));
        self.bytes.limit(bytes);
    }

    /// Acquires a permit for a request that holds `bytes` of memory.
    pub(super) fn enter(&self, bytes: usize) -> Result<WaitingPermit<'_>, WaitingFull> {
        self.requests.enter(1).map_err(WaitingFull::Requests)?;
        if let Err(max) = self.bytes.enter(bytes) {
            self.requests.leave(1);
            return Err(WaitingFull::Bytes(max));
        }
        Ok(WaitingPermit { room: self, bytes })
    }

    /// How many more requests may wait, and how many more bytes they may hold.
    pub(super) fn free(&self) -> (usize, usize) {
        (self.requests.free(), self.bytes.free())
    }

    /// The number of waiting requests.
    pub(super) fn now(&self) -> usize {
        self.requests.now()
    }

    /// The number of waiting requests and the bytes that they hold, each with its limit.
    pub(super) fn used(&self) -> [(usize, usize); 2] {
        [self.requests.used(), self.bytes.used()]
    }
}

impl Drop for WaitingPermit<'_> {
    fn drop(&mut self) {
        self.room.bytes.leave(self.bytes);
        self.room.requests.leave(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_refused_request_is_not_counted() {
        let room = WaitingRoom::unlimited();
        room.limit(Some(2), Some(1_000));
        let large = room.enter(900).unwrap();
        assert_eq!(room.enter(101).unwrap_err(), WaitingFull::Bytes(1_000));
        let small = room.enter(100).unwrap();
        assert_eq!(room.enter(0).unwrap_err(), WaitingFull::Requests(2));
        drop(large);
        assert_eq!(room.enter(901).unwrap_err(), WaitingFull::Bytes(1_000));
        assert!(room.enter(900).is_ok());
        drop(small);
        assert_eq!((room.now(), room.bytes.now()), (0, 0));
        assert_eq!(
            room.enter(usize::MAX).unwrap_err(),
            WaitingFull::Bytes(1_000)
        );
    }

    proptest! {
        #[test]
        fn neither_limit_is_ever_exceeded(
            (most, bytes) in (0_u32..8, 0_u64..4_000),
            steps in prop::collection::vec((any::<bool>(), 0_usize..2_000), 1..100),
        ) {
            let room = WaitingRoom::unlimited();
            room.limit(Some(most), Some(bytes));
            let mut waiting: Vec<WaitingPermit<'_>> = Vec::new();
            for (arrives, weight) in steps {
                if arrives {
                    waiting.extend(room.enter(weight));
                } else if !waiting.is_empty() {
                    waiting.swap_remove(weight % waiting.len());
                }
                let held: usize = waiting.iter().map(|permit| permit.bytes).sum();
                prop_assert_eq!((room.now(), room.bytes.now()), (waiting.len(), held));
                prop_assert!(waiting.len() <= most as usize && held as u64 <= bytes);
            }
        }
    }
}
