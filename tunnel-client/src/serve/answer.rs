//! The content of responses at the listener.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tunnel_http::access_log::{ExchangeRecord, Observer};
use tunnel_http::long_streams::{Direct, Hold};
use tunnel_http::permits::Permit;
use tunnel_http::upgraded::{Download, Upgrade};
use tunnel_proto::exchange::AsProblem;
use tunnel_proto::fields::clean_frame;
use tunnel_proto::problem::{Hop, Problem};
use tunnel_routing::RoutedBody;

use crate::exchange::Observation;

/// The content of a response: that of the routes, or the client's own.
pub(super) type ResponseBody =
    tunnel_http::answer::ResponseBody<RoutedContent, Direct<ResponseError>, ServedExchange>;

/// An upgrade that was granted.
pub(super) type GrantedUpgrade = Upgrade<RoutedContent, Direct<ResponseError>, ServedExchange>;

/// The error of content that cannot end in order when the client stops.
pub(super) const STOPPED: Direct<ResponseError> = Direct(|| ResponseError::Stopped);

/// Why the content of a response is incomplete.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("{0}")]
    Upstream(<RoutedBody as Body>::Error),
    #[error("the client has stopped")]
    Stopped,
}

/// The content of the routes, without fields that are not allowed in trailers.
pub(super) struct RoutedContent(pub(super) RoutedBody);

impl Body for RoutedContent {
    type Data = Bytes;
    type Error = ResponseError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_frame(cx)) {
            Some(Ok(frame)) => clean_frame(frame).map(Ok),
            Some(Err(error)) => Some(Err(ResponseError::Upstream(error))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

impl Hold for RoutedContent {}

impl Download for RoutedContent {
    /// Ready at once: the upload is sent when its bytes have been read to the end.
    async fn upload_sent(&mut self) {}
}

/// One exchange of the listener, until its response has been sent.
pub(super) struct ServedExchange {
    pub(super) observation: Observation,
    /// Released at the end of the response.
    pub(super) _permit: Permit,
}

impl Observer<ResponseError> for ServedExchange {
    const HOP: Hop = Hop::Client;

    fn record(&mut self) -> &mut ExchangeRecord {
        self.observation.record()
    }

    fn count_bytes(&mut self, bytes: u64) {
        self.observation.count_bytes(bytes);
    }

    fn problem(error: &ResponseError) -> Option<Problem> {
        match error {
            ResponseError::Upstream(error) => Some(error.as_problem()),
            ResponseError::Stopped => None,
        }
    }
}
