//! An HTTP/2 client that writes frames as it likes, so that it can break every rule.

use crate::raw::Raw;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;

/// One frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

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
    pub(crate) raw: Raw,
}

impl Frames {
    pub(crate) async fn new(mut raw: Raw) -> Self {
        raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let mut frames = Self { raw };
        frames.send(SETTINGS, 0, 0, &[]).await;
        let settings = frames.next().await.unwrap();
        assert_eq!((settings.kind, settings.flags), (SETTINGS, 0));
        frames.send(SETTINGS, ACK, 0, &[]).await;
        frames
    }

    pub(crate) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.raw.send(frame(kind, flags, stream, payload)).await;
    }

    /// The next frame; `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let head = self.raw.try_bytes(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = self.raw.try_bytes(length as usize).await?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream,
            payload,
        })
    }

    /// What becomes of a stream. Answers pings and settings on the way.
    pub(crate) async fn verdict(&mut self, stream: u32) -> Verdict {
        while let Some(frame) = self.next().await {
            match frame.kind {
                HEADERS if frame.stream == stream => {
                    return Verdict::Answered(status(&frame.payload));
                }
                RST_STREAM if frame.stream == stream => {
                    return Verdict::Reset(u32::from_be_bytes(frame.payload.try_into().unwrap()));
                }
                GOAWAY => return Verdict::Gone,
                PING if frame.flags & ACK == 0 => self.send(PING, ACK, 0, &frame.payload).await,
                _ => {}
            }
        }
        Verdict::Gone
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
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
