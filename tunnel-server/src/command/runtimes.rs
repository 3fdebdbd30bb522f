//! `tunnel-server runtimes`: shows the runtimes of a running server, and operates on them.

use std::cmp::Reverse;

use bytes::Bytes;
use tunnel_ops::admin::{AdminClient, AdminRequestError};

use super::{
    Failure, admin_client, print,
    table::{NOTHING, Table, age, bytes, count, round_trip},
    watch::watch,
};
use crate::{
    admin::{
        api::{OperationView, PAGE_MAX, RevocationRequest},
        managed::{ClearRequest, ClearedView},
        view::{LimitsView, RouteView, RuntimeView, RuntimesPage, SessionView},
    },
    cli::{
        ListOutput, RuntimesClearArgs, RuntimesCommand, RuntimesListArgs, RuntimesRevokeArgs,
        RuntimesShowArgs, RuntimesTargetArgs, SortKey,
    },
    history::RefusedDial,
    timestamp::Timestamp,
};

pub(super) async fn runtimes(command: &RuntimesCommand) -> Result<(), Failure> {
    match command {
        RuntimesCommand::List(args) => list(args).await,
        RuntimesCommand::Show(args) => show(args).await,
        RuntimesCommand::Disconnect(args) => {
            let done = operate(args, "disconnect", Bytes::new()).await?;
            report(&done, "disconnected")
        }
        RuntimesCommand::Drain(args) => {
            let done = operate(args, "drain", Bytes::new()).await?;
            report(&done, "draining")
        }
        RuntimesCommand::Revoke(args) => revoke(args).await,
        RuntimesCommand::Clear(args) => clear(args).await,
    }
}

async fn clear(args: &RuntimesClearArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let request = ClearRequest { all: args.all };
    let body = serde_json::to_vec(&request).map_err(Failure::running)?;
    let done: ClearedView = client.post("/runtimes/clear", body.into()).await?;
    let removed = count(done.removed, "managed runtime");
    print(&format!("{removed} removed\n")).map(|_| ())
}

async fn list(args: &RuntimesListArgs) -> Result<(), Failure> {
    let client = admin_client(&args.admin)?;
    let output = if args.json {
        ListOutput::Json
    } else {
        args.output
    };
    let (runtimes, unanswered) = all(&client, args).await?;
    let Some(interval) = args.watch.interval else {
        warn_of(&unanswered);
        if output == ListOutput::Json {
            let text = serde_json::to_string_pretty(&runtimes).map_err(Failure::running)?;
            return print(&(text + "\n")).map(|_| ());
        }
        if runtimes.is_empty() && output != ListOutput::Yaml {
            tunnel_ops::print_note!("no runtimes");
            return Ok(());
        }
        return print(&list_text(&runtimes, output)).map(|_| ());
    };
    let is_for_people = matches!(output, ListOutput::Table | ListOutput::Wide);
    // A warning goes with the table, which replaces what is on the screen.
    let text = |runtimes: &[RuntimeView], unanswered: &[String]| {
        let table = list_text(runtimes, output);
        if is_for_people {
            return table + &warning_of(unanswered);
        }
        warn_of(unanswered);
        table
    };
    let look = async || {
        let (runtimes, unanswered) = all(&client, args).await?;
        Ok(text(&runtimes, &unanswered))
    };
    watch(interval, is_for_people, text(&runtimes, &unanswered), look).await
}

/// A list as it is shown, JSON on one line.
fn list_text(runtimes: &[RuntimeView], output: ListOutput) -> String {
    match output {
        ListOutput::Table => runtimes_table(runtimes).to_string(),
        ListOutput::Wide => wide_table(runtimes).to_string(),
        // Serialising plain values cannot fail.
        ListOutput::Json => serde_json::to_string(runtimes).unwrap_or_default() + "\n",
        ListOutput::Yaml => {
            let text = serde_saphyr::to_string(&runtimes).unwrap_or_default();
            format!("---\n{}\n", text.trim_end())
        }
    }
}

