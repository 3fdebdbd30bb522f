//! `tunnel-server run`: starts a server from its settings and runs it until it stops, or a new process takes over.

use std::sync::Arc;

use tunnel_http::access_log::AccessLog;
use tunnel_ops::inherited::Inherited;
use tunnel_ops::signals::Shutdown;
use tunnel_ops::telemetry::{self, LogFormat, Telemetry};
use tunnel_ops::{build, descriptors, task::Owned};

use super::{Failure, block_on};
use crate::config::Given;
use crate::server::{
    Process, Server, connection_limit, descriptors_for,
    handover::{self, Predecessor},
    reload::Reloader,
};

pub(super) fn run(given: Given) -> Result<(), Failure> {
    let predecessor = Predecessor::from_environment()
        .map_err(|error| Failure::running(format_args!("cannot take over: {error}")))?;
    let Some(predecessor) = predecessor else {
        return run_after(None, given, |_| {});
    };
    let reporting = predecessor.try_clone().map_err(Failure::running)?;
    match handover::detach(&predecessor) {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => {
            let failure =
                Failure::running(format_args!("cannot start the program once more: {error}"));
            reporting.report_failure(failure.text());
            return Err(failure);
        }
    }
    run_after(Some(predecessor), given, |failure| {
        reporting.report_failure(failure.text());
    })
}

/// `report` is called with the failure, if there is one.
fn run_after(
    predecessor: Option<Predecessor>,
    given: Given,
    report: impl Fn(&Failure),
) -> Result<(), Failure> {
    let (inherited, format, telemetry) = begin(&given).inspect_err(&report)?;
    // This thread runs the control tasks; the shards that carry traffic have their own.
    let process = Process {
        inherited,
        predecessor,
        can_be_upgraded: true,
    };
    // Kept until the failure is logged.
    let telemetry = Arc::new(telemetry);
    let result = block_on(serve(process, given, Arc::clone(&telemetry)));
    let result = result.inspect_err(report);
    result.map_err(|failure| failure.logged(format))
}

fn begin(given: &Given) -> Result<(Inherited, LogFormat, Telemetry), Failure> {
    // While this is the only thread, since it changes the environment.
    let inherited = Inherited::from_environment().map_err(Failure::configuration)?;
    let source = given.clone().merge().map_err(Failure::configuration)?;
    // The log is started first, so that no line of the next steps is lost.
    let format = source.log_format.unwrap_or_default();
    let filter = source.log_level.clone().unwrap_or_default();
    let telemetry = telemetry::init(format, &filter).map_err(Failure::running)?;
    descriptors::raise_limit();
    Ok((inherited, format, telemetry))
}

async fn serve(process: Process, given: Given, telemetry: Arc<Telemetry>) -> Result<(), Failure> {
    // Before anything else: the first process of a container (PID 1) ignores signals without a handler.
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::running(format_args!("cannot listen for signals: {error}")))?;
    let reloader = Reloader::new(given.clone())
        .map_err(|error| Failure::running(format_args!("cannot watch files: {error}")))?;
    // Every fault of the configuration is reported before anything is bound.
    let source = given.merge().map_err(Failure::configuration)?;
    let config = super::check(&source)?;
    let has_other = config.credentials().is_any() || config.settings.managed_runtimes.is_some();
    if config.runtimes.token_count() == 0 && !has_other {
        tracing::warn!("the runtimes file holds no token: no client can connect");
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        commit = build::commit(),
        "tunnel-server starts"
    );
    let wanted = config.settings.max_connections as usize;
    let connections = connection_limit(&config);
    if connections < wanted {
        let open_files = descriptors::limit().unwrap_or_default();
        let wanted_files = descriptors_for(wanted);
        tracing::warn!(
            open_files,
            wanted_files,
            connections,
            max_connections = wanted,
            "each listener has fewer connections than max-connections, because of the limit of open files: raise that to \
             wanted_files (ulimit -Hn, LimitNOFILE), or lower max-connections"
        );
    }
    let opened = telemetry.open_access_log(&config.settings.access_log);
    telemetry.set_access_log(opened.map_err(Failure::running)?);
    let access_log = AccessLog::new(telemetry.access_log());
    let server = Server::bind_in(process, config, access_log).await;
    let server = server.map_err(|error| Failure::binding(error, &source))?;
    let _upgrading = Owned::spawn(
        "upgrade signal",
        handover::on_signal(server.parts()).map_err(Failure::running)?,
    );
    let _reloading = reloader.start(server.parts(), telemetry);
    server
        .run(shutdown.clone())
        .await
        .map_err(Failure::running)?;
    Failure::of_forced(&shutdown)
}
