//! From a server's URL to a session's connection, one step after another.
//!
//! ```text
//!   name ─▶ addresses ─▶ TCP ─▶ TLS ─▶ GET /connect ─▶ 101
//!   └──── or by a proxy, proxy.rs ───┘
//! ```
//!
//! One time-out applies to each step. The error of a failed step names it (step.rs); an observer gets more details
//! (observe.rs). A dial is never repeated here: the tunnel decides when to dial again.

mod crowded;
pub(crate) mod observe;
pub(crate) mod page_text;
pub(crate) mod probe;
mod proxy;
pub(crate) mod proxy_error;
pub(crate) mod resolve;
mod step;
pub(crate) mod tls;
mod transport;
mod upgrade;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tunnel_ops::connect::{Keepalive, connect};
use tunnel_ops::read_ahead::ReadAhead;
use tunnel_ops::socket::{set_unsent_limit, set_user_timeout};
use tunnel_ops::tls_files::TlsFilesError;
use tunnel_proto::handshake::{Greeting, Refusal};
use tunnel_proto::limits;
use tunnel_proto::redial::NoSession;
use tunnel_proto::refusal::Finality;

use self::crowded::BeforeTls;
pub(crate) use self::crowded::Crowded;
use self::observe::{Logged, Observation, Observer, StepRunner};
use self::proxy::Proxy;
pub(crate) use self::proxy::RefusedLogins;
pub(crate) use self::step::{StepError, is_not_a_tunnel, proxy_error};
use self::tls::Tls;
use self::transport::Transport;
pub(crate) use self::upgrade::RefusalResponse;
use self::upgrade::UpgradeOutcome;
use crate::config::{Config, ProxyUrl, ServerPath, ServerUrl, dialled};
use crate::credential::{Credential, CredentialError, Credentials};
use crate::step::Step;

/// The `User-Agent` of all requests of a dial: some proxies refuse requests without one.
const USER_AGENT: &str = concat!("tunnel-client/", env!("CARGO_PKG_VERSION"));

/// Keepalive of the connection to the server or the proxy: a lost peer is found after 30 s.
const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(5),
};

/// How long written bytes may stay unacknowledged before the kernel closes a session's connection: as long as a silent
/// session lives.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The credential cannot be read.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// A step failed: the server was not reached, or its response is not that of a tunnel server.
    #[error("{server}{}: {error}", ByProxy(.proxy.as_ref()))]
    Step {
        /// The server.
        server: ServerUrl,
        /// The proxy, if the dial uses one.
        proxy: Option<ProxyUrl>,
        /// The failed step.
        #[source]
        error: StepError,
    },
    /// The server was reached and refuses a session.
    #[error("{server} refused: {response}")]
    Refused {
        /// The server.
        server: ServerUrl,
        /// The response.
        response: RefusalResponse,
        /// The credential that was sent.
        credential: Arc<Credential>,
        /// The address of the server, or of the proxy.
        peer: SocketAddr,
    },
}

/// Dials one server.
#[derive(Debug)]
pub(crate) struct Dialler {
    server: ServerUrl,
    /// The host that is dialled, or that the proxy is to connect to.
    host: String,
    port: u16,
    proxy: Option<Proxy>,
    tls: Tls,
    /// The name that the server's certificate has to be valid for.
    server_name: String,
    host_field: String,
    credentials: Arc<Credentials>,
    /// The time-out of each step.
    limit: Duration,
}

/// A connection to the server under TLS.
type TunnelStream = TlsStream<ReadAhead<BeforeTls<Transport>>>;

/// A connection that has been upgraded to a session.
pub(crate) struct Connected {
    /// The connection.
    pub(crate) io: TunnelStream,
    /// Bytes that were read after the head of the 101.
    pub(crate) unread: Bytes,
    /// The address of the server, or of the proxy.
    pub(crate) peer: SocketAddr,
    /// The credential that the server accepted.
    pub(crate) credential: Arc<Credential>,
}

