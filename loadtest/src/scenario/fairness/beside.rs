//! What runs beside small requests: downloads at the upstream's pace, unthrottled, or hardly read. What
//! goes beyond limits is made by `limits`.

use std::{sync::Arc, time::Duration};

use http::Method;
use hyper::body::Incoming;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    client::{Dialer, body::Outgoing},
    load::{Load, Worker},
    measure::{
        Recorder,
        errors::{Failure, Kind},
    },
    scenario::{
        connection::{Connection, PAUSE, dial_within, within},
        fairness::{Args, limits, phase::Beside},
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
    /// Whether their window is open.
    is_open: watch::Sender<bool>,
}

/// The load beside small requests, if any, and who is told that its window is open: all downloads
/// that can run do so then.
pub(super) fn load(
    args: &Args,
    target: &Target,
    beside: Beside,
) -> anyhow::Result<Option<(Load, watch::Receiver<bool>)>> {
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
        Beside::Limit(limit) => return limits::load(args, target, limit).map(Some),
    };
    let (is_open, told) = watch::channel(false);
    let downloads = Arc::new(Downloads {
        dialer: target.dialer.clone(),
        http2: target.http2,
        template: target.template(Method::GET, Some(path))?,
        reads,
        is_open,
    });
    let mut load = Load::new(args.stretch_beside(), args.load.threads.into());
    load.group("downloads", count, move |worker| {
        work(downloads.clone(), worker)
    });
    Ok(Some((load, told)))
}

async fn work(downloads: Arc<Downloads>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again below, and is counted there.
    let mut begun = downloads.begin(limit).await.ok();
    let window = worker.ready().await;
    downloads.is_open.send_replace(true);
    while !window.is_over() {
        let since = Instant::now();
        let first = begun.take();
        let download = async {
            let begun = match first {
                Some(begun) => begun,
                None => downloads.begin(limit).await?,
            };
            downloads.read(begun, &worker.recorder).await
        };
        // Those that last until the end are cut off, which is no failure.
        let Ok(done) = timeout_at(window.end, download).await else {
            return;
        };
        match done {
            // Its bytes were recorded as they came.
            Ok(()) => worker.recorder.completed(since, 0, 0),
            Err(failure) => {
                // In the warm-up too, or the phase would be called loaded when it was not.
                worker
                    .recorder
                    .failed(since.max(window.begin), failure.kind);
                sleep(PAUSE).await;
            }
        }
    }
}

/// A download of which the head has come.
struct Begun {
    connection: Connection,
    content: Incoming,
}

impl Downloads {
    async fn begin(&self, limit: Duration) -> Result<Begun, Failure> {
        let mut connection = dial_within(limit, &self.dialer, self.http2).await?;
        let request = self.template.request(Outgoing::Empty);
        let (head, content) = within(limit, connection.send(request)).await?.into_parts();
        if !head.status.is_success() {
            return Err(Failure::fatal(Kind::Status(head.status.as_u16())));
        }
        Ok(Begun {
            connection,
            content,
        })
    }

    async fn read(&self, begun: Begun, recorder: &Recorder) -> Result<(), Failure> {
        let Begun {
            mut connection,
            mut content,
        } = begun;
        let since = Instant::now();
        let mut read = 0;
        while let Some(piece) = connection.frame(&mut content).await? {
            recorder.bytes(0, piece.len() as u64);
            read += piece.len();
            if let Some(rate) = self.reads {
                // What is not read stays where it is: in sockets, and in the tunnel.
                sleep_until(since + Duration::from_secs_f64(read as f64 / rate)).await;
            }
        }
        Ok(())
    }
}
