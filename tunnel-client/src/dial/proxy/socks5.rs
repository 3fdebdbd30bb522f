//! A connection through a SOCKS5 proxy: RFC 1928, with user name and password by RFC 1929.
//!
//! Own code, because the errors of the crate `tokio-socks` (0.5.3) do not have the bytes of the proxy that the messages name;
//! it also rejects an empty password, and a reserved byte that is not zero.
//!
//! In: a connection, its target, and a login if there is one. Out: the connection leads to the target. A refusal has the
//! meaning of the proxy's reply.

use std::io;
use std::net::{IpAddr, SocketAddr};

use secrecy::{ExposeSecret, SecretSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::ProxyLogin;
use crate::dial::proxy_error::{ProxyError, ProxyResponse};

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USERNAME_PASSWORD: u8 = 2;
const NO_ACCEPTABLE_METHODS: u8 = 0xff;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const DOMAIN_NAME: u8 = 3;
const IPV6: u8 = 4;

/// The target of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    /// A host, which is a name that the proxy resolves or an IP address, and a port.
    Host(&'a str, u16),
    /// An address.
    Address(SocketAddr),
}

/// Requests the target on this connection.
pub(super) async fn connect<IO>(
    io: &mut IO,
    target: Target<'_>,
    login: Option<&ProxyLogin>,
) -> Result<ProxyResponse, ProxyError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let request = request(target)?;
    let methods: &[u8] = match login {
        Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USERNAME_PASSWORD],
        None => &[VERSION, 1, NO_AUTHENTICATION],
    };
    write(io, methods).await?;
    let [version, method] = read(io).await?;
    check_version(version)?;
    let login_scheme = match (method, login) {
        (NO_AUTHENTICATION, _) => None,
        (USERNAME_PASSWORD, Some(login)) => {
            authenticate(io, login).await?;
            Some("password")
        }
        (NO_ACCEPTABLE_METHODS, None) => {
            let text = "it accepts no client without a login";
            return Err(ProxyError::LoginRequired(proxy_response(text, None)));
        }
        (NO_ACCEPTABLE_METHODS, Some(_)) => {
            let text = "it accepts neither a password nor a client without a login";
            return Err(ProxyError::LoginSchemeUnsupported(proxy_response(
                text, None,
            )));
        }
        (other, _) => {
            let text = format!("it chose the method {other}, which was not offered");
            return Err(ProxyError::NotAProxy(text));
        }
    };
    write(io, &request).await?;
    reply(io).await?;
    Ok(proxy_response("succeeded", login_scheme))
}

/// Sends the login (RFC 1929).
async fn authenticate<IO>(io: &mut IO, login: &ProxyLogin) -> Result<(), ProxyError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let password = login.password.expose_secret();
    let mut message = vec![PASSWORD_VERSION];
    for part in [login.user.as_bytes(), password.as_bytes()] {
        let length = u8::try_from(part.len()).map_err(|_| ProxyError::TooLong("login"))?;
        message.push(length);
        message.extend_from_slice(part);
    }
    let message = SecretSlice::from(message);
    write(io, message.expose_secret()).await?;
    match read(io).await? {
        [_, 0] => Ok(()),
        [_, status] => {
            let text = format!("user or password is wrong (status {status})");
            Err(ProxyError::LoginRefused(proxy_response(
                &text,
                Some("password"),
            )))
        }
    }
}

fn request(target: Target<'_>) -> Result<Vec<u8>, ProxyError> {
    let mut request = vec![VERSION, CONNECT, 0];
    let (address, port) = match target {
        Target::Address(address) => (Ok(address.ip()), address.port()),
        Target::Host(host, port) => (host.parse().map_err(|_| host), port),
    };
    match address {
        Ok(IpAddr::V4(address)) => {
            request.push(IPV4);
            request.extend_from_slice(&address.octets());
        }
        Ok(IpAddr::V6(address)) => {
            request.push(IPV6);
            request.extend_from_slice(&address.octets());
        }
        Err(name) => {
            let name = name.strip_suffix('.').unwrap_or(name);
            let length = u8::try_from(name.len()).map_err(|_| ProxyError::TooLong("name"))?;
            request.extend_from_slice(&[DOMAIN_NAME, length]);
            request.extend_from_slice(name.as_bytes());
        }
    }
    request.extend_from_slice(&port.to_be_bytes());
    Ok(request)
}

async fn reply<IO: AsyncRead + Unpin>(io: &mut IO) -> Result<(), ProxyError> {
    let [version, reply, _, address_type] = read(io).await?;
    check_version(version)?;
    if reply != 0 {
        return Err(ProxyError::Refused(proxy_response(&meaning(reply), None)));
    }
    // The address from which the proxy reaches the server, and its port, are not used.
    match address_type {
        IPV4 => read::<6, _>(io).await.map(drop),
        IPV6 => read::<18, _>(io).await.map(drop),
        DOMAIN_NAME => {
            let [length] = read(io).await?;
            let mut rest = vec![0; usize::from(length) + 2];
            io.read_exact(&mut rest)
                .await
                .map_err(|error| cut(&error))?;
            Ok(())
        }
        other => Err(ProxyError::NotAProxy(format!(
            "its reply has an address of type {other}"
        ))),
    }
}

/// The meaning of a reply (RFC 1928 section 6).
fn meaning(reply: u8) -> String {
    match reply {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "the network cannot be reached",
        4 => "the host cannot be reached",
        5 => "the connection is refused",
        6 => "the connection took too many hops",
        7 => "it does not support CONNECT",
        8 => "it does not support this type of address",
        _ => "no known reason",
    }
    .to_owned()
        + &format!(" (reply {reply})")
}

fn proxy_response(text: &str, login: Option<&'static str>) -> ProxyResponse {
    ProxyResponse {
        status: None,
        text: text.to_owned(),
        schemes: Vec::new(),
        login,
    }
}

