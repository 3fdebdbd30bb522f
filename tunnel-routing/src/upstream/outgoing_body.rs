//! The content of a request on its way to the upstream: bounded, counted, and as long as declared.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tunnel_proto::exchange::BodyError;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::progress::Progress;
use crate::request::RequestBody;

/// The content of a request on its way out.
pub(super) struct OutgoingBody {
    /// `None` for a request without content. Boxed, since hyper moves a request often.
    body: Option<Box<RequestBody>>,
    /// Bytes that may still come, and the limit itself.
    left: u64,
    limit: u64,
    /// Bytes still missing of a declared length.
    missing: Option<u64>,
    progress: Arc<Progress>,
}

impl OutgoingBody {
    /// The content of a request.
    pub(super) fn new(body: RequestBody, progress: Arc<Progress>) -> Self {
        if body.is_end_stream() {
            return Self::empty(progress);
        }
        Self {
            missing: body.size_hint().exact(),
            body: Some(Box::new(body)),
            left: u64::MAX,
            limit: u64::MAX,
            progress,
        }
    }

    /// The body of a request without content.
    pub(super) fn empty(progress: Arc<Progress>) -> Self {
        progress.on_end();
        Self {
            body: None,
            left: u64::MAX,
            limit: u64::MAX,
            missing: None,
            progress,
        }
    }

    /// Allows at most this many bytes. Longer content is refused at once if its length is known, and else fails
    /// where it exceeds the limit.
    pub(super) fn limit(&mut self, bytes: u64) -> Result<(), Problem> {
        (self.left, self.limit) = (bytes, bytes);
        if self.size_hint().lower() > bytes {
            return Err(too_large(bytes));
        }
        Ok(())
    }
}

/// How many bytes of the declared length are missing after this frame, if `missing` were before it. No frame means the
/// end of the content.
///
/// # Errors
/// When the content is shorter or longer than declared: the upstream would take the next request for the rest of this
/// one.
fn counted(missing: u64, frame: Option<&Frame<Bytes>>) -> Result<u64, BodyError> {
    match frame.map(Frame::data_ref) {
        Some(Some(data)) => missing.checked_sub(data.len() as u64),
        // Trailers, or the end.
        Some(None) | None => (missing == 0).then_some(0),
    }
    .ok_or(BodyError::Length)
}

/// The problem of content that is larger than `limit`.
fn too_large(limit: u64) -> Problem {
    let detail = format!("the request's content is larger than {limit} bytes");
    Problem::new(Hop::Client, Reason::BodyTooLarge, detail)
}

impl Body for OutgoingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(&mut **body).poll_frame(cx);
        this.progress.on_content(frame.is_ready());
        let mut frame = ready!(frame);
        if let Some(Ok(next)) = &frame
            && let Some(data) = next.data_ref()
        {
            if let Some(left) = this.left.checked_sub(data.len() as u64) {
                this.left = left;
                this.progress.on_bytes(data.len());
            } else {
                frame = Some(Err(BodyError::Aborted(too_large(this.limit))));
            }
        }
        if let Some(missing) = &mut this.missing {
            let left = match &frame {
                Some(Ok(next)) => counted(*missing, Some(next)),
                Some(Err(_)) => Ok(*missing),
                None => counted(*missing, None),
            };
            match left {
                Ok(left) => *missing = left,
                Err(error) => frame = Some(Err(error)),
            }
        }
        if let Some(Err(error)) = &frame {
            this.progress.on_failed(content_problem(error));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // Content that ends too early has to be polled for its end, which is an error.
        self.missing.is_none_or(|missing| missing == 0)
            && self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl Drop for OutgoingBody {
    /// The sender drops the content when it needs no more of it, perhaps before its end was polled.
    fn drop(&mut self) {
        self.progress.on_end();
    }
}

/// The problem of a request whose content failed: the fault of the platform client or the tunnel, not of the upstream.
pub(super) fn content_problem(error: &BodyError) -> Problem {
    match error {
        BodyError::Aborted(problem) => problem.clone(),
        _ => Problem::new(Hop::Client, Reason::RequestIncomplete, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    #[test]
    fn content_is_as_long_as_declared_or_an_error() {
        let data = |length: usize| Frame::data(Bytes::from(vec![0; length]));
        assert_eq!(counted(7, Some(&data(4))).unwrap(), 3);
        assert_eq!(counted(3, Some(&data(3))).unwrap(), 0);
        assert!(counted(3, Some(&data(4))).is_err());
        assert_eq!(counted(0, None).unwrap(), 0);
        assert!(counted(1, None).is_err());
        assert!(counted(1, Some(&Frame::trailers(HeaderMap::new()))).is_err());
    }
}