/// Reads all pages. Also returns the server nodes that did not answer.
async fn all(
    client: &AdminClient,
    args: &RuntimesListArgs,
) -> Result<(Vec<RuntimeView>, Vec<String>), AdminRequestError> {
    let mut query = format!("/runtimes?limit={PAGE_MAX}");
    if args.online {
        query += "&online=true";
    } else if args.offline {
        query += "&online=false";
    }
    if let Some(account) = &args.account {
        query += &format!("&account={account}");
    }
    let mut page: RuntimesPage = client.get(&query).await?;
    let (mut runtimes, mut unanswered) = (page.runtimes, page.unanswered);
    while let Some(after) = page.next.take() {
        page = client.get(&format!("{query}&after={after}")).await?;
        runtimes.append(&mut page.runtimes);
        unanswered.append(&mut page.unanswered);
    }
    unanswered.sort_unstable();
    unanswered.dedup();
    sort(&mut runtimes, args.sort);
    Ok((runtimes, unanswered))
}

/// Sorts runtimes, which are in the order of their labels.
fn sort(runtimes: &mut [RuntimeView], key: SortKey) {
    match key {
        SortKey::Label => {}
        SortKey::Since => runtimes.sort_by_key(|view| Reverse(state_since(view))),
        SortKey::Open => runtimes.sort_by_key(|view| Reverse(view.open_exchanges)),
        SortKey::Requests => runtimes.sort_by_key(|view| Reverse(view.requests)),
        SortKey::Bytes => runtimes.sort_by_key(|view| Reverse(view.bytes_in + view.bytes_out)),
    }
}

/// Names the server nodes that did not answer.
fn warn_of(unanswered: &[String]) {
    let warning = warning_of(unanswered);
    if !warning.is_empty() {
        tunnel_ops::print_note!("{}", warning.trim_end());
    }
}

/// A line that names these nodes; empty if there are none.
fn warning_of(unanswered: &[String]) -> String {
    match unanswered.join(", ") {
        names if names.is_empty() => names,
        names => format!("warning: no answer from {names}: what only they know is missing\n"),
    }
}

async fn show(args: &RuntimesShowArgs) -> Result<(), Failure> {
    let client = admin_client(&args.target.admin)?;
    let path = format!("/runtimes/{}", args.target.label);
    let view: RuntimeView = client.get(&path).await?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&view).map_err(Failure::running)? + "\n",
        false => runtime_page(&view),
    };
    print(&text).map(|_| ())
}

async fn revoke(args: &RuntimesRevokeArgs) -> Result<(), Failure> {
    let request = match &args.which.id {
        Some(id) => RevocationRequest::Id(id.clone()),
        None => RevocationRequest::All(args.which.all),
    };
    let body = serde_json::to_vec(&request).map_err(Failure::running)?;
    let done = operate(&args.target, "revoke", body.into()).await?;
    let (label, sessions) = (&done.label, count(done.sessions, "session"));
    let credentials = match (&args.which.id, done.issued_before) {
        (Some(id), _) => format!("credential {id}"),
        (None, Some(moment)) => format!("every credential issued before {moment}"),
        (None, None) => "every credential issued before now".to_owned(),
    };
    print(&format!(
        "{label}: {credentials} revoked, {sessions} ended\n"
    ))?;
    if done.durable != Some(true) {
        tunnel_ops::print_note!(
            "note: this holds until the server is restarted; remove the credential from the runtimes file, or add \
             it to the revocations, or keep such revocations by --admin-revocations"
        );
    }
    Ok(())
}

async fn operate(
    args: &RuntimesTargetArgs,
    operation: &str,
    body: Bytes,
) -> Result<OperationView, Failure> {
    let client = admin_client(&args.admin)?;
    let path = format!("/runtimes/{}/{operation}", args.label);
    let done: OperationView = client.post(&path, body).await?;
    if !done.unanswered.is_empty() {
        let names = done.unanswered.join(", ");
        let outcome = match done.durable {
            Some(true) => "it is done there as soon as they follow etcd",
            _ => "it may not be done there",
        };
        tunnel_ops::print_note!("warning: no answer from {names}: {outcome}");
    }
    Ok(done)
}

fn report(done: &OperationView, state: &str) -> Result<(), Failure> {
    let label = &done.label;
    let text = match done.sessions {
        0 => format!("{label}: offline, nothing to do\n"),
        sessions => format!("{label}: {} {state}\n", count(sessions, "session")),
    };
    print(&text).map(|_| ())
}

/// The columns of a list, of which the last one is the longest.
const TITLES: [&str; 10] = [
    "RUNTIME", "ACCOUNT", "STATE", "FOR", "SESSIONS", "RTT", "OPEN", "IN", "OUT", "WHY",
];

/// The columns of a wide list.
const WIDE_TITLES: [&str; 15] = [
    "RUNTIME",
    "ACCOUNT",
    "STATE",
    "FOR",
    "SESSIONS",
    "RTT",
    "OPEN",
    "IN",
    "OUT",
    "REQUESTS",
    "WAITING",
    "CLIENT",
    "NODES",
    "LAST PROBLEM",
    "WHY",
];

