//! What all requests of one connection share, and what they can do to it.

use std::sync::Arc;

use http::{HeaderMap, StatusCode, request::Parts};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tunnel_http::connection::Tasks;
use tunnel_http::http1::GuardHandle;
use tunnel_http::{answer::http1_head, outgoing::Origin};
use tunnel_ops::telemetry::log_refused;
use tunnel_proto::problem::Problem;

use super::upgraded::{Granted, GrantedSlot, join};
use crate::{budget::usage::Usage, node::Node};

/// Where a connection comes from, and what is open for its address.
pub(super) type Caller = (Origin, Option<Arc<Usage>>);

/// What all requests of one connection share.
pub(super) struct Connection {
    pub(super) node: Arc<Node>,
    pub(super) origin: Origin,
    /// What is open for its address; `None` of a trusted proxy that speaks for many.
    pub(super) usage: Option<Arc<Usage>>,
    /// `None` over HTTP/2.
    pub(super) guard: Option<GuardHandle>,
    /// The upgrade that an HTTP/1 connection is turned into.
    pub(super) granted: GrantedSlot,
    /// Upgraded streams of an HTTP/2 connection, and hyper's own tasks for it.
    pub(super) tasks: Tasks,
}

impl Connection {
    pub(super) fn new(
        node: &Arc<Node>,
        (origin, usage): Caller,
        guard: Option<GuardHandle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node: node.clone(),
            origin,
            usage,
            guard,
            granted: Mutex::new(None),
            tasks: Tasks::default(),
        })
    }

    pub(super) fn is_http2(&self) -> bool {
        self.guard.is_none()
    }

    pub(super) fn not_upgraded(&self) {
        if let Some(guard) = &self.guard {
            guard.not_upgraded();
        }
    }

    /// Writes the access-log line of a request that was refused before it was known where it goes. `head` is
    /// what could be read of it.
    pub(super) fn log_refused(&self, head: Option<&Parts>, problem: &Problem) {
        if self.node.config().settings.access_log {
            let (status, end) = (problem.status().as_u16(), problem.reason().name());
            log_refused(head, self.origin.address, status, end, problem.detail());
        }
    }

    /// Sends an informational response ahead, where that can be done cleanly: over HTTP/1.1.
    pub(super) fn informational(&self, status: StatusCode, headers: &HeaderMap) {
        if let Some(guard) = &self.guard {
            let mut head = http1_head(status, headers);
            head.extend_from_slice(b"\r\n");
            let _ = guard.informational(head.freeze());
        }
    }

    /// Takes an upgrade over: an HTTP/1 connection as a whole, of HTTP/2 the one stream.
    pub(super) fn upgrade(&self, granted: Granted, on_upgrade: Option<OnUpgrade>) {
        match (&self.guard, on_upgrade) {
            (Some(guard), _) => {
                *self.granted.lock() = Some(granted);
                guard.upgraded();
            }
            (None, Some(on_upgrade)) => {
                let node = self.node.clone();
                self.tasks.spawn_upgraded(async move {
                    if let Ok(upgraded) = on_upgrade.await {
                        let taken_in = node.config().settings.body_idle_timeout;
                        join(TokioIo::new(upgraded), granted, &node, Some(taken_in)).await;
                    }
                });
            }
            (None, None) => {}
        }
    }
}
