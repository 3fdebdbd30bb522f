//! The task that delivers what a shared directory decides, and reports to it what comes of that.

use std::{
    future::{pending, poll_fn},
    pin::Pin,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep_until},
};
use tunnel_directory::{
    ClaimRefusal, EtcdState,
    shared::{Call, CallId, ClaimId, EtcdAnswer, GrantedClaim, LogLine, Output, WatchId},
};
use tunnel_etcd::EtcdError;

use super::EtcdDirectory;

/// A watch that is under way.
type Watching<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// What to watch.
struct WatchRequest {
    id: WatchId,
    member: usize,
    keys: (Bytes, Bytes),
    start: i64,
}

/// Refuses the claims that wait when the task ends.
struct Closing<'a>(&'a EtcdDirectory);

/// Runs the directory until it is dropped.
pub(super) async fn drive(directory: Arc<EtcdDirectory>) {
    let directory = &directory;
    let _closing = Closing(directory);
    let wants_progress = Notify::new();
    let mut calls = FuturesUnordered::new();
    let mut watching: Option<(WatchId, Watching<'_>)> = None;
    // The member that the last listing was read from.
    let mut listed_from = 0;
    loop {
        while let Some(output) = directory.next_output() {
            match output {
                Output::Call(id, call) => calls.push(Box::pin(directory.call(id, call))),
                Output::Watch {
                    id,
                    member,
                    keys,
                    start,
                } => {
                    if member == 1 {
                        listed_from = directory.client.preferred();
                    }
                    let request = WatchRequest {
                        id,
                        member: listed_from + member,
                        keys,
                        start,
                    };
                    let watch = directory.watch(request, &wants_progress);
                    watching = Some((id, Box::pin(watch)));
                }
                Output::EndWatch(ended) => {
                    watching = watching.filter(|(id, _)| *id != ended);
                }
                Output::RequestProgress(_) => wants_progress.notify_one(),
                output => directory.deliver(output),
            }
        }
        let deadline = directory.directory.read().next_deadline();
        tokio::select! {
            () = directory.has_input.notified() => {}
            Some((id, answer)) = calls.next(), if !calls.is_empty() => {
                directory.input(|directory, now| directory.on_answer(id, answer, now));
            }
            () = ended(&mut watching) => watching = None,
            () = sleep_until(Instant::from_std(deadline)) => {
                directory.input(|directory, now| directory.on_time(now));
                // What goes through all runtimes is due again and again, and lets others run in between.
                yield_now().await;
            }
        }
    }
}

/// Resolves when the watch has ended.
async fn ended(watching: &mut Option<(WatchId, Watching<'_>)>) {
    match watching {
        Some((_, watching)) => poll_fn(|cx| watching.as_mut().poll(cx)).await,
        None => pending().await,
    }
}

impl EtcdDirectory {
    fn next_output(&self) -> Option<Output> {
        self.directory.write().poll_output()
    }

    async fn call(&self, id: CallId, call: Call) -> (CallId, Result<EtcdAnswer, EtcdError>) {
        let client = &self.client;
        let answer = match call {
            Call::Txn(txn) => client.txn(txn).await.map(EtcdAnswer::Txn),
            Call::Range(range) => client.range(range).await.map(EtcdAnswer::Range),
            Call::Grant(ttl) => client
                .grant(ttl)
                .await
                .map(|lease| EtcdAnswer::Granted(lease.id)),
            Call::KeepAlive(lease) => client.keep_alive(lease).await.map(|_| EtcdAnswer::Done),
            Call::Revoke(lease) => client.revoke(lease).await.map(|()| EtcdAnswer::Done),
        };
        (id, answer)
    }

    /// Reports what a watch reports until it ends.
    async fn watch(&self, request: WatchRequest, wants_progress: &Notify) {
        let WatchRequest {
            id,
            member,
            keys,
            start,
        } = request;
        let error = match self.client.watch(member, keys, start).await {
            Ok(mut watch) => loop {
                tokio::select! {
                    report = watch.next() => match report {
                        Ok(report) => {
                            self.input(|directory, now| directory.on_watch_report(id, report, now));
                        }
                        Err(error) => break error,
                    },
                    () = wants_progress.notified() => watch.request_progress(),
                }
            },
            Err(error) => error,
        };
        self.input(|directory, now| directory.on_watch_ended(id, error, now));
    }

    /// Delivers an output that has no answer.
    fn deliver(self: &Arc<Self>, output: Output) {
        match output {
            Output::ClaimAnswer(id, answer) => self.answer(id, answer),
            Output::NewerClaim(label, claim) => {
                if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
                    observer.on_claim(&label, &claim);
                }
            }
            Output::RuntimeChanged(label) => {
                if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
                    observer.on_change(&label);
                }
            }
            Output::Ready => drop(self.is_ready.send_replace(true)),
            Output::Failed(error) => drop(self.failed.send_replace(Some(error))),
            Output::Departed => drop(self.has_departed.send_replace(true)),
            Output::CaughtUp => self.caught_up.send_modify(|count| *count += 1),
            Output::State(state) => self.metrics.set_state(state),
            Output::Isolated(is_isolated) => self.metrics.set_isolated(is_isolated),
            Output::LeaseLeft(left) => self.metrics.set_lease_left(left),
            Output::Position(revision) => self.metrics.set_revision(revision),
            Output::Relisted => self.metrics.on_relisted(),
            Output::ClaimResult(result) => self.metrics.on_claim(result),
            Output::Unavailable(is_away) => self.metrics.set_away(is_away),
            Output::Log(line) => log(line),
            // The task does these itself.
            Output::Call(..)
            | Output::Watch { .. }
            | Output::EndWatch(_)
            | Output::RequestProgress(_) => {}
        }
    }

    /// Answers a session, or releases what it was granted if it has ended meanwhile.
    fn answer(self: &Arc<Self>, id: ClaimId, answer: Result<GrantedClaim, ClaimRefusal>) {
        let session = self.claims.lock().remove(&id);
        let answer = answer.map(|granted| self.guard(granted));
        if let Some(session) = session {
            drop(session.send(answer));
        }
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.is_closed.send_replace(true);
        let sessions = std::mem::take(&mut *self.0.claims.lock());
        drop(sessions);
    }
}

