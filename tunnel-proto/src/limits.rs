//! The bounds of a session, each with its reason: what the other end may send, and what is buffered for it.
//!
//! Nothing here is about one runtime or one server: budgets of that kind belong to the tunnel
//! server. These are the bounds without which a hostile other end could cost more than its own session.

use std::time::Duration;

/// Largest WebSocket message and frame accepted, in bytes. This implementation never sends more than
/// [`BATCH_BYTES`]; the rest is room for other implementations.
pub const MESSAGE_BYTES: usize = 256 * 1024;

/// Most multiplexer bytes in one binary message. Larger messages cost fewer system calls for bulk data,
/// smaller ones let control messages and other exchanges pass sooner.
pub const BATCH_BYTES: usize = 64 * 1024;

/// Bytes queued for the WebSocket above which writers of streams have to wait. Two batches: one is being
/// written to the socket while the next is filled.
pub const OUTPUT_BYTES: usize = 2 * BATCH_BYTES;

/// Encrypted bytes of a session that the TLS library may hold: enough for what is passed to it at once, so that
/// a rest of a few bytes does not become a record and a system call of its own.
pub const TLS_BYTES: usize = 2 * OUTPUT_BYTES;

/// Unsent bytes of a session that the kernel may buffer, where that can be set (`TCP_NOTSENT_LOWAT`). With
/// more, a path whose bandwidth has dropped could drain that buffer for many seconds, during which the
/// socket accepts nothing and nothing is received, and a live session would be declared dead.
pub const UNSENT_BYTES: u32 = 256 * 1024;

/// Most bytes of one stream in one frame. Streams that wait for the WebSocket take turns frame by frame.
pub const FRAME_BYTES: usize = 32 * 1024;

/// Largest head of a message, in bytes: control data and header section together. A header section that the
/// public listener admits (128 KiB at most) has to fit, with room for the fields that the tunnel server
/// adds.
pub const HEAD_BYTES: usize = 160 * 1024;

/// Most field lines in one section. Twice what common servers admit.
pub const FIELDS: usize = 1_000;

/// Most informational (1xx) responses before a final one. Real upstreams send one or two.
pub const INFORMATIONAL: usize = 16;

/// Sessions of one instance that a tunnel server accepts, including those that are being drained. Twice the
/// most that a client keeps, since each of them may be in the middle of being replaced.
pub const SESSIONS: usize = 16;

/// Exchanges open at once on one session, unless configured otherwise.
pub const EXCHANGES: usize = 1_024;

/// Largest value to which the number of open exchanges can be configured.
pub const EXCHANGES_MAX: usize = 4_096;

/// Streams open at once on one session. Streams opened beyond this are reset, so it exceeds
/// [`EXCHANGES_MAX`] by the number that may be idle, or closed at one end only.
pub const STREAMS: usize = EXCHANGES_MAX + 1_024;

/// New streams that may be unacknowledged at once. Other implementations of yamux stop accepting at this
/// number.
pub const STREAMS_UNACKNOWLEDGED: usize = 256;

/// Receive window of a new stream, in bytes: fixed by the yamux specification.
pub const STREAM_WINDOW_BYTES: usize = 256 * 1024;

/// Bytes by which all receive windows of a session together may grow beyond their initial size, so that a
/// few streams can fill a link with a large bandwidth-delay product.
pub const WINDOW_GROWTH_BYTES: usize = 32 * 1024 * 1024;

/// Largest receive window of one stream, in bytes: 1.3 Gbit/s over a round trip of 100 ms.
pub const STREAM_WINDOW_MAX_BYTES: usize = 16 * 1024 * 1024;

/// Idle streams kept open between exchanges. Beyond that, each exchange opens a new stream.
pub const IDLE_STREAMS: usize = 256;

/// Largest control message, in bytes.
pub const CONTROL_BYTES: usize = 16 * 1024;

/// Routes that a tunnel client reports.
pub const ROUTES: usize = 256;

/// Bytes of the reported routes in their control message, so that with the envelope it stays within
/// [`CONTROL_BYTES`].
pub const ROUTES_BYTES: usize = CONTROL_BYTES - 256;

/// Longest text of a reported route, in bytes.
pub const ROUTE_TEXT_BYTES: usize = 256;

/// Control messages that may wait to be handled or sent. A peer that sends them faster than they are
/// handled breaks the protocol.
pub const CONTROLS_WAITING: usize = 64;

/// Control messages of unknown type that are ignored before the session is ended.
pub const CONTROLS_UNKNOWN: usize = 256;

/// Time for the tunnel client to accept a new stream while no other bytes move. Accepting costs one round
/// trip and the start of a task, so a client that needs longer is wedged.
pub const ACCEPT_TIME: Duration = Duration::from_secs(10);

const _: () = assert!(BATCH_BYTES <= MESSAGE_BYTES);
const _: () = assert!(CONTROL_BYTES <= MESSAGE_BYTES);
const _: () = assert!(EXCHANGES <= EXCHANGES_MAX && EXCHANGES_MAX < STREAMS);
const _: () = assert!(IDLE_STREAMS < EXCHANGES);