fn runtimes_table(runtimes: &[RuntimeView]) -> Table {
    let mut table = Table::titled(&TITLES, &[3, 4, 5, 6, 7, 8]);
    for view in runtimes {
        table.row(first_cells(view).into_iter().chain([why(view)]));
    }
    table
}

fn wide_table(runtimes: &[RuntimeView]) -> Table {
    let mut table = Table::titled(&WIDE_TITLES, &[3, 4, 5, 6, 7, 8, 9, 10]);
    for view in runtimes {
        let nothing = || NOTHING.to_owned();
        let version = view.sessions.last();
        let version = version.map(|session| session.client_version.clone());
        let nodes = (!view.nodes.is_empty()).then(|| view.nodes.join(","));
        let problem = view.last_problem.as_ref();
        let more = [
            view.requests.to_string(),
            view.waiting.to_string(),
            version.unwrap_or_else(nothing),
            nodes.unwrap_or_else(nothing),
            problem.map_or_else(nothing, |problem| problem.reason.clone()),
            why(view),
        ];
        table.row(first_cells(view).into_iter().chain(more));
    }
    table
}

/// The cells that all lists begin with.
fn first_cells(view: &RuntimeView) -> [String; 9] {
    let nothing = || NOTHING.to_owned();
    [
        view.label.clone(),
        view.account.clone(),
        state(view).to_owned(),
        state_since(view).map_or_else(nothing, |since| age(since.age())),
        view.sessions.len().to_string(),
        best_round_trip(&view.sessions).map_or_else(nothing, round_trip),
        view.open_exchanges.to_string(),
        bytes(view.bytes_in),
        bytes(view.bytes_out),
    ]
}

fn why(view: &RuntimeView) -> String {
    offline_because(view).unwrap_or_else(|| NOTHING.to_owned())
}

fn runtime_page(view: &RuntimeView) -> String {
    let mut table = Table::named();
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("runtime", view.label.clone());
    row("account", view.account.clone());
    row("name", view.name.clone());
    row("hosts", view.hosts.join(", "));
    let since = state_since(view).map(|since| format!(" for {}, since {since}", age(since.age())));
    row(
        "state",
        format!("{}{}", state(view), since.unwrap_or_default()),
    );
    if let Some(because) = offline_because(view) {
        row("offline because", because);
    }
    if let Some(instance) = &view.instance {
        let epoch = view.epoch.unwrap_or_default();
        row("instance", format!("{instance}, epoch {epoch}"));
    }
    if let Some(credential) = &view.credential {
        row(
            "credential",
            format!("{} {}", credential.kind, credential.id),
        );
    }
    if let Some(expires) = view.expires {
        row("expires", expires.to_string());
    }
    let (open, waiting) = (view.open_exchanges, view.waiting);
    row("exchanges", format!("{open} open, {waiting} waiting"));
    let (sent, received) = (bytes(view.bytes_in), bytes(view.bytes_out));
    let requests = view.requests;
    row(
        "carried",
        format!("{requests} requests, {sent} in, {received} out"),
    );
    row("limits", limits(&view.limits));
    let from = view.allow_from.as_ref().map(|from| from.join(", "));
    row(
        "allowed from",
        from.unwrap_or_else(|| "anywhere".to_owned()),
    );
    if let Some(problem) = &view.last_problem {
        let ago = age(problem.at.age());
        row("last problem", format!("{}, {ago} ago", problem.reason));
    }
    if let Some(end) = &view.last_session_end {
        let ago = age(end.at.age());
        row(
            "last session end",
            format!(
                "{}, {ago} ago: {}; peer {}, client {}",
                end.reason, end.detail, end.peer, end.client_version
            ),
        );
    }
    if let Some(refusal) = &view.last_refusal {
        row("last refusal", last_refusal(refusal));
    }
    let mut page = table.to_string();
    if !view.sessions.is_empty() {
        page += &format!("\n{}", sessions_table(&view.sessions));
    }
    if let Some(routes) = view.routes.as_ref().filter(|routes| !routes.is_empty()) {
        page += &format!("\n{}", routes_table(routes));
    }
    if let Some(omitted) = view.routes_omitted {
        page += &format!("and {}\n", count(omitted, "more route"));
    }
    page
}

