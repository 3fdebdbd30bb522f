//! Names of accounts and runtimes, checked when they are parsed, and the label that both make.
//!
//! In: the text of a file, a flag, a credential or a record. Out: valid values, cheap to clone and to compare.

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// Longest DNS label (RFC 1035, 2.3.4).
const LABEL_OCTETS: usize = 63;

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
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            #[must_use]
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

/// For lookups by text.
impl Borrow<str> for RuntimeLabel {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl RuntimeLabel {
    /// The label of an account and a runtime. Two pairs may have one label: `a-b` + `c`, and `a` + `b-c`.
    ///
    /// # Errors
    /// When it is longer than a DNS label.
    pub fn new(account: &AccountName, runtime: &RuntimeName) -> Result<Self, NameError> {
        let label = format!("{account}-{runtime}");
        if label.len() > LABEL_OCTETS {
            return Err(NameError::Label(label));
        }
        Ok(Self(label.into()))
    }

    /// Reads a label that was made before. Which account and runtime it is of cannot be told from it.
    ///
    /// # Errors
    /// When it is no name, or longer than a DNS label.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        match text.len() > LABEL_OCTETS {
            true => Err(NameError::Label(text.to_owned())),
            false => checked_name(text).map(Self),
        }
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

    proptest! {
        #[test]
        fn no_text_makes_a_name_panic(text in "\\PC{0,80}") {
            let _ = text.parse::<AccountName>();
            let _ = RuntimeLabel::parse(&text);
        }
    }
}
