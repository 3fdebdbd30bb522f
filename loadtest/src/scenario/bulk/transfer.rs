//! One stream: a transfer after the other over one connection, counted while it moves.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::Flow;
use crate::{
    client::{
        body::{CHUNK, Outgoing},
        connection::Connection,
        template::{PAUSE, Template, within},
    },
    load::Worker,
    measure::{
        Recorder, Window,
        errors::{Failure, Kind},
    },
};

/// What all bytes of the sample upstream are.
const FILL: u8 = b'x';

/// Pieces of a paced upload each second: so many that it is steady, so few that timers do not cost.
const PIECES_PER_SECOND: u64 = 50;

/// More than this of an answer to an upload is not read: it is no count.
const LONGEST_COUNT: usize = 64;

/// What all streams of one direction have in common.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) template: Template,
    pub(super) is_upload: bool,
    /// Bytes of a transfer; none: no end.
    pub(super) size: Option<u64>,
    /// Whether the answers are the sample upstream's, whose length and content are known.
    pub(super) is_sample: bool,
    /// Bytes a second that this end keeps to.
    pub(super) pace: Option<u64>,
    /// Whether to look at each byte.
    pub(super) verify: bool,
}

/// Runs stream `worker.index` of `flow`: one transfer with a size, else until the window ends.
pub(super) async fn work(plan: Arc<Plan>, flow: Arc<Flow>, mut worker: Worker) {
    let limit = worker.timeout;
    // What fails here fails again below, and is counted there.
    let connection = plan.template.connect(limit).await.ok();
    let window = worker.ready().await;
    let mut stream = Stream {
        plan: &plan,
        flow: &flow,
        number: worker.index,
        recorder: &worker.recorder,
        window,
        limit,
        connection,
    };
    loop {
        let begun = Instant::now();
        // The end of the window is no failure of the transfer.
        let Ok(ended) = timeout_at(window.end, stream.transfer()).await else {
            return;
        };
        match ended {
            Ok(()) => worker.recorder.completed(begun, 0, 0),
            // It may have begun in the warm-up; what counts is when it broke.
            Err(failure) => worker.recorder.failed(Instant::now(), failure.kind),
        }
        if plan.size.is_some() {
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

/// The transfers of one stream.
struct Stream<'a> {
    plan: &'a Plan,
    flow: &'a Flow,
    number: usize,
    recorder: &'a Recorder,
    window: Window,
    limit: Duration,
    connection: Option<Connection>,
}

impl Stream<'_> {
    /// Does the next one, over a new connection if there is none. The limit is for the time in
    /// which nothing moves.
    async fn transfer(&mut self) -> Result<(), Failure> {
        // Only a transfer that went well gives it back.
        let mut kept = self.connection.take();
        if let Some(connection) = &mut kept
            && !connection.is_open()
        {
            kept = None;
        }
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.plan.template.connect(self.limit).await?,
        };
        let done = if self.plan.is_upload {
            self.upload(&mut connection).await
        } else {
            self.download(&mut connection).await
        };
        if done.is_ok() {
            self.connection = Some(connection);
        }
        done
    }

    /// Counts bytes that moved now.
    fn count(&self, bytes: u64) {
        if self.plan.is_upload {
            self.recorder.bytes(bytes, 0);
        } else {
            self.recorder.bytes(0, bytes);
        }
        if self.window.contains(Instant::now())
            && let Some(moved) = self.flow.moved.get(self.number)
        {
            moved.fetch_add(bytes, Relaxed);
        }
    }

    async fn download(&self, connection: &mut Connection) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut content = self.plan.template.ask(connection, self.limit).await?;
        let mut pace = Pace::new(self.plan.pace);
        let mut length = 0;
        while let Some(data) = within(self.limit, connection.frame(&mut content)).await? {
            if length == 0 {
                self.flow.first_bytes.lock().record(begun.elapsed());
            }
            length += data.len() as u64;
            self.count(data.len() as u64);
            if self.plan.verify && !is_filling(&data) {
                return Err(Failure::fatal(Kind::Other("wrong_content")));
            }
            pace.moved(data.len()).await;
        }
        check_length(self.plan.size, length)
    }

    async fn upload(&self, connection: &mut Connection) -> Result<(), Failure> {
        let (sender, receiver) = mpsc::channel(1);
        let request = self.plan.template.request(Outgoing::Channel(receiver));
        let content = {
            let mut feed = pin!(self.feed(sender));
            let mut answer = pin!(connection.send(request));
            let answer = tokio::select! {
                biased;
                fed = &mut feed => {
                    fed?;
                    within(self.limit, answer).await?
                }
                early = &mut answer => {
                    check_status(early?.status())?;
                    return Err(Failure::fatal(Kind::Other("answered_early")));
                }
            };
            check_status(answer.status())?;
            answer.into_body()
        };
        let text = within(self.limit, connection.collect(content, LONGEST_COUNT)).await?;
        if !self.plan.is_sample {
            return Ok(());
        }
        // It answers how many bytes it got.
        let got = str::from_utf8(&text).ok();
        let got = got.and_then(|text| text.trim().parse().ok());
        check_length(self.plan.size, got.unwrap_or(0))
    }

    /// Hands over the content of one upload, and drops the sender, which is its end.
    async fn feed(&self, sender: mpsc::Sender<Bytes>) -> Result<(), Failure> {
        let piece = self.plan.pace.map_or(CHUNK as u64, |rate| {
            (rate / PIECES_PER_SECOND).clamp(1, CHUNK as u64)
        });
        let piece = Bytes::from(vec![FILL; usize::try_from(piece).unwrap_or(CHUNK)]);
        let mut pace = Pace::new(self.plan.pace);
        let mut left = self.plan.size;
        while left != Some(0) {
            let most = usize::try_from(left.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            let next = piece.slice(..piece.len().min(most));
            let length = next.len();
            match timeout(self.limit, sender.send(next)).await {
                Ok(Ok(())) => {}
                // It is not taken any more: the future of the answer says why.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) => return Err(Failure::fatal(Kind::Timeout)),
            }
            self.count(length as u64);
            left = left.map(|left| left - length as u64);
            pace.moved(length).await;
        }
        Ok(())
    }
}

