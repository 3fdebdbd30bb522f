//! The effective configuration as text, setting by setting, so that two can be compared.
//!
//! It maps the names of the flags to their values, and has an entry for each runtime. It contains no secret: a token is
//! shown by its public id; a file with keys or certificates, and the query of a URL, by a part of its hash.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};

use tunnel_directory::RuntimeLabel;
use tunnel_ops::settings::{GivenSettings, Setting};
use tunnel_ops::tls_files::Identity;

use super::{Config, Source, setting};
use crate::runtimes::{ListedToken, Moment, RuntimeEntry, RuntimeLimits};

/// The value of each setting, by its name.
pub type Effective = BTreeMap<String, String>;

/// One difference between two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The setting or runtime.
    pub name: String,
    /// The value before, if there was one.
    pub before: Option<String>,
    /// The value after, if there is one.
    pub after: Option<String>,
}

/// Short descriptions of the files that a configuration names, apart from certificates and runtimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub(crate) jwks: Option<String>,
    pub(crate) revocations: String,
    pub(crate) client_ca: Option<String>,
    pub(crate) client_crl: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{name}: {before} -> {after}"),
            (None, Some(after)) => write!(f, "{name}: added, {after}"),
            (Some(before), None) => write!(f, "{name}: removed, was {before}"),
            (None, None) => write!(f, "{name}"),
        }
    }
}

impl Difference {
    /// Whether it takes effect only when the server is restarted. Changes of runtimes take effect at once.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        let setting = Source::SETTINGS
            .iter()
            .find(|setting| setting.flag() == self.name);
        setting.is_some_and(|setting| {
            let (before, after) = (self.before.as_deref(), self.after.as_deref());
            setting.reload.needs_restart(before, after)
        })
    }
}

/// The differences between two configurations, in the order of the names.
#[must_use]
pub fn differences(before: &Effective, after: &Effective) -> Vec<Difference> {
    let names = before.keys().chain(after.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| Difference {
            name: name.clone(),
            before: before.get(name).cloned(),
            after: after.get(name).cloned(),
        })
        .collect()
}

impl Config {
    /// The value of each setting, and a description of each runtime. `contents` describes the files. The contents of
    /// files with the operator's tokens are not shown.
    #[must_use]
    pub fn effective(&self, contents: &Contents) -> Effective {
        let mut effective = Effective::new();
        (self.settings).each_shown(&mut |setting, value| {
            effective.insert(setting.flag(), value);
        });
        for (setting, content) in contents.by_setting() {
            if let (Some(shown), Some(content)) = (effective.get_mut(&setting.flag()), content) {
                let _ = write!(shown, ", {content}");
            }
        }
        let mut put = |name: String, value| effective.insert(name, value);
        for (setting, identity) in [
            (&setting::tls_cert, &self.tunnel_tls),
            (&setting::public_tls_cert, &self.public_tls),
        ] {
            if let Some(identity) = identity {
                put(setting.flag(), certificate(identity));
            }
        }
        let mut tokens: HashMap<&RuntimeLabel, Vec<String>> = HashMap::new();
        for (runtime, token) in self.runtimes.tokens() {
            tokens
                .entry(&runtime.label)
                .or_default()
                .push(listed(token));
        }
        for entry in self.runtimes.iter() {
            let mut ids = tokens.remove(&entry.label).unwrap_or_default();
            ids.sort_unstable();
            put(format!("runtime {}", entry.label), runtime(entry, &ids));
        }
        effective
    }
}

impl Contents {
    fn by_setting(&self) -> [(&'static Setting, Option<&str>); 4] {
        [
            (&setting::jwks, self.jwks.as_deref()),
            (&setting::revocations, Some(&self.revocations)),
            (&setting::client_ca, self.client_ca.as_deref()),
            (&setting::client_crl, self.client_crl.as_deref()),
        ]
    }
}

fn runtime(entry: &RuntimeEntry, tokens: &[String]) -> String {
    let mut text = String::new();
    // Beside the one that each has.
    if !entry.hosts.is_empty() {
        let _ = write!(text, "hosts {}, ", list(&entry.hosts));
    }
    let _ = write!(text, "tokens {}", list(tokens));
    if let Some(networks) = &entry.allow_from {
        let _ = write!(text, ", allow-from {}", list(networks));
    }
    if entry.limits != RuntimeLimits::default() {
        let _ = write!(text, ", {}", limits(&entry.limits));
    }
    text
}

/// A token by its public id, with its revocation or expiry.
fn listed(token: &ListedToken) -> String {
    let mut text = token.id.to_string();
    if token.revoked {
        text.push_str(" (revoked)");
    } else if let Some(expires) = token.expires {
        let _ = write!(text, " (until {})", Moment::from(expires));
    }
    text
}

/// The limits that are set.
fn limits(limits: &RuntimeLimits) -> String {
    let set = set_limits(limits).map(|(name, limit)| format!("{name} {limit}"));
    set.collect::<Vec<_>>().join(", ")
}

fn set_limits(limits: &RuntimeLimits) -> impl Iterator<Item = (&'static str, u64)> {
    let wide = u64::from;
    let all = [
        ("exchanges", limits.exchanges.map(wide)),
        ("exchange-rate", limits.exchange_rate.map(wide)),
        ("upload-rate", limits.upload_rate),
        ("download-rate", limits.download_rate),
        ("websockets", limits.websockets.map(wide)),
        ("head-size", limits.head_bytes.map(|bytes| bytes as u64)),
        ("waiting", limits.waiting.map(wide)),
        ("waiting-size", limits.waiting_bytes),
    ];
    all.into_iter()
        .filter_map(|(name, limit)| Some((name, limit?)))
}

fn list<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    match values.is_empty() {
        true => "none".to_owned(),
        false => values.join(" "),
    }
}

fn certificate(identity: &Identity) -> String {
    format!(
        "{}, good until {}",
        identity.fingerprint(),
        Moment::from(identity.not_after())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effective(settings: &[(&str, &str)]) -> Effective {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        settings.iter().map(owned).collect()
    }

    #[test]
    fn only_differences_are_listed() {
        let before = effective(&[
            ("grace-period", "25s"),
            ("runtime a-b", "x"),
            ("shards", "0"),
        ]);
        let after = effective(&[
            ("grace-period", "30s"),
            ("runtime c-d", "y"),
            ("shards", "2"),
        ]);
        let found = differences(&before, &after);
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = [
            "grace-period: 25s -> 30s",
            "runtime a-b: removed, was x",
            "runtime c-d: added, y",
            "shards: 0 -> 2",
        ];
        assert_eq!(texts, expected);
        assert!(differences(&before, &before).is_empty());
    }
}
