//! `tunnel-server validate`: checks everything that `run` checks, without serving. With `--against`, also shows what
//! would change on a running server.

use std::fmt::Write;
use std::time::SystemTime;

use super::admin_client_at;
use super::{Failure, block_on, print};
use crate::admin::view::ConfigView;
use crate::cli::ValidateArgs;
use crate::config::effective::{Difference, Effective, differences};
use crate::config::{Config, Given};
use crate::server::Server;
use tunnel_ops::{settings::GivenSettings, terminal::printable};

pub(super) fn validate(args: ValidateArgs) -> Result<(), Failure> {
    let ValidateArgs { given, against } = args;
    let (config, effective, warnings) = check(given)?;
    for warning in warnings {
        tunnel_ops::print_note!("warning: {warning}");
    }
    let (runtimes, tokens) = (config.runtimes.iter().len(), config.runtimes.token_count());
    let mut text = format!("ok: runtimes {runtimes}, tokens {tokens}\n");
    if let Some(url) = against {
        let token_file = config.settings.admin_token_file.as_deref();
        let client = admin_client_at("--against", &url, token_file)?;
        let running = block_on(async { Ok(client.get::<ConfigView>("/config").await?) })?;
        text += &describe(&running, &effective);
    }
    print(&text).map(|_| ())
}

fn check(given: Given) -> Result<(Config, Effective, Vec<String>), Failure> {
    let source = given.merge().map_err(Failure::configuration)?;
    let config = super::check(&source)?;
    let effective = Server::check(&config).map_err(|error| Failure::binding(error, &source))?;
    certificates(&config)?;
    Ok((config, effective, source.readable_secrets()))
}

/// Refuses expired certificates. `run` serves an expired certificate, with a warning; this command is for finding that
/// out before.
fn certificates(config: &Config) -> Result<(), Failure> {
    let all = [
        ("tls-cert", &config.tunnel_tls),
        ("public-tls-cert", &config.public_tls),
    ];
    let expired = all.into_iter().filter_map(|(flag, identity)| {
        let problem = identity.as_ref()?.check_end(SystemTime::now()).err()?;
        Some(format!("--{flag}: {problem}"))
    });
    let expired: Vec<_> = expired.collect();
    match expired.is_empty() {
        true => Ok(()),
        false => Err(Failure::Configuration(expired.join("\n"))),
    }
}

/// Describes the differences, one per line.
fn describe(running: &ConfigView, effective: &Effective) -> String {
    let differences = differences(&running.settings, effective);
    let version = running.version;
    if differences.is_empty() {
        return format!(
            "no changes: the running server has this configuration, as version {version}\n"
        );
    }
    let mut text = format!("changes to the running server's version {version}:\n");
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
    fn each_difference_has_a_line_that_says_whether_it_needs_a_restart() {
        let running = ConfigView {
            version: 7,
            settings: settings(&[("grace-period", "25s"), ("shards", "0\u{1b}[J")]),
        };
        let same = describe(&running, &running.settings);
        assert_eq!(
            same,
            "no changes: the running server has this configuration, as version 7\n"
        );
        let other = settings(&[("grace-period", "30s"), ("shards", "2")]);
        assert_eq!(
            describe(&running, &other),
            "changes to the running server's version 7:\n  grace-period: 25s -> 30s\n  \
             shards: 0\u{fffd}[J -> 2 (only after a restart)\n"
        );
    }
}