/// Waits where bytes move faster than they may.
struct Pace {
    rate: Option<f64>,
    begun: Instant,
    moved: u64,
}

impl Pace {
    fn new(rate: Option<u64>) -> Self {
        Self {
            rate: rate.map(|rate| rate as f64),
            begun: Instant::now(),
            moved: 0,
        }
    }

    async fn moved(&mut self, bytes: usize) {
        if let Some(rate) = self.rate {
            self.moved += bytes as u64;
            sleep_until(self.begun + Duration::from_secs_f64(self.moved as f64 / rate)).await;
        }
    }
}

/// Whether all bytes are the filling. Slices are compared many bytes at a time.
fn is_filling(data: &[u8]) -> bool {
    static FILLING: [u8; 4096] = [FILL; 4096];
    let mut parts = data.chunks(FILLING.len());
    parts.all(|part| part == &FILLING[..part.len()])
}

fn check_status(status: http::StatusCode) -> Result<(), Failure> {
    if status.is_success() {
        Ok(())
    } else {
        // What is left of the transfer makes the connection useless.
        Err(Failure::fatal(Kind::Status(status.as_u16())))
    }
}

fn check_length(expected: Option<u64>, found: u64) -> Result<(), Failure> {
    if expected.is_none_or(|expected| expected == found) {
        Ok(())
    } else {
        Err(Failure::fatal(Kind::Other("wrong_length")))
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
    async fn a_pace_is_kept_over_all_pieces() {
        let begun = Instant::now();
        let mut pace = Pace::new(Some(1_000));
        for _ in 0..10 {
            pace.moved(100).await;
        }
        let taken = begun.elapsed();
        assert!(taken >= Duration::from_secs(1) && taken < Duration::from_millis(1_010));
    }
}
