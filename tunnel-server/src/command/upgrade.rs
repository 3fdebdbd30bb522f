//! `tunnel-server upgrade`: replaces a running server's process by a new one of the program that is installed now.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{Failure, admin_client, print};
use crate::{admin::view::ServerView, cli::UpgradeArgs, upgrades::UpgradeState};

/// Time between two checks which process answers.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn upgrade(args: &UpgradeArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let limit = Duration::from(args.timeout);
    let until = Instant::now() + limit;
    let before: ServerView = client.post("/upgrade", Bytes::new()).await?;
    let mut last = Ok(());
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
                        "{reason}\nthe server continues as before"
                    )));
                }
                last = Ok(());
            }
            Err(error) => last = Err(error),
        }
        sleep(CHECK_INTERVAL).await;
    }
    last?;
    Err(Failure::running(format_args!(
        "no new process serves after {limit:?}: the upgrade goes on, `tunnel-server status` shows how it ends"
    )))
}

fn upgraded(before: &ServerView, now: &ServerView) -> String {
    format!(
        "process {} serves, version {}; process {}, version {}, finishes what is open and ends\n",
        now.pid, now.version, before.pid, before.version
    )
}
