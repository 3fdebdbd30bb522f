//! A limit on the bytes per second of all bodies of one direction.
//!
//! A token bucket as a queue: each piece of a body reserves the next position with a [`Ticket`], which says when the
//! piece may be forwarded. Positions are given in the order of the reservations and for one small piece at a time, so that
//! all bodies take turns. Nothing waits here; the holder of a ticket does, with its own timer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Most bytes of one reservation.
pub const PIECE_BYTES: usize = 16 * 1024;

/// Smallest burst after a pause, in bytes: a few pieces, and the whole of most pages.
const BURST_BYTES: u64 = 64 * 1024;

/// Longest time that a ticket's holder waits before it checks again, since the rate may have changed.
const RECHECK: Duration = Duration::from_secs(1);

/// A second in the unit of the queue, which is byte × nanosecond.
const SECOND: u128 = 1_000_000_000;

/// A limit on the bytes per second; initially without limit.
#[derive(Debug, Default)]
pub struct Shaper {
    /// Bytes in a second; 0 while there is no limit. Read without the lock.
    rate: AtomicU64,
    queue: Mutex<Queue>,
}

/// The positions, counted from the beginning, in bytes × nanoseconds.
#[derive(Debug, Default)]
struct Queue {
    rate: u64,
    /// The time of `served`; `None` before there was a limit.
    at: Option<Instant>,
    /// The position up to which bytes may have been forwarded.
    served: u128,
    /// The position up to which bytes have been reserved.
    reserved: u128,
}

/// A reservation in the queue. Returned if it is dropped unused.
#[derive(Debug)]
pub struct Ticket {
    shaper: Arc<Shaper>,
    bytes: u64,
    due: u128,
}

impl Shaper {
    /// Changes the limit; reservations stay.
    pub fn set(&self, rate: Option<u64>) {
        let rate = rate.unwrap_or(0);
        if self.rate.load(Ordering::Relaxed) == rate {
            return;
        }
        self.rate.store(rate, Ordering::Relaxed);
        self.queue.lock().set(rate, Instant::now());
    }

    /// Whether there is a limit now.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// Reserves the next position for at most [`PIECE_BYTES`].
    #[must_use]
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Ticket {
        let bytes = bytes as u64;
        let due = self.queue.lock().reserve(bytes, Instant::now());
        Ticket {
            shaper: self.clone(),
            bytes,
            due,
        }
    }
}

impl Ticket {
    /// How long to wait before the next call; `None` if the bytes may be forwarded.
    #[must_use]
    pub fn wait(&mut self) -> Option<Duration> {
        if !self.shaper.is_set() {
            return None;
        }
        let wait = self.shaper.queue.lock().wait(&mut self.due, Instant::now());
        wait.map(|wait| wait.min(RECHECK))
    }

    /// The bytes have been forwarded.
    pub fn use_up(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut queue = self.shaper.queue.lock();
            queue.reserved = queue
                .reserved
                .saturating_sub(u128::from(self.bytes) * SECOND);
        }
    }
}

impl Queue {
    /// The burst: a quarter of a second at this rate.
    fn burst(&self) -> u128 {
        u128::from((self.rate / 4).max(BURST_BYTES)) * SECOND
    }

    fn set(&mut self, rate: u64, now: Instant) {
        self.advance(now);
        let was_set = self.rate != 0;
        self.rate = rate;
        if !was_set {
            self.served = self.served.max(self.reserved) + self.burst();
        }
    }

    fn advance(&mut self, now: Instant) {
        let since = self.at.replace(now).unwrap_or(now);
        let passed = now.saturating_duration_since(since).as_nanos();
        self.served += passed * u128::from(self.rate);
    }

    fn reserve(&mut self, bytes: u64, now: Instant) -> u128 {
        self.advance(now);
        let unused = self.served.saturating_sub(self.burst());
        self.reserved = self.reserved.max(unused) + u128::from(bytes) * SECOND;
        self.reserved
    }

