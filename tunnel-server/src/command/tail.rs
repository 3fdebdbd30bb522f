//! `tunnel-server tail`: shows the exchanges of a runtime, each at its end.

use tunnel_http::tail::watch::watch;

use super::{Failure, admin_client};
use crate::cli::TailArgs;

pub(super) async fn tail(args: &TailArgs) -> Result<(), Failure> {
    let client = admin_client(&args.target.admin)?;
    let path = format!("/runtimes/{}/exchanges", args.target.label);
    Ok(watch(&client, &path, &args.flags).await?)
}
