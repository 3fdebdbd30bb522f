//! From a server's URL to a session's connection, one step after another.
//!
//! ```text
//!   name ─▶ addresses ─▶ TCP ─▶ TLS ─▶ GET /connect ─▶ 101
//! ```
//!
//! Each step has the same limit, and its name in the error when it fails, so that a person knows
//! what to look at. Upstreams are reached by the same first three steps, see
//! [`crate::upstream`]. Nothing is tried twice here: when to dial again is the tunnel's business.

pub(crate) mod connect;
pub(crate) mod resolve;
pub(crate) mod tls;
mod upgrade;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tunnel_proto::handshake::Greeting;
#[cfg(target_os = "linux")]
use tunnel_proto::limits;

use self::upgrade::Answer;
pub(crate) use self::upgrade::Refused;
use crate::config::ServerUrl;
use crate::credential::{Credential, CredentialError, Credentials};

/// How long written bytes may stay with the kernel before it gives a session's connection up: as
/// long as a silent session lives. Not for upstreams: it counts the time too in which a peer that
/// is there takes nothing, which an upstream may.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// One step of a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The name's addresses are looked up.
    Resolve,
    /// A TCP connection is made.
    Connect,
    /// TLS is agreed on, the certificate checked.
    Tls,
    /// A session is asked for.
    Upgrade,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// It took longer than it may.
    #[error("{0} took longer than {1:?}")]
    TimedOut(Step, Duration),
    /// It failed.
    #[error("{0} failed: {1}")]
    Failed(Step, #[source] io::Error),
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is nothing to show.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The server was not reached, or did not answer as a server does.
    #[error("{server}: {error}")]
    Step {
        /// The server.
        server: ServerUrl,
        /// What failed.
        #[source]
        error: StepError,
    },
    /// The server was reached and gives no session.
    #[error("{server} refused: {refused}")]
    Refused {
        /// The server.
        server: ServerUrl,
        /// Why.
        refused: Refused,
        /// What it was shown.
        shown: Arc<Credential>,
    },
}

/// Dials one server.
#[derive(Debug)]
pub(crate) struct Dialler {
    server: ServerUrl,
    credentials: Arc<Credentials>,
    /// For each step.
    limit: Duration,
}

/// A connection that is a session's from here on.
pub(crate) struct Connected {
    /// The connection.
    pub(crate) io: TlsStream<TcpStream>,
    /// Bytes that were read past the 101.
    pub(crate) unread: Bytes,
    /// Where the server is.
    pub(crate) peer: SocketAddr,
    /// What it was given for.
    pub(crate) credential: Arc<Credential>,
}

impl Dialler {
    /// A dialler that shows these credentials.
    pub(crate) fn new(server: ServerUrl, credentials: Arc<Credentials>, limit: Duration) -> Self {
        Self {
            server,
            credentials,
            limit,
        }
    }

    /// The server that is dialled.
    pub(crate) fn server(&self) -> &ServerUrl {
        &self.server
    }

    /// Takes all the steps once.
    pub(crate) async fn dial(&self, greeting: &Greeting) -> Result<Connected, DialError> {
        // Read each time, since credentials are changed while a client runs; first, since without
        // one there is nothing to ask for.
        let credential = self.credentials.read()?;
        let failed = |error| DialError::Step {
            server: self.server.clone(),
            error,
        };
        // Boxed, since the state of both is large, and a dial is rare.
        let (io, peer) = Box::pin(self.reach(&credential)).await.map_err(failed)?;
        let asking = Box::pin(upgrade::upgrade(
            io,
            self.server.authority(),
            greeting,
            credential.token(),
        ));
        match within(Step::Upgrade, self.limit, asking)
            .await
            .map_err(failed)?
        {
            Answer::Accepted(io, unread) => Ok(Connected {
                io,
                unread,
                peer,
                credential,
            }),
            Answer::Refused(refused) => Err(DialError::Refused {
                server: self.server.clone(),
                refused,
                shown: credential,
            }),
        }
    }