fn check_version(version: u8) -> Result<(), ProxyError> {
    match version {
        VERSION => Ok(()),
        b'H' => Err(ProxyError::NotAProxy(
            "it speaks HTTP: write http:// in its URL".to_owned(),
        )),
        _ => Err(ProxyError::NotAProxy("it does not speak SOCKS5".to_owned())),
    }
}

async fn write<IO: AsyncWrite + Unpin>(io: &mut IO, bytes: &[u8]) -> Result<(), ProxyError> {
    let written = async {
        io.write_all(bytes).await?;
        io.flush().await
    };
    written.await.map_err(|error| cut(&error))
}

async fn read<const N: usize, IO: AsyncRead + Unpin>(io: &mut IO) -> Result<[u8; N], ProxyError> {
    let mut bytes = [0; N];
    match io.read_exact(&mut bytes).await {
        Ok(_) => Ok(bytes),
        Err(error) => Err(cut(&error)),
    }
}

fn cut(error: &io::Error) -> ProxyError {
    ProxyError::NotAProxy(match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection without a reply".to_owned(),
        _ => format!("it did not reply: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn login(password: &str) -> ProxyLogin {
        ProxyLogin {
            user: "me".to_owned(),
            password: password.into(),
        }
    }

    /// What comes of these bytes of a proxy, and what it was sent.
    async fn connected(
        target: Target<'_>,
        login: Option<&ProxyLogin>,
        replies: &[u8],
    ) -> (Result<ProxyResponse, ProxyError>, Vec<u8>) {
        let (mut ours, mut theirs) = duplex(4096);
        theirs.write_all(replies).await.unwrap();
        theirs.shutdown().await.unwrap();
        let outcome = connect(&mut ours, target, login).await;
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.unwrap();
        (outcome, sent)
    }

    const V4: [u8; 6] = [0; 6];

    #[tokio::test]
    async fn a_name_is_told_as_a_name_and_an_address_as_an_address() {
        let ok = [&[5, 0, 5, 0, 0, 1][..], &V4].concat();
        let (outcome, sent) = connected(Target::Host("a.example.", 443), None, &ok).await;
        assert_eq!(outcome.unwrap().login, None);
        assert_eq!(sent, b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbb");
        let (_, sent) = connected(Target::Host("10.0.0.7", 80), None, &ok).await;
        assert_eq!(sent[3..], *b"\x05\x01\x00\x01\x0a\x00\x00\x07\x00\x50");
        let address = "[::1]:1".parse().unwrap();
        let (_, sent) = connected(Target::Address(address), None, &ok).await;
        assert_eq!(sent[6], IPV6);
        assert_eq!(sent.len(), 3 + 4 + 16 + 2);
        for bound in [&[4; 1 + 18][..], b"\x03\x02ab\x00\x00"] {
            let ok = [&[5, 0, 5, 0, 0][..], bound].concat();
            assert!(connected(Target::Host("a", 1), None, &ok).await.0.is_ok());
        }
    }

    #[tokio::test]
    async fn a_login_is_shown_when_it_is_wanted() {
        let ok = [&[5, 2, 1, 0, 5, 0, 0, 1][..], &V4].concat();
        let secret = login("secret");
        let (outcome, sent) = connected(Target::Host("a", 1), Some(&secret), &ok).await;
        assert_eq!(outcome.unwrap().login, Some("password"));
        assert_eq!(sent[..4 + 11], *b"\x05\x02\x00\x02\x01\x02me\x06secret");
        let (outcome, _) = connected(Target::Host("a", 1), Some(&secret), &[5, 2, 1, 9]).await;
        assert!(matches!(outcome, Err(ProxyError::LoginRefused(_))));
        let unwanted = [&[5, 0, 5, 0, 0, 1][..], &V4].concat();
        let (outcome, sent) = connected(Target::Host("a", 1), Some(&secret), &unwanted).await;
        assert_eq!(outcome.unwrap().login, None);
        assert!(!sent.windows(6).any(|part| part == b"secret"));
        let (outcome, _) = connected(Target::Host("a", 1), None, &[5, 0xff]).await;
        assert!(matches!(outcome, Err(ProxyError::LoginRequired(_))));
        let (outcome, _) = connected(Target::Host("a", 1), Some(&secret), &[5, 0xff]).await;
        assert!(matches!(
            outcome,
            Err(ProxyError::LoginSchemeUnsupported(_))
        ));
        let long = login(&"x".repeat(256));
        let (outcome, _) = connected(Target::Host("a", 1), Some(&long), &[5, 2]).await;
        assert!(matches!(outcome, Err(ProxyError::TooLong("login"))));
    }

    #[tokio::test]
    async fn a_refusal_has_a_name() {
        for (reply, expected) in [
            (2, "its rules"),
            (4, "the host"),
            (5, "refused"),
            (99, "no known"),
        ] {
            let (outcome, _) = connected(Target::Host("a", 1), None, &[5, 0, 5, reply, 0, 1]).await;
            let Err(error @ ProxyError::Refused(_)) = outcome else {
                panic!("refused")
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[tokio::test]
    async fn an_invalid_reply_is_reported_as_such() {
        for (bytes, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "http://"),
            (b"\x04\x5a", "SOCKS5"),
            (b"", "closed"),
            (b"\x05", "closed"),
            (b"\x05\x01", "method 1"),
            (b"\x05\x02", "method 2"),
            (b"\x05\x00\x05\x00\x00\x09", "type 9"),
        ] {
            let (outcome, _) = connected(Target::Host("a", 1), None, bytes).await;
            let Err(error @ ProxyError::NotAProxy(_)) = outcome else {
                panic!("{bytes:?}")
            };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
