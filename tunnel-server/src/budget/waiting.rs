//! Room for requests that wait for a runtime to come back: so many of them, and so much memory.
//!
//! In comes what a request holds while it waits, in bytes; out comes a permit, or which bound is
//! reached. A request is weighed once, by the most that it can come to hold, so that nothing
//! has to be asked while it waits.

use super::Count;

/// What a waiting request holds beside its head and its content, at most: its task, its timer, its
/// place at the connection.
const BASE_BYTES: usize = 8 * 1024;

/// What a request weighs that waits. Its head is kept as it is sent on, and once more as it was received where
/// an answer of our own may depend on that, or a line of the log. Content lies in the buffers that it was read
/// into, which it does not fill: 1.3 times its length was measured for HTTP/2 frames of 16 KiB, 2.2 times
/// for those of 256 bytes.
#[must_use]
pub fn weight(head_bytes: usize, content_bytes: usize) -> usize {
    let head = head_bytes.saturating_mul(2);
    let content = content_bytes.saturating_mul(5) / 2;
    head.saturating_add(content).saturating_add(BASE_BYTES)
}

/// Where requests may wait; without bounds at first.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    requests: Count,
    bytes: Count,
}

/// Why another request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingFull {
    /// As many wait as may.
    Requests(usize),
    /// It would hold more than may be held together with those that wait.
    Bytes(usize),
}

/// The right to wait; returned when dropped.
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

    /// Changes the bounds; requests that wait already go on.
    pub(super) fn limit(&self, requests: Option<u32>, bytes: Option<u64>) {
        self.requests.limit(requests.map(u64::from));
        self.bytes.limit(bytes);
    }

    /// A permit for a request that weighs so much.
    pub(super) fn enter(&self, bytes: usize) -> Result<WaitingPermit<'_>, WaitingFull> {
        self.requests.enter(1).map_err(WaitingFull::Requests)?;
        if let Err(max) = self.bytes.enter(bytes) {
            self.requests.leave(1);
            return Err(WaitingFull::Bytes(max));
        }
        Ok(WaitingPermit { room: self, bytes })
    }

    /// How many more may wait, and how much more they may hold, in bytes.
    pub(super) fn free(&self) -> (usize, usize) {
        (self.requests.free(), self.bytes.free())
    }

    /// How many wait now.
    pub(super) fn now(&self) -> usize {
        self.requests.now()
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
    fn what_does_not_fit_leaves_nothing_behind() {
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
        fn neither_bound_is_ever_passed(
            (most, bytes) in (0_u32..8, 0_u64..4_000),
            steps in prop::collection::vec((any::<bool>(), 0_usize..2_000), 1..100),
        ) {
            let room = WaitingRoom::unlimited();
            room.limit(Some(most), Some(bytes));
            let mut waiting: Vec<WaitingPermit<'_>> = Vec::new();
            for (is_coming, weight) in steps {
                if is_coming {
                    waiting.extend(room.enter(weight));
                } else if !waiting.is_empty() {
                    waiting.swap_remove(weight % waiting.len());
                }
                let held: usize = waiting.iter().map(|place| place.bytes).sum();
                prop_assert_eq!((room.now(), room.bytes.now()), (waiting.len(), held));
                prop_assert!(waiting.len() <= most as usize && held as u64 <= bytes);
            }
        }
    }
}