impl Dialler {
    /// A dialler of one of the configured servers, that authenticates by these credentials, and shares the refused logins of
    /// proxies with the diallers of other servers.
    ///
    /// # Errors
    /// When a CA file cannot be used.
    pub(crate) fn new(
        config: &Config,
        path: &ServerPath,
        credentials: Arc<Credentials>,
        refused: &RefusedLogins,
    ) -> Result<Self, TlsFilesError> {
        let server = path.url.clone();
        let (host, port) = dialled(&server, config.settings.connect_to.as_ref());
        let server_name = config.settings.server_name.as_ref();
        let host_field = config.settings.host_header.as_ref();
        Ok(Self {
            host: host.to_owned(),
            port,
            proxy: (path.proxy.clone())
                .map(|settings| Proxy::new(settings, refused))
                .transpose()?,
            tls: Tls::new(config.server_trust.clone())?,
            server_name: server_name
                .map_or_else(|| server.host(), |name| name.as_str())
                .to_owned(),
            host_field: host_field
                .map_or_else(|| server.authority(), |host| host.as_str())
                .to_owned(),
            server,
            credentials,
            limit: config.settings.dial_timeout,
        })
    }

    /// The server that is dialled.
    pub(crate) fn server(&self) -> &ServerUrl {
        &self.server
    }

    /// The proxy that it is dialled through.
    pub(crate) fn proxy(&self) -> Option<&ProxyUrl> {
        self.proxy.as_ref().map(Proxy::url)
    }

    /// Takes all the steps once. The addresses in `last` are tried after all others of the server.
    pub(crate) async fn dial(
        &self,
        greeting: &Greeting,
        last: &[SocketAddr],
    ) -> Result<Connected, DialError> {
        self.dial_steps(greeting, last, &mut Logged).await
    }

    /// Takes all the steps once, with an observer.
    pub(crate) async fn dial_observed(
        &self,
        greeting: &Greeting,
        observer: &mut dyn Observer,
    ) -> Result<Connected, DialError> {
        self.dial_steps(greeting, &[], observer).await
    }

    async fn dial_steps(
        &self,
        greeting: &Greeting,
        last: &[SocketAddr],
        observer: &mut dyn Observer,
    ) -> Result<Connected, DialError> {
        // Read at each dial, since the files can change, and before the first step, which is useless without a credential.
        let credential = self.credentials.read()?;
        let failed = |error| DialError::Step {
            server: self.server.clone(),
            proxy: self.proxy().cloned(),
            error,
        };
        let mut steps = StepRunner::new(self.limit, observer);
        // Boxed, since the state of each is large, and a dial is rare.
        let reached = Box::pin(self.reach(last, &mut steps)).await;
        let (transport, peer) = reached.map_err(failed)?;
        let io = Box::pin(self.secure(transport, &credential, &mut steps))
            .await
            .map_err(failed)?;
        let outcome = Box::pin(self.upgrade(io, greeting, &credential, &mut steps))
            .await
            .map_err(failed)?;
        match outcome {
            UpgradeOutcome::Accepted(io, unread) => Ok(Connected {
                io,
                unread,
                peer,
                credential,
            }),
            UpgradeOutcome::Refused(response) => Err(DialError::Refused {
                server: self.server.clone(),
                response,
                credential,
                peer,
            }),
        }
    }

    /// Connects to the server, directly or through the proxy. Returns the connection and the address of its peer.
    async fn reach(
        &self,
        last: &[SocketAddr],
        steps: &mut StepRunner<'_>,
    ) -> Result<(Transport, SocketAddr), StepError> {
        let (host, port) = (self.host.as_str(), self.port);
        let proxy = self.proxy();
        steps.observe(Observation::Target { host, port, proxy });
        match &self.proxy {
            Some(proxy) => proxy.reach(host, port, steps).await,
            None => {
                let mut addresses = look_up(Step::Dns, host, port, steps).await?;
                // Stable: the resolver's order counts among the others.
                addresses.sort_by_key(|address| last.contains(address));
                let (tcp, peer) = connect_any(Step::Tcp, &addresses, steps).await?;
                Ok((Transport::Tcp(tcp), peer))
            }
        }
    }

    /// Performs the TLS handshake with the server, also through a proxy.
    async fn secure(
        &self,
        transport: Transport,
        credential: &Credential,
        steps: &mut StepRunner<'_>,
    ) -> Result<TunnelStream, StepError> {
        set_options(transport.tcp()).map_err(|error| StepError::Failed(Step::Tls, error))?;
        let name = &self.server_name;
        let identity = credential.identity();
        let transport = ReadAhead::new(BeforeTls::new(transport));
        let secured = self.tls.secure(steps, Step::Tls, transport, name, identity);
        let mut io = secured.await?;
        io.get_mut().1.set_buffer_limit(Some(limits::TLS_BYTES));
        Ok(io)
    }

