//! Transfers of many bytes, down or up: what `bulk` measures, what `compare` times, and what `fairness` runs beside
//! small requests.

use std::{
    cell::Cell,
    pin::pin,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, future::Either};
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::{
    client::{
        body::{self, CHUNK},
        connection::Connection,
        minimal::{MinimalClient, RequestConnection, SerializedRequest},
        template::{PAUSE, Template, connected, within},
    },
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, FailureKind},
    },
    report::latency::Latencies,
    upstream::{paced, repeated},
};

/// What all bytes of the sample upstream are.
const FILL: u8 = b'x';

/// The longest answer to an upload that is read as a count.
const LONGEST_COUNT: usize = 64;

/// One transfer, which can be made many times.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) template: Template,
    pub(crate) is_upload: bool,
    /// Bytes; none: no end.
    pub(crate) size: Option<u64>,
    /// Whether the sample upstream answers an upload, with the number of bytes that it got.
    pub(crate) is_sample: bool,
    /// Bytes a second that this end keeps to.
    pub(crate) pace: Option<u64>,
    /// Whether each byte of a download is compared with the sample upstream's.
    pub(crate) verify: bool,
}

impl Transfer {
    /// A download, or an upload, from and to the sample upstream.
    pub(crate) fn new(mut template: Template, is_upload: bool, size: Option<u64>) -> Self {
        if let (true, Some(size)) = (is_upload, size) {
            // The content comes piece by piece, but its length is known, and some services want it.
            let length = HeaderValue::from(size);
            template.headers.insert(header::CONTENT_LENGTH, length);
        }
        Self {
            template,
            is_upload,
            size,
            is_sample: true,
            pace: None,
            verify: false,
        }
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// As [`Template::connect`].
    pub(crate) async fn connect(&self, limit: Duration) -> Result<RequestConnection, Failure> {
        let looks_at_content = self.is_upload || self.verify || self.pace.is_some();
        Ok(if looks_at_content || self.template.http2 {
            RequestConnection::Hyper(self.template.connect(limit).await?)
        } else {
            let minimal = connected(limit, self.template.dialer.minimal()).await?;
            RequestConnection::Minimal(Box::new(minimal))
        })
    }

    /// Makes the transfer, and calls `moved` with the number of bytes whenever some have moved.
    ///
    /// # Errors
    /// The connection broke, nothing moved for as long as `limit`, the status is no success, or not all
    /// has arrived.
    pub(crate) async fn make(
        &self,
        connection: &mut RequestConnection,
        limit: Duration,
        moved: impl Fn(u64) + 'static,
    ) -> Result<(), Failure> {
        let length = match connection {
            RequestConnection::Minimal(connection) => self.count(connection, limit, moved).await?,
            RequestConnection::Hyper(connection) if self.is_upload => {
                self.upload(connection, limit, moved).await?
            }
            RequestConnection::Hyper(connection) => self.download(connection, limit, moved).await?,
        };
        match self.size {
            Some(size) if size != length => Err(FailureKind::Other("wrong_length").into()),
            _ => Ok(()),
        }
    }

    async fn count(
        &self,
        connection: &mut MinimalClient,
        limit: Duration,
        moved: impl Fn(u64),
    ) -> Result<u64, Failure> {
        let total = Cell::new(0);
        let request = SerializedRequest::new(&self.template, &[]);
        let answer = connection.exchange_counting(&request, |status, bytes| {
            if is_success(status) {
                total.set(total.get() + bytes);
                moved(bytes);
            }
        });
        let answer = while_moving(limit, &total, answer).await?;
        check_status(answer.status)?;
        Ok(answer.length)
    }

    async fn download(
        &self,
        connection: &mut Connection,
        limit: Duration,
        moved: impl Fn(u64),
    ) -> Result<u64, Failure> {
        let mut content = self.template.ask(connection, limit).await?;
        let (begun, mut total) = (Instant::now(), 0);
        while let Some(data) = within(limit, connection.frame(&mut content)).await? {
            moved(data.len() as u64);
            if self.verify && !is_filling(&data) {
                return Err(FailureKind::Other("wrong_content").into());
            }
            total += data.len() as u64;
            if let Some(rate) = self.pace {
                sleep_until(begun + Duration::from_secs_f64(total as f64 / rate as f64)).await;
            }
        }
        Ok(total)
    }

    /// Returns how many bytes the sample upstream got; of any other, how many there are.
    async fn upload(
        &self,
        connection: &mut Connection,
        limit: Duration,
        moved: impl Fn(u64) + 'static,
    ) -> Result<u64, Failure> {
        let total = Rc::new(Cell::new(0));
        let counted = total.clone();
        let content = self.content(move |bytes| {
            counted.set(counted.get() + bytes);
            moved(bytes);
        });
        let request = self.template.request(body::stream(content));
        let answer = while_moving(limit, &total, connection.send(request)).await?;
        check_status(answer.status().as_u16())?;
        if self.size != Some(total.get()) {
            return Err(FailureKind::Other("answered_early").into());
        }
        let text = connection.collect(answer.into_body(), LONGEST_COUNT);
        let text = within(limit, text).await?;
        if !self.is_sample {
            return Ok(total.get());
        }
        let got = str::from_utf8(&text).ok();
        Ok(got.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    }

    /// The content of one upload. A piece counts when the connection takes it.
    fn content<F: Fn(u64) + 'static>(&self, moved: F) -> impl Stream<Item = Bytes> + use<F> {
        let chunk = Bytes::from(vec![FILL; CHUNK]);
        let content = match self.pace {
            Some(rate) => Either::Left(paced(chunk, rate as f64, self.size)),
            None => Either::Right(repeated(chunk, self.size.unwrap_or(u64::MAX))),
        };
        content.inspect(move |piece| moved(piece.len() as u64))
    }
}

/// The result of `work`, or a time-out once `total` stays as it is for as long as `limit`.
async fn while_moving<T>(
    limit: Duration,
    total: &Cell<u64>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut work = pin!(work);
    loop {
        let before = total.get();
        match timeout(limit, &mut work).await {
            Ok(done) => return done,
            Err(_) if total.get() == before => return Err(FailureKind::Timeout.into()),
            Err(_) => {}
        }
    }
}

/// Whether all bytes are the filling. Slices are compared many bytes at a time.
fn is_filling(data: &[u8]) -> bool {
    static FILLING: [u8; 4096] = [FILL; 4096];
    let mut parts = data.chunks(FILLING.len());
    parts.all(|part| part == &FILLING[..part.len()])
}

fn is_success(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(|status| status.is_success())
}

fn check_status(status: u16) -> Result<(), Failure> {
    // What is left of the transfer makes the connection useless.
    let failure = Failure::fatal(FailureKind::Status(status));
    is_success(status).then_some(()).ok_or(failure)
}

/// The streams of one direction, and what is counted for each of them.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) transfer: Transfer,
    /// What each stream makes over its connection before it is measured, so that windows have grown.
    pub(crate) warm_up: Option<Transfer>,
    /// Bytes of each stream within the window.
    pub(crate) moved: Vec<AtomicU64>,
    /// For how long each stream's only transfer took that ended well, seconds.
    pub(crate) took: Vec<OnceLock<f64>>,
    /// From each request of a download to the first byte of its answer.
    pub(crate) first_bytes: Mutex<Latencies>,
}

