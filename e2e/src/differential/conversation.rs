//! A client's side of one connection: it writes what was drawn, and reads the statuses of the answers.

use std::{collections::BTreeSet, io, net::SocketAddr, time::Duration};

use testkit::{
    differential::{random_http1::ClientBytes, strict::Message},
    http2::{Frame, PREFACE},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::yield_now,
    time::timeout,
};

/// How long a gateway may take for a connection that lacks nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// The payload of the ping at the end of a client's frames.
const LAST_PING: [u8; 8] = *b"the last";

/// What a client got.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The statuses of the final responses, in the order in which they came.
    pub(super) statuses: Vec<u16>,
    /// What is wrong with the answers themselves.
    pub(super) fault: Option<String>,
}

impl Answers {
    fn wrong(self, fault: impl Into<String>) -> Self {
        let fault = self.fault.or_else(|| Some(fault.into()));
        Self { fault, ..self }
    }
}

/// Writes a connection of HTTP/1.1. `messages` are the requests that may be answered; a client that is not `whole` ends its
/// sending direction, since the gateway would wait for more.
///
/// # Errors
/// When there is no connection.
pub(super) async fn http1(
    address: SocketAddr,
    client: &ClientBytes,
    messages: &[Message],
    is_whole: bool,
) -> io::Result<Answers> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let mut begin = 0;
    for end in client.cuts.iter().copied().chain([client.bytes.len()]) {
        // A gateway that has refused the request reads no more, and its answer may still be read.
        if socket.write_all(&client.bytes[begin..end]).await.is_err() {
            break;
        }
        begin = end;
        yield_now().await;
    }
    if !is_whole {
        drop(socket.shutdown().await);
    }
    let mut bytes = Vec::new();
    let is_ended = timeout(PATIENCE, read_to_end(&mut socket, &mut bytes)).await;
    let answers = statuses(&bytes, messages);
    Ok(match is_ended {
        Ok(()) => answers,
        Err(_) => answers.wrong("the connection does not end"),
    })
}

/// Reads up to the end, or a reset.
async fn read_to_end(socket: &mut TcpStream, bytes: &mut Vec<u8>) {
    while socket.read_buf(bytes).await.is_ok_and(|length| length > 0) {}
}

/// The statuses of the responses to these requests.
fn statuses(bytes: &[u8], messages: &[Message]) -> Answers {
    let mut answers = Answers::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(length)) = head.parse(rest) else {
            return answers.wrong(format!("no response: {}", rest.escape_ascii()));
        };
        rest = &rest[length..];
        let status = head.code.unwrap_or_default();
        if status < 200 {
            continue;
        }
        let request = messages.get(answers.statuses.len());
        answers.statuses.push(status);
        let length = head
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
        let is_head = request.is_some_and(|request| request.method == "HEAD");
        let length = length.unwrap_or(0);
        // The strict reader does not name the method of what is no request.
        let is_last = request.is_none() && (rest.is_empty() || rest.len() == length);
        rest = match rest.get(length..) {
            _ if is_last => &[],
            _ if is_head => rest,
            Some(others) => others,
            None => return answers.wrong("a response is cut"),
        };
    }
    answers
}

/// Writes a connection of HTTP/2, and reads until these streams have ended, or the connection has.
///
/// # Errors
/// When there is no connection.
pub(super) async fn http2(
    address: SocketAddr,
    frames: &[Frame],
    ended: &BTreeSet<u32>,
) -> io::Result<Answers> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let mut bytes = PREFACE.as_bytes().to_vec();
    bytes.extend(frames.iter().flat_map(Frame::bytes));
    bytes.extend(Frame::new(Frame::PING, 0, 0, &LAST_PING).bytes());
    drop(socket.write_all(&bytes).await);
    let mut answers = Answers::default();
    let read = read_frames(&mut socket, ended, &mut answers.statuses);
    if timeout(PATIENCE, read).await.is_err() {
        answers = answers.wrong("not all requests are answered");
    }
    Ok(answers)
}

/// Reads until the ping is answered and these streams have ended, or the connection has.
async fn read_frames(socket: &mut TcpStream, ended: &BTreeSet<u32>, statuses: &mut Vec<u16>) {
    let mut over = BTreeSet::new();
    let mut has_pong = false;
    let mut bytes = Vec::new();
    while !has_pong || !ended.is_subset(&over) {
        if !socket
            .read_buf(&mut bytes)
            .await
            .is_ok_and(|length| length > 0)
        {
            return;
        }
        while let Some(frame) = take_frame(&mut bytes) {
            if frame.kind == Frame::GOAWAY {
                return;
            }
            has_pong |= frame.kind == Frame::PING && frame.payload == LAST_PING;
            if frame.kind == Frame::HEADERS
                && let Some(status) = status(&frame.payload)
            {
                statuses.push(status);
            }
            let carries = matches!(frame.kind, Frame::HEADERS | Frame::DATA);
            if carries && frame.flags & Frame::END_STREAM != 0 || frame.kind == Frame::RST_STREAM {
                over.insert(frame.stream);
            }
        }
    }
}

fn take_frame(bytes: &mut Vec<u8>) -> Option<Frame> {
    let head = *bytes.first_chunk::<9>()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = bytes.get(9..9 + length)?.to_vec();
    bytes.drain(..9 + length);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some(Frame::new(head[3], head[4], stream, &payload))
}

/// The status of a response: 204 by its entry in the static table; 0 for any other. None where it is informational.
fn status(block: &[u8]) -> Option<u16> {
    let first = block.iter().find(|byte| **byte & 0xe0 != 0x20)?;
    Some(if *first == 0x89 { 204 } else { 0 })
}
