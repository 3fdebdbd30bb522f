//! The steps of a dial: their names, their limit, and how one of them fails.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use rustls::CertificateError;
use tokio::time::timeout;

use super::proxy::ProxyError;
use super::race::{AllFailed, Attempt};
use super::tls;

/// One step of a dial. Those that concern a proxy are left out where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The addresses of the proxy's name are looked up.
    ProxyResolve,
    /// A TCP connection is made to the proxy.
    ProxyConnect,
    /// TLS is agreed on with the proxy, its certificate checked.
    ProxyTls,
    /// The proxy is asked for the way to the server.
    ProxyAsk,
    /// The name's addresses are looked up.
    Resolve,
    /// A TCP connection is made.
    Connect,
    /// TLS is agreed on, the certificate checked.
    Tls,
    /// A session is asked for.
    Upgrade,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// It took longer than it may.
    #[error("{0} took longer than {1:?}")]
    TimedOut(Step, Duration),
    /// It failed.
    #[error("{0} failed: {1}")]
    Failed(Step, #[source] io::Error),
}

/// Takes one step within its limit.
pub(crate) async fn within<T>(
    step: Step,
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, StepError> {
    match timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        // The system has limits of its own, which mean the same.
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut && !says_more(&error) => {
            Err(StepError::TimedOut(step, limit))
        }
        Ok(Err(error)) => Err(StepError::Failed(step, error)),
        Err(_) => Err(StepError::TimedOut(step, limit)),
    }
}

/// Whether an error says more than that it took too long.
fn says_more(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<AllFailed>())
}

impl StepError {
    /// The step.
    pub(crate) fn step(&self) -> Step {
        match self {
            Self::TimedOut(step, _) | Self::Failed(step, _) => *step,
        }
    }

    /// What the proxy said, where it is the proxy that ended the dial.
    pub(crate) fn proxy(&self) -> Option<&ProxyError> {
        self.inner()
    }

    /// What is wrong with the certificate that was shown, if that is it.
    pub(crate) fn certificate(&self) -> Option<&CertificateError> {
        match self {
            Self::Failed(_, error) => tls::certificate_error(error),
            Self::TimedOut(..) => None,
        }
    }

    /// Each address that was tried in vain, and why.
    pub(crate) fn attempts(&self) -> &[Attempt] {
        self.inner::<AllFailed>()
            .map(AllFailed::attempts)
            .unwrap_or_default()
    }

    fn inner<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Failed(_, error) => error.get_ref()?.downcast_ref(),
            Self::TimedOut(..) => None,
        }
    }
}

impl Step {
    /// One word for metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ProxyResolve => "proxy_resolve",
            Self::ProxyConnect => "proxy_connect",
            Self::ProxyTls => "proxy_tls",
            Self::ProxyAsk => "proxy_ask",
            Self::Resolve => "resolve",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Upgrade => "upgrade",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProxyResolve => "looking up the proxy's name",
            Self::ProxyConnect => "connecting to the proxy",
            Self::ProxyTls => "TLS to the proxy",
            Self::ProxyAsk => "asking the proxy",
            Self::Resolve => "looking up the name",
            Self::Connect => "connecting",
            Self::Tls => "TLS",
            Self::Upgrade => "asking for a session",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_step_has_a_limit_and_its_name_in_the_error() {
        let limit = Duration::from_secs(10);
        let error = within(Step::Tls, limit, std::future::pending::<io::Result<()>>()).await;
        assert_eq!(error.unwrap_err().to_string(), "TLS took longer than 10s");
        let refused = async { Err::<(), _>(io::ErrorKind::ConnectionRefused.into()) };
        let error = within(Step::Connect, limit, refused).await.unwrap_err();
        assert_eq!(error.to_string(), "connecting failed: connection refused");
        let late = async { Err::<(), _>(io::ErrorKind::TimedOut.into()) };
        let error = within(Step::ProxyConnect, limit, late).await.unwrap_err();
        let expected = "connecting to the proxy took longer than 10s";
        assert_eq!(error.to_string(), expected);
    }
}
