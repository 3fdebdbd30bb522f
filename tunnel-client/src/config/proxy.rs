//! Decides whether and through which proxy the server is dialled.
//!
//! In: `--proxy`, or the variables that all programs share (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), and the server. Out:
//! [`ProxySettings`], or none. No error, log or `Debug` contains the login. Upstreams are dialled without a proxy.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{TypedValueParser, ValueParser};
use clap::error::Error as FlagError;
use clap::parser::ValueSource;
use clap::{Arg, Command};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer};
use tunnel_ops::authority::Authority;
use tunnel_ops::config_value::{self, ValueError};
use tunnel_ops::settings::{GivenSettings, SettingValue};

use super::login::{self, ProxyLogin};
use super::no_proxy::{self, NoProxy};
use super::trust::{self, Trust};
use super::url::ServerUrl;
use super::{ConfigFault, Source, dialled, or_fault, setting};

/// Variables that name a proxy for connections under TLS. The first that is set is used: the more specific before the
/// general, lower case before upper case, as with curl.
const VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Variables that list the hosts without a proxy.
const NO_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// The protocol of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyScheme {
    /// HTTP/1.1 `CONNECT`, without TLS to the proxy.
    Http,
    /// HTTP/1.1 `CONNECT`, under TLS to the proxy.
    Https,
    /// SOCKS version 5, with an address.
    Socks5,
    /// SOCKS version 5, with a name that the proxy looks up.
    Socks5h,
}

/// A proxy: scheme, host and port, and nothing secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    scheme: ProxyScheme,
    authority: Authority,
}

/// Where the login for a proxy comes from.
#[derive(Debug, Clone)]
pub enum LoginSource {
    /// Without a login.
    None,
    /// The proxy's URL.
    Given(ProxyLogin),
    /// A file that holds `user:password`, read at each dial.
    File(PathBuf),
}

/// The value of `--proxy` or of a variable: a URL with an optional login, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyChoice {
    /// No proxy; the environment is ignored.
    None,
    /// This one.
    Proxy(ProxyUrl, Option<ProxyLogin>),
}

/// A proxy, and how it is reached.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// The proxy.
    pub url: ProxyUrl,
    /// The shared variable that named it; `None` if it is a setting of the client.
    pub variable: Option<&'static str>,
    /// Where the login comes from, for a proxy that demands one.
    pub login: LoginSource,
    /// The roots for the certificate of an `https` proxy; `None` for others.
    pub trust: Option<Trust>,
}

/// Parses `--proxy`. A login is accepted from the environment and the file, but not from a flag.
#[derive(Debug, Clone, Copy)]
struct ProxyParser;

/// Whether a server is dialled through a proxy.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProxyDecision {
    /// The proxy's scheme, also if another of its settings has a fault.
    pub(crate) scheme: Option<ProxyScheme>,
    /// The proxy that is used.
    pub(crate) settings: Option<ProxySettings>,
    /// A proxy that is configured and not used.
    pub(crate) passed_over: Option<PassedOver>,
}

/// A proxy that is configured and not used for this server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassedOver {
    /// The variable or setting that names it.
    pub named_by: String,
    /// The server's host.
    pub host: String,
    /// The rule.
    pub by: PassedOverBy,
}

/// The rule by which a server is dialled without a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PassedOverBy {
    /// The server is this machine.
    ThisMachine,
    /// An entry, and the name of its list.
    Entry(String, String),
}

impl ProxyDecision {
    fn without(named_by: String, host: &str, by: PassedOverBy) -> Self {
        let host = host.to_owned();
        let passed_over = Some(PassedOver { named_by, host, by });
        Self {
            passed_over,
            ..Self::default()
        }
    }
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { named_by, host, by } = self;
        write!(f, "the proxy of {named_by} is not used: ")?;
        match by {
            PassedOverBy::ThisMachine => {
                write!(f, "{host} is this machine itself, --proxy would be used")
            }
            PassedOverBy::Entry(entry, list) => write!(f, "`{entry}` in {list} exempts {host}"),
        }
    }
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
    /// Its scheme.
    pub fn scheme(&self) -> ProxyScheme {
        self.scheme
    }

    /// The host's name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.authority.host
    }

    /// The port; by default 80, 443 or 1080.
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
    /// Whether it holds a login, which must not be in a place that other users of the machine can see.
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
        // Many write only host and port of an HTTP proxy.
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let known = ProxyScheme::ALL
            .into_iter()
            .find(|(name, ..)| name.eq_ignore_ascii_case(scheme));
        let (_, scheme, port) =
            known.ok_or_else(|| expected("the scheme must be http, https, socks5 or socks5h"))?;
        // A password may contain `@`, so the last one separates.
        let (userinfo, rest) = match rest.rsplit_once('@') {
            Some((userinfo, rest)) => (Some(userinfo), rest),
            None => (None, rest),
        };
        let authority = Authority::parse(rest, port).map_err(expected)?;
        let login = userinfo
            .map(|text| login_of(text).ok_or_else(|| expected("user or password is not valid")))
            .transpose()?;
        Ok(Self::Proxy(ProxyUrl { scheme, authority }, login))
    }
}

