//! Names of accounts, runtimes and hosts, checked when they are parsed.
//!
//! In: text of a file, a flag or a credential. Out: valid values, cheap to clone and to compare.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest DNS label (RFC 1035, 2.3.4).
const LABEL_OCTETS: usize = 63;

/// Longest DNS name as text, without the trailing dot.
const HOST_OCTETS: usize = 253;

/// Why a text is not a name of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not an account's or a runtime's name.
    #[error("`{0}` is no name: use lower-case letters, digits and hyphens between them{hint}", hint = label_hint(.0))]
    Name(String),
    /// An account and a runtime that do not fit into one label.
    #[error(
        "`{0}` is too long: account, hyphen and name together may have at most {LABEL_OCTETS} characters"
    )]
    Label(String),
    /// Not a host.
    #[error("`{host}` is no host: {reason}")]
    Host {
        /// The text given.
        host: String,
        /// Its fault.
        reason: &'static str,
    },
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

name_type! {
    /// A customer: `acme`.
    AccountName
}

name_type! {
    /// One of an account's clusters: `prod`.
    RuntimeName
}

name_type! {
    /// An account and a runtime as one DNS label: `acme-prod`. At most 63 octets.
    RuntimeLabel
}

name_type! {
    /// A host as requests name it: lower-case letters, digits and hyphens in labels, without port
    /// or last dot.
    HostName
}

/// For lookups by text.
impl Borrow<str> for RuntimeLabel {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl RuntimeLabel {
    /// The label of this pair, if it fits. Two pairs may have one label; a [`super::Runtimes`] has
    /// no such pairs.
    pub fn new(account: &AccountName, runtime: &RuntimeName) -> Result<Self, NameError> {
        let label = format!("{account}-{runtime}");
        if label.len() > LABEL_OCTETS {
            return Err(NameError::Label(label));
        }
        Ok(Self(label.into()))
    }

    /// Reads a label that was made before. Which account and runtime it is of cannot be told from it.
    pub(crate) fn parse(text: &str) -> Result<Self, NameError> {
        match text.len() > LABEL_OCTETS {
            true => Err(NameError::Label(text.to_owned())),
            false => checked_name(text).map(Self),
        }
    }
}

impl HostName {
    /// The default domain: browsers and curl resolve all names below `localhost` to the local machine.
    pub fn default_domain() -> Self {
        Self("tunnels.localhost".into())
    }

    /// The host `<label>.<domain>`, if it is not too long.
    pub fn of_runtime(label: &RuntimeLabel, domain: &Self) -> Result<Self, NameError> {
        format!("{label}.{domain}").parse()
    }

    /// The labels before `.domain`, when this host lies below `domain`.
    pub fn below<'a>(&'a self, domain: &Self) -> Option<&'a str> {
        self.0.strip_suffix(domain.as_str())?.strip_suffix('.')
    }
}

impl FromStr for AccountName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        checked_name(text).map(Self)
    }
}

impl FromStr for RuntimeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        checked_name(text).map(Self)
    }
}

impl FromStr for HostName {
    type Err = NameError;

    /// Converts upper-case letters to lower-case ones, since hosts are compared without case; changes nothing else.
    fn from_str(text: &str) -> Result<Self, NameError> {
        match fault_of_host(text) {
            Some(reason) => Err(NameError::Host {
                host: text.to_owned(),
                reason,
            }),
            None => Ok(Self(text.to_ascii_lowercase().into())),
        }
    }
}

tunnel_ops::text_value!(HostName);

/// For somebody who has written account and runtime with a slash: how a label, and the two names, are written.
fn label_hint(text: &str) -> String {
    match text.split_once('/') {
        Some((account, runtime))
            if [account, runtime]
                .iter()
                .all(|name| checked_name(name).is_ok()) =>
        {
            format!(
                "; the label of account `{account}`, runtime `{runtime}` is `{account}-{runtime}`"
            )
        }
        _ => String::new(),
    }
}

