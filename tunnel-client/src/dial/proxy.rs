//! Through a proxy: a connection that leads to the server once the proxy has been asked for the way.
//!
//! ```text
//!   proxy's name ─▶ addresses ─▶ TCP ─▶ (TLS, https) ─▶ asking: CONNECT, or SOCKS5
//!   └ ProxyResolve ┘└ ProxyConnect ┘  └   ProxyTls   ┘  └        ProxyAsk        ┘
//! ```
//!
//! With `socks5` the server's name is looked up here first, and the proxy is asked for each of its
//! addresses in turn; any other proxy looks it up itself. What the proxy says is told in its own
//! words; the login never is.

mod challenge;
mod digest;
mod http;
mod refused_login;
mod socks5;
mod words;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ::http::StatusCode;
use tokio::time::{Instant, timeout};
use tunnel_ops::tls_files::TlsFilesError;

use self::http::{Asked, Asking};
use self::refused_login::RefusedLogin;
use self::socks5::Target;
pub(crate) use self::words::{one_line, page_words};
use super::link::Link;
use super::observe::{Observation, Walk};
use super::step::{Step, StepError, proxy_error};
use super::tls::Tls;
use crate::config::{
    LoginError, LoginSource, ProxyLogin, ProxyScheme, ProxySettings, ProxyUrl, read_login,
};

/// Most connections that one dial makes to the proxy: one without a login, one with it, one more when
/// a nonce was out of date; and as many addresses of the server for `socks5`.
const CONNECTIONS: usize = 4;

/// A proxy on the way.
#[derive(Debug)]
pub(super) struct Proxy {
    url: ProxyUrl,
    login: LoginSource,
    refused: RefusedLogin,
    /// For `https`.
    tls: Option<Tls>,
}

/// What a proxy said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyAnswer {
    /// The status; none when it speaks SOCKS.
    pub(crate) status: Option<StatusCode>,
    /// Its own words, on one line: the status with its reason, and what its page says.
    pub(crate) words: String,
    /// The login schemes that it offers in a 407.
    pub(crate) schemes: Vec<String>,
    /// What was shown to it: `Basic`, `Digest` or `password`.
    pub(crate) login: Option<&'static str>,
}

/// Why a proxy does not lead to the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// It wants a login, and there is none.
    #[error("the proxy wants a login{}: name one with --proxy-auth-file; it says: {}", Schemes(.0), .0.words)]
    LoginWanted(ProxyAnswer),
    /// It wants a login by schemes that are not spoken here.
    #[error("the proxy wants a login{}, and this client speaks only {}; it says: {}", Schemes(.0), Spoken(.0), .0.words)]
    LoginUnknown(ProxyAnswer),
    /// The login is not taken.
    #[error("the proxy does not take the login: check user and password; it says: {}", .0.words)]
    LoginRefused(ProxyAnswer),
    /// The login was not taken a while ago, and is not shown again so soon: who shows a wrong one too often
    /// is locked out.
    #[error(
        "the proxy has not taken this login: check user and password, it is shown again when it has changed, or in {1:?}; \
         it said: {words}", words = .0.words
    )]
    LoginHeld(ProxyAnswer, Duration),
    /// It refuses for another reason.
    #[error("the proxy refuses: {}", .0.words)]
    Refused(ProxyAnswer),
    /// Its answer is none of such a proxy.
    #[error("this is no such proxy: {0}")]
    NotAProxy(String),
    /// It says nothing in time.
    #[error("the proxy says nothing")]
    Silent,
    /// The login cannot be read.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// It asks for the way to be asked for again and again.
    #[error("the proxy closes one connection after the other")]
    TooOften,
    /// Something that SOCKS cannot carry.
    #[error("the {0} is too long for SOCKS5: at most 255 bytes")]
    TooLong(&'static str),
    /// The system.
    #[error("the system gives no random numbers")]
    NoRandom,
}

/// The schemes that a proxy offers, for a sentence.
struct Schemes<'a>(&'a ProxyAnswer);

/// The schemes that are spoken with such a proxy, for a sentence.
struct Spoken<'a>(&'a ProxyAnswer);

impl Proxy {
    /// Nothing is dialled yet. A login that is refused is not shown again for `refusal_wait`, unless it
    /// changes.
    ///
    /// # Errors
    /// When the CA files of an `https` proxy are not good.
    pub(super) fn new(
        settings: ProxySettings,
        refusal_wait: Duration,
    ) -> Result<Self, TlsFilesError> {
        Ok(Self {
            url: settings.url,
            login: settings.login,
            refused: RefusedLogin::new(refusal_wait),
            tls: settings.trust.map(Tls::new).transpose()?,
        })
    }