fn last_refusal(refusal: &RefusedDial) -> String {
    let RefusedDial {
        at, reason, detail, ..
    } = refusal;
    let credential = refusal.credential.as_ref();
    let credential = credential.map(|one| format!(", {} {}", one.kind, one.id));
    let version = refusal.client_version.as_ref();
    let version = version.map(|version| format!(", client {version}"));
    format!(
        "{reason}, {} ago: {detail}; peer {}{}{}",
        age(at.age()),
        refusal.peer,
        credential.unwrap_or_default(),
        version.unwrap_or_default()
    )
}

/// Why a runtime is offline: its tunnel client is refused, or how its last session has ended. `None` if it is online.
fn offline_because(view: &RuntimeView) -> Option<String> {
    if view.online {
        return None;
    }
    let end = view.last_session_end.as_ref();
    let refusal = view.last_refusal.as_ref();
    // An older refusal was followed by a session.
    let refusal = refusal.filter(|refusal| end.is_none_or(|end| end.at < refusal.at));
    Some(match (refusal, end) {
        (Some(refusal), _) => {
            let (reason, detail) = (&refusal.reason, &refusal.detail);
            format!("refused {} ago, {reason}: {detail}", age(refusal.at.age()))
        }
        (None, Some(end)) => {
            let (reason, detail) = (&end.reason, &end.detail);
            format!(
                "session ended {} ago, {reason}: {detail}",
                age(end.at.age())
            )
        }
        (None, None) => "no tunnel client has named it since the server was started".to_owned(),
    })
}

fn routes_table(routes: &[RouteView]) -> Table {
    // Only a client with `--tell-routes full` tells it.
    let has_to = routes.iter().any(|route| !route.to.is_empty());
    let all: &[&str] = &["ROUTE", "MATCHES", "STATE", "TO"];
    let mut table = Table::titled(if has_to { all } else { &all[..3] }, &[]);
    for route in routes {
        let mut row = vec![&route.name, &route.matches, &route.state];
        row.extend(has_to.then_some(&route.to));
        table.row(row.into_iter().cloned());
    }
    table
}

fn sessions_table(sessions: &[SessionView]) -> Table {
    const TITLES: [&str; 10] = [
        "SESSION", "NODE", "PEER", "CLIENT", "STATE", "FOR", "RTT", "OPEN", "IN", "OUT",
    ];
    let mut table = Table::titled(&TITLES, &[5, 6, 7, 8, 9]);
    for session in sessions {
        let round_trip = session.round_trip_ms.map(round_trip);
        let state = if session.is_draining {
            "draining"
        } else {
            "open"
        };
        table.row([
            session.number.to_string(),
            session.node.clone().unwrap_or_else(|| NOTHING.to_owned()),
            session.peer.clone(),
            session.client_version.clone(),
            state.to_owned(),
            age(session.since.age()),
            round_trip.unwrap_or_else(|| NOTHING.to_owned()),
            session.open_exchanges.to_string(),
            bytes(session.bytes_in),
            bytes(session.bytes_out),
        ]);
    }
    table
}

fn state(view: &RuntimeView) -> &'static str {
    if view.online { "online" } else { "offline" }
}

fn state_since(view: &RuntimeView) -> Option<Timestamp> {
    match view.online {
        true => view.online_since,
        false => view.last_online,
    }
}

fn best_round_trip(sessions: &[SessionView]) -> Option<f64> {
    let times = sessions.iter().filter_map(|session| session.round_trip_ms);
    times.min_by(f64::total_cmp)
}

fn limits(limits: &LimitsView) -> String {
    let exchanges = limits.exchanges.map(|limit| format!("{limit} exchanges"));
    let rate = limits
        .exchange_rate
        .map(|limit| format!("{limit} exchanges/s"));
    let upload = limits
        .upload_rate
        .map(|limit| format!("{}/s in", bytes(limit)));
    let download = limits
        .download_rate
        .map(|limit| format!("{}/s out", bytes(limit)));
    let websockets = limits.websockets.map(|limit| format!("{limit} websockets"));
    let head = limits
        .head_bytes
        .map(|limit| format!("{} heads", bytes(limit as u64)));
    let waiting = limits.waiting.map(|limit| format!("{limit} waiting"));
    let held = limits
        .waiting_bytes
        .map(|limit| format!("{} waiting", bytes(limit)));
    let all = [
        exchanges, rate, upload, download, websockets, head, waiting, held,
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    match all.is_empty() {
        true => "none".to_owned(),
        false => all.join(", "),
    }
}