    /// Requests a session.
    async fn upgrade(
        &self,
        io: TunnelStream,
        greeting: &Greeting,
        credential: &Credential,
        steps: &mut StepRunner<'_>,
    ) -> Result<UpgradeOutcome<TunnelStream>, StepError> {
        let (host, token, limit) = (&self.host_field, credential.token(), steps.limit());
        let asking = Box::pin(upgrade::upgrade(io, host, greeting, token, limit));
        let upgrading = steps.step_with_limit(Step::Upgrade, limit, asking, |ended, observer| {
            if let Ok(response) = ended {
                observer.observe(Observation::UpgradeResponse {
                    status: response.status,
                    fields: &response.fields,
                    text: &response.text,
                });
            }
        });
        Ok(upgrading.await?.outcome)
    }
}

/// Sets the options that only a session's connection has.
fn set_options(tcp: &TcpStream) -> io::Result<()> {
    set_unsent_limit(tcp, limits::UNSENT_BYTES)?;
    set_user_timeout(tcp, Some(USER_TIMEOUT))
}

/// Runs the step that resolves a name.
async fn look_up(
    step: Step,
    host: &str,
    port: u16,
    steps: &mut StepRunner<'_>,
) -> Result<Vec<SocketAddr>, StepError> {
    steps
        .step(step, resolve::resolve(host, port), |ended, observer| {
            if let Ok(addresses) = ended {
                observer.observe(Observation::Addresses { host, addresses });
            }
        })
        .await
}

/// Runs the step that connects to the first address that accepts.
async fn connect_any(
    step: Step,
    addresses: &[SocketAddr],
    steps: &mut StepRunner<'_>,
) -> Result<(TcpStream, SocketAddr), StepError> {
    let limit = steps.limit();
    let connecting = connect(addresses, limit, KEEPALIVE);
    let connected = steps.step_with_limit(step, limit, connecting, |ended, observer| {
        if let Ok(connected) = ended {
            observer.observe(Observation::Connected {
                address: connected.address,
                failed: &connected.failed,
            });
        }
    });
    let connected = connected.await?;
    Ok((connected.stream, connected.address))
}

impl DialError {
    /// Whether the cause can pass by itself.
    pub(crate) fn finality(&self) -> Finality {
        match self {
            // Only a tunnel server's refusal can be lasting; that of a proxy in between may pass.
            Self::Refused { response, .. } => {
                let refusal = response.refusal.as_ref();
                refusal.map_or(Finality::Passing, Refusal::finality)
            }
            // Files are often put in place, or replaced, while a client runs.
            Self::Credential(_) | Self::Step { .. } => Finality::Passing,
        }
    }

    /// Whether a tunnel server has refused the credential.
    pub(crate) fn is_of_credential(&self) -> bool {
        let Self::Refused { response, .. } = self else {
            return false;
        };
        let is_denied =
            [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status);
        is_denied && response.refusal.is_some()
    }

    /// Whether the path to the server may be the cause, about which `check` says more: not a refusal by the server itself,
    /// and not the credential's files.
    pub(crate) fn is_on_path(&self) -> bool {
        match self {
            Self::Step { error, .. } => error.inner::<Crowded>().is_none(),
            Self::Refused { response, .. } => response.refusal.is_none(),
            Self::Credential(_) => false,
        }
    }

    /// What was found, which decides when to dial again.
    pub(crate) fn no_session(&self) -> NoSession {
        match self {
            Self::Refused { response, .. } => {
                NoSession::after_response(response.refusal.as_ref(), response.retry_after)
            }
            Self::Step { error, .. } => match error.inner::<Crowded>() {
                Some(crowded) => NoSession::Queued(crowded.retry_after),
                None => NoSession::NoServer(None),
            },
            Self::Credential(_) => NoSession::Refused(None),
        }
    }

    /// The step that failed.
    pub(crate) fn step(&self) -> Step {
        match self {
            Self::Credential(error) => error.step(),
            Self::Step { error, .. } => error.step(),
            Self::Refused { .. } => Step::Upgrade,
        }
    }

