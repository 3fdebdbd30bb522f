//! `tunnel-client validate`: checks everything `run` would check, or `serve`, and dials nobody.
#![allow(clippy::print_stdout, reason = "the result is for whoever asked")]

use super::Failure;
use crate::cli::ValidateArgs;
use crate::config::{Config, ServeConfig};

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let source = args.given.merge().map_err(Failure::configuration)?;
    if args.serve {
        let config = ServeConfig::check(source).map_err(Failure::configuration)?;
        let (listen, upstream) = (config.listen.address, config.upstream);
        println!("ok: listen {listen}, upstream {upstream}");
        return Ok(());
    }
    let config = Config::check(source).map_err(Failure::configuration)?;
    let proxy = config.proxy.as_ref();
    let proxy = proxy.map_or_else(String::new, |proxy| format!(", by the proxy {}", proxy.url));
    println!(
        "ok: server {}{proxy}, upstream {}",
        config.server, config.upstream
    );
    Ok(())
}
