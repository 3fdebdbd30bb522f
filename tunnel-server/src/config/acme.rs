//! The settings of certificates that the server gets by ACME (RFC 8555).

use std::{
    fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use secrecy::SecretSlice;
use tunnel_ops::{byte_order_mark::without_mark, config_value::ValueError, settings::Setting};

use super::{ConfigFault, HttpUrl, Settings, Source, setting};
use crate::runtimes::{HostError, HostName};

/// Most names: each has a certificate and orders of its own.
const MAX_NAMES: usize = 100;

/// The URLs that words stand for.
const KNOWN: [(&str, &str); 2] = [
    (
        "letsencrypt",
        "https://acme-v02.api.letsencrypt.org/directory",
    ),
    (
        "letsencrypt-staging",
        "https://acme-staging-v02.api.letsencrypt.org/directory",
    ),
];

/// The URL of an ACME server's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeDirectory(HttpUrl);

/// An email address, for messages of the ACME server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeContact(String);

/// The name in a certificate: a host, or `*.` before the domain of all hosts directly below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcmeName {
    domain: HostName,
    is_wildcard: bool,
}

/// How it is proven to the ACME server that a name that is no wildcard is this server's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By a handshake with this server at port 443 of the name (RFC 8737).
    TlsAlpn,
    /// By a record in DNS (RFC 8555 section 8.4), as for wildcards.
    Dns,
}

/// How certificates are got.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcmeSettings {
    /// The directory's URL.
    pub directory: String,
    /// URIs of contacts.
    pub contacts: Vec<String>,
    /// The names, each of which gets a certificate of its own; the first one is shown to clients that ask for none.
    pub names: Vec<AcmeName>,
    /// The proof of names that are no wildcards.
    pub challenge: AcmeChallenge,
    /// Sets and removes records in DNS.
    pub dns_hook: Option<PathBuf>,
    /// Time from the end of the hook until all name servers have the record.
    pub dns_wait: Duration,
    /// Where account and certificates are kept; `None` with etcd.
    pub folder: Option<PathBuf>,
    /// CA file, beside the system's, for the ACME server itself.
    pub ca_file: Option<PathBuf>,
    /// Binds the account to one that the ACME server's operator has given out.
    pub external_account: Option<ExternalAccount>,
}

/// An external account (RFC 8555 section 7.3.4).
#[derive(Clone)]
pub struct ExternalAccount {
    /// Its key identifier.
    pub kid: String,
    /// Its key.
    pub key: SecretSlice<u8>,
}

impl FromStr for AcmeDirectory {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let known = KNOWN.iter().find(|(word, _)| *word == text);
        let url = known.map_or(text, |(_, url)| url);
        let url = url.parse().map_err(|error| {
            let problem = format!(
                "expected `letsencrypt`, `letsencrypt-staging` or the URL of a directory: {error}"
            );
            ValueError::new(problem)
        });
        url.map(Self)
    }
}

impl fmt::Display for AcmeDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.fingerprinted())
    }
}

impl FromStr for AcmeContact {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_plain = |part: &str| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?@".contains(&byte);
            !part.is_empty() && part.bytes().all(is_plain)
        };
        match text.split_once('@') {
            Some((person, domain)) if is_plain(person) && is_plain(domain) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(ValueError::new(
                "expected one email address, such as `ops@example.com`",
            )),
        }
    }
}

impl fmt::Display for AcmeContact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AcmeName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let below = text.strip_prefix("*.");
        Ok(Self {
            domain: below.unwrap_or(text).parse()?,
            is_wildcard: below.is_some(),
        })
    }
}

impl fmt::Display for AcmeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.is_wildcard { "*." } else { "" };
        write!(f, "{prefix}{}", self.domain)
    }
}

impl AcmeName {
    /// The name of all hosts directly below a domain.
    #[must_use]
    pub fn wildcard(domain: &HostName) -> Self {
        Self {
            domain: domain.clone(),
            is_wildcard: true,
        }
    }

