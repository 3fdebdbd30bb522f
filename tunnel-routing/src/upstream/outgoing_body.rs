//! The content of a request on its way to the upstream: bounded, counted, and as long as declared.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tunnel_proto::exchange::BodyError;
use tunnel_proto::memory::MemoryAccount;
use tunnel_proto::problem::{Hop, Problem, Reason};

use super::progress::Progress;
use crate::request::RequestBody;

/// Content up to this size is kept until the head of the response, in case the request has to be sent again.
const KEPT_BYTES: usize = 64 * 1024;

/// The content of a request on its way out.
pub(super) struct OutgoingBody {
    /// `None` for a request without content. Boxed, since hyper moves a request often.
    body: Option<Box<RequestBody>>,
    /// Bytes that may still come, and the limit itself.
    left: u64,
    limit: u64,
    /// The declared length, and the bytes that are still missing of it.
    length: Option<u64>,
    missing: Option<u64>,
    /// What was given out, while it is to be kept.
    kept: Option<Box<Kept>>,
    progress: Arc<Progress>,
}

/// Content that was given out, counted as held memory.
struct Kept {
    data: BytesMut,
    /// Whether the data is to be given out again before anything else.
    is_due: bool,
    /// The end, when it has come: with the trailers, if there are any.
    end: Option<Option<HeaderMap>>,
    account: Arc<MemoryAccount>,
}

impl Kept {
    /// Keeps a frame; `false` if it is too much.
    fn push(&mut self, frame: Option<&Frame<Bytes>>) -> bool {
        let Some(data) = frame.and_then(Frame::data_ref) else {
            self.end = Some(frame.and_then(Frame::trailers_ref).cloned());
            return true;
        };
        if self.data.len() + data.len() > KEPT_BYTES {
            return false;
        }
        self.data.extend_from_slice(data);
        self.account.hold(data.len());
        true
    }

    /// Whether data, or trailers, are to be given out again.
    fn has_more(&self) -> bool {
        self.is_due || matches!(self.end, Some(Some(_)))
    }

    /// What is given out again, if it is due; `None` when more has to come.
    fn replay(&mut self) -> Option<Option<Frame<Bytes>>> {
        if std::mem::take(&mut self.is_due) && !self.data.is_empty() {
            return Some(Some(Frame::data(Bytes::copy_from_slice(&self.data))));
        }
        let trailers = self.end.clone()?;
        Some(trailers.map(Frame::trailers))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.account.release(self.data.len());
    }
}

impl OutgoingBody {
    /// The content of a request.
    pub(super) fn new(body: RequestBody, progress: Arc<Progress>) -> Self {
        if body.is_end_stream() {
            return Self::empty(progress);
        }
        Self {
            length: body.size_hint().exact(),
            missing: body.size_hint().exact(),
            body: Some(Box::new(body)),
            left: u64::MAX,
            limit: u64::MAX,
            kept: None,
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
            length: Some(0),
            missing: None,
            kept: None,
            progress,
        }
    }

    /// Keeps what is given out from now on, as long as it is little. To be called before the first poll; what is kept counts
    /// in `account`.
    pub(super) fn keep(&mut self, account: &Arc<MemoryAccount>) {
        if self.body.is_some() && self.kept.is_none() {
            self.kept = Some(Box::new(Kept {
                data: BytesMut::new(),
                is_due: false,
                end: None,
                account: Arc::clone(account),
            }));
        }
    }

    /// Keeps nothing any more: the request is not sent again.
    pub(super) fn release_kept(&mut self) {
        self.kept = None;
    }

    /// Starts again from the beginning; `false` if something was given out and not kept.
    #[must_use]
    pub(super) fn rewind(&mut self) -> bool {
        match &mut self.kept {
            Some(kept) => {
                kept.is_due = true;
                self.progress.on_rewind();
                true
            }
            None => self.body.is_none(),
        }
    }

    /// The whole content was handed to the connection.
    pub(super) fn on_sent(&self) {
        self.progress.on_end();
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
        if let Some(again) = this.kept.as_mut().and_then(|kept| kept.replay()) {
            return Poll::Ready(again.map(Ok));
        }
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
            this.kept = None;
        }
        let frame = frame.transpose();
        if let (Ok(frame), Some(kept)) = (&frame, &mut this.kept)
            && !kept.push(frame.as_ref())
        {
            this.kept = None;
        }
        Poll::Ready(frame.transpose())
    }

    fn is_end_stream(&self) -> bool {
        // Content that ends too early has to be polled for its end, which is an error.
        !self.kept.as_ref().is_some_and(|kept| kept.has_more())
            && self.missing.is_none_or(|missing| missing == 0)
            && self.body.as_ref().is_none_or(|body| body.is_end_stream())
    }

    /// The size of the whole content, however much of it was given out.
    fn size_hint(&self) -> SizeHint {
        self.length.map(SizeHint::with_exact).unwrap_or_default()
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
