//! `tunnel-server events`: shows what happens at a running server, as it happens.

use std::io;

use tunnel_ops::{
    admin::ReceivedEvent,
    terminal::{print, printable},
};

use super::{Failure, admin_client};
use crate::{cli::EventsArgs, events::EventView};

pub(super) async fn events(args: &EventsArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let show = |event: &ReceivedEvent| show(args, &event.data);
    Ok(client.follow("/events", show).await?)
}

/// Prints an event, if it is wanted. Returns whether anybody reads.
fn show(args: &EventsArgs, data: &str) -> io::Result<bool> {
    let Ok(event) = serde_json::from_str::<EventView>(data) else {
        return Ok(true);
    };
    let is_wanted = args.kind.is_empty() || args.kind.contains(&event.kind);
    let is_of_runtime = args.runtime.is_none() || args.runtime == event.label;
    if !is_wanted || !is_of_runtime {
        return Ok(true);
    }
    let text = match args.json {
        true => format!("{data}\n"),
        false => one_line(&event),
    };
    print(&text)
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
