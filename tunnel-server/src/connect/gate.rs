//! The gate before the handshakes of tunnel clients: so many at once, a short queue, and then away.
//!
//! When a server comes back, all its clients dial at once. Without a gate their handshakes would all
//! go on side by side, and none would be done before most had given up. In: a client whose first
//! bytes are there. Out: a pass, held until its request is answered; or a refusal, with a `Retry-After` that
//! differs from client to client. [`shares`] decides which client is next, and which one loses its pass to
//! another.

mod shares;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tunnel_http::permits::{Permit, Permits};

use self::shares::{GRACE, Shares, Stage};

/// Shortest time after which a client that was sent away comes back.
const AWAY: Duration = Duration::from_secs(1);

/// How much later than the one before each further client comes back: about what the handshakes of
/// one core take.
const AWAY_EACH: Duration = Duration::from_millis(5);

/// Longest such time.
const AWAY_MAX: Duration = Duration::from_secs(60);

/// The gate.
pub(crate) struct Gate {
    shares: Mutex<Shares>,
    /// Permits for the answers to clients that are sent away, each of which takes a TLS handshake: as many as there
    /// are passes, half of them for one address.
    refusals: Arc<Permits>,
    /// Clients sent away since one last entered without a wait.
    sent_away: AtomicUsize,
}

/// The right to one handshake, given to the next client when this is dropped. It can be taken back while its
/// client is silent.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    changed: Arc<Notify>,
}

/// What becomes of a client for which there is no pass.
pub(crate) enum Rejection {
    /// It is answered with this `Retry-After`. The permit is held until then.
    Answer(Permit, Duration),
    /// Its connection is closed, since there is no permit for an answer.
    Close,
}

impl Gate {
    /// A gate for so many handshakes at once and so many clients that wait.
    pub(crate) fn new(handshakes: usize, queue: usize) -> Arc<Self> {
        Arc::new(Self {
            shares: Mutex::new(Shares::new(handshakes, queue)),
            refusals: Permits::new(handshakes, handshakes.div_ceil(2)),
            sent_away: AtomicUsize::new(0),
        })
    }

    /// Waits for a pass.
    ///
    /// # Errors
    /// When as many as may wait do, and no address has more of them than the client's.
    pub(crate) async fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Pass, Rejection> {
        let arrived = self.shares.lock().arrive(address, Instant::now());
        let (number, changed) = arrived.ok_or_else(|| self.send_away(address))?;
        let pass = Pass {
            gate: self.clone(),
            number,
            changed,
        };
        let mut has_waited = false;
        loop {
            match pass.stage() {
                Some(Stage::Waiting) => pass.changed.notified().await,
                Some(_) => break,
                None => return Err(self.send_away(address)),
            }
            has_waited = true;
        }
        if !has_waited {
            self.sent_away.store(0, Ordering::Relaxed);
        }
        Ok(pass)
    }

    /// Addresses that have clients inside.
    pub(crate) fn addresses(&self) -> usize {
        self.shares.lock().addresses()
    }

    /// What becomes of a client that cannot enter, or has waited for too long.
    pub(crate) fn send_away(&self, address: IpAddr) -> Rejection {
        let before = self.sent_away.fetch_add(1, Ordering::Relaxed);
        let each = u32::try_from(before).unwrap_or(u32::MAX);
        let later = AWAY_EACH.saturating_mul(each);
        match self.refusals.acquire(Some(address)) {
            Ok(permit) => Rejection::Answer(permit, (AWAY + later).min(AWAY_MAX)),
            Err(_) => Rejection::Close,
        }
    }
}

impl Pass {
    /// The client's request is there: the pass is not taken back any more.
    pub(crate) fn spoke(&self) {
        self.gate.shares.lock().spoke(self.number);
    }

    /// Resolves when the pass was taken back, because its client was silent for too long while others
    /// waited.
    pub(crate) async fn taken_back(&self) {
        // A client that arrives later settles by itself; this lets in those that wait already.
        tokio::select! {
            () = sleep(GRACE) => self.gate.shares.lock().settle(Instant::now()),
            () = self.displaced() => return,
        }
        self.displaced().await;
    }

    async fn displaced(&self) {
        while self.stage().is_some() {
            self.changed.notified().await;
        }
    }

    fn stage(&self) -> Option<Stage> {
        self.gate.shares.lock().stage(self.number)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.shares.lock().leave(self.number, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn address(number: u8) -> IpAddr {
        [192, 0, number, 1].into()
    }

    async fn pass(gate: &Arc<Gate>, number: u8) -> Pass {
        match gate.enter(address(number)).await {
            Ok(pass) => pass,
            Err(_) => panic!("no room"),
        }
    }

    async fn away(gate: &Arc<Gate>, number: u8) -> Option<Duration> {
        match gate.enter(address(number)).await {
            Ok(_) => panic!("room"),
            Err(Rejection::Answer(_, after)) => Some(after),
            Err(Rejection::Close) => None,
        }
    }

    #[tokio::test]
    async fn so_many_pass_some_wait_and_the_rest_is_sent_away() {
        let gate = Gate::new(1, 1);
        let first = pass(&gate, 1).await;
        let mut second = pin!(pass(&gate, 2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(away(&gate, 3).await, Some(AWAY));
        assert_eq!(away(&gate, 3).await, Some(AWAY + AWAY_EACH), "spread");
        drop(first);
        assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_makes_room_and_one_that_has_spoken_does_not() {
        let gate = Gate::new(2, 2);
        let (spoke, silent) = (pass(&gate, 1).await, pass(&gate, 2).await);
        spoke.spoke();
        let began = Instant::now();
        let third = tokio::select! {
            third = pass(&gate, 3) => third,
            () = async { tokio::join!(spoke.taken_back(), silent.taken_back()); } => unreachable!(),
        };
        assert_eq!(began.elapsed(), GRACE);
        silent.taken_back().await;
        drop((spoke, silent, third));
        assert_eq!(gate.addresses(), 0);
    }

    #[tokio::test]
    async fn a_client_without_a_permit_for_an_answer_is_closed() {
        let gate = Gate::new(1, 0);
        let _held = pass(&gate, 1).await;
        let Err(Rejection::Answer(permit, _)) = gate.enter(address(2)).await else {
            panic!("expected to be told")
        };
        assert_eq!(away(&gate, 2).await, None);
        drop(permit);
        assert!(away(&gate, 2).await.is_some());
    }

    #[tokio::test]
    async fn a_client_that_gives_up_leaves_nothing_behind() {
        let gate = Gate::new(1, 1);
        let first = pass(&gate, 1).await;
        {
            let mut given_up = pin!(gate.enter(address(2)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(given_up.as_mut().poll(&mut cx).is_pending());
        }
        drop(first);
        assert_eq!(gate.addresses(), 0);
    }
}
