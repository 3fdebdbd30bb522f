//! What runs beside small requests.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Method};
use hyper::body::Incoming;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{
    Args,
    phase::{Beside, Limit},
};
use crate::{
    client::{
        connection::Connection,
        template::{PAUSE, Template},
    },
    load::{Load, Pace, Worker},
    measure::{Recorder, errors::Failure},
    scenario::{http::Requests, websocket::Echo},
    target::Target,
};

struct Downloads {
    template: Template,
    /// Bytes a second that are read, if not all that come.
    reads: Option<f64>,
    is_open: watch::Sender<bool>,
}

/// The load of a phase, and a receiver that holds true once it runs; none for the unloaded phase.
pub(super) fn load(
    args: &Args,
    target: &Target,
    beside: Beside,
) -> anyhow::Result<Option<(Load, watch::Receiver<bool>)>> {
    let mut load = Load::new(args.stretch_beside(), args.load.threads.into());
    let rate = args.bulk_rate.as_u64().to_string();
    let paced = args.paced_path.replace("{rate}", &rate);
    let slow = args.slow_rate.as_u64().max(1) as f64;
    let (count, path, reads) = match beside {
        Beside::Nothing => return Ok(None),
        Beside::Paced => (args.bulk_streams, &paced, None),
        Beside::Unthrottled => (args.bulk_streams, &args.bulk_path, None),
        Beside::SlowReaders => (args.slow_readers, &args.bulk_path, Some(slow)),
        Beside::Limit(limit) => {
            beyond(&mut load, target, limit)?;
            return Ok(Some((load, watch::channel(true).1)));
        }
    };
    let (is_open, opened) = watch::channel(false);
    let downloads = Arc::new(Downloads {
        template: target.template(Method::GET, Some(path))?,
        reads,
        is_open,
    });
    let work = move |worker| work(downloads.clone(), worker);
    load.group("downloads", count, Pace::Closed, work);
    Ok(Some((load, opened)))
}

/// Adds a load that goes beyond a limit.
fn beyond(load: &mut Load, target: &Target, limit: &Limit) -> anyhow::Result<()> {
    let name = "beyond the limit";
    let mut template = target.template(limit.method.clone(), Some(limit.path))?;
    if limit.is_websocket {
        let echo = Arc::new(Echo { template, size: 64 });
        load.requests(name, limit.connections, limit.pace, echo);
        return Ok(());
    }
    if limit.field > 0 {
        let large = HeaderValue::from_str(&"x".repeat(limit.field))?;
        template.headers.insert("x-large", large);
    }
    let client = Arc::new(Requests::new(template, limit.upload)?);
    load.requests(name, limit.connections, limit.pace, client);
    Ok(())
}

async fn work(downloads: Arc<Downloads>, mut worker: Worker) {
    let limit = worker.timeout;
    let mut begun = downloads.template.open(limit).await.ok();
    let window = worker.ready().await;
    downloads.is_open.send_replace(true);
    while !window.is_over() {
        let since = Instant::now();
        let first = begun.take();
        let download = async {
            let begun = match first {
                Some(begun) => begun,
                None => downloads.template.open(limit).await?,
            };
            downloads.read(begun, &worker.recorder).await
        };
        let Ok(done) = timeout_at(window.end, download).await else {
            return;
        };
        match done {
            Ok(()) => worker.recorder.completed(since, 0, 0),
            Err(failure) => {
                let since = since.max(window.begin);
                worker.recorder.failed(since, failure.kind);
                sleep(PAUSE).await;
            }
        }
    }
}

impl Downloads {
    async fn read(
        &self,
        (mut connection, mut content): (Connection, Incoming),
        recorder: &Recorder,
    ) -> Result<(), Failure> {
        let since = Instant::now();
        let mut read = 0;
        while let Some(piece) = connection.frame(&mut content).await? {
            recorder.bytes(0, piece.len() as u64);
            read += piece.len();
            if let Some(rate) = self.reads {
                sleep_until(since + Duration::from_secs_f64(read as f64 / rate)).await;
            }
        }
        Ok(())
    }
}
