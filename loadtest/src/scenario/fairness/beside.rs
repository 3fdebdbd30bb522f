//! What runs beside small requests: downloads at the upstream's pace, unthrottled, or hardly read.

use std::{sync::Arc, time::Duration};

use http::Method;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{
    client::{Dialer, body::Outgoing},
    load::{Load, Worker},
    measure::{
        Recorder,
        errors::{Failure, Kind},
    },
    scenario::{
        connection::{PAUSE, dial_within, within},
        fairness::{Args, phase::Beside},
    },
    target::{Target, Template},
};

/// Large requests of one kind, over and over.
struct Downloads {
    dialer: Dialer,
    http2: bool,
    template: Template,
    /// Bytes a second that are read at most.
    reads: Option<f64>,
}

/// The load beside small requests, if any.
pub(super) fn load(args: &Args, target: &Target, beside: Beside) -> anyhow::Result<Option<Load>> {
    let paced = args
        .paced_path
        .replace("{rate}", &args.bulk_rate.as_u64().to_string());
    let (count, path, reads) = match beside {
        Beside::Nothing => return Ok(None),
        Beside::Paced => (args.bulk_streams, &paced, None),
        Beside::Unthrottled => (args.bulk_streams, &args.bulk_path, None),
        Beside::SlowReaders => {
            let rate = args.slow_rate.as_u64().max(1) as f64;
            (args.slow_readers, &args.bulk_path, Some(rate))
        }
    };
    let downloads = Arc::new(Downloads {
        dialer: target.dialer.clone(),
        http2: target.http2,
        template: target.template(Method::GET, Some(path))?,
        reads,
    });
    let mut load = Load::new(args.stretch_beside(), args.load.threads.into());
    load.group("downloads", count, move |worker| {
        work(downloads.clone(), worker)
    });
    Ok(Some(load))
}

async fn work(downloads: Arc<Downloads>, mut worker: Worker) {
    let window = worker.ready().await;
    while !window.is_over() {
        let begun = Instant::now();
        let download = downloads.one(worker.timeout, &worker.recorder);
        // Those that last until the end are cut off, which is no failure.
        let Ok(done) = timeout_at(window.end, download).await else {
            return;
        };
        match done {
            Ok(length) => worker.recorder.completed(begun, 0, length),
            Err(failure) => {
                // In the warm-up too, or the phase would be called loaded when it was not.
                worker
                    .recorder
                    .failed(begun.max(window.begin), failure.kind);
                sleep(PAUSE).await;
            }
        }
    }
}

impl Downloads {
    /// One download. Its bytes are recorded as they come; gives zero, for they count once.
    async fn one(&self, limit: Duration, recorder: &Recorder) -> Result<u64, Failure> {
        let mut connection = dial_within(limit, &self.dialer, self.http2).await?;
        let request = self.template.request(Outgoing::Empty);
        let (head, mut content) = within(limit, connection.send(request)).await?.into_parts();
        if !head.status.is_success() {
            return Err(Failure::fatal(Kind::Status(head.status.as_u16())));
        }
        let begun = Instant::now();
        let mut read = 0;
        while let Some(piece) = connection.frame(&mut content).await? {
            recorder.bytes(0, piece.len() as u64);
            read += piece.len();
            if let Some(rate) = self.reads {
                // What is not read stays where it is: in sockets, and in the tunnel.
                sleep_until(begun + Duration::from_secs_f64(read as f64 / rate)).await;
            }
        }
        Ok(0)
    }
}