    /// The name in metrics: that of the step, except for a refusal.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            _ => self.step().name(),
        }
    }
}

/// The words "by the proxy …", or nothing without a proxy.
struct ByProxy<'a>(Option<&'a ProxyUrl>);

impl fmt::Display for ByProxy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(proxy) => write!(f, " by the proxy {proxy}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for RefusalResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.refusal {
            Some(refusal) => write!(
                f,
                "{} ({})",
                one_line(&refusal.detail),
                one_line(&refusal.reason)
            ),
            None => f.write_str(self.meaning()),
        }?;
        write!(f, ", status {}", self.status.as_u16())
    }
}

/// The text of a server's response without control characters, for a terminal or a log.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

impl RefusalResponse {
    /// The usual meaning of a response without a refusal.
    fn meaning(&self) -> &'static str {
        match self.status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => "a proxy in between demands a login",
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => "a proxy or load balancer does not reach the server",
            status if status.is_redirection() => {
                "this is not the tunnel server, it redirects elsewhere"
            }
            status if status.is_success() => "this is a web server, not a tunnel server",
            _ => "no reason given, perhaps by a proxy in between",
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tunnel_ops::task::Owned;
    use tunnel_ops::tls_files::{self, Roots};
    use tunnel_proto::refusal::RefusalReason;

    use super::*;
    use crate::credential::CredentialFiles;

    fn greeting() -> Greeting {
        Greeting {
            instance: tunnel_proto::handshake::InstanceSecret::from_random([0; 16]),
            version: "0".to_owned(),
            session_number: 1,
            allow_from: None,
            is_check: false,
            stands_by: false,
            placement: None,
        }
    }

