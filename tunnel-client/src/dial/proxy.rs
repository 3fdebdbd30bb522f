//! A connection to the server through a proxy.
//!
//! ```text
//!   proxy's name ─▶ addresses ─▶ TCP ─▶ (TLS, https) ─▶ CONNECT, or SOCKS5
//!   └   ProxyDns   ┘└   ProxyTcp   ┘  └   ProxyTls   ┘  └      Proxy      ┘
//! ```
//!
//! With `socks5` the client resolves the server's name first, and requests each of its addresses in turn; any other proxy
//! resolves the name itself. Errors quote the proxy's text, and never the login.

mod challenge;
mod digest;
mod http;
mod refused_login;
mod socks5;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tunnel_ops::tls_files::TlsFilesError;

use self::http::{ConnectAttempts, ConnectOutcome};
use self::refused_login::RefusedLogin;
pub(crate) use self::refused_login::RefusedLogins;
use self::socks5::Target;
use super::observe::{Observation, StepRunner};
use super::proxy_error::ProxyError;
use super::step::{StepError, proxy_error};
use super::tls::Tls;
use super::transport::Transport;
use crate::config::{
    LoginError, LoginSource, ProxyLogin, ProxyScheme, ProxySettings, ProxyUrl, read_login,
};
use crate::step::Step;

/// Most addresses of the server that are tried with `socks5`: each is a connection to the proxy, and gets at least a
/// quarter of the time-out of a step.
const SOCKS5_ADDRESSES: usize = 4;

/// A proxy, and the login for it.
#[derive(Debug)]
pub(super) struct Proxy {
    url: ProxyUrl,
    login: LoginSource,
    /// Shared with the diallers of other servers.
    refused: Arc<RefusedLogin>,
    /// For `https`.
    tls: Option<Tls>,
}

impl Proxy {
    /// A proxy that is not dialled yet.
    ///
    /// # Errors
    /// When the CA files of an `https` proxy cannot be used.
    pub(super) fn new(
        settings: ProxySettings,
        refused: &RefusedLogins,
    ) -> Result<Self, TlsFilesError> {
        Ok(Self {
            refused: refused.of(&settings.url),
            url: settings.url,
            login: settings.login,
            tls: settings.trust.map(Tls::new).transpose()?,
        })
    }

    /// Its URL.
    pub(super) fn url(&self) -> &ProxyUrl {
        &self.url
    }

    /// Connects to this host and port through the proxy. Returns the connection and the proxy's address.
    pub(super) async fn reach(
        &self,
        host: &str,
        port: u16,
        steps: &mut StepRunner<'_>,
    ) -> Result<(Transport, SocketAddr), StepError> {
        let login = self.login().map_err(|error| failed(error.into()))?;
        let login = login.as_ref();
        self.refused.check(login).map_err(failed)?;
        let reached = self.reach_with(login, host, port, steps).await;
        if let (Err(error), Some(login)) = (&reached, login)
            && let Some(ProxyError::LoginRefused(response)) = proxy_error(error)
        {
            self.refused.note(login, response);
        }
        reached
    }

    async fn reach_with(
        &self,
        login: Option<&ProxyLogin>,
        host: &str,
        port: u16,
        steps: &mut StepRunner<'_>,
    ) -> Result<(Transport, SocketAddr), StepError> {
        match self.url.scheme() {
            ProxyScheme::Http | ProxyScheme::Https => {
                let authority = authority(host, port);
                let mut attempts = ConnectAttempts::new(&authority, login);
                // It ends: each connection uses at least one of the attempts, whose number is limited.
                loop {
                    let (transport, peer) = self.connect(steps).await?;
                    if let Some(transport) = connect_http(&mut attempts, transport, steps).await? {
                        return Ok((transport, peer));
                    }
                }
            }
            ProxyScheme::Socks5h => {
                let (transport, peer) = self.connect(steps).await?;
                let target = Target::Host(host, port);
                let limit = steps.limit();
                Ok((
                    connect_socks(transport, target, login, limit, steps).await?,
                    peer,
                ))
            }
            ProxyScheme::Socks5 => {
                let addresses = super::look_up(Step::Dns, host, port, steps).await?;
                self.reach_any(&addresses, login, steps).await
            }
        }
    }

