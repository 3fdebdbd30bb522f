//! `tunnel-client http`: runs a client for one local service, and prints where that is reached.

use tokio::sync::watch;
use tunnel_ops::task::Owned;

use super::{Failure, print, program, run};
use crate::{cli::HttpArgs, client::Welcomed, config::Given, upstream_advice::upstream_advice};

pub(super) fn http(arguments: HttpArgs) -> Result<(), Failure> {
    let service = arguments.service.clone();
    let upstream = service.to_string();
    let given = given(arguments)?;
    program::run(given, async move |given, access_log| {
        let (client, shutdown) = run::prepare(given, access_log)?;
        let _advising = Owned::spawn("advice", async move {
            if let Some(advice) = upstream_advice(&service).await {
                tunnel_ops::print_note!("{service}: {advice}");
            }
        });
        let _announcing = Owned::spawn("announce", announce(client.welcomed(), upstream));
        run::until_stopped(client, shutdown).await
    })
}

/// The settings of `run` for a service on a developer's machine: without an admin listener, whose port another client may
/// have, and without the log lines of an ordinary life. What flags, variables and a file of settings say counts more.
fn given(HttpArgs { service, given }: HttpArgs) -> Result<Given, Failure> {
    let mut given = given;
    if given.source.upstream.is_some() {
        let twice = "the upstream is given twice: leave --upstream and TUNNEL_CLIENT_UPSTREAM out";
        return Err(Failure::configuration(twice));
    }
    given.source.upstream = Some(service);
    if given.config.is_none() {
        let settings = &mut given.source;
        let admin = settings.admin_listen.take();
        settings.admin_listen = admin.or_else(|| "off".parse().ok());
        let level = settings.log_level.take();
        settings.log_level = level.or_else(|| "warn".parse().ok());
    }
    Ok(given)
}

/// Prints each address at which the runtime is reached, when it is first known, until it is dropped.
async fn announce(mut welcomed: watch::Receiver<Option<Welcomed>>, upstream: String) {
    let mut last = None;
    loop {
        let url = welcomed.borrow_and_update().as_ref().map(Welcomed::shown);
        if url.is_some() && url != last {
            let shown = url.as_deref().unwrap_or_default();
            let _ = print(&format!("{shown} -> {upstream}\n"));
            last = url;
        }
        if welcomed.changed().await.is_err() {
            return;
        }
    }
}