fn checked_name(text: &str) -> Result<Arc<str>, NameError> {
    let letters = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if text.is_empty() || !letters || text.starts_with('-') || text.ends_with('-') {
        return Err(NameError::Name(text.to_owned()));
    }
    Ok(text.into())
}

fn fault_of_host(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    if text.is_empty() {
        return Some("it is empty");
    }
    if !text.is_ascii() {
        return Some("write it in its ASCII form, with `xn--`");
    }
    if bytes.contains(&b':') {
        return Some("leave out the port and the scheme, and give no IP address");
    }
    if text.ends_with('.') {
        return Some("leave out the last dot");
    }
    if bytes.contains(&b'*') {
        return Some("wildcards are not possible here");
    }
    if text.len() > HOST_OCTETS {
        return Some("it is longer than 253 characters");
    }
    if !text.split('.').all(is_host_label) {
        return Some("use letters, digits and inner hyphens, 1 to 63 in each part");
    }
    // A last label of digits only distinguishes an IPv4 address from a name (RFC 3696, section 2).
    if text
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Some("an IP address is no host");
    }
    None
}

fn is_host_label(label: &str) -> bool {
    (1..=LABEL_OCTETS).contains(&label.len())
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_letters_digits_and_inner_hyphens() {
        for good in ["acme", "a", "7", "a-b", "a--b", "x9-2"] {
            assert!(good.parse::<AccountName>().is_ok(), "{good}");
            assert!(good.parse::<RuntimeName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "Acme", "a_b", "a.b", "a b", "ä", "a\0"] {
            assert!(bad.parse::<AccountName>().is_err(), "{bad}");
            assert!(bad.parse::<RuntimeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_label_has_at_most_63_octets() {
        let account: AccountName = "a".repeat(31).parse().unwrap();
        let fits: RuntimeName = "r".repeat(31).parse().unwrap();
        let longer: RuntimeName = "r".repeat(32).parse().unwrap();
        assert_eq!(
            RuntimeLabel::new(&account, &fits).unwrap().as_str().len(),
            63
        );
        assert!(RuntimeLabel::new(&account, &longer).is_err());
    }

    #[test]
    fn only_bare_host_names_are_accepted() {
        for good in [
            "argo.example.com",
            "localhost",
            "xn--bcher-kva.example",
            "1.example",
            "a-b.c",
        ] {
            assert_eq!(good.parse::<HostName>().unwrap().as_str(), good);
        }
        assert_eq!(
            "Argo.Example.COM".parse::<HostName>().unwrap().as_str(),
            "argo.example.com"
        );
        let long = format!("{}.example", "a.".repeat(130));
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            "-a.b",
            "a-.b",
            "a b",
            "a:80",
            "https://a.b",
            "[::1]",
            "127.0.0.1",
            "1",
            "*.a.b",
            "bücher.example",
            "a_b.c",
            "a/b",
            &long,
            &"a".repeat(64),
        ] {
            assert!(bad.parse::<HostName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_below_a_domain_is_distinguished_from_one_with_an_equal_suffix() {
        let domain: HostName = "tunnels.localhost".parse().unwrap();
        let below = |host: &str| {
            host.parse::<HostName>()
                .unwrap()
                .below(&domain)
                .map(str::to_owned)
        };
        assert_eq!(below("a.tunnels.localhost").as_deref(), Some("a"));
        assert_eq!(below("a.b.tunnels.localhost").as_deref(), Some("a.b"));
        assert_eq!(below("tunnels.localhost"), None);
        assert_eq!(below("mytunnels.localhost"), None);
    }

    proptest! {
        #[test]
        fn a_parsed_host_parses_to_itself(text in "[A-Za-z0-9.-]{0,40}") {
            if let Ok(host) = text.parse::<HostName>() {
                let again: HostName = host.as_str().parse().unwrap();
                prop_assert_eq!(again, host);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}") {
            let _ = text.parse::<HostName>();
            let _ = text.parse::<AccountName>();
        }
    }
}