    fn refused(status: u16, refusal: Option<Refusal>) -> DialError {
        let status = StatusCode::from_u16(status).unwrap();
        let refused = RefusalResponse {
            status,
            refusal,
            retry_after: None,
        };
        let files = CredentialFiles {
            token: None,
            certificate: None,
        };
        DialError::Refused {
            server: "wss://tunnel.example.com".parse().unwrap(),
            response: refused,
            credential: Credentials::new(files).read().unwrap(),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn of_a_session_the_kernel_holds_little_that_it_has_not_sent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await;
        let tcp = tcp.unwrap();
        set_options(&tcp).unwrap();
        let unsent = socket2::SockRef::from(&tcp).tcp_notsent_lowat().unwrap();
        assert_eq!(unsent, limits::UNSENT_BYTES);
    }

    #[test]
    fn only_a_tunnel_server_can_refuse_for_good() {
        let unknown = |fatal| Refusal {
            reason: "token_unknown".to_owned(),
            detail: "this token is not known: make a new one".to_owned(),
            fatal,
        };
        let error = refused(401, Some(unknown(true)));
        assert_eq!(error.finality(), Finality::Final);
        assert_eq!(
            error.to_string(),
            "wss://tunnel.example.com refused: this token is not known: make a new one \
             (token_unknown), status 401"
        );
        let passing = refused(401, Some(unknown(false)));
        assert_eq!(passing.finality(), Finality::Passing);
        let proxy = refused(407, None);
        assert_eq!(proxy.finality(), Finality::Passing);
        assert!(
            proxy
                .to_string()
                .contains("a proxy in between demands a login"),
            "{proxy}"
        );
    }

    /// `fatal` is ignored with a reason that this version knows: the server may be older.
    #[test]
    fn every_reason_that_a_server_can_send_has_its_consequence() {
        for reason in RefusalReason::ALL {
            for fatal in [true, false] {
                let said = Refusal {
                    fatal,
                    ..Refusal::new(*reason, "x")
                };
                let error = refused(reason.status().as_u16(), Some(said));
                assert_eq!(error.finality(), reason.finality(), "{reason:?}");
            }
        }
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

    #[tokio::test]
    async fn a_missing_token_is_reported_before_anything_is_dialled() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let roots = Roots::from_pem(&made.cert.pem()).unwrap();
        let server = "wss://localhost:1".parse().unwrap();
        let files = CredentialFiles {
            token: Some("/nowhere/token".into()),
            certificate: None,
        };
        let credentials = Arc::new(Credentials::new(files));
        let upstream = "http://localhost:1".parse().unwrap();
        let config = Config::new(server, roots, "/nowhere/token".into(), upstream);
        let dialler = Dialler::new(
            &config,
            &config.servers[0],
            credentials,
            &RefusedLogins::new(Duration::ZERO),
        )
        .unwrap();
        let Err(error) = dialler.dial(&greeting(), &[]).await else {
            panic!("no token")
        };
        assert_eq!(
            (error.name(), error.finality()),
            ("token", Finality::Passing)
        );
    }

    /// Keeps a line for each observation.
    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Observer for Notes {
        fn begins(&mut self, step: Step) {
            self.0.push(format!("{}:", step.name()));
        }

        fn observe(&mut self, observation: Observation<'_>) {
            self.0.push(match observation {
                Observation::Target { host, proxy, .. } => {
                    format!("target {host}, {}", proxy.is_some())
                }
                Observation::Addresses { addresses, .. } => {
                    format!("{} addresses", addresses.len())
                }
                Observation::Connected { failed, .. } => {
                    format!("connected after {}", failed.len())
                }
                Observation::Chain(chain) => format!("chain of {}", chain.len()),
                Observation::Tls { version } => format!("tls {}", version.is_some()),
                Observation::ProxyResponse(answer) => answer.text.clone(),
                Observation::UpgradeResponse { status, text, .. } => {
                    format!("{status} {}", String::from_utf8_lossy(text))
                }
            });
        }

        fn ends(&mut self, step: Step, _: Duration, error: Option<&StepError>) {
            let end = if error.is_some() { "failed" } else { "done" };
            self.0.push(format!("{} {end}", step.name()));
        }

        fn wants_chains(&self) -> bool {
            true
        }
    }

    /// What is observed in a dial to a web server, whose certificate this client trusts or not.
    async fn watch(is_trusted: bool) -> (Vec<String>, DialError) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let identity = tls_files::Identity::from_pem(&cert, &key).unwrap();
        let accepts = tls_files::server_config(&identity, &[b"http/1.1"], None).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _serving = Owned::spawn("web server", async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(accepts);
            let Ok(mut stream) = acceptor.accept(tcp).await else {
                return;
            };
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello";
            stream.read_u8().await.unwrap();
            stream.write_all(answer).await.unwrap();
            stream.shutdown().await.unwrap();
            std::future::pending::<()>().await;
        });
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "tnlrt_1_secret").unwrap();
        let trusted = if is_trusted { made } else { other };
        let roots = Roots::from_pem(&trusted.cert.pem()).unwrap();
        let (server, upstream) = (format!("wss://{address}"), "http://localhost:1");
        let (server, upstream) = (server.parse().unwrap(), upstream.parse().unwrap());
        let config = Config::new(server, roots, token.clone(), upstream);
        let files = CredentialFiles {
            token: Some(token),
            certificate: None,
        };
        let credentials = Arc::new(Credentials::new(files));
        let dialler = Dialler::new(
            &config,
            &config.servers[0],
            credentials,
            &RefusedLogins::new(Duration::ZERO),
        )
        .unwrap();
        let mut notes = Notes::default();
        match dialler.dial_observed(&greeting(), &mut notes).await {
            Ok(_) => panic!("this is no tunnel server"),
            Err(error) => (notes.0, error),
        }
    }

    #[tokio::test]
    async fn an_observer_gets_each_step_and_certificates_that_are_refused() {
        let (observed, error) = watch(true).await;
        assert_eq!(
            observed,
            [
                "target 127.0.0.1, false",
                "dns:",
                "1 addresses",
                "dns done",
                "tcp:",
                "connected after 0",
                "tcp done",
                "tls:",
                "chain of 1",
                "tls true",
                "tls done",
                "upgrade:",
                "200 OK hello",
                "upgrade done",
            ]
        );
        assert!(matches!(error, DialError::Refused { .. }));
        let (observed, error) = watch(false).await;
        assert_eq!(observed[7..], ["tls:", "chain of 1", "tls failed"]);
        let DialError::Step { error, .. } = error else {
            panic!("a step has failed")
        };
        assert!(error.certificate().is_some(), "{error}");
        assert!(proxy_error(&error).is_none() && error.attempts().is_empty());
    }
}
