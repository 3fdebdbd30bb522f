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
//! `contender` starts what is compared, `sample` measures one of them once, `results` makes
//! tables of it all. A target that fails is told, never dropped. All share one machine, so what
//! else happened on it is told too (`noise`).

mod contender;
pub mod named;
mod nginx;
mod noise;
mod rathole;
mod results;
mod sample;
pub mod site;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::bail;
use bytesize::ByteSize;
use http::{HeaderName, HeaderValue};

use crate::{
    load::LoadArgs,
    report::{Report, format},
    scenario::{
        Context,
        compare::{
            contender::{Contender, Kind},
            named::Named,
            noise::Noise,
            results::Results,
            sample::{Level, Sampler},
            site::{Choice, Site},
        },
        rounds,
    },
    stack::StackArgs,
    target::parse_header,
};

/// The base where nginx is not installed: the least that any proxy costs.
const OTHER_BASE: &str = "hop";

/// Flags of `loadtest compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("duration", |flag| flag.default_value("4s")))]
#[command(mut_arg("warm_up", |flag| flag.default_value("1s")))]
pub struct Args {
    /// Compare this too: NAME=URL, then after commas the ids of its processes, for their use, and
    /// an IP:PORT to connect to instead of the URL's host; repeat for more
    #[arg(
        long = "target",
        value_name = "NAME=URL[,PID...]",
        help_heading = "Targets"
    )]
    pub targets: Vec<Named>,
    /// Compare these alone, by name [default: all]. What is started ends with this program, but
    /// nginx, rathole and the tunnel's programs not when it is killed by SIGKILL
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        help_heading = "Targets"
    )]
    pub only: Vec<String>,
    /// The target that ratios are to [default: nginx, or hop where nginx is not installed]
    #[arg(long, value_name = "NAME", help_heading = "Targets")]
    pub base: Option<String>,
    /// Header to send to the targets of --target, such as "host: a.example"; repeat for more
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", value_parser = parse_header, help_heading = "Targets")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Believe any certificate of the targets of --target
    #[arg(long, conflicts_with = "ca", help_heading = "Targets")]
    pub insecure: bool,
    /// CA certificates to believe instead of the system's, PEM
    #[arg(long, value_name = "FILE", help_heading = "Targets")]
    pub ca: Option<PathBuf>,
    /// What answers: nginx, sample, or the IP:PORT of something that runs and answers as `loadtest
    /// upstream` does [default: nginx where installed]
    #[arg(long, value_name = "WHAT", help_heading = "Targets")]
    pub upstream: Option<Choice>,
    /// Where the upstream listens, so that a tunnel of --target can lead there [default: a free
    /// port]
    #[arg(long, value_name = "IP:PORT", help_heading = "Targets")]
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
    let kinds = Kind::chosen(&args)?;
    let mut report = Report::new("compare", "the same load over several targets");
    let load_average = noise::load_average();
    context.progress.message("starting the targets");
    let levels = args.levels();
    let fields = Field::open_all(&args, &kinds, &levels, &mut report).await?;
    let base = args.base(&kinds, &fields, &mut report)?;
    describe(&args, &fields, &base, &mut report);

    let names = kinds.iter().map(|kind| kind.name().to_owned()).collect();
    let mut results = Results::new(levels, names);
    let mut noise = Noise::default();
    for round in 0..usize::from(args.rounds) {
        measure(&args, context, &fields, round, &mut results, &mut noise).await?;
    }
    if !results.has_any() {
        let reasons = fields.iter().flat_map(Field::failures).collect::<Vec<_>>();
        bail!("no target could be measured\n{}", reasons.join("\n"));
    }
    results.fill(&base, &mut report);
    report.note(rounds::meaning(args.rounds.into()));
    let is_named = kinds.iter().any(Kind::has_unknown_processes);
    let is_partial = is_named || fields.iter().any(|field| field.site.pid.is_none());
    noise.tell(load_average, is_partial, &mut report);
    Ok(report)
}

/// One round: every target gets every load once.
async fn measure(
    args: &Args,
    context: &Context,
    fields: &[Field],
    round: usize,
    results: &mut Results,
    noise: &mut Noise,
) -> anyhow::Result<()> {
    let sampler = Sampler::new(&args.load, &context.progress);
    for (number, level) in results.levels().to_vec().into_iter().enumerate() {
        let field = fields.iter().find(|field| field.serves(level));
        let Some(field) = field else { continue };
        // Each level begins with another target, too.
        for place in rounds::order(field.contenders.len(), round + 2 * number) {
            let Some((name, Ok(contender))) = field.contenders.get(place) else {
                continue;
            };
            let label = format!("round {} of {}, {level}, {name}", round + 1, args.rounds);
            context.progress.label(label);
            let sample = sampler.take(level, contender, noise).await?;
            results.add(number, place, sample);
        }
    }
    Ok(())
}

