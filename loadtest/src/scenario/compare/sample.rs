//! One load over one target, once: the run of a round.

use std::{fmt, sync::Arc};

use http::Method;

use super::Args;
use crate::{
    load::Load,
    progress::Progress,
    report::{
        Note, Run, format,
        tables::{CPU_PER_GIB, CPU_PER_REQUEST, Figure, P50, P99, RATE, THROUGHPUT},
    },
    scenario::{
        http::Requests,
        transfer::{self, Flow, Transfer},
    },
    target::Target,
};

/// What goes over a connection before a transfer is measured, so that its windows have grown.
const WARM: u64 = 64 << 20;

/// How many of the bytes of a whole transfer go before it at most: one of so many.
const WARM_SHARE: u64 = 8;

/// The load on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadLevel {
    /// Small requests over so many connections.
    Http(usize),
    /// So many bytes down.
    Download(u64),
    /// So many bytes up.
    Upload(u64),
}

impl LoadLevel {
    /// The figures of its table.
    pub(super) fn figures(self) -> &'static [Figure] {
        match self {
            Self::Http(_) => &[CPU_PER_REQUEST, RATE, P50, P99],
            Self::Download(_) | Self::Upload(_) => &[THROUGHPUT, CPU_PER_GIB],
        }
    }
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |size: &u64| format::bytes(*size as f64);
        match self {
            Self::Http(1) => formatter.write_str("small GET, 1 connection"),
            Self::Http(count) => write!(formatter, "small GET, {count} connections"),
            Self::Download(size) => write!(formatter, "download of {}", bytes(size)),
            Self::Upload(size) => write!(formatter, "upload of {}", bytes(size)),
        }
    }
}

/// Measures one level over a target once. What fails is part of the run.
pub(super) async fn measure(
    level: LoadLevel,
    target: &Target,
    args: &Args,
    progress: &Progress,
) -> anyhow::Result<(Run, Vec<Note>)> {
    let mut load;
    match level {
        LoadLevel::Http(connections) => {
            let client = Requests::new(target.template(Method::GET, None)?, 0)?;
            load = Load::new(args.load);
            let name = "small requests";
            load.requests(name, connections, None, Arc::new(client));
        }
        LoadLevel::Download(size) | LoadLevel::Upload(size) => {
            let is_upload = matches!(level, LoadLevel::Upload(_));
            let flow = Arc::new(Flow {
                warm_up: Some(transfer(target, is_upload, warm_size(size))?),
                ..Flow::new(transfer(target, is_upload, size)?, 1)
            });
            load = Load::until_done(args.load);
            load.group("transfer", 1, None, flow, transfer::work);
        }
    }
    let (mut run, notes) = load.run(progress, &target.roles).await?.into_run();
    if !matches!(level, LoadLevel::Http(_)) {
        // A transfer is as large as one likes: what counts are its throughput and the cost of a gibibyte.
        (run.latency, run.histogram, run.cpu_us_per_request) = (None, None, None);
    }
    Ok((run, notes))
}

/// A transfer one way, below the path of the target's URL.
fn transfer(target: &Target, is_upload: bool, size: u64) -> anyhow::Result<Transfer> {
    let (method, path) = match is_upload {
        true => (Method::POST, "/upload".to_owned()),
        false => (Method::GET, format!("/bytes/{size}")),
    };
    let path = below(target.uri().path(), &path);
    let template = target.template(method, Some(&path))?;
    Ok(Transfer::new(template, is_upload, Some(size)))
}

/// The size of the transfer before the measured one.
pub(super) fn warm_size(size: u64) -> u64 {
    (size / WARM_SHARE).min(WARM)
}

/// The path below that of the target's URL.
fn below(prefix: &str, path: &str) -> String {
    format!("{}{path}", prefix.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lie_below_the_url() {
        assert_eq!(below("/", "/upload"), "/upload");
        assert_eq!(below("/a/b/", "/upload"), "/a/b/upload");
        assert_eq!(below("", "/bytes/1"), "/bytes/1");
    }

    #[test]
    fn a_warm_transfer_is_a_small_part_of_the_measured_one() {
        assert_eq!(warm_size(1 << 30), 64 << 20);
        assert_eq!(warm_size(800), 100);
    }
}
