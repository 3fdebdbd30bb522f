//! `tunnel-server upgrade`: replaces a running server's process by a new one of the program that is installed now.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tunnel_ops::admin::AdminRequestError;

use super::{Failure, admin_client, print};
use crate::{admin::view::ServerView, cli::UpgradeArgs, upgrades::UpgradeState};

/// Time between two checks which process answers.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn upgrade(args: &UpgradeArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let limit = Duration::from(args.timeout);
    let until = Instant::now() + limit;
    let before: ServerView = client.post("/upgrade", Bytes::new()).await?;
    let mut last: Result<(), AdminRequestError> = Ok(());
    while Instant::now() < until {
        // A connection may be cut when the listener changes hands: the next one shows.
        match client.get::<ServerView>("/status").await {
            Ok(now) if now.pid != before.pid => {
                return print(&upgraded(&before, &now)).map(drop);
            }
            Ok(now) => {
                if let Some(upgrade) = now.upgrade
                    && upgrade.state == UpgradeState::Failed
                {
                    let reason = upgrade.reason.unwrap_or_default();
                    return Err(Failure::running(format_args!(
                        "{reason}\nthe server continues as before: correct this, then upgrade again"
                    )));
                }
                last = Ok(());
            }
            Err(error) => last = Err(error),
        }
        sleep(CHECK_INTERVAL).await;
    }
    let (pid, url) = (before.pid, client.url());
    Err(match last {
        Ok(()) => Failure::running(format_args!(
            "process {pid} still answers after {limit:?}, but the upgrade goes on: `tunnel-server status` shows the process, and \
             why no other takes over"
        )),
        Err(_) => Failure::running(format_args!(
            "nobody answers at {url} since process {pid} did: the new one has another --admin-listen, or both have ended; see the \
             server's log"
        )),
    })
}

fn upgraded(before: &ServerView, now: &ServerView) -> String {
    let mut text = format!(
        "process {} serves, version {}; process {}, version {}, finishes what is open and ends\n",
        now.pid, now.version, before.pid, before.version
    );
    if !before.waiting_for_restart.is_empty() {
        text += &format!(
            "changed with it: {}\n",
            before.waiting_for_restart.join(", ")
        );
    }
    text
}
