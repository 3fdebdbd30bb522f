//! Takes over the routes anew when the files that they stand in have changed.
//!
//! In: what was given at the start, and an event: a file changed, a minute passed, or SIGHUP came. Out: a new table of
//! routes, and a log line with the difference; or the last good table and a log line for each fault. Only routes are
//! taken over. A change of any other setting counts at the next start and is logged by its key; so is what would keep
//! the client from starting then.
//!
//! Files are read beside the thread that moves the bytes: there may be many, on a slow disk.

use std::sync::Arc;

use tokio::task::{JoinError, spawn_blocking};
use tunnel_ops::settings::Reload;
use tunnel_ops::task::Owned;
use tunnel_ops::watch::{Change, FileWatch, WatchError};
use tunnel_routing::Routes;
use tunnel_routing::config::{RouteList, RoutesDifference};
use tunnel_routing::upstream::UpstreamError;

use super::{ConfigError, Given, Source, check_routes, check_upstream, defaults, upstream_roots};
use crate::metrics::Metrics;

/// Follows the files.
pub(crate) struct Reloader {
    given: Given,
    watch: FileWatch,
    /// Whether the program would start with this.
    starts: CheckStart,
    /// What was given at the start, whose settings beside the routes are those that count.
    started: Source,
    /// The files as they were last read.
    last: Source,
}

/// The check that a start makes.
pub(crate) type CheckStart = fn(&Source) -> Result<(), ConfigError>;

/// What was read.
struct Files {
    source: Source,
    list: RouteList,
    /// What would refuse a start with it.
    refused: Option<ConfigError>,
}

/// Why the last good routes stay.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// A file, or what is in it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Upstreams cannot be as the files say.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// Nobody has read them to their end.
    #[error("the files were not read to their end: {0}")]
    Interrupted(#[from] JoinError),
}

impl Reloader {
    /// Begins to watch; made before the files are read for the first time, so that no edit in between is
    /// missed. `starts` is the check that the program makes at its start. Must be called within a runtime.
    pub(crate) fn new(given: Given, starts: CheckStart) -> Result<Self, WatchError> {
        let started = given.clone().merge().unwrap_or_default();
        Ok(Self {
            watch: FileWatch::new(given.watched())?,
            given,
            starts,
            last: started.clone(),
            started,
        })
    }

    /// Follows the files until the result is dropped.
    pub(crate) fn start(mut self, routes: Arc<Routes>, metrics: Arc<Metrics>) -> Owned<()> {
        Owned::spawn("reload", async move {
            loop {
                let change = self.watch.changed().await;
                // Before they are read, as at the start: files that are new among them change from here on.
                let given = self.given.clone();
                if let Ok(files) = spawn_blocking(move || given.watched()).await {
                    self.watch.set_paths(files);
                }
                self.reload(&routes, &metrics, &change).await;
            }
        })
    }

    async fn reload(&mut self, routes: &Routes, metrics: &Metrics, change: &Change) {
        let files = &change.files;
        tracing::info!(
            ?files,
            asked = change.is_requested,
            "reading the routes again"
        );
        let result = self.take_over(routes).await;
        metrics.on_reload(result.is_ok());
        match result {
            Ok((difference, count)) if difference.is_none() => {
                tracing::info!(
                    routes = count,
                    "the routes are good and say what they said before"
                );
            }
            Ok((difference, count)) => {
                tracing::info!(routes = count, %difference, "the routes are good and in force");
            }
            Err(error) => {
                for fault in error.to_string().lines() {
                    tracing::error!(fault, "the routes are not good, the last good ones stay");
                }
            }
        }
    }

    async fn take_over(
        &mut self,
        routes: &Routes,
    ) -> Result<(RoutesDifference, usize), ReloadError> {
        let (given, starts) = (self.given.clone(), self.starts);
        let read = spawn_blocking(move || Files::read(given, starts)).await?;
        let Files {
            source,
            list,
            refused,
        } = read?;
        let difference = routes.replace(&list)?;
        for fault in refused.iter().flat_map(ConfigError::faults) {
            tracing::warn!(%fault, "the routes are good, but the client would not start with these settings");
        }
        let settings = self.news(source);
        if !settings.is_empty() {
            tracing::warn!(
                settings = settings.join(", "),
                "settings other than the routes have changed: they count when the client is started anew"
            );
        }
        Ok((difference, list.len()))
    }

    /// The settings beside the routes that are not those in force, unless that was reported already.
    fn news(&mut self, source: Source) -> Vec<&'static str> {
        let keys = not_taken_over(&self.started, &source);
        let is_news = !not_taken_over(&self.last, &source).is_empty();
        self.last = source;
        if is_news { keys } else { Vec::new() }
    }
}

impl Files {
    /// Reads them. Takes as long as the disk does.
    fn read(given: Given, starts: CheckStart) -> Result<Self, ConfigError> {
        let source = given.merge()?;
        let list = check(&source)?;
        let refused = starts(&source).err();
        Ok(Self {
            source,
            list,
            refused,
        })
    }
}

/// The keys of the settings that have changed, and that only the next start takes over.
fn not_taken_over(before: &Source, after: &Source) -> Vec<&'static str> {
    let changed = before.differences(after).into_iter();
    let kept = changed.filter(|setting| matches!(setting.reload, Reload::Restart));
    kept.map(|setting| setting.key).collect()
}

/// All routes, with the files that they name.
pub(super) fn check(source: &Source) -> Result<RouteList, ConfigError> {
    let mut faults = Vec::new();
    check_upstream(source, &mut faults);
    let roots = upstream_roots(source, &mut faults);
    match check_routes(source, true, &mut faults) {
        Some(list) if faults.is_empty() => {
            Ok(list.with_upstream(&defaults(&source.settings()), roots))
        }
        _ => Err(ConfigError::new(faults)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_what_is_not_taken_over_is_seen_even_where_no_text_shows_it() {
        let changed = |before: &str, after: &str| {
            let [before, after] = [before, after].map(|text| toml::from_str(text).unwrap());
            not_taken_over(&before, &after)
        };
        let first = "proxy = 'http://me:one@proxy'";
        let routed = "proxy = 'http://me:one@proxy'\nupstream = 'http://a:1'";
        assert_eq!(changed(first, routed), [""; 0]);
        assert_eq!(changed(first, "proxy = 'http://me:two@proxy'"), ["proxy"]);
        let more = "sessions = 3\ntoken_file = 'other'\nca_file = ['a', 'b']";
        assert_eq!(
            changed(first, more),
            ["token_file", "ca_file", "proxy", "sessions"]
        );
    }
}
