//! A step of a dial: its limit, and how it fails. `S` names the steps of the caller.

use std::future::Future;
use std::io;
use std::time::Duration;

use rustls::CertificateError;
use tokio::time::timeout;

use super::race::{AllFailed, Attempt};
use super::tls;

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError<S> {
    /// It took longer than it may.
    #[error("{0} took longer than {1:?}")]
    TimedOut(S, Duration),
    /// It failed.
    #[error("{step} failed: {error}", step = .0, error = described(.1))]
    Failed(S, #[source] io::Error),
}

/// Frequent errors of TLS in words; other errors as they are.
fn described(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    match of_tls {
        Some(rustls::Error::InvalidMessage(_)) => {
            format!(
                "what answers there speaks no TLS, as another port or a plain web server ({error})"
            )
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            format!(
                "the certificate is signed by a CA that is not trusted here, such as a private one: if this is the right \
                 server, give the certificate of that CA as a CA file ({error})"
            )
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(other)))
            if other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity) =>
        {
            format!(
                "the certificate is that of a CA (`CA:TRUE`), which no server may use as its own, also where it is trusted: \
                 make another one with `CA:FALSE`, such as by `openssl req -x509 … -addext \
                 basicConstraints=critical,CA:FALSE`, or one that this CA signs ({error})"
            )
        }
        Some(rustls::Error::InvalidCertificate(certificate))
            if tls::is_old_certificate(certificate) =>
        {
            "the certificate is of X.509 version 1, which is not supported: make it again with the extension \
             subjectAltName, which gives it version 3"
                .to_owned()
        }
        Some(_) if tls::is_protocol_refused(error) => {
            "it agrees to none of the versions of HTTP that were offered to it (by ALPN)".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Awaits a step within its limit.
pub async fn within<S, T>(
    step: S,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, StepError<S>> {
    match timeout(limit, work).await {
        Ok(ended) => ended_within(step, limit, ended),
        Err(_) => Err(StepError::TimedOut(step, limit)),
    }
}

/// Converts the result of a step that keeps its limit itself, since its error says more than that the limit is over.
pub fn ended_within<S, T>(
    step: S,
    limit: Duration,
    ended: io::Result<T>,
) -> Result<T, StepError<S>> {
    match ended {
        // A time-out of the system is reported as one of the step.
        Err(error) if error.kind() == io::ErrorKind::TimedOut && !says_more(&error) => {
            Err(StepError::TimedOut(step, limit))
        }
        ended => ended.map_err(|error| StepError::Failed(step, error)),
    }
}

/// Whether an error says more than that time is over.
fn says_more(error: &io::Error) -> bool {
    error.get_ref().is_some()
}

impl<S: Copy> StepError<S> {
    /// The step.
    pub fn step(&self) -> S {
        match self {
            Self::TimedOut(step, _) | Self::Failed(step, _) => *step,
        }
    }

    /// The error of the certificate that the peer showed, if that is the cause.
    pub fn certificate(&self) -> Option<&CertificateError> {
        match self {
            Self::Failed(_, error) => tls::certificate_error(error),
            Self::TimedOut(..) => None,
        }
    }

    /// The addresses that failed.
    pub fn attempts(&self) -> &[Attempt] {
        self.inner::<AllFailed>()
            .map(AllFailed::attempts)
            .unwrap_or_default()
    }

    /// The error within, if it is of this kind.
    pub fn inner<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Failed(_, error) => error.get_ref()?.downcast_ref(),
            Self::TimedOut(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;

    use super::super::race::race;
    use super::*;

    #[derive(Debug, Clone, Copy)]
    struct Step(&'static str);

    impl fmt::Display for Step {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_step_has_a_limit_and_its_name_in_the_error() {
        let limit = Duration::from_secs(10);
        let error = within(Step("TLS"), limit, std::future::pending::<io::Result<()>>()).await;
        assert_eq!(error.unwrap_err().to_string(), "TLS took longer than 10s");
        let refused = async { Err::<(), _>(io::ErrorKind::ConnectionRefused.into()) };
        let error = within(Step("connecting"), limit, refused)
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "connecting failed: connection refused");
        let late = async { Err::<(), _>(io::ErrorKind::TimedOut.into()) };
        let error = within(Step("connecting to the proxy"), limit, late)
            .await
            .unwrap_err();
        let expected = "connecting to the proxy took longer than 10s";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn what_a_peer_refuses_or_shows_is_said_in_words() {
        use rustls::{AlertDescription, Error, OtherError};

        let old = OtherError(Arc::new(webpki::Error::UnsupportedCertVersion));
        let old = Error::InvalidCertificate(CertificateError::Other(old));
        let refused = "it agrees to none of the versions of HTTP";
        for (error, words) in [
            (Error::NoApplicationProtocol, refused),
            (
                Error::AlertReceived(AlertDescription::NoApplicationProtocol),
                refused,
            ),
            (old, "the certificate is of X.509 version 1"),
        ] {
            let error = StepError::Failed(Step("TLS"), io::Error::other(error)).to_string();
            let expected = format!("TLS failed: {words}");
            assert!(error.starts_with(&expected), "{error}");
            assert!(
                !error.contains("Protocol") && !error.contains("Version"),
                "{error}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_race_that_nobody_wins_in_time_still_names_the_addresses() {
        let limit = Duration::from_secs(10);
        let addresses = ["192.0.2.1:1".parse().unwrap()];
        let never = |_| std::future::pending::<io::Result<()>>();
        let lost = race(&addresses, limit, never).await;
        let ended = lost.map_err(io::Error::from);
        let error = ended_within(Step("connecting"), limit, ended)
            .err()
            .unwrap();
        assert_eq!(
            error.to_string(),
            "connecting failed: 192.0.2.1:1: no answer"
        );
    }
}
