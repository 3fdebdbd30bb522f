//! Targets of a comparison: which are wanted, and opening one until it answers as the upstream does.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::body,
    measure::{errors::Failure, usage},
    report::{Report, tables::UPSTREAM},
    scenario::compare::{
        Args,
        named::NamedTarget,
        preset::{Preset, Programs},
        upstream::Upstream,
    },
    stack::{Plan, RUNTIME, Stack},
    target::{ClientArgs, Target},
};

/// How long a target may take to answer as the upstream does.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// More of an answer is not compared.
const LONGEST_ANSWER: usize = 1024 * 1024;

/// A target that may be compared.
pub(super) enum TargetChoice {
    Direct,
    Preset(Preset),
    /// Our two programs, with these flags for both beside those that the user gives.
    Ours(&'static str, &'static [&'static str]),
    Named(NamedTarget),
}

impl TargetChoice {
    /// Those that the flags ask for; without `--only` all whose programs are installed, and a note on the others.
    pub(super) fn all(args: &Args, report: &mut Report) -> anyhow::Result<Vec<Self>> {
        let mut all = vec![Self::Direct];
        all.extend(Preset::all()?.into_iter().map(Self::Preset));
        all.push(Self::Ours("ours", &[]));
        all.push(Self::Ours("ours-unlogged", &["--access-log=off"]));
        for target in &args.targets {
            let name = &target.name;
            if all.iter().any(|choice| choice.name() == name) {
                bail!("--target {name}: there is another target of this name");
            }
            all.push(Self::Named(target.clone()));
        }
        let names: Vec<_> = all.iter().map(Self::name).collect();
        let is_unknown = |only: &&String| !names.contains(&only.as_str());
        if let Some(unknown) = args.only.iter().find(is_unknown) {
            let names = names.join(", ");
            bail!("--only {unknown}: no such target; there are {names}");
        }
        let is_wanted = |choice: &Self| match choice {
            _ if !args.only.is_empty() => args.only.iter().any(|only| only == choice.name()),
            Self::Preset(preset) => preset.is_installed(),
            _ => true,
        };
        let (wanted, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
        if args.only.is_empty() && !others.is_empty() {
            let names: Vec<_> = others.iter().map(Self::name).collect();
            let names = names.join(", ");
            report.note(format!("not installed, so not measured: {names}"));
        }
        Ok(wanted)
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Direct => "direct",
            Self::Preset(preset) => &preset.name,
            Self::Ours(name, _) => name,
            Self::Named(target) => &target.name,
        }
    }

    /// Whether nothing is known of what it uses.
    pub(super) fn has_unknown_processes(&self) -> bool {
        matches!(self, Self::Named(target) if target.pids.is_empty())
    }
}

/// A target that answers as the upstream does. Dropping it ends what was started for it.
#[derive(Debug)]
pub(super) struct OpenTarget {
    pub(super) target: Target,
    pub(super) about: String,
    _programs: Option<Programs>,
}

impl OpenTarget {
    /// Opens a target, and asks it until it answers as expected or has had its time.
    pub(super) async fn open(
        choice: &TargetChoice,
        args: &Args,
        upstream: &Upstream,
        expected: &UpstreamAnswer,
    ) -> anyhow::Result<Self> {
        let mut started = match choice {
            TargetChoice::Direct => Self::of(at(upstream.address).await?, "the upstream itself"),
            TargetChoice::Preset(preset) => Self::preset(preset, upstream).await?,
            TargetChoice::Ours(_, flags) => Box::pin(Self::ours(args, flags, upstream)).await?,
            TargetChoice::Named(target) => Self::named(args, target).await?,
        };
        if let Some(pid) = upstream.pid {
            started.target.roles.add(UPSTREAM, pid);
        }
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            let wrong = match ask(&started.target).await {
                Ok(answer) if answer == *expected => return Ok(started),
                Ok(answer) => anyhow::anyhow!(
                    "it answers {answer} where the upstream answers {expected}; all targets must lead to the \
                     same upstream: see --upstream and --upstream-listen",
                ),
                Err(error) => error,
            };
            if Instant::now() >= until {
                return Err(wrong);
            }
            sleep(ASK_AGAIN).await;
        }
    }

    fn of(target: Target, about: impl Into<String>) -> Self {
        Self {
            target,
            about: about.into(),
            _programs: None,
        }
    }

    async fn preset(preset: &Preset, upstream: &Upstream) -> anyhow::Result<Self> {
        let programs = preset.start(upstream.address, None, &[]).await?;
        let mut started = Self::of(at(programs.address).await?, &preset.about);
        for child in &programs.children {
            started.target.roles.add(child.role(), child.id());
        }
        started._programs = Some(programs);
        Ok(started)
    }

    async fn ours(args: &Args, flags: &[&str], upstream: &Upstream) -> anyhow::Result<Self> {
        let mut stack = args.stack.clone();
        for given in [
            &mut stack.programs.server_flags,
            &mut stack.programs.client_flags,
        ] {
            given.extend(flags.iter().map(|flag| (*flag).to_owned()));
        }
        let plan = Plan {
            upstream: Some(upstream.address),
            ..Plan::default()
        };
        let stack = Stack::start(&stack, plan).await?;
        let public = Some(stack.public_address());
        let mut target = Target::at(&stack.url(RUNTIME), public, &ClientArgs::default()).await?;
        target.roles.extend(&stack.roles());
        let shards = match args.stack.programs.shards {
            1 => "1 shard".to_owned(),
            shards => format!("{shards} shards"),
        };
        let flags = match flags {
            [] => "as shipped".to_owned(),
            flags => flags.join(" "),
        };
        let about = format!("tunnel server ({shards}) and tunnel client, TLS 1.3 between, {flags}");
        target.stack = Some(stack);
        Ok(Self::of(target, about))
    }

    async fn named(args: &Args, named: &NamedTarget) -> anyhow::Result<Self> {
        let mut target = Target::at(&named.url, named.connect_to, &args.client).await?;
        for pid in &named.pids {
            usage::check(*pid).with_context(|| format!("there is no process {pid}"))?;
            target.roles.add(&named.name, *pid);
        }
        let url = &named.url;
        let about = match named.pids.len() {
            0 => format!("{url}; its processes are not known, so its cost is not either"),
            count => format!("{url} with {count} processes"),
        };
        Ok(Self::of(target, about))
    }
}

/// What a target answers to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpstreamAnswer {
    status: StatusCode,
    content: Bytes,
}

