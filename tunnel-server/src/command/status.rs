//! `tunnel-server status`: shows the state of a running server, once or again and again.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use tokio::time::{MissedTickBehavior, interval};

use super::{
    Failure,
    admin_client::{AdminClient, AdminRequestError},
    print,
    table::{Table, age, printable},
};
use crate::{
    admin::view::{CertificateView, ServerState, ServerView},
    cli::StatusArgs,
};

/// Moves a terminal's cursor to the beginning and clears all after it.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let client = AdminClient::new(&args.admin)?;
    // A failure of the first request is final, also with `--watch`.
    let first = fetch(&client).await?;
    if args.watch {
        return watch(&client, first, args).await;
    }
    let text = match args.json {
        true => serde_json::to_string_pretty(&first).map_err(Failure::running)? + "\n",
        false => block(&client, &first),
    };
    print(&text).map(|_| ())
}

async fn fetch(client: &AdminClient) -> Result<ServerView, AdminRequestError> {
    client.get("/status").await
}

/// Shows the state until the output is closed. A server that does not answer may come back.
async fn watch(client: &AdminClient, first: ServerView, args: &StatusArgs) -> Result<(), Failure> {
    let as_json = args.json;
    let is_terminal = !as_json && io::stdout().is_terminal();
    let mut ticks = interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut result = Ok(first);
    loop {
        let is_open = match &result {
            Ok(view) if as_json => {
                print(&(serde_json::to_string(view).map_err(Failure::running)? + "\n"))?
            }
            Ok(view) if is_terminal => print(&format!("{CLEAR}{}", block(client, view)))?,
            Ok(view) => print(&format!("{}\n", block(client, view)))?,
            Err(error) if is_terminal => print(&format!("{CLEAR}{error}\n"))?,
            Err(error) => {
                eprintln!("error: {error}");
                true
            }
        };
        if !is_open {
            return Ok(());
        }
        ticks.tick().await;
        result = fetch(client).await;
    }
}

fn block(client: &AdminClient, view: &ServerView) -> String {
    let mut table = Table::named();
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let version = &view.version;
    row(
        "server",
        format!("tunnel-server {version}, {}", client.url()),
    );
    let state = match view.state {
        ServerState::Running => "running",
        ServerState::Draining => "draining",
    };
    let uptime = age(Duration::from_secs(view.uptime_seconds));
    row(
        "state",
        format!("{state}, up {uptime} since {}", view.started),
    );
    let (online, known) = (view.runtimes_online, view.runtimes);
    row("runtimes", format!("{online} of {known} online"));
    row("sessions", view.sessions.to_string());
    row("open exchanges", view.open_exchanges.to_string());
    let reload = match (view.last_reload_ok, view.last_reload) {
        (Some(is_good), Some(time)) => {
            let word = if is_good { "good" } else { "FAILED" };
            format!(", last reload {} ago: {word}", age(time.age()))
        }
        _ => String::new(),
    };
    let version = view.config_version;
    row("configuration", format!("version {version}{reload}"));
    if let Some(fault) = &view.last_reload_fault {
        row("fault", printable(fault));
    }
    if !view.waiting_for_restart.is_empty() {
        row("needs a restart", view.waiting_for_restart.join(", "));
    }
    for node in &view.nodes {
        let zone = node.zone.as_ref().map(|zone| format!(", zone {zone}"));
        let zone = zone.unwrap_or_default();
        let (name, version, state) = (&node.name, &node.version, &node.state);
        row("node", format!("{name}, {state}, version {version}{zone}"));
    }
    for certificate in &view.certificates {
        row("certificate", shown(certificate));
    }
    table.to_string()
}

fn shown(certificate: &CertificateView) -> String {
    let name = &certificate.name;
    let validity = match &certificate.not_after {
        Some(end) => format!("{name}, good until {end}"),
        None => format!("{name}, MISSING"),
    };
    match &certificate.problem {
        Some(problem) => format!("{validity}, last order FAILED: {problem}"),
        None => validity,
    }
}
