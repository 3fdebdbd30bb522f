//! The life of an exchange in the client: accepted request, route, upstream, response.
//!
//! ```text
//!   session, listener ─▶ Exchanges::answer ─▶ route ─▶ upstream ─▶ response ─▶ session, listener
//!                              └── observe: metrics, access log and spans, from the first moment to the last
//! ```
//!
//! In: a request, whose content is read as far as the upstream takes it. Out: the upstream's response, or the [`Problem`]
//! that the platform client gets.

mod observe;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame};
use tunnel_http::access_log::{self, AccessLog};
use tunnel_ops::telemetry::tracer::Tracer;
use tunnel_proto::control::RoutesSummary;
use tunnel_proto::exchange::AsProblem;
use tunnel_proto::problem::Problem;
use tunnel_routing::request::{Informational, RequestBody};
use tunnel_routing::upstream::{Progress, RoutedRequest};
use tunnel_routing::{RoutedBody, Routes};

pub(crate) use self::observe::Observation;
use crate::metrics::Metrics;

/// Answers all exchanges. Clones share everything.
#[derive(Clone)]
pub(crate) struct Exchanges {
    shared: Arc<Shared>,
}

struct Shared {
    routes: Arc<Routes>,
    metrics: Arc<Metrics>,
    access_log: AccessLog,
    tracer: Tracer,
}

impl Exchanges {
    /// Answers by these routes.
    pub(crate) fn new(
        routes: Arc<Routes>,
        metrics: Arc<Metrics>,
        access_log: AccessLog,
        tracer: Tracer,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                routes,
                metrics,
                access_log,
                tracer,
            }),
        }
    }
}

impl Exchanges {
    /// Answers a request that came through a session. Informational responses are sent to `informational`.
    pub(crate) fn answer(
        &self,
        request: Request<RequestBody>,
        informational: Informational,
    ) -> impl Future<Output = Result<Response<ObservedBody>, Problem>> + Send + use<> {
        let answered = answer(Arc::clone(&self.shared), request, informational, None);
        async move {
            let (response, observation) = answered.await?;
            Ok(response.map(|body| ObservedBody { body, observation }))
        }
    }

    /// Answers a request of this platform client that came in at a listener. The caller observes the response's
    /// content.
    pub(crate) fn answer_peer(
        &self,
        request: Request<RequestBody>,
        informational: Informational,
        peer: IpAddr,
    ) -> impl Future<Output = Result<(Response<RoutedBody>, Observation), Problem>> + Send + use<>
    {
        answer(Arc::clone(&self.shared), request, informational, Some(peer))
    }

    /// Counts and logs a request that was refused before there was an exchange. `head` is its unchecked head, if that could
    /// be read.
    pub(crate) fn on_refused(&self, head: Option<&Parts>, peer: IpAddr, problem: &Problem) {
        self.shared.metrics.on_problem(problem);
        self.shared.access_log.refused(head, peer, problem);
    }

    /// The summary of the routes for the server, with or without their upstreams.
    pub(crate) fn routes(&self, with_upstreams: bool) -> RoutesSummary {
        self.shared.routes.summary(with_upstreams)
    }
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<RequestBody>,
    informational: Informational,
    peer: Option<IpAddr>,
) -> Result<(Response<RoutedBody>, Observation), Problem> {
    let progress = Arc::new(Progress::new(shared.metrics.bytes_in.clone()));
    let metrics = Arc::clone(&shared.metrics);
    let mut request = RoutedRequest::new(request, informational, Arc::clone(&progress));
    let mut observation = Observation::new(metrics, progress);
    let trace = (shared.tracer).trace(|| access_log::trace(request.head()));
    if let Some(trace) = &trace {
        request.set_trace(trace.clone());
    }
    observation.log(&shared.access_log, trace, request.head(), peer);
    let mut reported = None;
    let result = match shared.routes.route(request.head()) {
        Ok(route) => {
            observation
                .on_route(route)
                .respond(&mut request, &mut reported)
                .await
        }
        Err(problem) => Err(problem),
    };
    match result {
        Ok(response) => {
            observation.on_head(response.status(), request.waited());
            if let Some(problem) = &reported {
                observation.on_problem(problem);
            }
            Ok((response, observation))
        }
        Err(problem) => {
            observation.on_problem(&problem);
            Err(problem)
        }
    }
}

/// The observed content of a response to a session.
pub(crate) struct ObservedBody {
    body: RoutedBody,
    observation: Observation,
}

impl Body for ObservedBody {
    type Data = Bytes;
    type Error = <RoutedBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    this.observation.on_bytes(data.len());
                }
            }
            Some(Err(error)) => this.observation.on_problem(&error.as_problem()),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

impl Drop for ObservedBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.observation.on_whole();
        }
    }
}