    /// The host, or the domain of a wildcard.
    #[must_use]
    pub fn domain(&self) -> &HostName {
        &self.domain
    }

    /// Whether it names all hosts directly below its domain.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        self.is_wildcard
    }
}

impl AcmeSettings {
    /// How this name is proven.
    #[must_use]
    pub fn challenge_of(&self, name: &AcmeName) -> AcmeChallenge {
        match name.is_wildcard {
            true => AcmeChallenge::Dns,
            false => self.challenge,
        }
    }

    /// Replaces what a reload does not change by what is in force.
    pub(super) fn keep_started(&mut self, started: &Self) {
        let next = std::mem::replace(self, started.clone());
        self.names = next.names;
        self.challenge = next.challenge;
        self.dns_hook = next.dns_hook;
        self.dns_wait = next.dns_wait;
    }
}

/// Checks the settings; `None` if certificates come from files.
pub(super) fn check(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<AcmeSettings> {
    let Some(directory) = &settings.acme_directory else {
        check_alone(source, faults);
        return None;
    };
    check_use(source, faults);
    let names = match &settings.acme_name[..] {
        [] => vec![AcmeName::wildcard(&settings.domain)],
        given => given.to_vec(),
    };
    if names.len() > MAX_NAMES {
        let problem = format!("{} names: at most {MAX_NAMES} are possible", names.len());
        faults.push(source.fault(&setting::acme_name, problem));
    }
    let acme = AcmeSettings {
        directory: directory.0.uri().to_string(),
        contacts: settings
            .acme_contact
            .iter()
            .map(|contact| format!("mailto:{contact}"))
            .collect(),
        names,
        challenge: settings.acme_challenge,
        dns_hook: settings.acme_dns_hook.clone(),
        dns_wait: settings.acme_dns_wait,
        folder: settings.acme_dir.clone(),
        ca_file: settings.acme_ca_file.clone(),
        external_account: external_account(source, settings, faults),
    };
    check_hook(source, &acme, faults);
    check_folder(source, settings, faults);
    Some(acme)
}

/// Settings that mean nothing without --acme-directory are a mistake.
fn check_alone(source: &Source, faults: &mut Vec<ConfigFault>) {
    let given = [
        (source.acme_contact.is_some(), &setting::acme_contact),
        (source.acme_name.is_some(), &setting::acme_name),
        (source.acme_challenge.is_some(), &setting::acme_challenge),
        (source.acme_dns_hook.is_some(), &setting::acme_dns_hook),
        (source.acme_dns_wait.is_some(), &setting::acme_dns_wait),
        (source.acme_dir.is_some(), &setting::acme_dir),
        (source.acme_ca_file.is_some(), &setting::acme_ca_file),
        (source.acme_eab_kid.is_some(), &setting::acme_eab_kid),
        (
            source.acme_eab_key_file.is_some(),
            &setting::acme_eab_key_file,
        ),
    ];
    for (_, setting) in given.into_iter().filter(|(is_given, _)| *is_given) {
        let problem = "without --acme-directory certificates come from files: name the ACME server";
        faults.push(source.fault(setting, problem));
    }
}

/// Certificates that no listener shows are a mistake.
fn check_use(source: &Source, faults: &mut Vec<ConfigFault>) {
    if source.tls_cert.is_some() && source.public_tls_cert.is_some() {
        let problem =
            "both listeners have certificates in files: leave out --tls-cert or --public-tls-cert";
        faults.push(source.fault(&setting::acme_directory, problem));
    }
}

fn check_hook(source: &Source, acme: &AcmeSettings, faults: &mut Vec<ConfigFault>) {
    let Some(hook) = &acme.dns_hook else {
        let mut by_dns = acme.names.iter();
        if let Some(name) = by_dns.find(|name| acme.challenge_of(name) == AcmeChallenge::Dns) {
            let problem = format!(
                "required, since {name} is proven by a record in DNS: name a program that sets and removes it"
            );
            faults.push(source.fault(&setting::acme_dns_hook, problem));
        }
        return;
    };
    if let Err(problem) = executable(hook) {
        let problem = format!("{}: {problem}", hook.display());
        faults.push(source.fault(&setting::acme_dns_hook, problem));
    }
}

fn executable(program: &Path) -> Result<(), String> {
    let metadata = fs::metadata(program).map_err(|error| format!("cannot be executed: {error}"))?;
    match metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err("is no program: give an executable file".to_owned()),
    }
}