/// Parses the user information of a URL, with percent-encoding.
fn login_of(userinfo: &str) -> Option<ProxyLogin> {
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let decode = |text| percent_decode_str(text).decode_utf8().ok();
    login::check(&decode(user)?, &decode(password)?)
}

impl TypedValueParser for ProxyParser {
    type Value = ProxyChoice;

    fn parse_ref(
        &self,
        command: &Command,
        flag: Option<&Arg>,
        value: &OsStr,
    ) -> Result<ProxyChoice, FlagError> {
        self.parse_ref_(command, flag, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &Command,
        flag: Option<&Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<ProxyChoice, FlagError> {
        let parse = move |text: &str| {
            let choice: ProxyChoice = text.parse()?;
            if source == ValueSource::CommandLine && choice.has_login() {
                return Err(ValueError::new(
                    "leave out user name and password, which other users of this machine could see in a flag: \
                     put `user:password` into a file and name it with --proxy-auth-file",
                ));
            }
            Ok(choice)
        };
        parse.parse_ref(command, flag, value)
    }
}

impl<'de> Deserialize<'de> for ProxyChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        config_value::from_text(deserializer)
    }
}

impl SettingValue for ProxyChoice {
    type Plain = Self;

    fn plain(self) -> Self {
        self
    }

    /// Without the login.
    fn show(choice: &Self) -> String {
        match choice {
            Self::None => "none".to_owned(),
            Self::Proxy(url, _) => url.to_string(),
        }
    }

    fn parser() -> ValueParser {
        ProxyParser.into()
    }

    fn argument(argument: Arg) -> Arg {
        argument.value_parser(Self::parser()).hide_env_values(true)
    }
}

/// Decides whether and through which proxy this server is dialled.
pub(super) fn check(
    source: &Source,
    server: &ServerUrl,
    variable: impl Fn(&str) -> Option<OsString>,
    faults: &mut Vec<ConfigFault>,
) -> ProxyDecision {
    let (host, port) = dialled(server, source.connect_to.as_ref());
    let named = match &source.proxy {
        Some(ProxyChoice::None) => {
            check_unused(source, faults);
            return ProxyDecision::default();
        }
        Some(_) => None,
        None => match first_set(&VARIABLES, &variable) {
            Some(named) => Some(named),
            None => return ProxyDecision::default(),
        },
    };
    let variable_name = named.as_ref().map(|(name, _)| *name);
    let named_by = || match variable_name {
        Some(name) => name.to_owned(),
        None => source.origin(&setting::proxy).mention(),
    };
    // A proxy for all programs of a machine is not used for the machine itself.
    if named.is_some() && no_proxy::is_loopback(host) {
        return ProxyDecision::without(named_by(), host, PassedOverBy::ThisMachine);
    }
    let (exempt, list) = exempt(source, &variable, faults);
    // Before the proxy is parsed, whose faults do not matter to an exempt server.
    let places = [(host, port), (server.host(), server.port())];
    for (host, port) in places {
        if let Some(entry) = exempt.iter().find(|entry| entry.matches(host, port)) {
            let by = PassedOverBy::Entry(entry.to_string(), list);
            return ProxyDecision::without(named_by(), host, by);
        }
    }
    let choice = match named {
        Some((name, value)) => from_variable(name, value, faults),
        None => source.proxy.clone(),
    };
    let Some(ProxyChoice::Proxy(url, login)) = choice else {
        return ProxyDecision::default();
    };
    ProxyDecision {
        scheme: Some(url.scheme()),
        settings: settings(source, url, login, variable_name, faults),
        passed_over: None,
    }
}

/// The hosts without a proxy, and the name of their list.
fn exempt(
    source: &Source,
    variable: impl Fn(&str) -> Option<OsString>,
    faults: &mut Vec<ConfigFault>,
) -> (Vec<NoProxy>, String) {
    if let Some(list) = &source.no_proxy {
        return (list.clone(), source.origin(&setting::no_proxy).mention());
    }
    let Some((name, list)) = first_set(&NO_VARIABLES, variable) else {
        return (Vec::new(), String::new());
    };
    let list = text_of(name, list, faults).map(|list| NoProxy::list(&list, name));
    (list.unwrap_or_default(), name.to_owned())
}

