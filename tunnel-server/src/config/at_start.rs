//! Settings that are read once, when the server starts: which they are, and what becomes of them when the
//! files say something else later.
//!
//! Everything else counts as soon as it is read again. So that nobody is told of a setting that is not in
//! force, a configuration that is taken over keeps these as they were.

use super::effective::Difference;
use super::{Config, JwksSource, JwtSettings, PlatformSettings};

/// Settings that are read once, when the server starts.
const AT_START: [&str; 21] = [
    "admin-host",
    "admin-listen",
    "auth-ca-file",
    "auth-cache",
    "auth-concurrency",
    "auth-outage",
    "auth-timeout",
    "auth-url",
    "domain",
    "expiry-grace",
    "handshake-queue",
    "jwt-account-claim",
    "jwt-audience",
    "jwt-issuer",
    "jwt-leeway",
    "jwt-runtime-claim",
    "log-format",
    "max-handshakes",
    "public-listen",
    "shards",
    "tunnel-listen",
];

impl Difference {
    /// Whether it counts only when the server is started anew.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        let is_new_or_gone = self.before.is_none() || self.after.is_none();
        match self.name.as_str() {
            // Another certificate counts at once; whether there is one does not.
            "public-tls-cert" => is_new_or_gone,
            // Other keys in a file, or in another file, count at once.
            "jwks" => {
                let is_url = |it: &Option<String>| it.as_ref().is_some_and(|it| it.contains("://"));
                is_new_or_gone || is_url(&self.before) || is_url(&self.after)
            }
            // The last one is kept.
            "auth-token-file" => self.after.is_none(),
            name => AT_START.contains(&name),
        }
    }
}

impl Config {
    /// Keeps what counts only from the start on as it is in the configuration that is in force.
    pub(crate) fn keep_started(&mut self, started: &Self) {
        self.tunnel_listen = started.tunnel_listen;
        self.public_listen = started.public_listen;
        self.admin_listen = started.admin_listen;
        self.admin_hosts.clone_from(&started.admin_hosts);
        self.domain.clone_from(&started.domain);
        self.shards = started.shards;
        self.log_format = started.log_format;
        self.max_handshakes = started.max_handshakes;
        self.handshake_queue = started.handshake_queue;
        if self.public_tls.is_some() != started.public_tls.is_some() {
            self.public_tls.clone_from(&started.public_tls);
        }
        let (ours, started) = (&mut self.credentials, &started.credentials);
        ours.ca_file.clone_from(&started.ca_file);
        ours.timeout = started.timeout;
        ours.expiry_grace = started.expiry_grace;
        ours.jwt = jwt(ours.jwt.take(), started.jwt.as_ref());
        ours.platform = platform(ours.platform.take(), started.platform.as_ref());
    }
}

/// Only the file may be another.
fn jwt(given: Option<JwtSettings>, started: Option<&JwtSettings>) -> Option<JwtSettings> {
    let mut kept = started?.clone();
    if let (JwksSource::File(path), Some(JwksSource::File(other))) =
        (&mut kept.keys, given.map(|given| given.keys))
    {
        *path = other;
    }
    Some(kept)
}

/// Only the token may be another.
fn platform(
    given: Option<PlatformSettings>,
    started: Option<&PlatformSettings>,
) -> Option<PlatformSettings> {
    let mut kept = started?.clone();
    if let Some(path) = given.and_then(|given| given.token_file) {
        kept.token_file = Some(path);
    }
    Some(kept)
}
