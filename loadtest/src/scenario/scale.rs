//! One scenario over a list of levels: how cost grows with connections, body sizes, tunnels.
//!
//! The scenario and its flags stand last on the command line; `--over connections=1,8,64` runs it
//! once for each level with `--connections=1`, `--connections=8` and so on. So anything that is a
//! flag of any scenario can be scaled, and a self-contained target is started anew for each level.

pub mod axis;
mod results;

use anyhow::{Context as _, bail};
use clap::Parser as _;

use crate::{
    progress::Progress,
    report::Report,
    scenario::{
        Scenario, rounds,
        scale::{axis::Axis, results::Results},
    },
};

/// What is scaled when no scenario is named.
const DEFAULT: [&str; 4] = ["http", "--self-contained", "--duration", "5s"];

/// Flags of `loadtest scale`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A flag of the scenario and its levels, such as connections=1,8,64,256 or body-size=0,1KiB
    #[arg(long, value_name = "FLAG=LEVEL,...")]
    pub over: Axis,
    /// Rounds: in each, every level comes once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// The scenario and its flags, last on the line [default: http --self-contained --duration 5s]
    #[arg(
        value_name = "SCENARIO",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<String>,
}

/// Measures.
///
/// # Errors
/// The scenario's flags are wrong, or one of its levels cannot be measured.
pub async fn run(args: Args, progress: &Progress) -> anyhow::Result<Report> {
    let command = args.command();
    let levels = args.over.levels();
    // All are parsed before the first is run: a wrong level must not cost a measurement.
    let scenarios = levels
        .iter()
        .map(|level| scenario(&command, &args.over.flag, &level.text));
    let scenarios = scenarios.collect::<anyhow::Result<Vec<_>>>()?;
    let name = command.first().map_or("", String::as_str);
    let mut report = Report::new("scale", format!("{name} over {}", args.over.flag));

    let mut results = Results::new(args.over.clone());
    let labels = levels
        .iter()
        .map(|level| format!("{} {}", args.over.flag, level.text));
    let labels: Vec<_> = labels.collect();
    let measure = async |number: usize| {
        let (Some(label), Some(scenario)) = (labels.get(number), scenarios.get(number)) else {
            return Ok(());
        };
        let measured = Box::pin(scenario.clone().run(progress)).await;
        results.add(
            number,
            measured.with_context(|| label.clone())?,
            &mut report,
        );
        // One that has none at its first level has none at any.
        if results.is_empty() {
            bail!("{name} has no runs that could be scaled");
        }
        Ok(())
    };
    rounds::interleave(args.rounds, &labels, progress, measure).await?;
    results.fill(&mut report);
    if args.rounds > 1 {
        report.note(rounds::meaning(args.rounds.into()));
        report.note("each run is all rounds of a level together");
    }
    Ok(report)
}

impl Args {
    fn command(&self) -> Vec<String> {
        if self.command.is_empty() {
            DEFAULT.map(str::to_owned).to_vec()
        } else {
            self.command.clone()
        }
    }
}

/// A command line with a scenario alone.
#[derive(clap::Parser)]
#[command(name = "loadtest")]
struct Line {
    #[command(subcommand)]
    scenario: Scenario,
}

/// The scenario at one level, from the words of the command line.
fn scenario(command: &[String], flag: &str, level: &str) -> anyhow::Result<Scenario> {
    let words = std::iter::once("loadtest".to_owned()).chain(command.iter().cloned());
    let words = words.chain([format!("--{flag}={level}")]);
    match Line::try_parse_from(words) {
        Ok(line) if matches!(line.scenario, Scenario::Scale(_)) => {
            bail!("scale cannot scale itself")
        }
        Ok(line) => Ok(line.scenario),
        Err(error) => bail!(
            "{error}flags of scale and of the result (--json, --report, --markdown, --quiet) stand \
             before the scenario"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn error(line: &str, flag: &str, level: &str) -> String {
        scenario(&words(line), flag, level).unwrap_err().to_string()
    }

    #[test]
    fn a_level_becomes_a_flag() {
        let Scenario::Http(args) =
            scenario(&words("http --url http://a"), "connections", "7").unwrap()
        else {
            panic!("http became another scenario");
        };
        assert_eq!(args.connections.get(), 7);
    }

    #[test]
    fn what_cannot_be_scaled_is_refused() {
        assert!(error("http --url http://a", "colour", "red").contains("--colour"));
        assert!(error("http --url http://a -c 3", "connections", "7").contains("multiple times"));
        assert!(error("http --url http://a", "connections", "x").contains("invalid value 'x'"));
        assert!(error("http --url http://a --json f", "connections", "7").contains("before"));
        assert!(
            error("scale --over a=1", "rounds", "2").contains("cannot"),
            "not itself"
        );
        assert!(error("upstream", "answer-size", "2").contains("unrecognized subcommand"));
    }
}
