//! `tunnel-server events`: shows what happens at a running server, as it happens.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    Failure,
    admin_client::{AdminClient, AdminRequestError, EventLines},
    print,
    table::printable,
};
use crate::{cli::EventsArgs, events::EventView};

/// Time until the next request after a stream was lost.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn events(args: &EventsArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    let mut last = None;
    // A failure of the first request is final.
    let mut lines = client.events(last.as_deref()).await?;
    loop {
        let ended = match show(args, &mut lines, &mut last).await {
            Ok(true) => return Ok(()),
            Ok(false) => "the stream of events has ended".to_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("warning: {ended}, connecting again");
        lines = again(&client, last.as_deref()).await?;
    }
}

/// Connects again, until that succeeds or the server refuses it.
async fn again(client: &AdminClient, last: Option<&str>) -> Result<EventLines, Failure> {
    loop {
        sleep(PAUSE).await;
        match client.events(last).await {
            Ok(lines) => return Ok(lines),
            Err(AdminRequestError::Unreachable { .. } | AdminRequestError::Slow { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints events until the stream ends. Returns whether nobody reads them any more. `last` gets the id of the last one.
async fn show(
    args: &EventsArgs,
    lines: &mut EventLines,
    last: &mut Option<String>,
) -> Result<bool, AdminRequestError> {
    while let Some(line) = lines.next().await? {
        let Some(data) = line.strip_prefix("data:") else {
            continue;
        };
        let Ok(event) = serde_json::from_str::<EventView>(data) else {
            continue;
        };
        if event.id.is_some() {
            last.clone_from(&event.id);
        }
        let is_wanted = args.kind.is_empty() || args.kind.contains(&event.kind);
        let is_of_runtime = args.runtime.is_none() || args.runtime == event.label;
        if !is_wanted || !is_of_runtime {
            continue;
        }
        let text = match args.json {
            true => format!("{}\n", data.trim()),
            false => one_line(&event),
        };
        if !print(&text).unwrap_or(false) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn one_line(event: &EventView) -> String {
    let kind = event.kind.name();
    let label = event.label.as_deref().unwrap_or("-");
    let mut text = format!("{}  {kind:<13}  {label}", event.time);
    for part in [&event.reason, &event.detail].into_iter().flatten() {
        text += "  ";
        text += part;
    }
    printable(&text) + "\n"
}
