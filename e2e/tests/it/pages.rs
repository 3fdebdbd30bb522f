//! The generated parts of `docs/reference` say what the programs say. Where the variable `UPDATE_PAGES` is set, the tests
//! write them.
//!
//! A page of settings is generated as a whole; of the others what stands between two marks. The tables of problems and
//! refusals are compared by `tunnel-proto`.

use std::{collections::BTreeSet, fmt::Write};

use clap::{Arg, Command, CommandFactory};
use e2e::program::root;
use tunnel_ops::{
    metrics::Family,
    settings::{GivenSettings, page},
};

#[test]
fn the_pages_of_settings_are_those_of_the_programs() {
    compare(
        "settings-server",
        None,
        &page::<tunnel_server::config::Source>("tunnel-server"),
    );
    compare(
        "settings-client",
        None,
        &page::<tunnel_client::config::Source>("tunnel-client"),
    );
}

#[test]
fn the_lists_of_metrics_are_those_of_the_programs() {
    let server = tunnel_server::metrics::Metrics::new().unwrap();
    compare("metrics", Some("server"), &families(server.families()));
    compare(
        "metrics",
        Some("client"),
        &families(&tunnel_client::metrics::families().unwrap()),
    );
}

/// A panel or an alert whose metric was renamed shows nothing, and never fires.
#[test]
fn every_metric_of_dashboards_and_alerts_exists() {
    let server = tunnel_server::metrics::Metrics::new().unwrap();
    let client = tunnel_client::metrics::families().unwrap();
    let known: BTreeSet<&str> = server
        .families()
        .iter()
        .chain(&client)
        .map(|family| &*family.name)
        .collect();
    let deploy = root().join("deploy");
    let mut named = 0;
    for file in [
        "grafana/servers.json",
        "grafana/runtime.json",
        "grafana/client.json",
        "prometheus/rules.yaml",
        "prometheus/rules_test.yaml",
    ] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        let words = text.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        let is_metric =
            |word: &&str| word.starts_with("tunnel_server_") || word.starts_with("tunnel_client_");
        for word in words.filter(is_metric) {
            let part = ["_bucket", "_count"].into_iter();
            let name = part.filter_map(|part| word.strip_suffix(part)).next();
            let name = name.unwrap_or(word);
            assert!(known.contains(name), "{file}: {word}");
            named += 1;
        }
    }
    assert!(named > 50, "{named}");
}

/// The charts can include files of their own folder only.
#[test]
fn the_charts_have_the_alerts() {
    let deploy = root().join("deploy");
    let rules = std::fs::read_to_string(deploy.join("prometheus/rules.yaml")).unwrap();
    for chart in ["tunnel-server", "tunnel-client"] {
        let copy = deploy.join("helm").join(chart).join("rules.yaml");
        if std::env::var_os("UPDATE_PAGES").is_some() {
            std::fs::write(&copy, &rules).unwrap();
        }
        let there = std::fs::read_to_string(&copy).unwrap();
        assert!(there == rules, "{chart}: set UPDATE_PAGES=1 to copy it");
    }
}

/// `deploy/check-files` runs the tests of the alerts.
#[test]
fn every_alert_is_tested_and_explained() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (rules, tests) = (
        read("deploy/prometheus/rules.yaml"),
        read("deploy/prometheus/rules_test.yaml"),
    );
    let named: BTreeSet<&str> = (rules.lines())
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
        .collect();
    assert!(named.len() > 20, "{named:?}");
    let fires: BTreeSet<&str> = (tests.lines())
        .filter_map(|line| line.trim().strip_prefix("- alertname: "))
        .collect();
    assert_eq!(fires, named, "alerts that fire in a test");
    let is_silent = |alert: &&str| {
        let line = format!("- {{ alertname: {alert}, eval_time: 2h, exp_alerts: [] }}");
        tests.contains(&line)
    };
    let silent: BTreeSet<&str> = named.iter().copied().filter(is_silent).collect();
    assert_eq!(silent, named, "alerts that are silent in the good case");
    let guide = read("docs/guides/troubleshooting.md");
    let (_, alerts) = guide.split_once("\n## Alerts\n").unwrap();
    let explained: BTreeSet<&str> = (alerts.split("**").skip(1).step_by(2)).collect();
    assert_eq!(explained, named, "alerts that the guide explains");
}

#[test]
fn the_lists_of_commands_are_those_of_the_programs() {
    let server = tunnel_server::cli::Cli::command();
    compare(
        "commands",
        Some("server"),
        &commands::<tunnel_server::config::Source>(&server),
    );
    let client = tunnel_client::cli::Cli::command();
    compare(
        "commands",
        Some("client"),
        &commands::<tunnel_client::config::Source>(&client),
    );
}