fn check_folder(source: &Source, settings: &Settings, faults: &mut Vec<ConfigFault>) {
    match (&settings.acme_dir, settings.etcd.is_empty()) {
        (None, true) => faults.push(ConfigFault::Missing {
            setting: &setting::acme_dir,
            purpose: "the folder for the account's key and the certificates",
        }),
        (Some(_), false) => {
            let problem =
                "with --etcd the nodes share account and certificates there: leave it out";
            faults.push(source.fault(&setting::acme_dir, problem));
        }
        _ => {}
    }
}

fn external_account(
    source: &Source,
    settings: &Settings,
    faults: &mut Vec<ConfigFault>,
) -> Option<ExternalAccount> {
    let missing = |setting: &'static Setting, purpose| ConfigFault::Missing { setting, purpose };
    let (kid, path) = match (&settings.acme_eab_kid, &settings.acme_eab_key_file) {
        (None, None) => return None,
        (Some(kid), Some(path)) => (kid.clone(), path),
        (Some(_), None) => {
            let purpose = "the file with the key of --acme-eab-kid";
            faults.push(missing(&setting::acme_eab_key_file, purpose));
            return None;
        }
        (None, Some(_)) => {
            let purpose = "the identifier of the key in --acme-eab-key-file";
            faults.push(missing(&setting::acme_eab_kid, purpose));
            return None;
        }
    };
    match read_key(path) {
        Ok(key) => Some(ExternalAccount { kid, key }),
        Err(problem) => {
            let problem = format!("{}: {problem}", path.display());
            faults.push(source.fault(&setting::acme_eab_key_file, problem));
            None
        }
    }
}

/// Reads a key as CAs give it out, in base64url. No error quotes it.
fn read_key(path: &Path) -> Result<SecretSlice<u8>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let key = BASE64_URL_SAFE_NO_PAD.decode(without_mark(&text).trim().trim_end_matches('='));
    match key {
        Ok(key) if !key.is_empty() => Ok(key.into()),
        _ => Err("holds no key in base64url: copy it as the CA shows it".to_owned()),
    }
}

impl PartialEq for ExternalAccount {
    fn eq(&self, other: &Self) -> bool {
        use secrecy::ExposeSecret;
        self.kid == other.kid && self.key.expose_secret() == other.key.expose_secret()
    }
}

impl Eq for ExternalAccount {}

impl fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("kid", &self.kid)
            .finish_non_exhaustive()
    }
}

