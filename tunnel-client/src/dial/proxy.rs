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
mod socks5;
mod words;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use ::http::StatusCode;
use tunnel_ops::tls_files::TlsFilesError;

use self::http::{Asked, Asking};
use self::socks5::Target;
use super::link::Link;
use super::observe::{Seen, Walk};
use super::step::{Step, StepError};
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
    #[error("the proxy wants a login{}, and this client speaks only Basic and Digest (MD5, SHA-256); it says: {}", Schemes(.0), .0.words)]
    LoginUnknown(ProxyAnswer),
    /// The login is not taken.
    #[error("the proxy does not take the login: check user and password; it says: {}", .0.words)]
    LoginRefused(ProxyAnswer),
    /// It refuses for another reason.
    #[error("the proxy refuses: {}", .0.words)]
    Refused(ProxyAnswer),
    /// Its answer is none of such a proxy.
    #[error("this is no such proxy: {0}")]
    NotAProxy(String),
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

impl Proxy {
    /// Nothing is dialled yet.
    ///
    /// # Errors
    /// When the CA files of an `https` proxy are not good.
    pub(super) fn new(settings: ProxySettings) -> Result<Self, TlsFilesError> {
        Ok(Self {
            url: settings.url,
            login: settings.login,
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
        match self.url.scheme() {
            ProxyScheme::Http | ProxyScheme::Https => {
                let authority = authority(host, port);
                let mut asking = Asking::new(&authority, login.as_ref());
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
                Ok((ask_socks(link, target, login.as_ref(), walk).await?, peer))
            }
            ProxyScheme::Socks5 => {
                let addresses = super::look_up(Step::Resolve, host, port, walk).await?;
                self.reach_any(&addresses, login.as_ref(), walk).await
            }
        }
    }

    /// The first of these addresses that the proxy reaches.
    async fn reach_any(
        &self,
        addresses: &[SocketAddr],
        login: Option<&ProxyLogin>,
        walk: &mut Walk<'_>,
    ) -> Result<(Link, SocketAddr), StepError> {
        let mut last = failed(ProxyError::TooOften);
        for address in addresses.iter().take(CONNECTIONS) {
            let (link, peer) = self.connect(walk).await?;
            match ask_socks(link, Target::Address(*address), login, walk).await {
                Ok(link) => return Ok((link, peer)),
                Err(error) if matches!(error.proxy(), Some(ProxyError::Refused(_))) => last = error,
                Err(error) => return Err(error),
            }
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
    let work = async { Ok(asking.ask(link).await?) };
    let asked = walk.step(Step::ProxyAsk, work, |ended, observer| {
        let answer = match ended {
            Ok(Asked::Through(_, answer)) => Some(answer),
            Ok(Asked::Again) => None,
            Err(error) => error.proxy().and_then(ProxyError::answer),
        };
        answer
            .into_iter()
            .for_each(|answer| observer.sees(Seen::ProxyAnswer(answer)));
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
    walk: &mut Walk<'_>,
) -> Result<Link, StepError> {
    let work = async { Ok(socks5::ask(&mut link, target, login).await?) };
    let asked = walk.step(Step::ProxyAsk, work, |ended, observer| {
        let answer = match ended {
            Ok(answer) => Some(answer),
            Err(error) => error.proxy().and_then(ProxyError::answer),
        };
        answer
            .into_iter()
            .for_each(|answer| observer.sees(Seen::ProxyAnswer(answer)));
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
            | Self::Refused(answer) => Some(answer),
            _ => None,
        }
    }
}

impl From<ProxyError> for io::Error {
    fn from(error: ProxyError) -> Self {
        Self::other(error)
    }
}

impl fmt::Display for Schemes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.schemes.as_slice() {
            [] => Ok(()),
            schemes => write!(f, " by {}", words::one_line(&schemes.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
