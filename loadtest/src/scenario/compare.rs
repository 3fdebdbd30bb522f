//! The same load over several targets, interleaved in rounds: a table of ratios with their spread.
//!
//! ```text
//!   direct   load ─────────────────────────────────────▶ upstream
//!   hop      load ─▶ hyper proxy ──────────────────────▶ upstream
//!   nginx    load ─▶ nginx ══ TLS ══▶ nginx ───────────▶ upstream
//!   ours     load ─▶ tunnel server ◀═ TLS ═ client ────▶ upstream
//!   rathole  load ─▶ rathole ◀═ noise ═ rathole ───────▶ upstream
//!   NAME     load ─▶ whatever --target names ──────────▶ upstream
//! ```
//!
//! `preset` and `started` start what is compared, `sample` measures one of them once, `results` makes
//! tables of it all. A target that fails is told, never dropped. All share one machine, so what
//! else happened on it is told too (`noise`).

pub mod named;
mod noise;
mod preset;
mod results;
mod sample;
mod started;
pub mod upstream;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::bail;
use bytesize::ByteSize;
use http::{HeaderName, HeaderValue};

use crate::{
    load::LoadArgs,
    report::{Report, format},
    scenario::{Context, rounds},
    stack::StackArgs,
    target::parse_header,
};
use named::Named;
use noise::{Noise, Watch};
use preset::{HOP, NGINX};
use results::Results;
use sample::Level;
use started::{Choice, Started, UpstreamAnswer};
use upstream::Upstream;

/// Flags of `loadtest compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("duration", |flag| flag.default_value("4s")))]
#[command(mut_arg("warm_up", |flag| flag.default_value("1s")))]
#[command(next_help_heading = "Targets")]
pub struct Args {
    /// Compare this too: NAME=URL, then after commas the ids of its processes, for their use, and
    /// an IP:PORT to connect to instead of the URL's host; repeat for more
    #[arg(long = "target", value_name = "NAME=URL[,PID...]")]
    pub targets: Vec<Named>,
    /// Compare these alone, by name [default: all]. What is started ends with this program, but
    /// nginx, rathole and the tunnel's programs not when it is killed by SIGKILL
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The target that ratios are to [default: nginx, or hop where nginx is not installed]
    #[arg(long, value_name = "NAME")]
    pub base: Option<String>,
    /// Header to send to the targets of --target, such as "host: a.example"; repeat for more
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = parse_header)]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Believe any certificate of the targets of --target
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
    /// CA certificates to believe instead of the system's, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// What answers: nginx, sample, or the IP:PORT of something that runs and answers as `loadtest
    /// upstream` does [default: nginx where installed]
    #[arg(long, value_name = "WHAT")]
    pub upstream: Option<upstream::Choice>,
    /// Where the upstream listens, so that a tunnel of --target can lead there [default: a free
    /// port]
    #[arg(long, value_name = "IP:PORT")]
    pub upstream_listen: Option<SocketAddr>,
    /// What to send: small requests, and one large download and upload
    #[arg(
        long = "load",
        value_name = "LOAD,...",
        value_delimiter = ',',
        default_value = "http,bulk",
        help_heading = "Load"
    )]
    pub loads: Vec<Traffic>,
    /// Connections of the small requests, one level for each
    #[arg(long, short = 'c', value_name = "N,...", value_delimiter = ',', default_value = "1,64,256", value_parser = parse_connections, help_heading = "Load")]
    pub connections: Vec<usize>,
    /// Size of the download and of the upload
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        help_heading = "Load"
    )]
    pub size: ByteSize,
    /// Rounds: in each, every target gets every load once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Load")]
    pub rounds: u16,
    /// How long and how much.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Ours, and the sample upstream.
    #[command(flatten)]
    pub stack: StackArgs,
}

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Traffic {
    /// Small requests, closed loop.
    Http,
    /// One large download, one large upload.
    Bulk,
}

/// Measures.
///
/// # Errors
/// The flags contradict one another, there is no upstream, or no target could be measured.
pub async fn run(args: Args, context: &Context) -> anyhow::Result<Report> {
    let choices = Choice::all(&args)?;
    let mut report = Report::new("compare", "the same load over several targets");
    let load_average = noise::load_average();
    context.progress.message("starting the targets");
    let levels = args.levels();
    let environments = Environment::open_all(&args, &choices, &levels, &mut report).await?;
    let base = args.base(&choices, &environments, &mut report)?;
    describe(&args, &environments, &base, &mut report);
    let names = choices.iter().map(|choice| choice.name().to_owned());
    let mut results = Results::new(levels, names.collect());
    let mut noise = Noise::default();
    for round in 0..usize::from(args.rounds) {
        measure(
            &args,
            context,
            &environments,
            round,
            &mut results,
            &mut noise,
        )
        .await?;
    }
    if !results.has_any() {
        let reasons: Vec<_> = environments
            .iter()
            .flat_map(Environment::failures)
            .collect();
        bail!("no target could be measured\n{}", reasons.join("\n"));
    }
    results.fill(&base, &mut report);
    report.note(rounds::meaning(args.rounds.into()));
    let is_named = choices.iter().any(Choice::has_unknown_processes);
    let mut upstreams = environments.iter().map(|environment| &environment.upstream);
    let is_partial = is_named || upstreams.any(|upstream| upstream.pid.is_none());
    noise.tell(load_average, is_partial, &mut report);
    Ok(report)
}

