//! The secret that events for the platform are signed with (`--webhook-secret-file`).

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tunnel_ops::byte_order_mark::without_mark;

use super::{ConfigFault, Source, credentials::report_unused, or_fault, setting};

/// What the text of a secret begins with.
const PREFIX: &str = "whsec_";

/// The number of bytes of a key (Standard Webhooks, "Signature scheme").
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that this server and the platform share.
#[derive(Clone)]
pub struct WebhookSecret(Hmac<Sha256>);

/// Why the file of the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSecretError {
    /// It cannot be read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds no secret.
    #[error(
        "{}: expected one line, `whsec_` and the base64 of 24 to 64 random bytes: `echo whsec_$(openssl rand -base64 32)`",
        .0.display()
    )]
    Malformed(PathBuf),
}

impl WebhookSecretError {
    /// The file at fault.
    pub(super) fn file(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. } | Self::Malformed(path) => path,
        }
    }
}

/// Checks the settings of the webhook, and reads the secret if it has one.
pub(super) fn check(source: &Source, faults: &mut Vec<ConfigFault>) -> Option<WebhookSecret> {
    if source.webhook_url.is_none() {
        let unused = [
            (
                &setting::webhook_secret_file,
                source.webhook_secret_file.is_some(),
            ),
            (&setting::webhook_events, source.webhook_events.is_some()),
        ];
        report_unused(
            source,
            unused,
            "it has no effect without --webhook-url",
            faults,
        );
        return None;
    }
    let Some(path) = &source.webhook_secret_file else {
        let purpose = "the platform tells by it that events come from this server";
        faults.push(ConfigFault::Missing {
            setting: &setting::webhook_secret_file,
            purpose,
        });
        return None;
    };
    or_fault(faults, WebhookSecret::load(path))
}

impl WebhookSecret {
    /// Reads the secret from a file.
    ///
    /// # Errors
    /// When it cannot be read, or holds no secret. The error does not contain it.
    pub fn load(path: &Path) -> Result<Self, WebhookSecretError> {
        let text = std::fs::read_to_string(path).map_err(|source| {
            let path = path.to_owned();
            WebhookSecretError::Unreadable { path, source }
        })?;
        Self::parse(without_mark(&text).trim())
            .ok_or_else(|| WebhookSecretError::Malformed(path.to_owned()))
    }

    /// Parses the text of a secret; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let key = STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?;
        let hmac = LENGTHS
            .contains(&key.len())
            .then(|| Hmac::new_from_slice(&key));
        hmac?.ok().map(Self)
    }

    /// The value of `webhook-signature`. `timestamp` is in seconds since 1970.
    pub(crate) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut hmac = self.0.clone();
        hmac.update(format!("{id}.{timestamp}.").as_bytes());
        hmac.update(body);
        format!("v1,{}", STANDARD.encode(hmac.finalize().into_bytes()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSecret").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signature was made by the project's own library for Python, `standardwebhooks` 1.1.0.
    #[test]
    fn it_signs_as_standard_webhooks_does() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        assert_eq!(
            secret.sign(id, 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for text in [
            "",
            "whsec_",
            "whsec_c2hvcnQ=",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_***",
        ] {
            assert!(WebhookSecret::parse(text).is_none(), "{text}");
        }
    }
}