tunnel_ops::text_value!(AcmeDirectory);
tunnel_ops::text_value!(AcmeContact);
tunnel_ops::text_value!(AcmeName);
tunnel_ops::word_value!(AcmeChallenge {
    "tls-alpn-01" => Self::TlsAlpn,
    "dns-01" => Self::Dns,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_url_or_a_word() {
        let staging: AcmeDirectory = "letsencrypt-staging".parse().unwrap();
        assert_eq!(
            staging.to_string(),
            "https://acme-staging-v02.api.letsencrypt.org/directory"
        );
        assert!(
            "https://localhost:14000/dir"
                .parse::<AcmeDirectory>()
                .is_ok()
        );
        let error = "letsencript".parse::<AcmeDirectory>().unwrap_err();
        assert!(error.to_string().contains("`letsencrypt`"), "{error}");
    }

    #[test]
    fn a_name_is_a_host_or_a_wildcard() {
        for (text, is_wildcard) in [("*.t.example", true), ("t.example", false)] {
            let name: AcmeName = text.parse().unwrap();
            assert_eq!(
                (
                    name.is_wildcard(),
                    name.domain().as_str(),
                    &*name.to_string()
                ),
                (is_wildcard, "t.example", text)
            );
        }
        for bad in ["*", "*.", "a.*.example", "*.*.example", "192.0.2.1", ""] {
            assert!(bad.parse::<AcmeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_contact_is_one_email_address() {
        assert!("ops@example.com".parse::<AcmeContact>().is_ok());
        for bad in [
            "ops",
            "a@b@c",
            "a@b,c@d",
            "mailto:a@",
            "a@b?subject=x",
            "a b@c",
        ] {
            assert!(bad.parse::<AcmeContact>().is_err(), "{bad}");
        }
    }

    fn faults(change: impl FnOnce(&mut Source)) -> Vec<String> {
        let mut source = Source {
            acme_directory: Some("letsencrypt".parse().unwrap()),
            acme_name: Some(vec!["t.example".parse().unwrap()]),
            acme_dir: Some("acme".into()),
            ..Source::default()
        };
        change(&mut source);
        let mut faults = Vec::new();
        check(&source, &source.settings(), &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    /// A change of the settings, and the start of the only fault that it makes.
    type Case = (fn(&mut Source), &'static str);

    #[test]
    fn settings_have_to_agree() {
        assert!(faults(|_| {}).is_empty());
        let cases: [Case; 8] = [
            (|source| source.acme_dir = None, "--acme-dir is missing"),
            (
                |source| source.acme_name = None,
                "--acme-dns-hook: required, since *.tunnels.localhost is proven by a record in DNS",
            ),
            (
                |source| source.acme_challenge = Some(AcmeChallenge::Dns),
                "--acme-dns-hook: required, since t.example is proven",
            ),
            (
                |source| source.acme_dns_hook = Some("/".into()),
                "--acme-dns-hook: /: is no program",
            ),
            (
                |source| source.etcd = Some(vec!["http://127.0.0.1:1".parse().unwrap()]),
                "--acme-dir: with --etcd",
            ),
            (
                |source| source.acme_eab_kid = Some("k".to_owned()),
                "--acme-eab-key-file is missing",
            ),
            (
                |source| {
                    source.tls_cert = Some("t.pem".into());
                    source.public_tls_cert = Some("p.pem".into());
                },
                "--acme-directory: both listeners have certificates in files",
            ),
            (
                |source| {
                    source.acme_directory = None;
                    source.acme_name = None;
                },
                "--acme-dir: without --acme-directory",
            ),
        ];
        for (change, fault) in cases {
            let found = faults(change);
            assert_eq!(found.len(), 1, "{fault}: {found:?}");
            assert!(found[0].starts_with(fault), "{fault}: {found:?}");
        }
    }

    #[test]
    fn the_key_of_an_external_account_is_read_from_its_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let given = |source: &mut Source| {
            source.acme_eab_kid = Some("kid-1".to_owned());
            source.acme_eab_key_file = Some(path.clone());
        };
        fs::write(&path, "no key!\n").unwrap();
        let found = faults(given);
        assert!(found[0].contains("holds no key in base64url"), "{found:?}");
        assert!(!found[0].contains("no key!"), "{found:?}");
        fs::write(&path, "c2VjcmV0LXNlY3JldA==\n").unwrap();
        assert!(faults(given).is_empty());
        let mut source = Source::default();
        given(&mut source);
        let account = external_account(&source, &source.settings(), &mut Vec::new()).unwrap();
        assert_eq!(
            format!("{account:?}"),
            "ExternalAccount { kid: \"kid-1\", .. }"
        );
    }
}
