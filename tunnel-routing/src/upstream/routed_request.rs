//! A request on its way from a route to an upstream.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::request::Parts;
use tokio::time::Instant;

use super::outgoing_body::OutgoingBody;
use super::progress::Progress;
use crate::request::{Informational, RequestBody};

/// A request that a route sends to an upstream.
pub struct RoutedRequest {
    pub(super) head: Parts,
    /// `None` once it is sent.
    pub(super) content: Option<OutgoingBody>,
    pub(super) informational: Informational,
    pub(super) progress: Arc<Progress>,
    /// Time that passed while the upstream was dialled, or waited for.
    pub(super) waited: Duration,
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
