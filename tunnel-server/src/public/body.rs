//! The body of a request on its way to the session: delayed by the runtime's rate, and counted.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tunnel_http::listener_body::{ListenerBody, ReceivedContent};
use tunnel_proto::problem::Problem;

use super::observe::Upload;
use crate::budget::pace::Paced;

/// The content of a platform client's request.
pub(super) struct UploadBody {
    pub(super) body: ListenerBody<Paced<ReceivedContent>>,
    /// Counts them; `None` of a request without content.
    pub(super) upload: Option<Arc<Upload>>,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = Problem;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
        let Self { body, upload } = &mut *self;
        let frame = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(data), Some(upload)) = (frame.data_ref(), upload)
        {
            upload.on_sent(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
