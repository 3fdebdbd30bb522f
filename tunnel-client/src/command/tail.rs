//! `tunnel-client tail`: shows the exchanges of a running client, each at its end.

use tunnel_http::tail::watch::watch;
use tunnel_ops::admin::{AdminClient, AdminTarget};

use super::{Failure, program};
use crate::cli::TailArgs;

pub(super) fn tail(args: &TailArgs) -> Result<(), Failure> {
    let client = AdminClient::new(AdminTarget {
        url: args.url.clone(),
        flag: "--admin",
        program: "tunnel client",
    });
    program::block_on(async {
        let watching = watch(&client, "/exchanges", &args.flags);
        watching.await.map_err(Failure::running)
    })
}