fn settings(
    source: &Source,
    url: ProxyUrl,
    login: Option<ProxyLogin>,
    variable: Option<&'static str>,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProxySettings> {
    let trust = proxy_trust(&url, source, faults);
    let login = match (&source.proxy_auth_file, login) {
        (Some(path), _) => {
            or_fault(faults, login::read(path))?;
            LoginSource::File(path.clone())
        }
        (None, Some(login)) => LoginSource::Given(login),
        (None, None) => LoginSource::None,
    };
    Some(ProxySettings {
        url,
        variable,
        login,
        trust,
    })
}

/// The first of these variables that is not empty, and its value.
fn first_set(
    names: &[&'static str],
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<(&'static str, OsString)> {
    let is_set = |value: &OsString| !value.to_string_lossy().trim().is_empty();
    names
        .iter()
        .find_map(|name| Some((*name, variable(name).filter(is_set)?)))
}

fn text_of(name: &'static str, value: OsString, faults: &mut Vec<ConfigFault>) -> Option<String> {
    let text = value.into_string().ok();
    if text.is_none() {
        let problem = "it is not UTF-8: correct it, or leave it out".to_owned();
        faults.push(ConfigFault::Variable { name, problem });
    }
    text
}

fn from_variable(
    name: &'static str,
    value: OsString,
    faults: &mut Vec<ConfigFault>,
) -> Option<ProxyChoice> {
    match text_of(name, value, faults)?.trim().parse() {
        Ok(choice) => Some(choice),
        Err(error) => {
            let problem = format!("{error} (with --proxy none the variable is ignored)");
            faults.push(ConfigFault::Variable { name, problem });
            None
        }
    }
}

/// Reports settings of a proxy without a proxy, which are a mistake.
fn check_unused(source: &Source, faults: &mut Vec<ConfigFault>) {
    let unused = [
        (&setting::proxy_auth_file, source.proxy_auth_file.is_some()),
        (&setting::proxy_ca_file, source.proxy_ca_file.is_some()),
        (&setting::proxy_ca_dir, source.proxy_ca_dir.is_some()),
    ];
    for (setting, _) in unused.into_iter().filter(|(_, is_set)| *is_set) {
        let none = source.origin(&setting::proxy).mention();
        let problem = format!("there is no proxy ({none}): leave this out, or name one");
        faults.push(source.fault(setting, problem));
    }
}

fn proxy_trust(url: &ProxyUrl, source: &Source, faults: &mut Vec<ConfigFault>) -> Option<Trust> {
    let (files, folders) = (&source.proxy_ca_file, &source.proxy_ca_dir);
    if url.scheme() == ProxyScheme::Https {
        let system = source.origin(&setting::proxy_system_roots);
        let system = (source.settings().proxy_system_roots, system);
        return trust::check(system, files.as_ref(), folders.as_ref(), faults);
    }
    let unused = [
        (&setting::proxy_ca_file, files.is_some()),
        (&setting::proxy_ca_dir, folders.is_some()),
    ];
    // With a proxy of the environment they may be set permanently, for the case that it uses TLS.
    let is_given = source.proxy.is_some();
    for (setting, _) in unused.into_iter().filter(|(_, is_set)| *is_set && is_given) {
        let named = source.origin(&setting::proxy).mention();
        let problem =
            format!("{url} ({named}) is used without TLS: write https:// or leave this out");
        faults.push(source.fault(setting, problem));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use secrecy::ExposeSecret;

    use super::*;

    const SERVER: &str = "tunnel.example.com";

    fn chosen(
        source: &Source,
        server: &str,
        variables: &[(&str, &str)],
    ) -> Result<Option<ProxySettings>, String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(OsString::from);
        let mut faults = Vec::new();
        let server = format!("wss://{server}").parse().unwrap();
        let decision = check(source, &server, variable, &mut faults);
        assert!(decision.settings.is_none() || decision.passed_over.is_none());
        match faults.first() {
            Some(fault) => Err(fault.to_string()),
            None => Ok(decision.settings),
        }
    }

    /// The text about a proxy that is not used.
    fn passed_over(source: &Source, server: &str, variables: &[(&str, &str)]) -> Option<String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let variable = |name: &str| variables.get(name).map(OsString::from);
        let server = format!("wss://{server}").parse().unwrap();
        let decision = check(source, &server, variable, &mut Vec::new());
        decision
            .passed_over
            .map(|passed_over| passed_over.to_string())
    }

    /// The proxy's URL, by these variables alone.
    fn by_environment(server: &str, variables: &[(&str, &str)]) -> Option<String> {
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
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(by_environment(host, &[("HTTPS_PROXY", "p")]), None);
        }
        let wrong = [("HTTPS_PROXY", "gopher://x"), ("NO_PROXY", "*")];
        assert_eq!(by_environment(SERVER, &wrong), None, "it is not needed");
    }

    #[test]
    fn a_proxy_that_is_not_used_is_told_with_the_rule() {
        let own = Source::default();
        let passed = |server: &str, variables: &[_]| passed_over(&own, server, variables);
        let (named, no) = (
            ("https_proxy", "http://p"),
            ("NO_PROXY", "a.test, .example.com"),
        );
        assert_eq!(
            passed("localhost", &[named]).as_deref(),
            Some(
                "the proxy of https_proxy is not used: localhost is this machine itself, --proxy would be used"
            )
        );
        assert_eq!(
            passed(SERVER, &[named, no]).as_deref(),
            Some(
                "the proxy of https_proxy is not used: `example.com` in NO_PROXY exempts tunnel.example.com"
            )
        );
        let by =
            |entry: &'static str| passed("10.0.0.7:8443", &[named, ("no_proxy", entry)]).unwrap();
        for entry in ["10.0.0.0/8", "10.0.0.7", "10.0.0.7:8443", "*"] {
            assert!(
                by(entry).contains(&format!("`{entry}` in no_proxy")),
                "{entry}"
            );
        }
        assert_eq!(passed(SERVER, &[named]), None, "it is used");
        assert_eq!(passed(SERVER, &[no]), None, "there is none");
        let given = Source {
            proxy: Some("http://own".parse().unwrap()),
            no_proxy: Some(vec![SERVER.parse().unwrap()]),
            ..Source::default()
        };
        assert_eq!(
            passed_over(&given, SERVER, &[]).as_deref(),
            Some(
                "the proxy of --proxy is not used: `tunnel.example.com` in --no-proxy exempts tunnel.example.com"
            )
        );
        let none = Source {
            proxy: Some(ProxyChoice::None),
            ..Source::default()
        };
        assert_eq!(passed_over(&none, SERVER, &[named]), None, "none was named");
    }

    #[test]
    fn the_server_s_own_host_is_exempt_as_well_as_the_one_that_is_dialled() {
        let dialled = Source {
            connect_to: Some("10.0.0.7:8443".parse().unwrap()),
            ..Source::default()
        };
        let with = |no: &'static str| {
            let variables = [("HTTPS_PROXY", "http://proxy"), ("NO_PROXY", no)];
            chosen(&dialled, SERVER, &variables).unwrap().is_some()
        };
        assert!(!with("example.com") && !with("10.0.0.0/8") && !with("example.com:443"));
        assert!(with("example.com:8443") && with("10.0.0.7:443") && with("10.0.0.8"));
    }

    #[test]
    fn it_is_known_which_variable_named_it_and_one_that_is_no_text_is_told() {
        let settings = chosen(&Source::default(), SERVER, &[("all_proxy", "p")]).unwrap();
        assert_eq!(settings.unwrap().variable, Some("all_proxy"));
        let garbled = |name: &str| {
            let bytes: &[u8] = match name {
                "all_proxy" => b"http://proxy",
                "NO_PROXY" => b"caf\xe9.example",
                _ => return None,
            };
            Some(std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec()))
        };
        let server = format!("wss://{SERVER}").parse().unwrap();
        let mut faults = Vec::new();
        check(&Source::default(), &server, garbled, &mut faults);
        let fault = faults.first().unwrap().to_string();
        assert!(
            fault.starts_with("the environment variable NO_PROXY: "),
            "{fault}"
        );
    }

    #[test]
    fn certificates_for_a_proxy_without_tls_are_a_slip_unless_the_environment_names_it() {
        let mut source = Source {
            proxy: Some("socks5://proxy".parse().unwrap()),
            proxy_ca_file: Some(vec![PathBuf::from("ca.pem")].into()),
            ..Source::default()
        };
        let error = chosen(&source, SERVER, &[]).unwrap_err();
        assert!(
            error.starts_with("--proxy-ca-file: socks5://proxy (--proxy) is used without TLS"),
            "{error}"
        );
        source.proxy = None;
        assert!(
            chosen(&source, SERVER, &[("ALL_PROXY", "p")])
                .unwrap()
                .is_some()
        );
        source.proxy = Some("https://proxy".parse().unwrap());
        (source.proxy_ca_file, source.proxy_system_roots) = (None, Some(false));
        let error = chosen(&source, SERVER, &[]).unwrap_err();
        assert!(
            error.starts_with("--proxy-system-roots: no CA is trusted"),
            "{error}"
        );
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
        assert!(chosen(&source, "127.0.0.1", &[]).unwrap().is_some());
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