    /// Which one it is.
    pub(super) fn url(&self) -> &ProxyUrl {
        &self.url
    }

    /// A connection that leads to this host and port, and the proxy's address.
    pub(super) async fn reach(
        &self,
        host: &str,
        port: u16,
        walk: &mut Walk<'_>,
    ) -> Result<(Link, SocketAddr), StepError> {
        let login = self.login().map_err(|error| failed(error.into()))?;
        let login = login.as_ref();
        self.refused.check(login).map_err(failed)?;
        let reached = self.reach_with(login, host, port, walk).await;
        if let (Err(error), Some(login)) = (&reached, login)
            && let Some(ProxyError::LoginRefused(answer)) = proxy_error(error)
        {
            self.refused.note(login, answer);
        }
        reached
    }

    async fn reach_with(
        &self,
        login: Option<&ProxyLogin>,
        host: &str,
        port: u16,
        walk: &mut Walk<'_>,
    ) -> Result<(Link, SocketAddr), StepError> {
        match self.url.scheme() {
            ProxyScheme::Http | ProxyScheme::Https => {
                let authority = authority(host, port);
                let mut asking = Asking::new(&authority, login);
                for _ in 0..CONNECTIONS {
                    let (link, peer) = self.connect(walk).await?;
                    if let Some(link) = ask_http(&mut asking, link, walk).await? {
                        return Ok((link, peer));
                    }
                }
                Err(failed(ProxyError::TooOften))
            }
            ProxyScheme::Socks5h => {
                let (link, peer) = self.connect(walk).await?;
                let target = Target::Host(host, port);
                let limit = walk.limit();
                Ok((ask_socks(link, target, login, limit, walk).await?, peer))
            }
            ProxyScheme::Socks5 => {
                let addresses = super::look_up(Step::Resolve, host, port, walk).await?;
                self.reach_any(&addresses, login, walk).await
            }
        }
    }

    /// The first of these addresses that the proxy reaches. All of them share the limit of one step: each
    /// has an equal part of what is left, or one that leads nowhere would keep the next from being tried.
    async fn reach_any(
        &self,
        addresses: &[SocketAddr],
        login: Option<&ProxyLogin>,
        walk: &mut Walk<'_>,
    ) -> Result<(Link, SocketAddr), StepError> {
        let mut last = failed(ProxyError::TooOften);
        let mut left = walk.limit();
        let count = addresses.len().min(CONNECTIONS);
        for (address, waiting) in addresses.iter().zip((1..=count).rev()) {
            let (link, peer) = self.connect(walk).await?;
            let began = Instant::now();
            let part = left / u32::try_from(waiting).unwrap_or(1);
            let target = Target::Address(*address);
            match ask_socks(link, target, login, part, walk).await {
                Ok(link) => return Ok((link, peer)),
                Err(error) if is_of_the_address(&error) => last = error,
                Err(error) => return Err(error),
            }
            left = left.saturating_sub(began.elapsed());
        }
        Err(last)
    }

    /// A connection to the proxy.
    async fn connect(&self, walk: &mut Walk<'_>) -> Result<(Link, SocketAddr), StepError> {
        let (host, port) = (self.url.host(), self.url.port());
        let addresses = super::look_up(Step::ProxyResolve, host, port, walk).await?;
        let (tcp, peer) = super::connect_any(Step::ProxyConnect, &addresses, walk).await?;
        let Some(tls) = &self.tls else {
            return Ok((Link::Tcp(tcp), peer));
        };
        let secured = tls.secure(walk, Step::ProxyTls, tcp, host, None).await?;
        Ok((Link::Tls(Box::new(secured)), peer))
    }

    /// Read at each dial.
    fn login(&self) -> Result<Option<ProxyLogin>, LoginError> {
        match &self.login {
            LoginSource::None => Ok(None),
            LoginSource::Given(login) => Ok(Some(login.clone())),
            LoginSource::File(path) => read_login(path).map(Some),
        }
    }
}

/// The connection, if it is let through; none when the proxy wants another one.
async fn ask_http(
    asking: &mut Asking<'_>,
    link: Link,
    walk: &mut Walk<'_>,
) -> Result<Option<Link>, StepError> {
    let limit = walk.limit();
    let work = async { Ok(asking.ask(link, limit).await?) };
    let asked = walk.step_with_limit(Step::ProxyAsk, limit, work, |ended, observer| {
        let answer = match ended {
            Ok(Asked::Through(_, answer)) => Some(answer),
            Ok(Asked::Again) => None,
            Err(error) => proxy_error(error).and_then(ProxyError::answer),
        };
        answer
            .into_iter()
            .for_each(|answer| observer.observe(Observation::ProxyAnswer(answer)));
    });
    match asked.await? {
        Asked::Through(link, _) => Ok(Some(link)),
        Asked::Again => Ok(None),
    }
}

