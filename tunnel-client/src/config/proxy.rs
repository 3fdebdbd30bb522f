//! The proxy by which the server is reached, and whether there is one at all.
//!
//! In come `--proxy`, or the variables that all programs share (`HTTPS_PROXY`, `ALL_PROXY`,
//! `NO_PROXY`), and which server is dialled; out come [`ProxySettings`], or nothing. What is never
//! shown by any error, log or `Debug` is the login. Upstreams have no proxy: they are near.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer};
use tunnel_ops::config_value::{self, ValueError};

use super::login;
use super::no_proxy::{self, NoProxy};
use super::trust::Trust;
use super::url::Authority;
use super::{ConfigFault, Source, or_fault};

/// Variables that name a proxy for what is reached over TLS, the first that is set counts: the
/// narrower before the wider, lower case before upper case, as with curl.
const VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Variables that name what is reached without.
const NO_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// How a proxy is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyScheme {
    /// HTTP/1.1 `CONNECT`.
    Http,
    /// The same under TLS.
    Https,
    /// SOCKS version 5, which is told an address.
    Socks5,
    /// SOCKS version 5, which is told the name, and looks it up.
    Socks5h,
}

/// A proxy: scheme, host and port, and nothing secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    scheme: ProxyScheme,
    authority: Authority,
}

/// Who a proxy is told that the client is.
#[derive(Clone)]
pub struct ProxyLogin {
    /// The user, without a colon or control characters.
    pub user: String,
    /// The password, without control characters.
    pub password: SecretString,
}

/// Where the login for a proxy comes from.
#[derive(Debug, Clone)]
pub enum LoginSource {
    /// There is none.
    None,
    /// The proxy's URL.
    Given(ProxyLogin),
    /// A file that holds `user:password`, read at each dial.
    File(PathBuf),
}

/// What is written where a proxy is asked for: a URL, perhaps with a login, or `none`.
#[derive(Debug, Clone)]
pub enum ProxyChoice {
    /// No proxy, whatever the environment says.
    None,
    /// This one.
    Proxy(ProxyUrl, Option<ProxyLogin>),
}

/// The way through a proxy.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// The proxy.
    pub url: ProxyUrl,
    /// Who it is told that the client is, if it asks.
    pub login: LoginSource,
    /// Whom the certificate of an `https` proxy may come from; none for others.
    pub trust: Option<Trust>,
}

impl ProxyScheme {
    const ALL: [(&str, Self, u16); 4] = [
        ("http", Self::Http, 80),
        ("https", Self::Https, 443),
        ("socks5", Self::Socks5, 1080),
        ("socks5h", Self::Socks5h, 1080),
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks5 => "socks5",
            Self::Socks5h => "socks5h",
        }
    }
}

impl ProxyUrl {
    /// How it is spoken to.
    pub fn scheme(&self) -> ProxyScheme {
        self.scheme
    }

    /// The host's name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.authority.host
    }

    /// The port; where none is given 80, 443 or 1080.
    pub fn port(&self) -> u16 {
        self.authority.port
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.authority.text)
    }
}

impl fmt::Debug for ProxyLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyLogin").finish_non_exhaustive()
    }
}

impl ProxyChoice {
    /// Whether it holds a login, which must not stand where other users of a machine can see it.
    pub(super) fn has_login(&self) -> bool {
        matches!(self, Self::Proxy(_, Some(_)))
    }
}

impl FromStr for ProxyChoice {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "none" {
            return Ok(Self::None);
        }
        let expected = |reason: &str| {
            ValueError::new(format!(
                "expected a proxy such as `http://proxy.example.com:3128`, or `none`: {reason}"
            ))
        };
        // Without a scheme it is an HTTP proxy: many write only host and port.
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let known = ProxyScheme::ALL
            .into_iter()
            .find(|(name, ..)| name.eq_ignore_ascii_case(scheme));
        let (_, scheme, port) =
            known.ok_or_else(|| expected("the scheme must be http, https, socks5 or socks5h"))?;
        // A password may have any character, so that the last `@` counts.
        let (userinfo, rest) = match rest.rsplit_once('@') {
            Some((userinfo, rest)) => (Some(userinfo), rest),
            None => (None, rest),
        };
        let authority = Authority::parse(rest, port).map_err(expected)?;
        let login = userinfo
            .map(|text| login_of(text).ok_or_else(|| expected("user or password are not possible")))
            .transpose()?;
        Ok(Self::Proxy(ProxyUrl { scheme, authority }, login))
    }
}

/// User and password as a URL has them, `%` and two digits for what could be misunderstood.
fn login_of(userinfo: &str) -> Option<ProxyLogin> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let decode = |text| percent_decode_str(text).decode_utf8().ok();
    login::check(&decode(user)?, &decode(password)?)
}

impl<'de> Deserialize<'de> for ProxyChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

