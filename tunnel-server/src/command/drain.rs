//! `tunnel-server drain`: stops a running server without loss, and waits until it has ended.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tunnel_ops::admin::AdminRequestError;

use super::{Failure, admin_client, print};
use crate::{admin::view::ServerView, cli::DrainArgs};

/// Time between two checks of whether the server has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

pub(super) async fn drain(args: &DrainArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let limit = Duration::from(args.timeout);
    let until = Instant::now() + limit;
    let mut last: ServerView = client.post("/drain", Bytes::new()).await?;
    while Instant::now() < until {
        match client.get("/status").await {
            Ok(view) => last = view,
            // The admin listener is the last to close.
            Err(AdminRequestError::Unreachable { .. }) => return print("drained\n").map(drop),
            // It may close in the middle of a response, or be busy: the next request shows which.
            Err(_) => {}
        }
        sleep(CHECK_INTERVAL).await;
    }
    let (sessions, exchanges) = (last.sessions, last.open_exchanges);
    Err(Failure::running(format_args!(
        "the server has not ended within {limit:?}: {sessions} sessions and {exchanges} exchanges are open"
    )))
}
