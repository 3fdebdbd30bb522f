//! The session of a check: an echo through it, then the server's report on the credential, then silence for as long as
//! the session is kept.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tunnel_ops::task::Owned;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;
use tunnel_proto::exchange::serve;
use tunnel_proto::handshake::Refusal;
use tunnel_proto::problem::{Hop, Problem, Reason};
use tunnel_proto::session::{
    Session, SessionEnd, SessionEvent, SessionEvents, SessionSettings, Side,
};

use super::text::printable;

/// Longer than any check lasts: after the first ping a session may have to be idle.
const NO_PINGS: Duration = Duration::from_secs(2 * 60 * 60);

/// How often the answer to the first ping is looked for.
const POLL: Duration = Duration::from_millis(5);

/// Limits the wait for a close handshake, and for the answer to a ping.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A check's session.
pub(super) struct CheckSession {
    handle: Session,
    /// The server's report; one at most.
    checked: mpsc::Receiver<Checked>,
    driver: Owned<SessionEnd>,
    _events: Owned<()>,
    /// Why the session has ended, once its task was awaited, which can be done once.
    end: Option<CloseReason>,
}

/// Why a session has no report of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionFailure {
    /// No echo came within this time.
    NoEcho(Duration),
    /// The session ended before the echo.
    Ended(CloseReason),
}

/// The server's report on the credential and its runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) account: String,
    /// The runtime's label.
    pub(super) runtime: String,
    /// The session's id in the server's log.
    pub(super) session: String,
    /// The server's version.
    pub(super) version: String,
    /// The server node, if it is one of several.
    pub(super) node: Option<String>,
    /// The instance that holds the runtime now.
    pub(super) holder: Option<String>,
    /// Why a client that is started now would not get the runtime.
    pub(super) conflict: Option<Refusal>,
    /// Time until the credential expires.
    pub(super) expires_in: Option<Duration>,
}

impl CheckSession {
    /// Begins a session on a connection that the server has accepted; `unread` are bytes that came after its 101.
    pub(super) fn begin<IO>(io: IO, unread: Bytes) -> Self
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = SessionSettings {
            ping_interval: NO_PINGS,
            ..SessionSettings::default()
        };
        let (handle, events, driver) = Session::new(io, unread, Side::Client, settings);
        // If the session has ended, `checked` reports that.
        let _ = handle.send(Control::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        let (sender, checked) = mpsc::channel(1);
        Self {
            checked,
            driver: Owned::spawn("check", driver),
            _events: Owned::spawn("check events", attend(handle.clone(), events, sender)),
            handle,
            end: None,
        }
    }

    /// Waits for the server's report, which comes after its echo.
    pub(super) async fn checked(&mut self, limit: Duration) -> Result<Checked, SessionFailure> {
        match timeout(limit, self.checked.recv()).await {
            Ok(Some(checked)) => Ok(checked),
            Ok(None) => Err(SessionFailure::Ended(self.ended().await)),
            Err(_) => Err(SessionFailure::NoEcho(limit)),
        }
    }

    async fn ended(&mut self) -> CloseReason {
        if let Some(reason) = self.end {
            return reason;
        }
        let reason = match timeout(CLOSE_TIMEOUT, &mut self.driver).await {
            Ok(Ok(end)) => end.reason(),
            _ => CloseReason::Internal,
        };
        *self.end.insert(reason)
    }

    /// The time of a round trip, if the first ping is answered within [`CLOSE_TIMEOUT`].
    pub(super) async fn round_trip(&self) -> Option<Duration> {
        let measured = async {
            loop {
                if let Some(time) = self.handle.round_trip() {
                    return time;
                }
                sleep(POLL).await;
            }
        };
        timeout(CLOSE_TIMEOUT, measured).await.ok()
    }

    /// The handle of the session.
    pub(super) fn handle(&self) -> &Session {
        &self.handle
    }

    /// Closes the session.
    pub(super) async fn close(mut self) {
        self.handle.close(CloseReason::Left);
        self.ended().await;
    }
}

/// Serves the echo, and passes the server's report on.
async fn attend(session: Session, mut events: SessionEvents, sender: mpsc::Sender<Checked>) {
    let mut streams = JoinSet::new();
    while let Some(event) = events.next(&session).await {
        match event {
            SessionEvent::Stream(stream) => {
                streams.spawn(serve(stream, |_, _| std::future::ready(nothing_here())));
                while streams.try_join_next().is_some() {}
            }
            SessionEvent::Control(control) => {
                // Only the first report counts.
                if let Some(checked) = checked(control) {
                    let _ = sender.try_send(checked);
                }
            }
        }
    }
}

fn checked(control: Control) -> Option<Checked> {
    let Control::Checked {
        account,
        runtime,
        session,
        version,
        node,
        holder,
        conflict,
        expires_in_ms,
    } = control
    else {
        return None;
    };
    // Made fit for a terminal.
    Some(Checked {
        account: printable(&account),
        runtime: printable(&runtime),
        session: printable(&session),
        version: printable(&version),
        node: node.as_deref().map(printable),
        holder: holder.as_deref().map(printable),
        conflict,
        expires_in: expires_in_ms.map(Duration::from_millis),
    })
}

/// The answer to a request, which no server sends on a check.
fn nothing_here() -> Result<Response<Full<Bytes>>, Problem> {
    let detail = "this session is for a check";
    Err(Problem::new(Hop::Client, Reason::RouteUnknown, detail))
}

#[cfg(test)]
mod tests {
    use testkit::tunnel::FakeEnd;
    use tokio::io::duplex;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// A check's session, and the server's end of it.
    fn pair() -> (CheckSession, FakeEnd) {
        let (ours, theirs) = duplex(64 * 1024);
        let settings = SessionSettings::default();
        let server = FakeEnd::new(theirs, Bytes::new(), Side::Server, settings);
        (CheckSession::begin(ours, Bytes::new()), server)
    }

    fn report() -> Control {
        Control::Checked {
            account: "acme".to_owned(),
            runtime: "acme-prod".to_owned(),
            session: "1/1".to_owned(),
            version: "0".to_owned(),
            node: None,
            holder: None,
            conflict: None,
            expires_in_ms: Some(1_000),
        }
    }

    #[tokio::test]
    async fn the_echo_goes_through_and_the_report_comes() {
        let (mut check, server) = pair();
        server.session.probe().await.unwrap();
        server.send(report());
        let checked = check.checked(LIMIT).await.unwrap();
        assert_eq!(
            (checked.account.as_str(), checked.runtime.as_str()),
            ("acme", "acme-prod")
        );
        assert_eq!(checked.expires_in, Some(Duration::from_secs(1)));
        check.close().await;
        server.session.closed().await;
    }

    #[tokio::test]
    async fn a_session_that_ends_first_says_why() {
        let (mut check, server) = pair();
        server.session.close(CloseReason::Drained);
        let ended = check.checked(LIMIT).await.unwrap_err();
        assert!(
            matches!(ended, SessionFailure::Ended(CloseReason::Drained)),
            "{ended:?}"
        );
        // As `check` does in any case.
        check.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever() {
        let (mut check, _server) = pair();
        let silent = check.checked(LIMIT).await.unwrap_err();
        assert!(
            matches!(silent, SessionFailure::NoEcho(LIMIT)),
            "{silent:?}"
        );
    }
}
