//! `tunnel-server status`: shows the state of a running server, once or again and again.

use std::time::Duration;

use tokio::time::Instant;
use tunnel_ops::admin::AdminClient;

use super::{
    Failure, admin_client, print,
    table::{Table, age, bytes},
    watch::watch,
};
use crate::{
    admin::view::{CertificateSource, CertificateView, ServerState, ServerView},
    cli::StatusArgs,
    upgrades::{UpgradeState, UpgradeView},
};

pub(super) async fn status(args: &StatusArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    // A failure of the first request is final, also with `--watch`.
    let first: ServerView = client.get("/status").await?;
    let Some(interval) = args.watch.interval else {
        let text = match args.json {
            true => serde_json::to_string_pretty(&first).map_err(Failure::running)? + "\n",
            false => block(&client, &first, None),
        };
        return print(&text).map(|_| ());
    };
    // Serialising plain values cannot fail.
    let line = |view: &ServerView| serde_json::to_string(view).unwrap_or_default() + "\n";
    let text = match args.json {
        true => line(&first),
        false => block(&client, &first, None),
    };
    let mut before = (first, Instant::now());
    let look = async || {
        let view: ServerView = client.get("/status").await?;
        let now = Instant::now();
        let text = match args.json {
            true => line(&view),
            false => block(&client, &view, Some((&before.0, now - before.1))),
        };
        before = (view, now);
        Ok(text)
    };
    watch(interval, !args.json, text, look).await
}

/// A view that was shown before, and the time since then.
type Before<'a> = Option<(&'a ServerView, Duration)>;

/// The state for people. Rates are those since the view before, or else since the start.
fn block(client: &AdminClient, view: &ServerView, before: Before<'_>) -> String {
    let mut table = Table::named();
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    let version = &view.version;
    row(
        "server",
        format!(
            "tunnel-server {version}, process {}, {}",
            view.pid,
            client.url()
        ),
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
    if let Some(upgrade) = &view.upgrade {
        row("upgrade", upgrade_text(upgrade));
    }
    let (online, known) = (view.runtimes_online, view.runtimes);
    row("runtimes", format!("{online} of {known} online"));
    row("sessions", view.sessions.to_string());
    // Else it is among those that have a limit.
    if !view.limits.contains_key("open exchanges") {
        row("open exchanges", view.open_exchanges.to_string());
    }
    usage_rows(view, before, &mut row);
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
        row("fault", fault.clone());
    }
    if !view.waiting_for_restart.is_empty() {
        row("needs a restart", view.waiting_for_restart.join(", "));
    }
    for node in &view.nodes {
        let zone = node.zone.as_ref().map(|zone| format!(", zone {zone}"));
        let zone = zone.unwrap_or_default();
        let links = match node.links {
            Some(0) => ", without a link to other nodes",
            _ => "",
        };
        let (name, version, state) = (&node.name, &node.version, &node.state);
        row(
            "node",
            format!("{name}, {state}, version {version}{zone}{links}"),
        );
    }
    for certificate in &view.certificates {
        row("certificate", shown(certificate));
    }
    table.to_string()
}

fn upgrade_text(upgrade: &UpgradeView) -> String {
    let since = age(upgrade.since.age());
    match upgrade.state {
        UpgradeState::Starting => format!("under way for {since}"),
        UpgradeState::Failed => {
            let faults = upgrade.reason.as_deref().unwrap_or_default().lines();
            let faults = faults.collect::<Vec<_>>().join("; ");
            format!("FAILED {since} ago, this process continues: {faults}")
        }
    }
}

/// The rows of what the server does and uses.
fn usage_rows(view: &ServerView, before: Before<'_>, row: &mut impl FnMut(&str, String)) {
    // A server that was started again counts from 0.
    let before = before.filter(|(before, _)| before.started == view.started);
    let since = if before.is_some() {
        ""
    } else {
        " since the start"
    };
    let uptime = Duration::from_secs(view.uptime_seconds.max(1));
    let seconds = before.map_or(uptime, |(_, ago)| ago).as_secs_f64();
    let before = before.map(|(before, _)| before);
    let requests = before.map_or(0, |before| before.requests);
    let rate = view.requests.saturating_sub(requests) as f64 / seconds;
    row("requests", format!("{}, {rate:.1}/s{since}", view.requests));
    let problems: Vec<String> = view
        .problems
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let problems = match problems.is_empty() {
        true => "none since the start".to_owned(),
        false => problems.join(", "),
    };
    row("problems", problems);
    if let Some(process) = &view.process {
        let before = before.and_then(|before| before.process.as_ref());
        let cpu = process.cpu_seconds - before.map_or(0.0, |before| before.cpu_seconds);
        let percent = 100.0 * cpu / seconds;
        let memory = bytes(process.memory_bytes);
        row(
            "process",
            format!("{memory} resident, {percent:.1} % of a core{since}"),
        );
    }
    for (name, limit) in &view.limits {
        let (used, most) = match name.ends_with("bytes") {
            true => (bytes(limit.used), bytes(limit.limit)),
            false => (limit.used.to_string(), limit.limit.to_string()),
        };
        row(name, format!("{used} of {most}"));
    }
}

fn shown(certificate: &CertificateView) -> String {
    let name = match certificate.source {
        CertificateSource::File => format!("{} listener", certificate.name),
        CertificateSource::Acme => certificate.name.clone(),
    };
    let validity = match certificate.not_after {
        Some(end) if end.until().is_zero() => format!("{name}, EXPIRED since {end}"),
        Some(end) => format!("{name}, good for {}, until {end}", age(end.until())),
        None => format!("{name}, MISSING"),
    };
    match &certificate.problem {
        Some(problem) => format!("{validity}, last order FAILED: {problem}"),
        None => validity,
    }
}
