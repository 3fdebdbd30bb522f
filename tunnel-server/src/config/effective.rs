//! A configuration as plain text, setting by setting, so that two can be compared.
//!
//! Out go the names of the flags with what each stands at, and a line for each runtime. Nothing secret
//! is in it: of a token there is its public id, of a file with keys or certificates, and of the query of a URL, a
//! part of its hash.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::path::Path;
use std::time::Duration;

use tunnel_ops::config_value::SizeText;
use tunnel_ops::tls_files::Identity;

use super::{Config, JwksSource};
use crate::runtimes::{ListedToken, Moment, RuntimeEntry, RuntimeLabel, RuntimeLimits};

/// What each setting stands at, by its name.
pub type Effective = BTreeMap<String, String>;

/// One difference between two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Which setting, or which runtime.
    pub name: String,
    /// What it stood at, if at anything.
    pub before: Option<String>,
    /// What it stands at now, if at anything.
    pub after: Option<String>,
}

/// What the files hold that a configuration names beside certificates and runtimes, in a few words each.
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

/// What differs between two, in the order of the names.
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
    /// What each setting stands at, and what is known of each runtime; its files hold these contents. What
    /// is in files with tokens of the operator's is not told.
    #[must_use]
    pub fn effective(&self, contents: &Contents) -> Effective {
        let mut effective = Effective::new();
        let mut put = |name: &str, value: String| {
            effective.insert(name.to_owned(), value);
        };
        self.put_listeners(&mut put);
        self.put_times(&mut put);
        self.put_limits(&mut put);
        self.put_tokens(&mut put, contents);
        self.put_platform(&mut put);
        self.put_certificates(&mut put, contents);
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
            put(&format!("runtime {}", entry.label), runtime(entry, &ids));
        }
        effective
    }

    fn put_listeners(&self, put: &mut impl FnMut(&str, String)) {
        put("tunnel-listen", self.tunnel_listen.to_string());
        put("public-listen", self.public_listen.to_string());
        put("admin-listen", self.admin_listen.to_string());
        put("admin-host", list(&self.admin_hosts));
        put("domain", self.domain.to_string());
        put("tls-cert", certificate(&self.tunnel_tls));
        if let Some(identity) = &self.public_tls {
            put("public-tls-cert", certificate(identity));
        }
        put("trusted-proxies", list(&self.trusted_proxies));
        put("proxy-protocol", self.proxy_protocol.to_string());
        put("via", self.via.to_string());
        put("cors-origin", list(&self.cors_origins));
        put(
            "allow-shared-cookies",
            self.allow_shared_cookies.to_string(),
        );
        put("shards", self.shards.to_string());
        put("access-log", self.access_log.to_string());
        put(
            "log-format",
            format!("{:?}", self.log_format).to_lowercase(),
        );
        put("log-level", self.log_level.to_string());
    }

    fn put_times(&self, put: &mut impl FnMut(&str, String)) {
        for (name, time) in [
            ("first-byte-timeout", self.first_byte_timeout),
            ("tls-handshake-timeout", self.tls_handshake_timeout),
            ("request-head-timeout", self.request_head_timeout),
            ("body-idle-timeout", self.body_idle_timeout),
            ("keep-alive-timeout", self.keep_alive_timeout),
            ("expect-wait", self.expect_wait),
            ("offline-wait", self.offline_wait),
            ("ping-interval", self.ping_interval),
            ("drain-delay", self.drain_delay),
            ("drain-spread", self.drain_spread),
            ("grace-period", self.grace_period),
            ("auth-timeout", self.credentials.timeout),
            ("expiry-grace", self.credentials.expiry_grace),
        ] {
            put(name, time_text(time));
        }
    }

    fn put_limits(&self, put: &mut impl FnMut(&str, String)) {
        for (name, number) in [
            ("max-connections", self.max_connections),
            (
                "max-connections-per-address",
                self.max_connections_per_address,
            ),
            (
                "max-tunnel-connections-per-address",
                self.max_tunnel_connections_per_address,
            ),
            ("max-handshakes", self.max_handshakes),
            ("handshake-queue", self.handshake_queue),
            ("max-exchanges", self.max_exchanges as usize),
        ] {
            put(name, number.to_string());
        }
        put("max-head-size", size_text(self.max_head_bytes));
        let all = &self.node_limits;
        for (name, limit) in [
            ("max-open-exchanges", all.exchanges.map(u64::from)),
            ("max-exchange-rate", all.exchange_rate.map(u64::from)),
            ("max-open-websockets", all.websockets.map(u64::from)),
            ("max-waiting", all.waiting.map(u64::from)),
            ("max-waiting-size", all.waiting_bytes),
            ("max-buffered-size", all.buffered_bytes),
        ] {
            if let Some(limit) = limit {
                put(name, limit.to_string());
            }
        }
        for (name, limit) in set_limits(&self.limits) {
            put(&format!("limit-{name}"), limit.to_string());
        }
        let on_conflict = format!("{:?}", self.on_conflict);
        put("on-conflict", on_conflict.to_lowercase());
    }

    fn put_tokens(&self, put: &mut impl FnMut(&str, String), contents: &Contents) {
        let credentials = &self.credentials;
        for (name, path) in [
            ("admin-token-file", &self.admin_token_file),
            ("runtimes", &self.runtimes_file),
        ] {
            if let Some(path) = path {
                put(name, path_text(path));
            }
        }
        if let Some(path) = &credentials.revocations {
            put("revocations", holding(path, &contents.revocations));
        }
        let Some(jwt) = &credentials.jwt else {
            return;
        };
        put(
            "jwks",
            match &jwt.keys {
                JwksSource::File(path) => {
                    holding(path, contents.jwks.as_deref().unwrap_or_default())
                }
                JwksSource::Url(url) => url.fingerprinted(),
            },
        );
        put("jwt-issuer", jwt.issuer.clone());
        put("jwt-audience", jwt.audience.clone());
        put("jwt-account-claim", jwt.account_claim.clone());
        put("jwt-runtime-claim", jwt.runtime_claim.clone());
        put("jwt-leeway", time_text(jwt.leeway));
    }

    fn put_platform(&self, put: &mut impl FnMut(&str, String)) {
        if let Some(path) = &self.credentials.ca_file {
            put("auth-ca-file", path_text(path));
        }
        let Some(platform) = &self.credentials.platform else {
            return;
        };
        put("auth-url", platform.url.fingerprinted());
        put("auth-concurrency", platform.concurrency.to_string());
        put("auth-cache", time_text(platform.cache));
        put("auth-outage", time_text(platform.outage));
        if let Some(path) = &platform.token_file {
            put("auth-token-file", path_text(path));
        }
    }

    fn put_certificates(&self, put: &mut impl FnMut(&str, String), contents: &Contents) {
        let Some(certificates) = &self.credentials.certificates else {
            return;
        };
        let content = contents.client_ca.as_deref().unwrap_or_default();
        put("client-ca", holding(&certificates.ca, content));
        if let Some(path) = &certificates.crl {
            let content = contents.client_crl.as_deref().unwrap_or_default();
            put("client-crl", holding(path, content));
        }
    }
}