/// Writes a line to the log.
fn log(line: LogLine) {
    match line {
        LogLine::Unanswered(error) => tracing::warn!(
            %error,
            "etcd does not answer: what is known is served on, takeovers wait"
        ),
        LogLine::AnsweredAgain => tracing::info!("etcd answers again"),
        LogLine::WriteFailed(error) => tracing::debug!(%error, "etcd has not taken a write"),
        LogLine::LeaseEnded => {
            tracing::warn!("the lease of this node has ended, taking another one");
        }
        LogLine::LeaseFailed(error) => {
            tracing::debug!(%error, "cannot keep the lease of this node");
        }
        LogLine::RenewalUnanswered(error) => {
            tracing::debug!(%error, "a renewal was not answered");
        }
        LogLine::DepartureFailed(error) => {
            tracing::debug!(%error, "cannot remove the records of this node, or end its lease");
        }
        LogLine::SweepFailed(error) => {
            tracing::debug!(%error, "cannot remove records that nobody needs");
        }
        LogLine::NotCaughtUp => {
            tracing::debug!("etcd has not reported in time what has happened during a pause");
        }
        LogLine::State(state) => log_state(state),
        LogLine::Isolated(true) => tracing::error!(
            "this node has no link to any other, and others have: it is not ready, and its clients are to go to other nodes"
        ),
        LogLine::Isolated(false) => tracing::info!("this node is linked to another one again"),
        LogLine::ListingFailed(error) => {
            tracing::warn!(%error, "cannot read the directory from etcd, trying again");
        }
        LogLine::EtcdRestored => {
            tracing::warn!(
                "etcd has been restored or emptied: epochs have a greater generation now"
            );
        }
        LogLine::ListedAgain => tracing::info!("the directory is listed again"),
        LogLine::WatchLost(error) => {
            tracing::debug!(%error, "the watch of the directory was lost");
        }
        LogLine::Incomplete { kind, own, etcd } => {
            tracing::warn!(kind, own, etcd, "the directory has other records than etcd");
        }
    }
}

fn log_state(now: EtcdState) {
    let state = now.name();
    match now {
        EtcdState::Ok => tracing::info!(state, "this node and etcd are connected again"),
        EtcdState::Outage => tracing::warn!(
            state,
            "etcd answers no node: what is known is served on, takeovers wait"
        ),
        EtcdState::CutOff | EtcdState::Alone => tracing::error!(
            state,
            "etcd does not answer this node: it is not ready, and its clients are to go to other nodes"
        ),
    }
}