/// Compares a page, or the part of it with this name, with what the programs make of it.
fn compare(page: &str, part: Option<&str>, made: &str) {
    let path = root().join(format!("docs/reference/{page}.md"));
    let (begin, end) = match part {
        Some(part) => (
            format!("<!-- begin: {part} (generated) -->\n"),
            format!("<!-- end: {part} -->\n"),
        ),
        None => Default::default(),
    };
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(&begin).expect("the mark stands there");
    let (there, after) = match part {
        Some(_) => rest.split_once(&end).expect("the mark stands there"),
        None => (rest, ""),
    };
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(&path, [before, &begin, made, &end, after].concat()).unwrap();
        return;
    }
    let other = there
        .lines()
        .zip(made.lines())
        .find(|(there, made)| there != made);
    assert_eq!(other, None, "{page}: set UPDATE_PAGES=1 to write it anew");
    assert_eq!(there.len(), made.len(), "{page}");
}

fn families(families: &[Family]) -> String {
    let mut table = "| name | type | labels | what |\n|---|---|---|---|\n".to_owned();
    for family in families {
        let labels: Vec<_> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let cells = [family.kind, &labels.join(", "), &family.help].join(" | ");
        writeln!(table, "| `{}` | {cells} |", family.name).unwrap();
    }
    table
}

/// A flag or argument that is no setting.
#[derive(PartialEq)]
struct Argument {
    name: String,
    default: String,
    help: String,
}

/// A table of the commands and one of their flags and arguments. Those that have one meaning for several commands
/// have one row.
fn commands<S: GivenSettings>(program: &Command) -> String {
    let mut table = "| command | flags | what |\n|---|---|---|\n".to_owned();
    let mut rows: Vec<(Argument, Vec<String>)> = Vec::new();
    for (path, command) in leaves(program, program.get_name()) {
        let takes_settings = command
            .get_arguments()
            .any(|known| known.get_id() == "config");
        let is_setting = |argument: &Arg| {
            let flag = argument.get_long().unwrap_or_default();
            takes_settings
                && (flag == "config" || S::SETTINGS.iter().any(|setting| setting.flag() == flag))
        };
        let own: Vec<_> = (command.get_arguments().filter(|known| !is_setting(known)))
            .map(argument)
            .collect();
        let mut names: Vec<_> = own.iter().map(|own| format!("`{}`", own.name)).collect();
        if takes_settings {
            names.insert(0, "settings".to_owned());
        }
        let about = cell(command.get_about());
        writeln!(table, "| `{path}` | {} | {about} |", names.join(", ")).unwrap();
        let path = path.split_once(' ').map_or("", |(_, rest)| rest).to_owned();
        for argument in own {
            match rows.iter_mut().find(|(known, _)| *known == argument) {
                Some((_, paths)) => paths.push(path.clone()),
                None => rows.push((argument, vec![path.clone()])),
            }
        }
    }
    table += "\n| flag | of | default | what |\n|---|---|---|---|\n";
    for (
        Argument {
            name,
            default,
            help,
        },
        paths,
    ) in rows
    {
        let paths = paths.join(", ");
        writeln!(table, "| `{name}` | {paths} | {default} | {help} |").unwrap();
    }
    table
}

/// The commands that do something, with their names.
fn leaves<'a>(command: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
    if !command.has_subcommands() {
        return vec![(path.to_owned(), command)];
    }
    let commands = command.get_subcommands();
    commands
        .flat_map(|command| leaves(command, &format!("{path} {}", command.get_name())))
        .collect()
}

fn argument(argument: &Arg) -> Argument {
    let value_names = argument.get_value_names().map(|names| names.join(" "));
    let name = match argument.get_long() {
        None => value_names.unwrap_or_else(|| argument.get_id().as_str().to_uppercase()),
        Some(flag) if argument.get_action().takes_values() => {
            format!("--{flag} {}", value_names.unwrap_or_default())
        }
        Some(flag) => format!("--{flag}"),
    };
    let defaults = argument.get_default_values().iter();
    let default = match argument.is_required_set() {
        true => "required".to_owned(),
        false => defaults
            .map(|value| format!("`{}`", value.to_string_lossy()))
            .collect(),
    };
    let help = cell(argument.get_help());
    Argument {
        name,
        default,
        help,
    }
}

fn cell(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.replace('|', "\\|")
}
