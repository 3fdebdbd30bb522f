//! An HTTP/2 client that writes frames as it likes, so that it can break every rule.

use testkit::{http1::RawConnection, http2::Frame};

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A response, with its status if that is one of those that HPACK has a number for.
    Answered(Option<u16>),
    /// The stream was reset.
    Reset(u32),
    /// The whole connection ended.
    Gone,
}

/// A connection on which the prefaces have been exchanged.
pub(crate) struct Frames {
    pub(crate) raw: RawConnection,
}

impl Frames {
    pub(crate) async fn new(mut raw: RawConnection) -> Self {
        raw.begin_http2_client().await;
        let mut frames = Self { raw };
        let settings = frames.next().await.unwrap();
        assert_eq!((settings.kind, settings.flags), (Frame::SETTINGS, 0));
        frames.send(Frame::SETTINGS, Frame::ACK, 0, &[]).await;
        frames
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.raw
            .send(Frame::new(kind, flags, stream, payload).bytes())
            .await;
    }

    /// The next frame; `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        self.raw.http2_frame().await
    }

    /// What becomes of a stream. Answers pings and settings on the way.
    pub(crate) async fn verdict(&mut self, stream: u32) -> Verdict {
        while let Some(frame) = self.next().await {
            match frame.kind {
                Frame::HEADERS if frame.stream == stream => {
                    return Verdict::Answered(status(&frame.payload));
                }
                Frame::RST_STREAM if frame.stream == stream => {
                    return Verdict::Reset(u32::from_be_bytes(frame.payload.try_into().unwrap()));
                }
                Frame::GOAWAY => return Verdict::Gone,
                Frame::PING if frame.flags & Frame::ACK == 0 => {
                    self.send(Frame::PING, Frame::ACK, 0, &frame.payload).await
                }
                _ => {}
            }
        }
        Verdict::Gone
    }
}

/// A header block of literal fields, whatever their bytes.
pub(crate) fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(fields: &[(N, V)]) -> Vec<u8> {
    let mut block = Vec::new();
    let text = |block: &mut Vec<u8>, text: &[u8]| {
        // RFC 7541 section 5.1, without Huffman coding.
        if text.len() < 127 {
            block.push(text.len() as u8);
        } else {
            block.push(127);
            let mut left = text.len() - 127;
            while left >= 128 {
                block.push((left % 128) as u8 | 128);
                left /= 128;
            }
            block.push(left as u8);
        }
        block.extend_from_slice(text);
    };
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name.as_ref());
        text(&mut block, value.as_ref());
    }
    block
}

/// The status, which comes first, if it is one of the static table (RFC 7541 appendix A).
fn status(block: &[u8]) -> Option<u16> {
    let statuses = [200, 204, 206, 304, 400, 404, 500];
    let index = block.first()?.checked_sub(0x88)?;
    statuses.get(usize::from(index)).copied()
}
