//! `tunnel-server validate`: checks everything `run` would check, and serves nothing. Says what would
//! change if a running server took it over.

use std::fmt::Write;
use std::time::SystemTime;

use super::admin_client::AdminClient;
use super::table::printable;
use super::{Failure, block_on, print};
use crate::admin::view::ConfigView;
use crate::cli::ValidateArgs;
use crate::config::effective::{Difference, Effective, differences};
use crate::config::{Config, Given};
use crate::server::Server;

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let ValidateArgs { given, against } = args;
    let (config, effective) = check(given)?;
    let (runtimes, tokens) = (config.runtimes.iter().len(), config.runtimes.token_count());
    let mut text = format!("ok: runtimes {runtimes}, tokens {tokens}\n");
    if let Some(url) = against {
        let token_file = config.settings.admin_token_file.as_deref();
        let client = AdminClient::at("--against", &url, token_file)?;
        let running = block_on(async { Ok(client.get::<ConfigView>("/config").await?) })?;
        text += &told(&running, &effective);
    }
    print(&text).map(|_| ())
}

fn check(given: Given) -> Result<(Config, Effective), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = Config::check(&source).map_err(Failure::configuration)?;
    let effective = Server::check(&config).map_err(Failure::binding)?;
    certificates(&config)?;
    Ok((config, effective))
}

/// `run` takes a certificate that has run out where it has no better, and says so; to find out before is
/// what this command is for.
fn certificates(config: &Config) -> Result<(), Failure> {
    let public = config.public_tls.as_ref();
    let all = [
        ("tls-cert", Some(&config.tunnel_tls)),
        ("public-tls-cert", public),
    ];
    for (flag, identity) in all {
        let ended = identity.map_or(Ok(()), |identity| identity.check_end(SystemTime::now()));
        ended.map_err(|problem| Failure::configuration(format!("--{flag}: {problem}")))?;
    }
    Ok(())
}

/// A line for each difference.
fn told(running: &ConfigView, effective: &Effective) -> String {
    let differences = differences(&running.settings, effective);
    let version = running.version;
    if differences.is_empty() {
        return format!("the running server has the same, as version {version}\n");
    }
    let mut text = format!("would change of the running server's version {version}:\n");
    for difference in differences {
        let _ = writeln!(text, "  {}", line(&difference));
    }
    text
}

fn line(difference: &Difference) -> String {
    let text = printable(&difference.to_string());
    match difference.needs_restart() {
        true => format!("{text} (only after a restart)"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(all: &[(&str, &str)]) -> Effective {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        all.iter().map(owned).collect()
    }

    #[test]
    fn each_difference_has_a_line_and_says_when_it_counts() {
        let running = ConfigView {
            version: 7,
            settings: settings(&[("grace-period", "25s"), ("shards", "0\u{1b}[J")]),
        };
        let same = told(&running, &running.settings);
        assert_eq!(same, "the running server has the same, as version 7\n");
        let other = settings(&[("grace-period", "30s"), ("shards", "2")]);
        assert_eq!(
            told(&running, &other),
            "would change of the running server's version 7:\n  grace-period: 25s -> 30s\n  \
             shards: 0\u{fffd}[J -> 2 (only after a restart)\n"
        );
    }
}
