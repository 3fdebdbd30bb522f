//! A tunnel at its limits: what each is, and a load that wants twice as much.
//!
//! The limits hold for every runtime of the server, and the small requests of the neighbour stay far
//! below them. What is refused shows as errors of the load beside, which are wanted here.

use std::sync::Arc;

use anyhow::Context as _;
use http::{HeaderValue, Method};
use tokio::sync::watch;

use crate::{
    load::{Load, Pace},
    scenario::{
        fairness::{Args, phase::Limit},
        http::Requests,
        websocket::{Echo, Maker},
    },
    target::Target,
};

/// Bytes a second, each way.
const BYTES: u64 = 16 << 20;
/// Exchanges begun in a second.
const RATE: u32 = 500;
/// Exchanges open at once: no more than the server lets one address have however few are left.
const EXCHANGES: usize = 16;
/// WebSockets open at once.
const WEBSOCKETS: usize = 16;
/// Bytes of a head.
const HEAD: usize = 8 << 10;

/// Connections of a load whose number is not the limit.
const CONNECTIONS: usize = 16;
/// How much more than it may a tunnel wants.
const TIMES: usize = 2;
/// Size of each upload: half a second of what is allowed, shared by all connections.
const UPLOAD: u64 = BYTES / (2 * CONNECTIONS as u64);
/// A download that goes on for as long as the phase does, at a byte a second.
const HELD: &str = "/pace?rate=1";

/// The server's flags that set them.
pub(super) fn server_flags() -> [String; 6] {
    [
        format!("--limit-download-rate={BYTES}B"),
        format!("--limit-upload-rate={BYTES}B"),
        format!("--limit-exchange-rate={RATE}"),
        format!("--limit-exchanges={EXCHANGES}"),
        format!("--limit-websockets={WEBSOCKETS}"),
        format!("--limit-head-size={HEAD}B"),
    ]
}

/// A load that goes beyond one limit, and who is told that it runs.
pub(super) fn load(
    args: &Args,
    target: &Target,
    limit: Limit,
) -> anyhow::Result<(Load, watch::Receiver<bool>)> {
    let mut load = Load::new(args.stretch_beside(), args.load.threads.into());
    let asks = |method, path, size| Requests::new(target, method, Some(path), size).map(Arc::new);
    let twice = f64::from(RATE) * TIMES as f64;
    let name = "beyond the limit";
    match limit {
        Limit::Downloads => {
            let client = asks(Method::GET, "/bytes/1048576", 0)?;
            load.requests(name, CONNECTIONS, Pace::Closed, client);
        }
        Limit::Uploads => {
            let client = asks(Method::POST, "/upload", UPLOAD)?;
            load.requests(name, CONNECTIONS, Pace::Closed, client);
        }
        Limit::Requests => {
            let client = asks(Method::GET, "/", 0)?;
            load.requests(name, CONNECTIONS, Pace::Open(twice), client);
        }
        Limit::Exchanges => {
            // Whoever is let in stays; all others ask again at a steady rate.
            let client = asks(Method::GET, HELD, 0)?;
            let pace = Pace::Open(f64::from(RATE));
            load.requests(name, EXCHANGES * TIMES, pace, client);
        }
        Limit::WebSockets => {
            let template = target.template(Method::GET, Some("/echo"))?;
            let maker = Arc::new(Maker {
                dialer: target.dialer.clone(),
                http2: target.http2,
                template,
                size: 64,
            });
            let pace = Pace::Open(f64::from(RATE));
            load.requests(name, WEBSOCKETS * TIMES, pace, Arc::new(Echo(maker)));
        }
        Limit::Heads => {
            let mut template = target.template(Method::GET, Some("/"))?;
            let large =
                HeaderValue::from_str(&"x".repeat(HEAD * TIMES)).context("a large field")?;
            template.headers.insert("x-large", large);
            let client = Arc::new(Requests::of(target, template, 0)?);
            load.requests(name, CONNECTIONS, Pace::Open(f64::from(RATE)), client);
        }
    }
    // Nothing of it lasts, so there is nothing to wait for; the small requests' warm-up covers its start.
    let (_, told) = watch::channel(true);
    Ok((load, told))
}