async fn ask_socks(
    mut link: Link,
    target: Target<'_>,
    login: Option<&ProxyLogin>,
    limit: Duration,
    walk: &mut Walk<'_>,
) -> Result<Link, StepError> {
    let work = async {
        let asked = timeout(limit, socks5::ask(&mut link, target, login)).await;
        Ok(asked.map_err(|_| ProxyError::Silent)??)
    };
    let asked = walk.step_with_limit(Step::ProxyAsk, limit, work, |ended, observer| {
        let answer = match ended {
            Ok(answer) => Some(answer),
            Err(error) => proxy_error(error).and_then(ProxyError::answer),
        };
        answer
            .into_iter()
            .for_each(|answer| observer.observe(Observation::ProxyAnswer(answer)));
    });
    asked.await?;
    Ok(link)
}

/// Host and port as `CONNECT` has them: the port always, IPv6 in brackets, no dot at the end.
fn authority(host: &str, port: u16) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Whether the proxy may well reach another address of the server.
fn is_of_the_address(error: &StepError) -> bool {
    match error {
        StepError::TimedOut(..) => true,
        // Some close the connection when they do not get through.
        StepError::Failed(..) => matches!(
            proxy_error(error),
            Some(ProxyError::Refused(_) | ProxyError::NotAProxy(_))
        ),
    }
}

fn failed(error: ProxyError) -> StepError {
    StepError::Failed(Step::ProxyAsk, error.into())
}

impl ProxyError {
    /// What the proxy said, where it said something.
    pub(crate) fn answer(&self) -> Option<&ProxyAnswer> {
        match self {
            Self::LoginWanted(answer)
            | Self::LoginUnknown(answer)
            | Self::LoginRefused(answer)
            | Self::LoginHeld(answer, _)
            | Self::Refused(answer) => Some(answer),
            _ => None,
        }
    }
}

impl From<ProxyError> for io::Error {
    fn from(error: ProxyError) -> Self {
        match error {
            ProxyError::Silent => io::ErrorKind::TimedOut.into(),
            error => Self::other(error),
        }
    }
}

impl fmt::Display for Schemes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.schemes.as_slice() {
            [] => Ok(()),
            schemes => write!(f, " by {}", one_line(&schemes.join(", "))),
        }
    }
}

impl fmt::Display for Spoken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.status {
            Some(_) => "Basic and Digest (MD5, SHA-256)",
            None => "user and password (RFC 1929)",
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tunnel_ops::task::Owned;

    use super::super::observe::Logged;
    use super::*;
    use crate::config::ProxyChoice;

    /// A SOCKS5 proxy that closes the first connection, says nothing on the second, and lets the third
    /// through.
    async fn moody_proxy(listener: TcpListener) {
        let mut silent = None;
        for number in 0.. {
            let (mut tcp, _) = listener.accept().await.unwrap();
            match number {
                0 => drop(tcp),
                1 => silent = Some(tcp),
                _ => {
                    let mut asked = [0; 3 + 10];
                    tcp.read_exact(&mut asked[..3]).await.unwrap();
                    tcp.write_all(&[5, 0]).await.unwrap();
                    tcp.read_exact(&mut asked[3..]).await.unwrap();
                    tcp.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
                        .await
                        .unwrap();
                }
            }
        }
        drop(silent);
    }

    #[tokio::test]
    async fn an_address_that_the_proxy_does_not_reach_leaves_time_for_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("socks5://{}", listener.local_addr().unwrap());
        let Ok(ProxyChoice::Proxy(url, None)) = url.parse() else {
            panic!("a proxy without a login")
        };
        let settings = ProxySettings {
            url,
            variable: None,
            login: LoginSource::None,
            trust: None,
        };
        let _serving = Owned::spawn("proxy", moody_proxy(listener));
        let limit = Duration::from_secs(4);
        let proxy = Proxy::new(settings, limit).unwrap();
        let addresses: Vec<SocketAddr> = (1..=3)
            .map(|last| SocketAddr::from(([192, 0, 2, last], 443)))
            .collect();
        let mut observer = Logged;
        let mut walk = Walk::new(limit, &mut observer);
        let reached = proxy.reach_any(&addresses, None, &mut walk).await;
        assert!(reached.is_ok(), "{:?}", reached.err());
    }

    #[test]
    fn an_authority_always_has_its_port() {
        assert_eq!(
            authority("tunnel.example.com.", 443),
            "tunnel.example.com:443"
        );
        assert_eq!(authority("10.0.0.7", 8443), "10.0.0.7:8443");
        assert_eq!(authority("2001:db8::1", 443), "[2001:db8::1]:443");
    }
}
