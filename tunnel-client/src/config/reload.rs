//! Reloads the routes when their files have changed.
//!
//! In: the arguments of the start, and an event: a file changed, or SIGHUP. Out: a new table of routes and
//! a log line with the difference; or the last valid table and a log line for each fault. Only routes are reloaded. A
//! change of another setting takes effect at the next start and is logged by its key, as are faults that would prevent
//! that start.
//!
//! Files are read on a blocking thread, since there may be many, on a slow disk.

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

/// Reloads the routes.
pub(crate) struct Reloader {
    given: Given,
    watch: FileWatch,
    /// The program's own check at its start.
    starts: CheckStart,
    /// The arguments of the start. Their settings other than routes stay in use.
    started: Source,
    /// The last content of the files.
    last: Source,
}

/// The program's check at its start.
pub(crate) type CheckStart = fn(&Source) -> Result<(), ConfigError>;

/// The content of the files.
struct Files {
    source: Source,
    list: RouteList,
    /// Faults that would prevent a start.
    refused: Option<ConfigError>,
}

/// Why the last valid routes stay in use.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    /// A file, or its content.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An upstream cannot be set up.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The blocking task failed.
    #[error("reading the files failed: {0}")]
    Interrupted(#[from] JoinError),
}

impl Reloader {
    /// Begins to watch the files. Call this before the files are read for the first time, so that no change is missed, and
    /// within a tokio runtime. `starts` is the program's own check at its start.
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

    /// Reloads at each event until the result is dropped.
    pub(crate) fn start(mut self, routes: Arc<Routes>, metrics: Arc<Metrics>) -> Owned<()> {
        Owned::spawn("reload", async move {
            loop {
                let change = self.watch.changed().await;
                // Before they are read, so that no change of a newly named file is missed.
                let given = self.given.clone();
                self.watch.set_paths(move || given.watched()).await;
                self.reload(&routes, &metrics, &change).await;
            }
        })
    }

    async fn reload(&mut self, routes: &Routes, metrics: &Metrics, change: &Change) {
        let files = &change.files;
        tracing::info!(
            ?files,
            sighup = change.is_requested,
            "reading the routes again"
        );
        let result = self.apply(routes).await;
        metrics.on_reload(result.is_ok());
        match result {
            Ok((difference, count)) if difference.is_none() => {
                tracing::info!(routes = count, "the routes are valid and have not changed");
            }
            Ok((difference, count)) => {
                tracing::info!(routes = count, %difference, "the routes are valid and in use");
            }
            Err(error) => {
                for fault in error.to_string().lines() {
                    tracing::error!(
                        fault,
                        "the routes are not valid, the last valid ones stay in use"
                    );
                }
            }
        }
    }

    async fn apply(&mut self, routes: &Routes) -> Result<(RoutesDifference, usize), ReloadError> {
        let (given, starts) = (self.given.clone(), self.starts);
        let read = spawn_blocking(move || Files::read(given, starts)).await?;
        let Files {
            source,
            list,
            refused,
        } = read?;
        let difference = routes.replace(&list)?;
        let refused = refused.map(|error| error.to_string());
        for fault in refused.iter().flat_map(|text| text.lines()) {
            tracing::warn!(
                fault,
                "the routes are valid, but the client would not start with these settings"
            );
        }
        let settings = self.unapplied(source);
        if !settings.is_empty() {
            tracing::warn!(
                settings = settings.join(", "),
                "settings other than the routes have changed: restart the client to apply them"
            );
        }
        Ok((difference, list.len()))
    }

    /// The changed settings other than routes, unless they were reported before.
    fn unapplied(&mut self, source: Source) -> Vec<&'static str> {
        let keys = not_taken_over(&self.started, &source);
        let is_news = !not_taken_over(&self.last, &source).is_empty();
        self.last = source;
        if is_news { keys } else { Vec::new() }
    }
}

impl Files {
    /// Reads the files. Blocks.
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

/// The keys of the changed settings that take effect at the next start.
fn not_taken_over(before: &Source, after: &Source) -> Vec<&'static str> {
    let changed = before.differences(after).into_iter();
    let kept = changed.filter(|setting| matches!(setting.reload, Reload::Restart));
    kept.map(|setting| setting.key).collect()
}

/// Checks all routes, and reads the files that they name.
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
