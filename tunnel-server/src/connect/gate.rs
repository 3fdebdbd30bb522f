//! The gate before the handshakes of tunnel clients: a limit on concurrent handshakes, a queue, and refusals.
//!
//! When a server comes back, all its clients dial at once. Without a gate all their handshakes would run concurrently,
//! and few would finish before the clients' time-outs. In: a client whose first bytes have been received. Out: a
//! handshake permit, held until its request is answered; or a rejection with the time until the server
//! will have room for it. [`state`] decides which client is next, and which one loses its permit to another; [`pace`] how many may
//! wait, and when the others are to come.

mod pace;
mod ranking;
mod state;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tunnel_http::permits::{Permit, Permits};

use self::state::{GRACE, GateState, Stage};

/// How many handshake permits there are for each permit for a response to a rejected client: such a response takes TLS, which
/// is most of a handshake.
const HANDSHAKES_PER_REFUSAL: usize = 8;

/// Limits concurrent handshakes and their queue.
pub(crate) struct Gate {
    state: Mutex<GateState>,
    /// Permits for responses over TLS to rejected clients, at most half of them for one address.
    refusals: Arc<Permits>,
}

/// The permit for one handshake, given to the next client when this is dropped. A silent client can lose it to another.
pub(crate) struct HandshakePermit {
    gate: Arc<Gate>,
    number: u64,
    changed: Arc<Notify>,
}

/// What a client for which there is no handshake permit is told.
pub(crate) struct Rejection {
    /// The time until the server will have room for it, in whole seconds.
    pub(crate) retry_after: Duration,
    /// Held until it has its response over TLS. Without one, the response is made before TLS.
    pub(crate) permit: Option<Permit>,
}

impl Gate {
    /// Makes a gate with these limits on concurrent handshakes and on waiting clients.
    pub(crate) fn new(handshakes: usize, queue: usize) -> Arc<Self> {
        let refusals = handshakes.div_ceil(HANDSHAKES_PER_REFUSAL);
        Arc::new(Self {
            state: Mutex::new(GateState::new(handshakes, queue)),
            refusals: Permits::new(refusals, refusals.div_ceil(2)),
        })
    }

    /// Waits for a handshake permit, for `limit` at most.
    ///
    /// # Errors
    /// When the time is over, or the queue is full and no address has more waiting clients than this one.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        limit: Duration,
    ) -> Result<HandshakePermit, Rejection> {
        let arrived = self.state.lock().arrive(address, limit, Instant::now());
        let (number, changed) = arrived.ok_or_else(|| self.reject(address))?;
        let permit = HandshakePermit {
            gate: self.clone(),
            number,
            changed,
        };
        match timeout(limit, permit.admitted()).await {
            Ok(true) => Ok(permit),
            _ => Err(self.reject(address)),
        }
    }

    /// The number of addresses that have clients at the gate.
    pub(crate) fn addresses(&self) -> usize {
        self.state.lock().addresses()
    }

    fn reject(&self, address: IpAddr) -> Rejection {
        Rejection {
            retry_after: self.state.lock().retry_after(Instant::now()),
            permit: self.refusals.acquire(Some(address)).ok(),
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

    /// Resolves when the client has a permit, or was displaced. Returns whether it has one.
    async fn admitted(&self) -> bool {
        loop {
            match self.stage() {
                Some(Stage::Waiting) => self.changed.notified().await,
                stage => return stage.is_some(),
            }
        }
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
