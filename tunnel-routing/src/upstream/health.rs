//! Checks of an upstream that are made whether anybody asks for it or not.
//!
//! In: an upstream, and how it is to be checked. Out: each change of what the checks say. A check is
//! a GET over the upstream's own connections, by the rules of any request, that has to be answered
//! with a 2xx or 3xx in time.

use std::pin::pin;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::time::{sleep, timeout};
use tunnel_proto::exchange::AsProblem;

use super::{Asked, Upstream};

/// Longest answer that is read to its end, so that the connection can be used again.
const BODY_BYTES: usize = 64 * 1024;

/// How upstreams are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthSettings {
    /// What is asked for: a path, and a query if it has one.
    pub(crate) path: PathAndQuery,
    /// The host that is named, if it is not the upstream's own.
    pub(crate) host: Option<HeaderValue>,
    /// Time between two checks.
    pub(crate) interval: Duration,
    /// For a whole check.
    pub(crate) timeout: Duration,
    /// Failures in a row that make it unhealthy. At least 1.
    pub(crate) unhealthy_after: u32,
    /// Successes in a row that make it healthy again. At least 1.
    pub(crate) healthy_after: u32,
}

/// What the checks of one upstream say so far.
#[derive(Debug)]
pub(super) struct Health {
    is_unhealthy: bool,
    /// Results in a row that say otherwise.
    against: u32,
}

impl Health {
    /// As it is known to be, until checks say otherwise.
    pub(super) fn new(is_unhealthy: bool) -> Self {
        Self {
            is_unhealthy,
            against: 0,
        }
    }

    /// Takes note of a result. What it is from now on, if that is a change.
    pub(super) fn on_checked(&mut self, is_good: bool, settings: &HealthSettings) -> Option<bool> {
        if is_good != self.is_unhealthy {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let needed = if self.is_unhealthy {
            settings.healthy_after
        } else {
            settings.unhealthy_after
        };
        if self.against < needed {
            return None;
        }
        *self = Self::new(!self.is_unhealthy);
        Some(self.is_unhealthy)
    }
}

/// Checks an upstream again and again, for as long as it is polled, and tells each result.
pub(super) async fn keep_checking(
    upstream: &Upstream,
    settings: &HealthSettings,
    mut on_checked: impl FnMut(Result<(), String>),
) {
    // All clients of a rollout start at once, and so do all routes of one.
    sleep(share(settings.interval / 10)).await;
    loop {
        let checked = check(
            upstream,
            &settings.path,
            settings.host.as_ref(),
            settings.timeout,
        );
        on_checked(checked.await);
        sleep(settings.interval.mul_f64(0.9) + share(settings.interval / 5)).await;
    }
}

/// One check within a time; why it failed.
pub(super) async fn check(
    upstream: &Upstream,
    path: &PathAndQuery,
    host: Option<&HeaderValue>,
    limit: Duration,
) -> Result<(), String> {
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from(path.clone());
    // The first of the fields, where it is looked for.
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host.clone());
    }
    let by = HeaderValue::from_static("tunnel-client/health");
    request.headers_mut().insert(USER_AGENT, by);
    let mut asked = Asked::bare(request.into_parts().0);
    let checking = async {
        let response = upstream
            .ask(&mut asked)
            .await
            .map_err(|problem| problem.to_string())?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(format!("status {}", status.as_u16()));
        }
        // What it says is of no interest, but that it can be said.
        let mut body = pin!(Limited::new(response.into_body(), BODY_BYTES));
        while let Some(frame) = body.frame().await {
            let Err(error) = frame else { continue };
            return match error.downcast::<super::failure::UpstreamBodyError>() {
                Ok(error) => Err(error.as_problem().to_string()),
                // It is long, which is no fault.
                Err(_) => Ok(()),
            };
        }
        Ok(())
    };
    match timeout(limit, Box::pin(checking)).await {
        Ok(checked) => checked,
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// A random part of a time.
fn share(time: Duration) -> Duration {
    // One that is not random only makes checks less spread.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    time.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_some_results_in_a_row_to_change_a_mind() {
        let settings = HealthSettings {
            path: "/healthz".parse().unwrap(),
            host: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            unhealthy_after: 3,
            healthy_after: 2,
        };
        let mut health = Health::new(false);
        let mut on = |is_good| health.on_checked(is_good, &settings);
        for is_good in [true, false, false, true, false, false] {
            assert_eq!(on(is_good), None);
        }
        assert_eq!(on(false), Some(true));
        for is_good in [false, true, false, true] {
            assert_eq!(on(is_good), None);
        }
        assert_eq!(on(true), Some(false));
        assert_eq!(on(false), None);
    }
}
