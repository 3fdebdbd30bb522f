//! What the client remembers of its tunnel for people: its sessions, and why there is none.
//!
//! In: what the tunnel reports when a dial fails, a session begins or ends, and when it waits. Out: a view for the admin listener,
//! without secrets. Of each kind only the last is kept, and nothing of the tunnel depends on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::Serialize;
use tunnel_ops::timestamp::Timestamp;
use tunnel_proto::session::Session as Handle;

/// The status of the tunnel of one client.
#[derive(Debug, Default)]
pub(crate) struct TunnelStatus(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    instance: String,
    servers: Vec<ServerView>,
    runtime: Option<String>,
    url: Option<String>,
    is_stopping: bool,
    waiting: Option<Waiting>,
    last_entry: u64,
    sessions: Vec<(u64, SessionInfo, Handle)>,
    online_since: Option<Timestamp>,
    last_online: Option<Timestamp>,
    last_failure: Option<FailureView>,
    last_session_end: Option<EndView>,
}

/// What the client waits for before the next dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// A failed dial, or the end of a session.
    Failure,
    /// A refusal that lasts until its cause is corrected.
    Refusal,
    /// Another instance holds the runtime.
    Standby,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    reason: WaitReason,
    until: Timestamp,
}

/// What is known of a session when it is welcomed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SessionInfo {
    /// Its id at the server, as in the logs of both ends.
    pub(crate) id: String,
    /// Its number within this instance.
    pub(crate) number: u32,
    /// The server that was dialled.
    pub(crate) server: String,
    /// The server node; `None` for a server that stands alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The address that was dialled: of the server, or of the proxy.
    pub(crate) peer: String,
    /// Version of the server.
    pub(crate) server_version: String,
    /// When it was welcomed.
    pub(crate) since: Timestamp,
}

/// Keeps a session in the status until it is dropped.
#[derive(Debug)]
pub(crate) struct SessionEntry {
    status: Arc<TunnelStatus>,
    id: u64,
}

/// One of the configured servers.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServerView {
    /// Its URL.
    pub(crate) url: String,
    /// The proxy that it is dialled by, without its password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proxy: Option<String>,
}

/// A dial that gave no session.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailureView {
    /// When it failed.
    pub(crate) at: Timestamp,
    /// The server that was dialled.
    pub(crate) server: String,
    /// The failed step, or the reason of the refusal, as a stable name.
    pub(crate) reason: &'static str,
    /// Why it failed, for people.
    pub(crate) detail: String,
}

/// The end of a session that the client did not choose.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct EndView {
    /// When it ended.
    pub(crate) at: Timestamp,
    /// The close reason, as a stable name.
    pub(crate) reason: &'static str,
    /// Why it ended, for people.
    pub(crate) detail: String,
}

/// The tunnel as it is now. An absent field is unknown or does not apply.
#[derive(Debug, Serialize)]
pub(crate) struct TunnelView {
    /// `online` with a session, else `dialling`, `refused`, `standing-by` or `stopping`.
    state: &'static str,
    /// The id of this instance.
    instance: String,
    /// The configured servers.
    servers: Vec<ServerView>,
    /// The label of the runtime, as the server says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    /// Where platform clients reach the runtime, as the server says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// Since when there is a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    online_since: Option<Timestamp>,
    /// When the last session ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_online: Option<Timestamp>,
    /// When the next dial is due, without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_dial: Option<Timestamp>,
    /// The live sessions, those that leave included.
    sessions: Vec<SessionView>,
    /// The last dial that failed or was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureView>,
    /// The end of the last session that the client did not choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_session_end: Option<EndView>,
}

/// One session as it is now.
#[derive(Debug, Serialize)]
struct SessionView {
    #[serde(flatten)]
    info: SessionInfo,
    /// The round-trip time of the last ping; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_ms: Option<f64>,
    open_exchanges: usize,
    /// Bytes received from the server.
    bytes_in: u64,
    /// Bytes sent to the server.
    bytes_out: u64,
    /// Whether it takes no new exchange.
    is_draining: bool,
}

impl TunnelStatus {
    /// The tunnel of this instance begins to dial these servers.
    pub(crate) fn on_start(&self, instance: String, servers: Vec<ServerView>) {
        let mut state = self.0.lock();
        (state.instance, state.servers) = (instance, servers);
    }

    /// The program shuts down.
    pub(crate) fn on_stop(&self) {
        self.0.lock().is_stopping = true;
    }

    /// A server has welcomed a session of this runtime, which is kept until the entry is dropped.
    pub(crate) fn on_session(
        self: &Arc<Self>,
        info: SessionInfo,
        runtime: String,
        url: Option<String>,
        handle: Handle,
    ) -> SessionEntry {
        let mut state = self.0.lock();
        state.waiting = None;
        state.online_since.get_or_insert(info.since);
        (state.runtime, state.url) = (Some(runtime), url);
        state.last_entry += 1;
        let id = state.last_entry;
        state.sessions.push((id, info, handle));
        drop(state);
        SessionEntry {
            status: Arc::clone(self),
            id,
        }
    }

    /// A dial has failed.
    pub(crate) fn on_failure(&self, server: String, reason: &'static str, detail: String) {
        self.0.lock().last_failure = Some(FailureView {
            at: Timestamp::now(),
            server,
            reason,
            detail,
        });
    }

    /// A session has ended that the client did not end by its own choice.
    pub(crate) fn on_session_end(&self, reason: &'static str, detail: String) {
        self.0.lock().last_session_end = Some(EndView {
            at: Timestamp::now(),
            reason,
            detail,
        });
    }

    /// The next dial is due after this time.
    pub(crate) fn on_wait(&self, reason: WaitReason, wait: Duration) {
        let until = SystemTime::now().checked_add(wait);
        self.0.lock().waiting = until.map(|until| Waiting {
            reason,
            until: until.into(),
        });
    }

    /// The tunnel as it is now.
    pub(crate) fn view(&self) -> TunnelView {
        let state = self.0.lock();
        let sessions: Vec<_> = state.sessions.iter().map(session_view).collect();
        let waiting = state.waiting.filter(|_| sessions.is_empty());
        let name = match waiting.map(|waiting| waiting.reason) {
            _ if state.is_stopping => "stopping",
            _ if !sessions.is_empty() => "online",
            Some(WaitReason::Refusal) => "refused",
            Some(WaitReason::Standby) => "standing-by",
            Some(WaitReason::Failure) | None => "dialling",
        };
        TunnelView {
            state: name,
            instance: state.instance.clone(),
            servers: state.servers.clone(),
            runtime: state.runtime.clone(),
            url: state.url.clone(),
            online_since: state.online_since,
            last_online: state.last_online,
            next_dial: waiting.map(|waiting| waiting.until),
            sessions,
            last_failure: state.last_failure.clone(),
            last_session_end: state.last_session_end.clone(),
        }
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        let mut state = self.status.0.lock();
        state.sessions.retain(|(id, ..)| *id != self.id);
        if state.sessions.is_empty() {
            state.online_since = None;
            state.last_online = Some(Timestamp::now());
        }
    }
}

fn session_view((_, info, handle): &(u64, SessionInfo, Handle)) -> SessionView {
    let (bytes_out, bytes_in) = handle.bytes();
    let round_trip = handle.round_trip();
    SessionView {
        info: info.clone(),
        // Whole microseconds: it has no digits that are noise of a float.
        round_trip_ms: round_trip.map(|time| time.as_micros() as f64 / 1_000.0),
        open_exchanges: handle.outstanding(),
        bytes_in,
        bytes_out,
        is_draining: !handle.is_open(),
    }
}
