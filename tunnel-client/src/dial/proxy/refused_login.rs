//! Remembers the login that a proxy has refused. It is not sent at each dial, whichever server is dialled, since many
//! proxies lock an account out after a few refusals.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::{ProxyLogin, ProxyUrl};
use crate::dial::proxy_error::{ProxyError, ProxyResponse};

/// The refused logins of all proxies of a client, whose dials follow one another.
#[derive(Debug)]
pub(crate) struct RefusedLogins {
    wait: Duration,
    /// At most one for each server.
    by_proxy: Mutex<Vec<(ProxyUrl, Arc<RefusedLogin>)>>,
}

/// The last refused login of a proxy.
#[derive(Debug)]
pub(super) struct RefusedLogin {
    wait: Duration,
    last: Mutex<Option<(ProxyLogin, ProxyResponse, Instant)>>,
}

impl RefusedLogins {
    /// No login is refused yet. A refused one may be sent again after `wait`.
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            wait,
            by_proxy: Mutex::default(),
        }
    }

    /// The refused login of this proxy.
    pub(super) fn of(&self, proxy: &ProxyUrl) -> Arc<RefusedLogin> {
        let mut by_proxy = self.by_proxy.lock();
        if let Some((_, refused)) = by_proxy.iter().find(|(known, _)| known == proxy) {
            return Arc::clone(refused);
        }
        let refused = Arc::new(RefusedLogin::new(self.wait));
        by_proxy.push((proxy.clone(), Arc::clone(&refused)));
        refused
    }
}

impl RefusedLogin {
    fn new(wait: Duration) -> Self {
        Self {
            wait,
            last: Mutex::default(),
        }
    }

    /// Notes a refused login, and the proxy's response.
    pub(super) fn note(&self, login: &ProxyLogin, response: &ProxyResponse) {
        *self.last.lock() = Some((login.clone(), response.clone(), Instant::now()));
    }

    /// Checks whether a login may be sent.
    ///
    /// # Errors
    /// [`ProxyError::LoginSuppressed`] while it may not.
    pub(super) fn check(&self, login: Option<&ProxyLogin>) -> Result<(), ProxyError> {
        let last = self.last.lock();
        let Some((refused, response, at)) = &*last else {
            return Ok(());
        };
        let left = self.wait.saturating_sub(at.elapsed());
        if login != Some(refused) || left.is_zero() {
            return Ok(());
        }
        // Whole seconds, for readers of the error.
        let left = Duration::from_secs(left.as_secs() + 1);
        Err(ProxyError::LoginSuppressed(response.clone(), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(password: &str) -> ProxyLogin {
        ProxyLogin {
            user: "me".to_owned(),
            password: password.into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_login_is_held_until_it_changes_or_the_time_is_over() {
        let wait = Duration::from_secs(300);
        let refused = RefusedLogin::new(wait);
        let (wrong, right) = (login("wrong"), login("right"));
        assert!(refused.check(Some(&wrong)).is_ok());
        let response = ProxyResponse {
            status: None,
            text: "407".to_owned(),
            schemes: Vec::new(),
            login: None,
        };
        refused.note(&wrong, &response);
        let error = refused.check(Some(&wrong)).unwrap_err();
        assert!(matches!(&error, ProxyError::LoginSuppressed(held, _) if *held == response));
        assert!(!error.to_string().contains("wrong"), "{error}");
        assert!(refused.check(Some(&right)).is_ok() && refused.check(None).is_ok());
        tokio::time::advance(wait - Duration::from_secs(1)).await;
        assert!(refused.check(Some(&wrong)).is_err());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(refused.check(Some(&wrong)).is_ok());
    }
}