    /// Connects to the first of these addresses that the proxy reaches. They share the time-out of one step: each gets an
    /// equal part of the rest, so that an address without a response leaves time for the next.
    async fn reach_any(
        &self,
        addresses: &[SocketAddr],
        login: Option<&ProxyLogin>,
        steps: &mut StepRunner<'_>,
    ) -> Result<(Transport, SocketAddr), StepError> {
        // Returned only if there is no address.
        let mut last = StepError::Failed(Step::Dns, io::ErrorKind::NotFound.into());
        let mut left = steps.limit();
        let count = addresses.len().min(SOCKS5_ADDRESSES);
        for (address, remaining) in addresses.iter().zip((1..=count).rev()) {
            let (transport, peer) = self.connect(steps).await?;
            let began = Instant::now();
            let part = left / u32::try_from(remaining).unwrap_or(1);
            let target = Target::Address(*address);
            match connect_socks(transport, target, login, part, steps).await {
                Ok(transport) => return Ok((transport, peer)),
                Err(error) if is_about_address(&error) => last = error,
                Err(error) => return Err(error),
            }
            left = left.saturating_sub(began.elapsed());
        }
        Err(last)
    }

    /// Connects to the proxy.
    async fn connect(
        &self,
        steps: &mut StepRunner<'_>,
    ) -> Result<(Transport, SocketAddr), StepError> {
        let (host, port) = (self.url.host(), self.url.port());
        let addresses = super::look_up(Step::ProxyDns, host, port, steps).await?;
        let (tcp, peer) = super::connect_any(Step::ProxyTcp, &addresses, steps).await?;
        let Some(tls) = &self.tls else {
            return Ok((Transport::Tcp(tcp), peer));
        };
        let secured = tls.secure(steps, Step::ProxyTls, tcp, host, None).await?;
        Ok((Transport::Tls(Box::new(secured)), peer))
    }

    /// The login; a file is read at each dial.
    fn login(&self) -> Result<Option<ProxyLogin>, LoginError> {
        match &self.login {
            LoginSource::None => Ok(None),
            LoginSource::Given(login) => Ok(Some(login.clone())),
            LoginSource::File(path) => read_login(path).map(Some),
        }
    }
}

/// Requests the connection. Returns `None` if the proxy needs a request on a new connection.
async fn connect_http(
    attempts: &mut ConnectAttempts<'_>,
    transport: Transport,
    steps: &mut StepRunner<'_>,
) -> Result<Option<Transport>, StepError> {
    let limit = steps.limit();
    let work = async { Ok(attempts.run(transport, limit).await?) };
    let connecting = steps.step_with_limit(Step::Proxy, limit, work, |ended, observer| {
        let response = match ended {
            Ok(ConnectOutcome::Established(_, response)) => Some(response),
            Ok(ConnectOutcome::Reconnect) => None,
            Err(error) => proxy_error(error).and_then(ProxyError::response),
        };
        response
            .into_iter()
            .for_each(|response| observer.observe(Observation::ProxyResponse(response)));
    });
    match connecting.await? {
        ConnectOutcome::Established(transport, _) => Ok(Some(transport)),
        ConnectOutcome::Reconnect => Ok(None),
    }
}

async fn connect_socks(
    mut transport: Transport,
    target: Target<'_>,
    login: Option<&ProxyLogin>,
    limit: Duration,
    steps: &mut StepRunner<'_>,
) -> Result<Transport, StepError> {
    let work = async {
        let connecting = timeout(limit, socks5::connect(&mut transport, target, login)).await;
        Ok(connecting.map_err(|_| ProxyError::Silent)??)
    };
    let connecting = steps.step_with_limit(Step::Proxy, limit, work, |ended, observer| {
        let response = match ended {
            Ok(response) => Some(response),
            Err(error) => proxy_error(error).and_then(ProxyError::response),
        };
        response
            .into_iter()
            .for_each(|response| observer.observe(Observation::ProxyResponse(response)));
    });
    connecting.await?;
    Ok(transport)
}

/// Host and port in the authority form of `CONNECT`: always with a port, IPv6 in brackets, without a final dot.
fn authority(host: &str, port: u16) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Whether the error is about this address of the server, so that the proxy may reach another one.
fn is_about_address(error: &StepError) -> bool {
    match error {
        StepError::TimedOut(..) => true,
        // Some proxies close the connection when they do not reach the address.
        StepError::Failed(..) => matches!(
            proxy_error(error),
            Some(ProxyError::Refused(_) | ProxyError::NotAProxy(_))
        ),
    }
}

fn failed(error: ProxyError) -> StepError {
    StepError::Failed(Step::Proxy, error.into())
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
        let proxy = Proxy::new(settings, &RefusedLogins::new(limit)).unwrap();
        let addresses: Vec<SocketAddr> = (1..=3)
            .map(|last| SocketAddr::from(([192, 0, 2, last], 443)))
            .collect();
        let mut observer = Logged;
        let mut steps = StepRunner::new(limit, &mut observer);
        let reached = proxy.reach_any(&addresses, None, &mut steps).await;
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