impl std::fmt::Display for UpstreamAnswer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({} bytes)", self.status, self.content.len())
    }
}

/// What the upstream answers, as all targets must.
pub(super) async fn expected(upstream: &Upstream) -> anyhow::Result<UpstreamAnswer> {
    let address = upstream.address;
    let answer = ask(&at(address).await?).await;
    let answer = answer.with_context(|| format!("the upstream at {address}"))?;
    if !answer.status.is_success() {
        bail!("the upstream at {address} answers {}", answer.status);
    }
    Ok(answer)
}

async fn ask(target: &Target) -> anyhow::Result<UpstreamAnswer> {
    let template = target.template(Method::GET, None)?;
    let asked = timeout(ANSWER_LIMIT, async {
        let mut connection = template.dialer.connect(false).await?;
        let request = template.request(body::empty());
        let (head, content) = connection.send(request).await?.into_parts();
        Ok(UpstreamAnswer {
            status: head.status,
            content: connection.collect(content, LONGEST_ANSWER).await?,
        })
    });
    let answer = asked.await.context("it does not answer in time")?;
    answer.map_err(|failure: Failure| anyhow::anyhow!("it fails: {failure}"))
}

async fn at(address: SocketAddr) -> anyhow::Result<Target> {
    let url: Uri = format!("http://{address}/").parse()?;
    Target::at(&url, Some(address), &ClientArgs::default()).await
}