impl Flow {
    /// So many streams that make this transfer.
    pub(crate) fn new(transfer: Transfer, streams: usize) -> Self {
        Self {
            transfer,
            warm_up: None,
            moved: (0..streams).map(|_| AtomicU64::new(0)).collect(),
            took: vec![OnceLock::new(); streams],
            first_bytes: Mutex::default(),
        }
    }

    /// What counts the bytes of a transfer of the stream `number` that begins now.
    fn counter(
        self: Arc<Self>,
        number: usize,
        recorder: Recorder,
        window: Window,
    ) -> impl Fn(u64) + 'static {
        let asked = Cell::new(Some(Instant::now()).filter(|_| !self.transfer.is_upload));
        move |bytes| {
            if let Some(asked) = asked.take() {
                self.first_bytes.lock().record(asked.elapsed());
            }
            match self.transfer.is_upload {
                true => recorder.bytes(bytes, 0),
                false => recorder.bytes(0, bytes),
            }
            if window.contains(Instant::now())
                && let Some(moved) = self.moved.get(number)
            {
                moved.fetch_add(bytes, Relaxed);
            }
        }
    }
}

/// Runs the stream `worker.index` of `flow`: one transfer with a size, else until the window ends.
pub(crate) async fn work(flow: Arc<Flow>, mut worker: Worker) {
    let (transfer, limit) = (&flow.transfer, worker.timeout);
    // What fails here fails again below, and is counted there.
    let mut kept = transfer.connect(limit).await.ok();
    if let (Some(warm_up), Some(connection)) = (&flow.warm_up, &mut kept) {
        let _ = warm_up.make(connection, limit, |_| ()).await;
    }
    let window = worker.ready().await;
    loop {
        let begun = Instant::now();
        let made = async {
            // A connection is kept only after a transfer that went well.
            let mut connection = match kept.take_if(|kept| kept.is_open()) {
                Some(connection) => connection,
                None => transfer.connect(limit).await?,
            };
            kept = None;
            let counter = flow
                .clone()
                .counter(worker.index, worker.recorder.clone(), window);
            transfer.make(&mut connection, limit, counter).await?;
            kept = Some(connection);
            Ok(())
        };
        // The end of the window is no failure of the transfer.
        let Ok(ended) = timeout_at(window.end, made).await else {
            return;
        };
        match ended {
            Ok(()) => worker.recorder.completed(begun, 0, 0),
            // It may have begun in the warm-up; what counts is when it broke.
            Err(Failure { kind, .. }) => worker.recorder.failed(Instant::now(), kind),
        }
        if transfer.size.is_some() {
            if let (Ok(()), Some(took)) = (ended, flow.took.get(worker.index)) {
                // Each stream ends once.
                let _ = took.set(window.start.elapsed().as_secs_f64());
            }
            return;
        }
        if window.is_over() {
            return;
        }
        if ended.is_err() {
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_seen_wherever_it_is() {
        for place in [0, 4095, 4096, 9999] {
            let mut data = vec![FILL; 10_000];
            assert!(is_filling(&data));
            data[place] = b'y';
            assert!(!is_filling(&data), "at {place}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_stands_still_is_given_up() {
        let (limit, total) = (Duration::from_secs(1), Cell::new(0));
        let slow = async {
            for _ in 0..5 {
                sleep(limit * 9 / 10).await;
                total.set(total.get() + 1);
            }
            Ok(())
        };
        assert_eq!(while_moving(limit, &total, slow).await, Ok(()));
        let still = std::future::pending::<Result<(), Failure>>();
        let ended = while_moving(limit, &total, still).await;
        assert_eq!(ended, Err(Failure::fatal(FailureKind::Timeout)));
    }
}