    fn wait(&mut self, due: &mut u128, now: Instant) -> Option<Duration> {
        self.advance(now);
        // Reservations before this one may have been returned. The position never exceeds the reserved bytes, so the rate
        // is kept.
        *due = self.reserved.min(*due);
        let missing = due.checked_sub(self.served).filter(|left| *left > 0)?;
        let nanos = missing.div_ceil(u128::from(self.rate.max(1)));
        Some(Duration::from_nanos(
            u64::try_from(nanos).unwrap_or(u64::MAX),
        ))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const KB: u64 = 1_024;

    fn shaper(rate: u64) -> Arc<Shaper> {
        let shaper = Arc::new(Shaper::default());
        shaper.set(Some(rate));
        shaper
    }

    async fn pass(shaper: &Arc<Shaper>, bytes: usize) {
        let mut ticket = shaper.reserve(bytes);
        while let Some(wait) = ticket.wait() {
            sleep(wait).await;
        }
        ticket.use_up();
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_then_the_rate_holds() {
        for rate in [16 * KB, 256 * KB, 1_000_000, 100_000_000] {
            let shaper = shaper(rate);
            let start = Instant::now();
            let mut passed = 0;
            while start.elapsed() < Duration::from_secs(20) {
                pass(&shaper, 10_000).await;
                passed += 10_000;
            }
            let burst = (rate / 4).max(BURST_BYTES);
            let allowed = rate as f64 * start.elapsed().as_secs_f64() + burst as f64;
            let share = passed as f64 / allowed;
            assert!((0.97..=1.01).contains(&share), "{rate}: {share}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_allows_one_burst() {
        let shaper = shaper(100 * KB);
        pass(&shaper, PIECE_BYTES).await;
        advance(Duration::from_secs(3_600)).await;
        let start = Instant::now();
        for _ in 0..4 {
            pass(&shaper, PIECE_BYTES).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        pass(&shaper, PIECE_BYTES).await;
        let took = start.elapsed().as_millis();
        assert!((155..=165).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_share_a_rate_take_turns() {
        let shaper = shaper(64 * KB);
        let mut bodies = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let shaper = shaper.clone();
            bodies.spawn(async move {
                let start = Instant::now();
                let mut passed = 0;
                while start.elapsed() < Duration::from_secs(60) {
                    pass(&shaper, PIECE_BYTES).await;
                    passed += PIECE_BYTES;
                }
                passed
            });
        }
        let passed = bodies.join_all().await;
        let (least, most) = (passed.iter().min().unwrap(), passed.iter().max().unwrap());
        // The first body gets the burst.
        let burst = BURST_BYTES as usize;
        assert!(most - least <= burst + PIECE_BYTES, "{passed:?}");
        let all: usize = passed.iter().sum();
        assert!(
            (all as u64).abs_diff(60 * 64 * KB) < 4 * BURST_BYTES,
            "{all}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_reservation_is_returned() {
        let shaper = shaper(16 * KB);
        let mut given_up: Vec<Ticket> = (0..1_000).map(|_| shaper.reserve(PIECE_BYTES)).collect();
        assert!(given_up[999].wait().is_some());
        drop(given_up);
        let start = Instant::now();
        pass(&shaper, PIECE_BYTES).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn returned_reservations_delay_no_other_and_the_rate_is_kept() {
        let shaper = shaper(16 * KB);
        let before: Vec<Ticket> = (0..1_000).map(|_| shaper.reserve(PIECE_BYTES)).collect();
        let mut behind: Vec<Ticket> = (0..20).map(|_| shaper.reserve(PIECE_BYTES)).collect();
        drop(before);
        let start = Instant::now();
        // Later reservations do not delay it.
        assert!(behind[0].wait().is_some());
        let _later: Vec<Ticket> = (0..1_000).map(|_| shaper.reserve(PIECE_BYTES)).collect();
        while let Some(wait) = behind[0].wait() {
            sleep(wait).await;
        }
        // Twenty reservations of one second each, of which the burst covers four.
        let took = start.elapsed();
        assert!(
            took.abs_diff(Duration::from_secs(16)) < Duration::from_millis(10),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_rate_applies_to_waiting_tickets() {
        let shaper = shaper(KB);
        let mut waiting: Vec<Ticket> = (0..100).map(|_| shaper.reserve(PIECE_BYTES)).collect();
        assert_eq!(waiting[99].wait(), Some(RECHECK));
        shaper.set(Some(100 * 1_000 * KB));
        advance(Duration::from_millis(20)).await;
        assert_eq!(waiting[99].wait(), None);
        shaper.set(Some(1));
        let mut late = shaper.reserve(PIECE_BYTES * 100);
        assert!(late.wait().is_some());
        shaper.set(None);
        assert!(late.wait().is_none() && !shaper.is_set());
        // A limit that is set again begins with a burst, not with old reservations.
        shaper.set(Some(KB));
        let start = Instant::now();
        pass(&shaper, PIECE_BYTES).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
