//! A request on its way from a route to an upstream.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Request};
use tokio::time::Instant;
use tunnel_ops::telemetry::tracer::{AttemptTarget, Trace};
use tunnel_ops::telemetry::{TRACE_PARENT, TRACE_STATE};
use tunnel_proto::problem::Problem;

use super::outgoing_body::OutgoingBody;
use super::progress::Progress;
use crate::request::{Informational, RequestBody};
use crate::url::{UpstreamScheme, UpstreamUrl};

/// A request that a route sends to an upstream.
pub struct RoutedRequest {
    pub(super) head: Parts,
    /// `None` once it is sent.
    pub(super) content: Option<OutgoingBody>,
    pub(super) informational: Informational,
    pub(super) progress: Arc<Progress>,
    /// Time that passed while the upstream was dialled, or waited for.
    pub(super) waited: Duration,
    /// `None` if the exchange is not traced.
    trace: Option<Trace>,
}

impl RoutedRequest {
    /// A request from a platform client. `progress` records how much of its content is sent.
    pub fn new(
        message: Request<RequestBody>,
        informational: Informational,
        progress: Arc<Progress>,
    ) -> Self {
        let (head, content) = message.into_parts();
        Self {
            head,
            content: Some(OutgoingBody::new(content, Arc::clone(&progress))),
            informational,
            progress,
            waited: Duration::ZERO,
            trace: None,
        }
    }

    /// A request of the client itself, without content; informational responses are dropped.
    pub(super) fn bare(head: Parts) -> Self {
        let progress = Arc::new(Progress::uncounted());
        Self {
            head,
            content: None,
            informational: Informational::default(),
            progress,
            waited: Duration::ZERO,
            trace: None,
        }
    }

    /// Has each attempt to forward it traced.
    pub fn set_trace(&mut self, trace: Trace) {
        self.trace = Some(trace);
    }

    /// An attempt to forward it to this upstream begins. The head that is sent names it, if the exchange is traced.
    pub(super) fn on_attempt(&mut self, upstream: &UpstreamUrl) {
        let Some(trace) = &self.trace else {
            return;
        };
        let socket = upstream.socket_path().and_then(Path::to_str);
        let parent = trace.on_attempt(AttemptTarget::Upstream {
            scheme: match upstream.scheme() {
                UpstreamScheme::Https => "https",
                UpstreamScheme::Http | UpstreamScheme::H2c => "http",
            },
            authority: upstream.authority(),
            address: socket.unwrap_or_else(|| upstream.host()),
            port: socket.is_none().then_some(upstream.port()),
            path: self.head.uri.path(),
        });
        let headers = &mut self.head.headers;
        if trace.is_root() {
            headers.remove(TRACE_STATE);
        }
        if let Ok(parent) = HeaderValue::from_str(parent.as_str()) {
            headers.insert(TRACE_PARENT, parent);
        }
    }

    /// The attempt has failed.
    pub(super) fn on_attempt_failed(&self, problem: &Problem) {
        if let Some(trace) = &self.trace {
            trace.on_attempt_failed(problem.reason().name());
        }
    }

    /// The request's head.
    pub fn head(&self) -> &Parts {
        &self.head
    }

    /// The head, for a route to change in place. `Host`, if present, must stay the first field.
    pub(crate) fn head_mut(&mut self) -> &mut Parts {
        &mut self.head
    }

    /// Takes the content; empty if it was taken before.
    pub(super) fn take_content(&mut self) -> OutgoingBody {
        let content = self.content.take();
        content.unwrap_or_else(|| OutgoingBody::empty(Arc::clone(&self.progress)))
    }

    /// Time that passed while the upstream was dialled, or waited for.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Awaits `work` and adds the time to `waited`.
    pub(super) async fn wait<T>(waited: &mut Duration, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let done = work.await;
        *waited += started.elapsed();
        done
    }
}
