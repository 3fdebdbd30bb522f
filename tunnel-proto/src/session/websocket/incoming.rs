//! Parses received bytes into WebSocket messages (RFC 6455 section 5).
//!
//! In: bytes as they arrive. Out: pieces of binary messages as soon as they are there, whole text messages
//! and control frames. Each frame yields an item, so that the caller can count the work that it causes. Buffers no
//! more than one text message or control frame, and checks all that the RFC demands of a frame.

use std::{io::Cursor, str};

use bytes::{Buf, Bytes, BytesMut};
use tokio_tungstenite::tungstenite::protocol::frame::{
    FrameHeader,
    coding::{Control, Data, OpCode},
};

use super::{Received, WebSocketError, mask::unmask};
use crate::{close::CloseReason, limits, session::Side};

/// Longest payload of a control frame (RFC 6455 section 5.5).
const CONTROL_FRAME_BYTES: u64 = 125;

/// The parser of received frames.
pub(super) struct Incoming {
    side: Side,
    pub(super) buffer: BytesMut,
    /// The frame whose payload is being received.
    frame: Option<Frame>,
    /// The message that the last data frame has not ended.
    message: Option<Message>,
    /// The received part of a text message.
    text: Vec<u8>,
}

/// A frame whose header was read.
struct Frame {
    opcode: OpCode,
    is_final: bool,
    mask: Option<[u8; 4]>,
    /// Payload bytes still to come.
    left: usize,
}

/// A message whose frames are being received.
#[derive(Clone, Copy)]
struct Message {
    is_text: bool,
    bytes: usize,
}

impl Incoming {
    pub(super) fn new(side: Side, buffer: BytesMut) -> Self {
        Self {
            side,
            buffer,
            frame: None,
            message: None,
            text: Vec::new(),
        }
    }

    /// The next item; `None` when more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Received>, WebSocketError> {
        if self.frame.is_none() && !self.read_header()? {
            return Ok(None);
        }
        let Some(frame) = &mut self.frame else {
            return Ok(None);
        };
        let is_binary = matches!(frame.opcode, OpCode::Data(_))
            && self.message.is_some_and(|message| !message.is_text);
        if is_binary {
            if frame.left > 0 && self.buffer.is_empty() {
                return Ok(None);
            }
            let mut piece = self.buffer.split_to(frame.left.min(self.buffer.len()));
            unmask(&mut piece, &mut frame.mask);
            frame.left -= piece.len();
            if frame.left == 0 {
                self.end_data_frame();
            }
            return Ok(Some(match piece.is_empty() {
                true => Received::Part,
                false => Received::Data(piece.freeze()),
            }));
        }
        if self.buffer.len() < frame.left {
            return Ok(None);
        }
        let mut payload = self.buffer.split_to(frame.left);
        unmask(&mut payload, &mut frame.mask);
        self.on_payload(payload.freeze())
    }

    /// Parses the header of a frame; false when it is incomplete.
    fn read_header(&mut self) -> Result<bool, WebSocketError> {
        let mut cursor = Cursor::new(&self.buffer[..]);
        let Some((header, length)) = FrameHeader::parse(&mut cursor)? else {
            return Ok(false);
        };
        let header_bytes = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
        self.check(&header, length)?;
        self.buffer.advance(header_bytes);
        self.frame = Some(Frame {
            opcode: header.opcode,
            is_final: header.is_final,
            mask: header.mask,
            // Limited by the check above.
            left: usize::try_from(length).unwrap_or(usize::MAX),
        });
        Ok(true)
    }

    fn check(&mut self, header: &FrameHeader, length: u64) -> Result<(), WebSocketError> {
        let broken = |what| Err(WebSocketError::Protocol(what));
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return broken("a reserved bit is set");
        }
        match (self.side, header.mask) {
            (Side::Server, None) => return broken("a frame of the client is not masked"),
            (Side::Client, Some(_)) => return broken("a frame of the server is masked"),
            _ => {}
        }
        let before = self.message.map_or(0, |message| message.bytes);
        let bytes = usize::try_from(length)
            .ok()
            .and_then(|length| length.checked_add(before));
        let is_text = match (header.opcode, self.message) {
            (OpCode::Control(Control::Reserved(_)) | OpCode::Data(Data::Reserved(_)), _) => {
                return broken("a frame with an unknown opcode");
            }
            (OpCode::Control(_), _) => {
                return if header.is_final && length <= CONTROL_FRAME_BYTES {
                    Ok(())
                } else {
                    broken("a control frame that is fragmented or too long")
                };
            }
            (OpCode::Data(Data::Continue), Some(message)) => message.is_text,
            (OpCode::Data(Data::Continue), None) => {
                return broken("a continuation frame without a message");
            }
            (OpCode::Data(_), Some(_)) => {
                return broken("a new message before the last one has ended");
            }
            (OpCode::Data(kind), None) => kind == Data::Text,
        };
        match bytes {
            Some(bytes) if bytes <= limits::MESSAGE_BYTES => {
                self.message = Some(Message { is_text, bytes });
                Ok(())
            }
            _ => broken("a message that is too long"),
        }
    }

    fn end_data_frame(&mut self) {
        if self.frame.take().is_some_and(|frame| frame.is_final) {
            self.message = None;
        }
    }

    /// Handles the whole payload of a control frame, or of a frame of a text message.
    fn on_payload(&mut self, payload: Bytes) -> Result<Option<Received>, WebSocketError> {
        let Some(frame) = &self.frame else {
            return Ok(None);
        };
        let received = match frame.opcode {
            OpCode::Control(Control::Ping) => Received::Ping(payload),
            OpCode::Control(Control::Pong) => Received::Pong(payload),
            OpCode::Control(_) => Received::Close(close_reason(&payload)?),
            OpCode::Data(_) => {
                self.text.extend_from_slice(&payload);
                let is_whole = frame.is_final;
                self.end_data_frame();
                if !is_whole {
                    return Ok(Some(Received::Part));
                }
                let text = String::from_utf8(std::mem::take(&mut self.text));
                return text
                    .map(|text| Some(Received::Control(text)))
                    .map_err(|_| WebSocketError::Protocol("a text message that is not utf-8"));
            }
        };
        self.frame = None;
        Ok(Some(received))
    }
}

/// The reason in a close frame's payload, if it has one (RFC 6455 section 5.5.1).
fn close_reason(mut payload: &[u8]) -> Result<Option<CloseReason>, WebSocketError> {
    match payload.len() {
        0 => Ok(None),
        1 => Err(WebSocketError::Protocol("a close frame with half a code")),
        _ => {
            let code = payload.get_u16();
            // RFC 6455 section 7.4: codes below 1000 are undefined, and these are never sent.
            if code < 1000 || matches!(code, 1004..=1006 | 1015) || code >= 5000 {
                return Err(WebSocketError::Protocol(
                    "a close code that may not be sent",
                ));
            }
            str::from_utf8(payload)
                .map_err(|_| WebSocketError::Protocol("a close reason that is not utf-8"))?;
            Ok(Some(CloseReason::from_code(code)))
        }
    }
}
