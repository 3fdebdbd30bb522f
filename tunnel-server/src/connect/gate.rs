//! The gate before the handshakes of tunnel clients: a limit on concurrent handshakes, a short queue, and refusals.
//!
//! When a server comes back, all its clients dial at once. Without a gate all their handshakes would run concurrently,
//! and few would finish before the clients' time-outs. In: a client whose first bytes have been received. Out: a
//! handshake permit, held until its request is answered; or a refusal, with a `Retry-After` that differs from client to
//! client. [`state`] decides which client is next, and which one loses its permit to another.

mod state;

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

use self::state::{GRACE, GateState, Stage};

/// Shortest `Retry-After` of a rejected client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// By how much the `Retry-After` of each further client is longer: about what one handshake takes on one core.
const RETRY_AFTER_STEP: Duration = Duration::from_millis(5);

/// Longest `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Limits concurrent handshakes and their queue.
pub(crate) struct Gate {
    state: Mutex<GateState>,
    /// Permits for the responses to rejected clients, each of which takes a TLS handshake: as many as there are
    /// handshake permits, at most half of them for one address.
    refusals: Arc<Permits>,
    /// Clients rejected since one last entered without a wait.
    rejected: AtomicUsize,
}

/// The permit for one handshake, given to the next client when this is dropped. A silent client can lose it to another.
pub(crate) struct HandshakePermit {
    gate: Arc<Gate>,
    number: u64,
    changed: Arc<Notify>,
}

/// How a client for which there is no handshake permit is rejected.
pub(crate) enum Rejection {
    /// It gets a response with this `Retry-After`. The permit is held until then.
    Answer(Permit, Duration),
    /// Its connection is closed, because there is no permit for a response.
    Close,
}

impl Gate {
    /// Makes a gate with these limits on concurrent handshakes and on waiting clients.
    pub(crate) fn new(handshakes: usize, queue: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(GateState::new(handshakes, queue)),
            refusals: Permits::new(handshakes, handshakes.div_ceil(2)),
            rejected: AtomicUsize::new(0),
        })
    }

    /// Waits for a handshake permit.
    ///
    /// # Errors
    /// When the queue is full, and no address has more waiting clients than this one.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Result<HandshakePermit, Rejection> {
        let arrived = self.state.lock().arrive(address, Instant::now());
        let (number, changed) = arrived.ok_or_else(|| self.reject(address))?;
        let permit = HandshakePermit {
            gate: self.clone(),
            number,
            changed,
        };
        let mut has_waited = false;
        loop {
            match permit.stage() {
                Some(Stage::Waiting) => permit.changed.notified().await,
                Some(_) => break,
                None => return Err(self.reject(address)),
            }
            has_waited = true;
        }
        if !has_waited {
            self.rejected.store(0, Ordering::Relaxed);
        }
        Ok(permit)
    }

    /// The number of addresses that have clients at the gate.
    pub(crate) fn addresses(&self) -> usize {
        self.state.lock().addresses()
    }

    /// Rejects a client that cannot enter or has waited for too long.
    pub(crate) fn reject(&self, address: IpAddr) -> Rejection {
        let before = self.rejected.fetch_add(1, Ordering::Relaxed);
        let steps = u32::try_from(before).unwrap_or(u32::MAX);
        let delay = RETRY_AFTER_STEP.saturating_mul(steps);
        match self.refusals.acquire(Some(address)) {
            Ok(permit) => Rejection::Answer(permit, (RETRY_AFTER + delay).min(RETRY_AFTER_MAX)),
            Err(_) => Rejection::Close,
        }
    }
}

impl HandshakePermit {
    /// The client's request has been received: from now on it cannot lose the permit.
    pub(crate) fn on_request(&self) {
        self.gate.state.lock().on_request(self.number);
    }

    /// Resolves when the permit was given to another client, because this one was silent for too long.
    pub(crate) async fn displaced(&self) {
        // A client that arrives later calls `admit_waiting` itself; this call is for those that wait already.
        tokio::select! {
            () = sleep(GRACE) => self.gate.state.lock().admit_waiting(Instant::now()),
            () = self.removed() => return,
        }
        self.removed().await;
    }

    async fn removed(&self) {
        while self.stage().is_some() {
            self.changed.notified().await;
        }
    }

    fn stage(&self) -> Option<Stage> {
        self.gate.state.lock().stage(self.number)
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.gate.state.lock().leave(self.number, Instant::now());
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

    async fn permit(gate: &Arc<Gate>, number: u8) -> HandshakePermit {
        match gate.enter(address(number)).await {
            Ok(permit) => permit,
            Err(_) => panic!("no room"),
        }
    }

    async fn retry_after(gate: &Arc<Gate>, number: u8) -> Option<Duration> {
        match gate.enter(address(number)).await {
            Ok(_) => panic!("room"),
            Err(Rejection::Answer(_, after)) => Some(after),
            Err(Rejection::Close) => None,
        }
    }

    #[tokio::test]
    async fn beyond_permits_and_queue_clients_are_rejected() {
        let gate = Gate::new(1, 1);
        let first = permit(&gate, 1).await;
        let mut second = pin!(permit(&gate, 2));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(retry_after(&gate, 3).await, Some(RETRY_AFTER));
        assert_eq!(
            retry_after(&gate, 3).await,
            Some(RETRY_AFTER + RETRY_AFTER_STEP),
            "spread"
        );
        drop(first);
        assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_displaced_and_one_that_has_sent_a_request_is_not() {
        let gate = Gate::new(2, 2);
        let (active, silent) = (permit(&gate, 1).await, permit(&gate, 2).await);
        active.on_request();
        let began = Instant::now();
        let third = tokio::select! {
            third = permit(&gate, 3) => third,
            () = async { tokio::join!(active.displaced(), silent.displaced()); } => unreachable!(),
        };
        assert_eq!(began.elapsed(), GRACE);
        silent.displaced().await;
        drop((active, silent, third));
        assert_eq!(gate.addresses(), 0);
    }

    #[tokio::test]
    async fn a_client_without_a_permit_for_a_response_is_closed() {
        let gate = Gate::new(1, 0);
        let _held = permit(&gate, 1).await;
        let Err(Rejection::Answer(permit, _)) = gate.enter(address(2)).await else {
            panic!("expected a response")
        };
        assert_eq!(retry_after(&gate, 2).await, None);
        drop(permit);
        assert!(retry_after(&gate, 2).await.is_some());
    }

    #[tokio::test]
    async fn a_waiting_client_that_leaves_is_removed() {
        let gate = Gate::new(1, 1);
        let first = permit(&gate, 1).await;
        {
            let mut given_up = pin!(gate.enter(address(2)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(given_up.as_mut().poll(&mut cx).is_pending());
        }
        drop(first);
        assert_eq!(gate.addresses(), 0);
    }
}