/// The way to this host and port: through which proxy, if through any.
pub(super) fn check(
    source: &Source,
    (host, port): (&str, u16),
    variable: impl Fn(&str) -> Option<String>,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProxySettings> {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let is_given = source.proxy.is_some();
    let choice = match &source.proxy {
        Some(choice) => Some(choice.clone()),
        // What a whole machine is told about proxies does not concern the machine itself.
        None if no_proxy::is_loopback(host) => None,
        None => from_environment(set, faults),
    };
    let Some(ProxyChoice::Proxy(url, login)) = choice else {
        check_unused(source, is_given, faults);
        return None;
    };
    let exempt = match &source.no_proxy {
        Some(list) => list.clone(),
        None => (NO_VARIABLES.iter())
            .find_map(|name| set(name).map(|list| NoProxy::list(&list, name)))
            .unwrap_or_default(),
    };
    let trust = proxy_trust(&url, source, faults);
    if exempt.iter().any(|entry| entry.holds(host, port)) {
        return None;
    }
    let login = match (&source.proxy_auth_file, login) {
        (Some(path), _) => {
            or_fault(faults, login::read(path))?;
            LoginSource::File(path.clone())
        }
        (None, Some(login)) => LoginSource::Given(login),
        (None, None) => LoginSource::None,
    };
    Some(ProxySettings { url, login, trust })
}

fn from_environment(
    set: impl Fn(&str) -> Option<String>,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProxyChoice> {
    let (name, value) = VARIABLES
        .into_iter()
        .find_map(|name| Some((name, set(name)?)))?;
    match value.trim().parse() {
        Ok(choice) => Some(choice),
        Err(error) => {
            let problem = format!("{error} (--proxy none has the variable passed over)");
            faults.push(ConfigFault::Variable { name, problem });
            None
        }
    }
}

/// Whoever asks for no proxy, and yet says how to reach one, has made a slip.
fn check_unused(source: &Source, is_given: bool, faults: &mut Vec<ConfigFault>) {
    let unused = [
        ("proxy-auth-file", source.proxy_auth_file.is_some()),
        ("proxy-ca-file", source.proxy_ca_file.is_some()),
        ("proxy-ca-dir", source.proxy_ca_dir.is_some()),
    ];
    // Beside the environment they may well be set for good, and used where there is a proxy.
    for (flag, _) in unused.into_iter().filter(|(_, is_set)| *is_set && is_given) {
        let problem = "there is no proxy: leave this out, or name one with --proxy".to_owned();
        faults.push(ConfigFault::Value { flag, problem });
    }
}

fn proxy_trust(url: &ProxyUrl, source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Trust> {
    if url.scheme() != ProxyScheme::Https {
        return None;
    }
    let trust = Trust::new(
        source.proxy_system_roots.unwrap_or(true),
        source.proxy_ca_file.clone().unwrap_or_default(),
        source.proxy_ca_dir.clone().unwrap_or_default(),
    );
    or_fault(faults, trust.load())?;
    Some(trust)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    use super::*;

    const SERVER: (&str, u16) = ("tunnel.example.com", 443);

    fn chosen(
        source: &Source,
        server: (&str, u16),
        variables: &[(&str, &str)],
    ) -> Result<Option<ProxySettings>, String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        let mut faults = Vec::new();
        let settings = check(source, server, variable, &mut faults);
        match faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(settings),
        }
    }

    /// The proxy's URL, by these variables alone.
    fn by_environment(server: (&str, u16), variables: &[(&str, &str)]) -> Option<String> {
        let settings = chosen(&Source::default(), server, variables).unwrap();
        settings.map(|settings| settings.url.to_string())
    }

    fn url(text: &str) -> (String, Option<(String, String)>) {
        match text.parse().unwrap() {
            ProxyChoice::None => panic!("{text} is none"),
            ProxyChoice::Proxy(url, login) => {
                let login = login.map(|login| {
                    let password = login.password.expose_secret().to_owned();
                    (login.user, password)
                });
                (url.to_string(), login)
            }
        }
    }

    #[test]
    fn a_proxy_has_a_scheme_a_port_and_perhaps_a_login() {
        assert_eq!(
            url("http://proxy:3128"),
            ("http://proxy:3128".to_owned(), None)
        );
        assert_eq!(url("Proxy.example:8080").0, "http://proxy.example:8080");
        assert_eq!(url("HTTPS://[fd00::1]/").0, "https://[fd00::1]");
        let ProxyChoice::Proxy(socks, None) = "socks5h://10.0.0.1".parse().unwrap() else {
            panic!("a proxy without a login")
        };
        assert_eq!((socks.host(), socks.port()), ("10.0.0.1", 1080));
        let (shown, login) = url("http://corp%5Cme:p%40ss:w%2Frd@proxy:3128");
        assert_eq!(shown, "http://proxy:3128");
        assert_eq!(login, Some(("corp\\me".to_owned(), "p@ss:w/rd".to_owned())));
        let (_, login) = url("socks5://me:p@ss#/@proxy");
        assert_eq!(login, Some(("me".to_owned(), "p@ss#/".to_owned())));
        assert!(matches!("none".parse(), Ok(ProxyChoice::None)));
    }

    #[test]
    fn what_is_no_proxy_is_refused_and_not_repeated() {
        for bad in [
            "",
            "socks4://proxy",
            "ftp://me:secret@proxy",
            "http://me:secret@",
            "http://me:secret@proxy/path",
            "http://me:secret@proxy:0",
            "http://me:secret%0d%0a@proxy",
            "http://secret%3a:x@proxy",
            "http://:secret@proxy",
        ] {
            let error = bad.parse::<ProxyChoice>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{bad}: {error}");
        }
        let choice: ProxyChoice = "http://secret:secret@proxy".parse().unwrap();
        assert!(!format!("{choice:?}").contains("secret"), "{choice:?}");
    }

    #[test]
    fn the_narrower_variable_counts_and_lower_case_first() {
        let all = [
            ("https_proxy", "http://one"),
            ("HTTPS_PROXY", "http://two"),
            ("all_proxy", "socks5h://three"),
            ("ALL_PROXY", "http://four"),
        ];
        let expected = ["http://one", "http://two", "socks5h://three", "http://four"];
        for (first, expected) in expected.into_iter().enumerate() {
            assert_eq!(
                by_environment(SERVER, &all[first..]).as_deref(),
                Some(expected)
            );
        }
        let empty = [("https_proxy", " "), ("ALL_PROXY", "four:1")];
        assert_eq!(
            by_environment(SERVER, &empty).as_deref(),
            Some("http://four:1")
        );
        assert_eq!(
            by_environment(SERVER, &[("HTTP_PROXY", "one"), ("http_proxy", "two")]),
            None
        );
    }

    #[test]
    fn whoever_is_exempt_is_reached_without() {
        let with = |no: (&'static str, &'static str)| {
            by_environment(SERVER, &[("HTTPS_PROXY", "http://proxy"), no])
        };
        assert_eq!(with(("NO_PROXY", "10.0.0.0/8, .example.com")), None);
        assert_eq!(with(("no_proxy", "*")), None);
        assert!(with(("NO_PROXY", "example.org,example.com:8443")).is_some());
        let both = [("ALL_PROXY", "p"), ("no_proxy", "other"), ("NO_PROXY", "*")];
        assert!(by_environment(SERVER, &both).is_some(), "lower case first");
        for host in ["localhost", "127.0.0.1", "::1"] {
            assert_eq!(by_environment((host, 443), &[("HTTPS_PROXY", "p")]), None);
        }
    }

    #[test]
    fn what_is_given_to_the_client_comes_before_the_environment() {
        let environment = [("https_proxy", "http://env"), ("no_proxy", "*")];
        let mut source = Source {
            proxy: Some("http://own".parse().unwrap()),
            no_proxy: Some(vec!["elsewhere.example".parse().unwrap()]),
            ..Source::default()
        };
        let own = chosen(&source, SERVER, &environment).unwrap().unwrap();
        assert_eq!(own.url.to_string(), "http://own");
        // Whoever names a proxy for a server on this machine means it, for a test perhaps.
        assert!(chosen(&source, ("127.0.0.1", 443), &[]).unwrap().is_some());
        source.no_proxy = None;
        assert!(chosen(&source, SERVER, &environment).unwrap().is_none());
        source.proxy = Some(ProxyChoice::None);
        assert!(
            chosen(&source, SERVER, &environment[..1])
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_variable_that_is_wrong_is_named_and_its_value_is_not() {
        let error = chosen(
            &Source::default(),
            SERVER,
            &[("ALL_PROXY", "socks4://me:secret@proxy")],
        )
        .unwrap_err();
        assert!(
            error.starts_with("the environment variable ALL_PROXY: "),
            "{error}"
        );
        assert!(
            error.contains("--proxy none") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn the_login_s_file_comes_before_the_url_and_must_be_good() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("login");
        std::fs::write(&path, "me:secret\n").unwrap();
        let source = Source {
            proxy: Some("http://other:login@proxy".parse().unwrap()),
            proxy_auth_file: Some(path.clone()),
            ..Source::default()
        };
        let settings = chosen(&source, SERVER, &[]).unwrap().unwrap();
        assert!(matches!(settings.login, LoginSource::File(file) if file == path));
        std::fs::write(&path, "secret").unwrap();
        let error = chosen(&source, SERVER, &[]).unwrap_err();
        assert!(
            error.contains("login") && !error.contains("secret"),
            "{error}"
        );
    }

    #[test]
    fn what_a_proxy_needs_is_refused_without_one() {
        let source = Source {
            proxy: Some(ProxyChoice::None),
            proxy_auth_file: Some("login".into()),
            ..Source::default()
        };
        let error = chosen(&source, SERVER, &[]).unwrap_err();
        assert!(
            error.starts_with("--proxy-auth-file: there is no proxy"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_or_shows_a_password(text in "((http|socks5)://)?\\PC{0,20}(:SECRET@)?\\PC{0,20}") {
            match text.parse::<ProxyChoice>() {
                Ok(choice) => {
                    let shown = format!("{choice:?}");
                    prop_assert!(!shown.contains("SECRET@"));
                }
                Err(error) => prop_assert!(!error.to_string().contains("SECRET")),
            }
        }
    }
}