fn runtime(entry: &RuntimeEntry, tokens: &[String]) -> String {
    let mut text = format!("hosts {}, tokens {}", list(&entry.hosts), list(tokens));
    if let Some(networks) = &entry.allow_from {
        let _ = write!(text, ", allow-from {}", list(networks));
    }
    if entry.limits != RuntimeLimits::default() {
        let _ = write!(text, ", {}", limits(&entry.limits));
    }
    text
}

/// A token by its public id, and what else there is to know of it.
fn listed(token: &ListedToken) -> String {
    let mut text = token.id.to_string();
    if token.revoked {
        text.push_str(" (revoked)");
    } else if let Some(expires) = token.expires {
        let _ = write!(text, " (until {})", Moment::from(expires));
    }
    text
}

/// Only those that are set.
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

fn holding(path: &Path, content: &str) -> String {
    format!("{}, {content}", path_text(path))
}

/// The same wherever the program was started.
fn path_text(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let path = absolute.as_deref().unwrap_or(path);
    path.display().to_string()
}

fn list<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    match values.is_empty() {
        true => "none".to_owned(),
        false => values.join(" "),
    }
}

fn time_text(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}

fn size_text(bytes: usize) -> String {
    let text = format!("{bytes}B");
    let size = text.parse::<SizeText>();
    size.map_or(text, |size| size.to_string())
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
    fn only_what_differs_is_told() {
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
        let told = differences(&before, &after);
        let texts: Vec<String> = told.iter().map(ToString::to_string).collect();
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
