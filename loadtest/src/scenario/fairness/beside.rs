//! What runs beside small requests.

use std::sync::Arc;

use http::{HeaderValue, Method};

use super::{
    Args,
    phase::{BackgroundLoad, Limit},
};
use crate::{
    load::{Load, LoadModel},
    scenario::{
        http::Requests,
        transfer::{self, Flow, Transfer},
        websocket::Echo,
    },
    target::Target,
};

/// The load of a phase; none for the unloaded one.
pub(super) fn load(
    args: &Args,
    target: &Target,
    beside: BackgroundLoad,
) -> anyhow::Result<Option<Load>> {
    let mut load = Load::new(args.load_beside());
    let rate = args.bulk_rate.as_u64().to_string();
    let paced = args.paced_path.replace("{rate}", &rate);
    let slow = args.slow_rate.as_u64().max(1);
    let (count, path, pace) = match beside {
        BackgroundLoad::Nothing => return Ok(None),
        BackgroundLoad::Paced => (args.bulk_streams, &paced, None),
        BackgroundLoad::Unthrottled => (args.bulk_streams, &args.bulk_path, None),
        BackgroundLoad::SlowReaders => (args.slow_readers, &args.bulk_path, Some(slow)),
        BackgroundLoad::Limit(limit) => {
            beyond(&mut load, target, limit)?;
            return Ok(Some(load));
        }
    };
    let template = target.template(Method::GET, Some(path))?;
    let transfer = Transfer {
        pace,
        ..Transfer::new(template, false, None)
    };
    let flow = Arc::new(Flow::new(transfer, count));
    load.group("downloads", count, LoadModel::Closed, move |worker| {
        transfer::work(flow.clone(), worker)
    });
    Ok(Some(load))
}

/// Adds a load that goes beyond a limit.
fn beyond(load: &mut Load, target: &Target, limit: &Limit) -> anyhow::Result<()> {
    let name = "beyond the limit";
    let mut template = target.template(limit.method.clone(), Some(limit.path))?;
    if limit.is_websocket {
        let echo = Arc::new(Echo { template, size: 64 });
        load.requests(name, limit.connections, limit.pace, echo);
        return Ok(());
    }
    if limit.field > 0 {
        let large = HeaderValue::from_str(&"x".repeat(limit.field))?;
        template.headers.insert("x-large", large);
    }
    let client = Arc::new(Requests::new(template, limit.upload)?);
    load.requests(name, limit.connections, limit.pace, client);
    Ok(())
}