fn describe(args: &Args, fields: &[Field], base: &str, report: &mut Report) {
    let names = |contenders: &[(String, Result<Contender, String>)]| {
        let names: Vec<_> = contenders.iter().map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    };
    if let Some(field) = fields.first() {
        report.title = format!("{} over {}", field.site.about, names(&field.contenders));
        for (name, contender) in &field.contenders {
            if let Ok(contender) = contender {
                report.note(format!("{name}: {}", contender.about));
            }
        }
    }
    for field in fields {
        for failure in field.failures() {
            report.warn(failure);
        }
    }
    report.setting("rounds", args.rounds);
    report.load_settings(&args.load);
    report.setting("base", base);
    if args.loads.contains(&Traffic::Bulk) {
        report.setting("size", format::bytes(args.size.as_u64() as f64));
    }
}

/// One upstream, and all targets in front of it.
struct Field {
    site: Site,
    uploads: bool,
    downloads: bool,
    contenders: Vec<(String, Result<Contender, String>)>,
}

impl Field {
    /// nginx swallows no uploads, so these have a field of their own then.
    async fn open_all(
        args: &Args,
        kinds: &[Kind],
        levels: &[Level],
        report: &mut Report,
    ) -> anyhow::Result<Vec<Self>> {
        let main = Site::open(args, args.size.as_u64(), args.upstream_listen).await?;
        let takes_uploads = main.takes_uploads();
        let sink = main.sink();
        let mut fields = vec![Self::open(args, kinds, main, takes_uploads, true).await?];
        if let (false, Some(sink)) = (takes_uploads, sink)
            && levels.iter().any(|level| matches!(level, Level::Upload(_)))
        {
            fields.push(Self::open(args, kinds, Site::at(sink), true, false).await?);
            report.note("uploads go to the sample upstream, since nginx swallows none by itself");
        }
        Ok(fields)
    }

    async fn open(
        args: &Args,
        kinds: &[Kind],
        site: Site,
        uploads: bool,
        downloads: bool,
    ) -> anyhow::Result<Self> {
        let expected = contender::expected(&site).await?;
        let mut contenders = Vec::new();
        for kind in kinds {
            let opened = Box::pin(Contender::open(kind, args, &site, &expected)).await;
            let opened = opened.map_err(|error| format!("{error:#}"));
            contenders.push((kind.name().to_owned(), opened));
        }
        Ok(Self {
            site,
            uploads,
            downloads,
            contenders,
        })
    }

    fn serves(&self, level: Level) -> bool {
        match level {
            Level::Upload(_) => self.uploads,
            Level::Http(_) | Level::Download(_) => self.downloads,
        }
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self
            .contenders
            .iter()
            .filter_map(|(name, opened)| Some((name, opened.as_ref().err()?)));
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

    /// The name of the target that ratios are to.
    fn base(
        &self,
        kinds: &[Kind],
        fields: &[Field],
        report: &mut Report,
    ) -> anyhow::Result<String> {
        let names: Vec<_> = kinds.iter().map(Kind::name).collect();
        if let Some(base) = &self.base {
            if !names.contains(&base.as_str()) {
                bail!(
                    "--base {base}: no such target; there are {}",
                    names.join(", ")
                );
            }
            return Ok(base.clone());
        }
        let first = fields.first();
        let runs = |wanted: &str| {
            let mut all = first.into_iter().flat_map(|field| &field.contenders);
            all.any(|(name, opened)| name == wanted && opened.is_ok())
        };
        let found = [contender::NGINX, OTHER_BASE]
            .into_iter()
            .find(|name| runs(name));
        let found = found.or_else(|| names.iter().copied().find(|name| runs(name)));
        let base = found.unwrap_or(contender::NGINX).to_owned();
        if base != contender::NGINX {
            report.warn(format!(
                "ratios are to {base}, since nginx is not among the targets"
            ));
        }
        Ok(base)
    }
}

fn parse_connections(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("connections are numbers above zero, such as 1,64,256".to_owned()),
    }
}
