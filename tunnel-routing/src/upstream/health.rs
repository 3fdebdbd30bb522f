//! Active health checks of an upstream.
//!
//! In: an upstream and its settings. Out: each change of its health. A check is a GET over the upstream's own
//! connections, by the rules of any request; a 2xx or 3xx in time is a success.

use std::pin::pin;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::time::{sleep, timeout};
use tunnel_proto::exchange::AsProblem;

use super::settings::HealthOptions;
use super::{RoutedRequest, Upstream};

/// Longest response that is read to its end, so that its connection can be used again.
const BODY_BYTES: usize = 64 * 1024;

/// The result of the checks of one upstream so far.
#[derive(Debug)]
pub(super) struct Health {
    is_unhealthy: bool,
    /// Consecutive results to the contrary.
    against: u32,
}

impl Health {
    /// Starts from the state that the upstream has.
    pub(super) fn new(is_unhealthy: bool) -> Self {
        Self {
            is_unhealthy,
            against: 0,
        }
    }

    /// Records a result; returns the new state if it changes.
    pub(super) fn on_checked(&mut self, is_good: bool, settings: &HealthOptions) -> Option<bool> {
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

/// Checks an upstream periodically, for as long as it is polled, and passes on each result.
pub(super) async fn keep_checking(
    upstream: &Upstream,
    settings: &HealthOptions,
    mut on_checked: impl FnMut(Result<(), String>),
) {
    // The first check comes after a random part of the interval: all clients of a rollout start at once, and so do all
    // routes of a client.
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

/// Makes one check; an error says why it failed.
pub(super) async fn check(
    upstream: &Upstream,
    path: &PathAndQuery,
    host: Option<&HeaderValue>,
    limit: Duration,
) -> Result<(), String> {
    let mut request = Request::new(());
    *request.uri_mut() = Uri::from(path.clone());
    // `Host` is the first field, where the sender expects it.
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host.clone());
    }
    let by = HeaderValue::from_static("tunnel-client/health");
    request.headers_mut().insert(USER_AGENT, by);
    let mut request = RoutedRequest::bare(request.into_parts().0);
    let checking = async {
        let response = upstream
            .forward(&mut request)
            .await
            .map_err(|problem| problem.to_string())?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(format!("status {}", status.as_u16()));
        }
        // The content does not matter, but that it arrives does.
        let mut body = pin!(Limited::new(response.into_body(), BODY_BYTES));
        while let Some(frame) = body.frame().await {
            let Err(error) = frame else { continue };
            return match error.downcast::<super::failure::UpstreamBodyError>() {
                Ok(error) => Err(error.as_problem().to_string()),
                // A long content is no failure.
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

/// A random part of `time`.
fn share(time: Duration) -> Duration {
    // Without random numbers checks are only less spread.
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    time.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_some_results_in_a_row_to_change_a_mind() {
        let settings = HealthOptions {
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