    async fn reach(
        &self,
        credential: &Credential,
    ) -> Result<(TlsStream<TcpStream>, SocketAddr), StepError> {
        let tcp = reach(self.server.host(), self.server.port(), self.limit, |_| true).await?;
        let handshake = async {
            let peer = tcp.peer_addr()?;
            #[cfg(target_os = "linux")]
            set_options(&tcp)?;
            let name = tls::server_name(self.server.host())?;
            Ok((tls::handshake(tcp, credential.tls(), name).await?, peer))
        };
        within(Step::Tls, self.limit, handshake).await
    }
}

/// Those of a session's connection alone.
#[cfg(target_os = "linux")]
fn set_options(tcp: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(tcp);
    socket.set_tcp_notsent_lowat(limits::UNSENT_BYTES)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

/// A TCP connection to a host. Of its addresses those that are not `allowed` are left out.
pub(crate) async fn reach(
    host: &str,
    port: u16,
    limit: Duration,
    allowed: impl Fn(&SocketAddr) -> bool,
) -> Result<TcpStream, StepError> {
    let mut addresses = within(Step::Resolve, limit, resolve::resolve(host, port)).await?;
    addresses.retain(allowed);
    within(Step::Connect, limit, connect::connect(&addresses, limit)).await
}

/// Takes one step within its limit.
pub(crate) async fn within<T>(
    step: Step,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, StepError> {
    match timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        // The system has limits of its own, which mean the same.
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
            Err(StepError::TimedOut(step, limit))
        }
        Ok(Err(error)) => Err(StepError::Failed(step, error)),
        Err(_) => Err(StepError::TimedOut(step, limit)),
    }
}

impl DialError {
    /// Whether a person has to do something before dialling again can help.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            // That another instance holds the runtime ends when that one does.
            Self::Refused { refused, .. } if refused.status == StatusCode::CONFLICT => false,
            // Only a tunnel server can say so: a proxy on the way may be mended.
            Self::Refused { refused, .. } => refused
                .refusal
                .as_ref()
                .is_some_and(|refusal| refusal.fatal),
            // Files are often put in place, or replaced, while a client runs.
            Self::Credential(_) | Self::Step { .. } => false,
        }
    }

    /// What was shown to a server that has refused for good.
    pub(crate) fn shown_in_vain(&self) -> Option<&Arc<Credential>> {
        match self {
            Self::Refused { shown, .. } if self.is_fatal() => Some(shown),
            _ => None,
        }
    }

    /// When the server wants to be dialled again at the earliest.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { refused, .. } => refused.retry_after,
            Self::Credential(_) | Self::Step { .. } => None,
        }
    }

    /// One word for metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Credential(error) => error.name(),
            Self::Step {
                error: StepError::TimedOut(step, _),
                ..
            }
            | Self::Step {
                error: StepError::Failed(step, _),
                ..
            } => step.name(),
            Self::Refused { .. } => "refused",
        }
    }
}

impl Step {
    /// One word for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Upgrade => "upgrade",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up the name",
            Self::Connect => "connecting",
            Self::Tls => "TLS",
            Self::Upgrade => "asking for a session",
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(refusal) => write!(
                f,
                "{} ({})",
                on_one_line(&refusal.detail),
                on_one_line(&refusal.reason)
            ),
            None => f.write_str(self.meaning()),
        }?;
        write!(f, ", status {}", self.status.as_u16())
    }
}

/// A server's words, for a terminal or a log.
fn on_one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

impl Refused {
    /// What an answer without a reason usually means.
    fn meaning(&self) -> &'static str {
        match self.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => "a proxy on the way wants a password",
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => "what stands before the server does not reach it",
            status if status.is_redirection() => "this is not the server, it points elsewhere",
            status if status.is_success() => "this is some web server, and no tunnel server",
            _ => "no reason given, perhaps by a proxy on the way",
        }
    }
}