/// One round: every level over every target.
async fn measure(
    args: &Args,
    context: &Context,
    environments: &[Environment],
    round: usize,
    results: &mut Results,
    noise: &mut Noise,
) -> anyhow::Result<()> {
    for (number, level) in results.levels().to_vec().into_iter().enumerate() {
        let environment = environments.iter().find(|all| all.serves(level));
        let Some(Environment { targets, .. }) = environment else {
            continue;
        };
        for place in rounds::order(targets.len(), round + 2 * number) {
            let Some((name, Ok(Started { target, .. }))) = targets.get(place) else {
                continue;
            };
            let label = format!("round {} of {}, {level}, {name}", round + 1, args.rounds);
            context.progress.label(label);
            let watch = Watch::start(&target.roles);
            let sample = Box::pin(sample::take(level, target, &args.load, &context.progress));
            let sample = sample.await?;
            noise.add(watch);
            results.add(number, place, sample);
        }
    }
    Ok(())
}

fn describe(args: &Args, environments: &[Environment], base: &str, report: &mut Report) {
    if let Some(Environment {
        upstream, targets, ..
    }) = environments.first()
    {
        let names: Vec<_> = targets.iter().map(|(name, _)| name.as_str()).collect();
        report.title = format!("{} over {}", upstream.about, names.join(", "));
        for (name, started) in targets {
            if let Ok(Started { about, .. }) = started {
                report.note(format!("{name}: {about}"));
            }
        }
    }
    for failure in environments.iter().flat_map(Environment::failures) {
        report.warn(failure);
    }
    report.setting("rounds", args.rounds);
    report.load_settings(&args.load);
    report.setting("base", base);
    if args.loads.contains(&Traffic::Bulk) {
        report.setting("size", format::bytes(args.size.as_u64() as f64));
    }
}

/// An upstream and all targets in front of it; those that could not be started with the reason.
struct Environment {
    upstream: Upstream,
    uploads: bool,
    downloads: bool,
    targets: Vec<(String, Result<Started, String>)>,
}

impl Environment {
    /// One environment for all levels; uploads have one of their own if the upstream takes none.
    async fn open_all(
        args: &Args,
        choices: &[Choice],
        levels: &[Level],
        report: &mut Report,
    ) -> anyhow::Result<Vec<Self>> {
        let upstream = Upstream::open(args).await?;
        let uploads = upstream.uploads;
        let is_uploaded = levels.iter().any(|level| matches!(level, Level::Upload(_)));
        let mut all = vec![Self::open(args, choices, upstream, (uploads.is_none(), true)).await?];
        if let (true, Some((address, pid))) = (is_uploaded, uploads) {
            let upstream = Upstream::at("sample upstream", address, Some(pid));
            all.push(Self::open(args, choices, upstream, (true, false)).await?);
            report.note("uploads go to the sample upstream, since nginx swallows none by itself");
        }
        Ok(all)
    }

    async fn open(
        args: &Args,
        choices: &[Choice],
        upstream: Upstream,
        (uploads, downloads): (bool, bool),
    ) -> anyhow::Result<Self> {
        let expected: UpstreamAnswer = started::expected(&upstream).await?;
        let mut targets = Vec::new();
        for choice in choices {
            let opened = Box::pin(Started::open(choice, args, &upstream, &expected)).await;
            let opened = opened.map_err(|error| format!("{error:#}"));
            targets.push((choice.name().to_owned(), opened));
        }
        Ok(Self {
            upstream,
            uploads,
            downloads,
            targets,
        })
    }

    fn serves(&self, level: Level) -> bool {
        match level {
            Level::Upload(_) => self.uploads,
            Level::Http(_) | Level::Download(_) => self.downloads,
        }
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        let targets = self.targets.iter();
        let failed = targets.filter_map(|(name, opened)| Some((name, opened.as_ref().err()?)));
        failed.map(|(name, reason)| format!("{name} was not measured: {reason}"))
    }
}

impl Args {
    fn levels(&self) -> Vec<Level> {
        let mut levels = Vec::new();
        if self.loads.contains(&Traffic::Http) {
            levels.extend(self.connections.iter().map(|count| Level::Http(*count)));
        }
        if self.loads.contains(&Traffic::Bulk) {
            let size = self.size.as_u64();
            levels.extend([Level::Download(size), Level::Upload(size)]);
        }
        levels
    }

    /// The target that ratios are to: nginx, else the least that any proxy costs, else the first that runs.
    fn base(
        &self,
        choices: &[Choice],
        environments: &[Environment],
        report: &mut Report,
    ) -> anyhow::Result<String> {
        let names: Vec<_> = choices.iter().map(Choice::name).collect();
        if let Some(base) = &self.base {
            if !names.contains(&base.as_str()) {
                let names = names.join(", ");
                bail!("--base {base}: no such target; there are {names}");
            }
            return Ok(base.clone());
        }
        let targets = environments.first().map(|environment| &environment.targets);
        let runs = |wanted: &&str| {
            let mut all = targets.into_iter().flatten();
            all.any(|(name, opened)| name == wanted && opened.is_ok())
        };
        let candidates = [NGINX.name, HOP.name].into_iter().chain(names);
        let base = candidates.into_iter().find(runs).unwrap_or(NGINX.name);
        if base != NGINX.name {
            report.warn(format!(
                "ratios are to {base}, since nginx is not among the targets"
            ));
        }
        Ok(base.to_owned())
    }
}

fn parse_connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("connections are numbers above zero, such as 1,64,256".to_owned()),
    }
}
