//! Every bound on what a peer of a session may send, in one place, each with its reason.
//!
//! Nothing here is about one runtime or one server: budgets of that kind belong to the tunnel
//! server. These are the bounds without which a hostile peer could cost more than its own session.

use std::time::Duration;

/// Largest WebSocket message and frame accepted, in bytes. Our own side never sends more than
/// [`BATCH_BYTES`]; the rest is room for other implementations.
pub const MESSAGE_BYTES: usize = 256 * 1024;

/// Most bytes of the multiplexer put into one binary message. Larger messages cost fewer system
/// calls for bulk data, smaller ones let control messages and other exchanges in sooner.
pub const BATCH_BYTES: usize = 64 * 1024;

/// Bytes waiting for the WebSocket above which streams have to wait. Two batches: one is on its way to
/// the socket while the next is filled.
pub const OUTPUT_BYTES: usize = 2 * BATCH_BYTES;

/// Bytes that the kernel may hold of a session and has not sent yet, where that can be set. With more,
/// a path that has become narrow could carry bytes for many seconds while the session sees neither
/// that more of them are taken nor that anything is heard, and would be thought dead.
pub const UNSENT_BYTES: u32 = 256 * 1024;

/// Most bytes of one stream in one frame. Streams that wait for the WebSocket take turns by frames.
pub const FRAME_BYTES: usize = 32 * 1024;

/// Largest head of a message, in bytes: control data and header section together. The header
/// sections that the public side admits (128 KiB by default) must fit with room for the fields
/// that the tunnel server adds.
pub const HEAD_BYTES: usize = 160 * 1024;

/// Most field lines in one section. Twice what common servers admit.
pub const FIELDS: usize = 1_000;

/// Most informational (1xx) responses before a final one. Real upstreams send one or two.
pub const INFORMATIONAL: usize = 16;

/// Sessions of one instance that a tunnel server takes, leaving ones among them. Twice as many as a
/// client keeps at most, since each may just be replaced.
pub const SESSIONS: usize = 16;

/// Exchanges open at once on one session, unless configured otherwise.
pub const EXCHANGES: usize = 1_024;

/// Largest value to which the number of open exchanges can be configured.
pub const EXCHANGES_MAX: usize = 4_096;

/// Streams open at once on one session. What a tunnel server opens beyond is reset, so this lies
/// above [`EXCHANGES_MAX`] by as many as may be resting, or closed at one end only.
pub const STREAMS: usize = EXCHANGES_MAX + 1_024;

/// Streams that may wait to be acknowledged. Other implementations of yamux stop accepting there.
pub const STREAMS_UNACKNOWLEDGED: usize = 256;

/// Receive window of a new stream, in bytes: fixed by the yamux specification.
pub const STREAM_WINDOW_BYTES: usize = 256 * 1024;

/// Bytes by which all receive windows of a session together may grow beyond their first size, so
/// that few streams can fill a long fat link.
pub const WINDOW_GROWTH_BYTES: usize = 32 * 1024 * 1024;

/// Largest receive window of one stream, in bytes: 1.3 Gbit/s over a round trip of 100 ms.
pub const STREAM_WINDOW_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Streams kept open between exchanges. More than that many exchanges at once open new streams.
pub const IDLE_STREAMS: usize = 256;

/// Largest control message, in bytes.
pub const CONTROL_BYTES: usize = 16 * 1024;

/// Routes that a tunnel client tells of.
pub const ROUTES: usize = 256;

/// Bytes that they take in their message: with what is around them, no more than a message may have.
pub const ROUTES_BYTES: usize = CONTROL_BYTES - 256;

/// Longest text of a route that is told, in bytes.
pub const ROUTE_TEXT_BYTES: usize = 256;

/// Control messages that may wait to be handled or sent. A peer that sends faster than they are
/// handled breaks the protocol.
pub const CONTROLS_WAITING: usize = 64;

/// Control messages of an unknown kind that are ignored before the session is ended.
pub const CONTROLS_UNKNOWN: usize = 256;

/// Time for the tunnel client to accept a new stream while nothing else moves. It takes a moment, since
/// nothing but the way there and the start of a task is in it; one that takes longer is wedged.
pub const ACCEPT_TIME: Duration = Duration::from_secs(10);

const _: () = assert!(BATCH_BYTES <= MESSAGE_BYTES);
const _: () = assert!(CONTROL_BYTES <= MESSAGE_BYTES);
const _: () = assert!(EXCHANGES <= EXCHANGES_MAX && EXCHANGES_MAX < STREAMS);
const _: () = assert!(IDLE_STREAMS < EXCHANGES);