#[cfg(test)]
mod tests {
    use tunnel_ops::tls_files::Roots;
    use tunnel_proto::handshake::Refusal;

    use super::*;
    use crate::credential::CredentialFiles;

    fn refused(status: u16, refusal: Option<Refusal>) -> DialError {
        let status = StatusCode::from_u16(status).unwrap();
        let refused = Refused {
            status,
            refusal,
            retry_after: None,
        };
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let roots = Roots::from_pem(&made.cert.pem()).unwrap();
        let files = CredentialFiles {
            token: None,
            certificate: None,
        };
        DialError::Refused {
            server: "wss://tunnel.example.com".parse().unwrap(),
            refused,
            shown: Credentials::new(files, roots).read().unwrap(),
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn of_a_session_the_kernel_holds_little_that_it_has_not_sent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let tcp = tcp.unwrap();
        set_options(&tcp).unwrap();
        let unsent = SockRef::from(&tcp).tcp_notsent_lowat().unwrap();
        assert_eq!(unsent, limits::UNSENT_BYTES);
    }

    #[test]
    fn only_a_tunnel_server_can_refuse_for_good() {
        let fatal = || Refusal {
            reason: "token_unknown".to_owned(),
            detail: "this token is not known: make a new one".to_owned(),
            fatal: true,
        };
        let error = refused(401, Some(fatal()));
        assert!(error.is_fatal());
        assert_eq!(
            error.to_string(),
            "wss://tunnel.example.com refused: this token is not known: make a new one \
             (token_unknown), status 401"
        );
        let transient = Refusal {
            fatal: false,
            ..fatal()
        };
        assert!(!refused(503, Some(transient)).is_fatal());
        assert!(
            !refused(409, Some(fatal())).is_fatal(),
            "the other may leave"
        );
        let proxy = refused(407, None);
        assert!(!proxy.is_fatal());
        assert!(
            proxy
                .to_string()
                .contains("a proxy on the way wants a password"),
            "{proxy}"
        );
    }

    #[test]
    fn a_refusal_is_shown_as_it_stands_on_one_line() {
        let refusal = Refusal {
            reason: "no\u{1b}[2J".to_owned(),
            detail: "the server isn't \"here\"\nerror: forged".to_owned(),
            fatal: true,
        };
        assert_eq!(
            refused(401, Some(refusal)).to_string(),
            "wss://tunnel.example.com refused: the server isn't \"here\" error: forged \
             (no [2J), status 401"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_has_a_limit_and_its_name_in_the_error() {
        let limit = Duration::from_secs(10);
        let error = within(Step::Tls, limit, std::future::pending::<io::Result<()>>()).await;
        assert_eq!(error.unwrap_err().to_string(), "TLS took longer than 10s");
        let refused = async { Err::<(), _>(io::ErrorKind::ConnectionRefused.into()) };
        let error = within(Step::Connect, limit, refused).await.unwrap_err();
        assert_eq!(error.to_string(), "connecting failed: connection refused");
    }

    #[tokio::test]
    async fn a_missing_token_is_told_before_anything_is_dialled() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let roots = Roots::from_pem(&made.cert.pem()).unwrap();
        let server = "wss://localhost:1".parse().unwrap();
        let files = CredentialFiles {
            token: Some("/nowhere/token".into()),
            certificate: None,
        };
        let credentials = Arc::new(Credentials::new(files, roots));
        let dialler = Dialler::new(server, credentials, Duration::from_secs(1));
        let greeting = Greeting {
            instance: tunnel_proto::handshake::InstanceId::from_random([0; 16]),
            version: "0".to_owned(),
            session_number: 1,
            allow_from: None,
            is_check: false,
        };
        let Err(error) = dialler.dial(&greeting).await else {
            panic!("no token")
        };
        assert_eq!((error.name(), error.is_fatal()), ("token", false));
    }
}
