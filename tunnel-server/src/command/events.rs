//! `tunnel-server events`: shows what happens at a running server, as it happens.

use std::io;

use serde::de::IgnoredAny;
use tunnel_ops::{
    admin::{AdminClient, AdminRequestError, ReceivedEvent},
    terminal::{print, printable},
};

use super::{Failure, admin_client};
use crate::{cli::EventsArgs, events::EventView};

pub(super) async fn events(args: &EventsArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    if let Some(label) = &args.runtime {
        warn_if_unknown(&client, label).await?;
    }
    let show = |event: &ReceivedEvent| show(args, &event.data);
    Ok(client.follow("/events", show).await?)
}

/// An unknown runtime may be made later, but mostly its name has a fault.
async fn warn_if_unknown(client: &AdminClient, label: &str) -> Result<(), Failure> {
    match client.get(&format!("/runtimes/{label}")).await {
        Ok(IgnoredAny) => {}
        Err(AdminRequestError::Refused { reason, .. }) if reason == "runtime_unknown" => {
            tunnel_ops::print_note!(
                "warning: no runtime has the label `{label}`; waiting until one has it (`tunnel-server runtimes list` shows all)"
            );
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
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
    let session = event.session.as_ref().map(|id| format!("session {id}"));
    for part in [&event.reason, &event.detail, &session]
        .into_iter()
        .flatten()
    {
        text += "  ";
        text += part;
    }
    printable(&text) + "\n"
}
