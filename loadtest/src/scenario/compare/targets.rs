//! What a comparison starts: targets, each opened until it answers as the upstream does, and the upstream behind them.

use std::{any::Any, net::SocketAddr, str::FromStr, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::body,
    measure::{errors::Failure, usage},
    report::{
        Report,
        tables::{OURS, UPSTREAM},
    },
    scenario::compare::{
        Args,
        preset::Preset,
        sample::{LoadLevel, warm_size},
    },
    stack::{Plan, RUNTIME, Stack, child::Child, start_upstream},
    target::{ClientArgs, Target},
    upstream::UpstreamArgs,
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
        all.push(Self::Ours(OURS, &[]));
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

    /// Opens the target, and asks it until it answers as expected or has had its time.
    pub(super) async fn open(
        &self,
        args: &Args,
        upstream: &Upstream,
        expected: &UpstreamAnswer,
    ) -> anyhow::Result<OpenTarget> {
        let mut opened = match self {
            Self::Direct => OpenTarget {
                target: Target::plain(upstream.address).await?,
                about: "the upstream itself".to_owned(),
            },
            Self::Preset(preset) => open_preset(preset, upstream).await?,
            Self::Ours(_, flags) => Box::pin(open_ours(args, flags, upstream)).await?,
            Self::Named(target) => open_named(args, target).await?,
        };
        if let Some(pid) = upstream.pid {
            opened.target.roles.add(UPSTREAM, pid);
        }
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            let wrong = match ask(&opened.target).await {
                Ok(answer) if answer == *expected => return Ok(opened),
                Ok(answer) => anyhow!(
                    "it answers {} where the upstream answers {}; all targets must lead to the same upstream: see \
                     --upstream and --upstream-listen",
                    in_words(&answer),
                    in_words(expected)
                ),
                Err(error) => error,
            };
            if Instant::now() >= until {
                return Err(wrong);
            }
            sleep(ASK_AGAIN).await;
        }
    }
}

/// A target that answers as the upstream does. Dropping it ends what was started for it.
#[derive(Debug)]
pub(super) struct OpenTarget {
    pub(super) target: Target,
    pub(super) about: String,
}

async fn open_preset(preset: &Preset, upstream: &Upstream) -> anyhow::Result<OpenTarget> {
    let programs = preset.start(upstream.address, None, &[]).await?;
    let mut target = Target::plain(programs.address).await?;
    for child in &programs.children {
        target.roles.add(child.role(), child.id());
    }
    target.started = Some(Box::new(programs));
    let about = preset.about.clone();
    Ok(OpenTarget { target, about })
}

async fn open_ours(args: &Args, flags: &[&str], upstream: &Upstream) -> anyhow::Result<OpenTarget> {
    let mut stack = args.stack.clone();
    let programs = &mut stack.programs;
    for given in [&mut programs.server_flags, &mut programs.client_flags] {
        given.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }
    let plan = Plan {
        upstream: Some(upstream.address),
        ..Plan::default()
    };
    let stack = Stack::start(&stack, plan).await?;
    let public = Some(stack.server.public);
    let mut target = Target::at(&stack.url(RUNTIME), public, &ClientArgs::default()).await?;
    target.roles.extend(&stack.roles());
    target.started = Some(Box::new(stack));
    let shards = match args.stack.programs.shards {
        1 => "1 shard".to_owned(),
        shards => format!("{shards} shards"),
    };
    let flags = match flags {
        [] => "as shipped".to_owned(),
        flags => flags.join(" "),
    };
    let about = format!("tunnel server ({shards}) and tunnel client, TLS 1.3 between, {flags}");
    Ok(OpenTarget { target, about })
}

async fn open_named(args: &Args, named: &NamedTarget) -> anyhow::Result<OpenTarget> {
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
    Ok(OpenTarget { target, about })
}

/// What is answered to a GET.
type UpstreamAnswer = (StatusCode, Bytes);

fn in_words((status, content): &UpstreamAnswer) -> String {
    format!("{status} ({} bytes)", content.len())
}

async fn ask(target: &Target) -> anyhow::Result<UpstreamAnswer> {
    let template = target.template(Method::GET, None)?;
    let asked = timeout(ANSWER_LIMIT, async {
        let mut connection = template.dialer.connect(false).await?;
        let request = template.request(body::empty());
        let (head, content) = connection.send(request).await?.into_parts();
        let content = connection.collect(content, LONGEST_ANSWER).await?;
        Ok((head.status, content))
    });
    let answer = asked.await.context("it does not answer in time")?;
    answer.map_err(|failure: Failure| anyhow!("it fails: {failure}"))
}

/// Which upstream is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamChoice {
    /// nginx, for which the generator is no measure: it sends files.
    Nginx,
    /// That of `loadtest upstream`.
    Sample,
    /// One that runs already.
    At(SocketAddr),
}

impl FromStr for UpstreamChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nginx" => Ok(Self::Nginx),
            "sample" => Ok(Self::Sample),
            address => (address.parse())
                .map(Self::At)
                .map_err(|_| format!("{address:?} is neither nginx nor sample nor an IP:PORT")),
        }
    }
}

/// An upstream. Dropping it ends what was started for it.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) about: String,
    pub(super) address: SocketAddr,
    pub(super) pid: Option<u32>,
    takes_uploads: bool,
    takes_others: bool,
    _started: Option<Box<dyn Any>>,
}

impl Upstream {
    /// One for all levels; or nginx, and for uploads, of which it swallows none, the sample upstream.
    pub(super) async fn open_all(args: &Args) -> anyhow::Result<Vec<Self>> {
        let listen = args.upstream_listen;
        let nginx = Preset::nginx_upstream()?;
        let is_nginx = || nginx.is_installed() && is_plain(&args.stack.upstream);
        let choice = args.upstream.clone().unwrap_or_else(|| match is_nginx() {
            true => UpstreamChoice::Nginx,
            false => UpstreamChoice::Sample,
        });
        if let UpstreamChoice::At(address) = choice {
            return Ok(vec![Self {
                about: "an upstream that ran already".to_owned(),
                address,
                pid: None,
                takes_uploads: true,
                takes_others: true,
                _started: None,
            }]);
        }
        let is_nginx = choice == UpstreamChoice::Nginx;
        let sample = start_upstream(&args.stack.upstream, listen.filter(|_| !is_nginx)).await?;
        let mut all = Vec::new();
        if is_nginx {
            let size = args.traffic.size.as_u64();
            let sizes = [size, warm_size(size)];
            let programs = nginx.start(sample.address, listen, &sizes).await?;
            all.push(Self {
                about: nginx.about,
                address: programs.address,
                pid: programs.children.first().map(Child::id),
                takes_uploads: false,
                takes_others: true,
                _started: Some(Box::new(programs)),
            });
        }
        all.push(Self {
            about: "sample upstream".to_owned(),
            address: sample.address,
            pid: Some(sample.child.id()),
            takes_uploads: true,
            takes_others: !is_nginx,
            _started: Some(Box::new(sample)),
        });
        Ok(all)
    }

    /// Whether requests of this level go to it.
    pub(super) fn serves(&self, level: LoadLevel) -> bool {
        match level {
            LoadLevel::Upload(_) => self.takes_uploads,
            LoadLevel::Http(_) | LoadLevel::Download(_) => self.takes_others,
        }
    }

    /// What it answers, as all targets must.
    pub(super) async fn answer(&self) -> anyhow::Result<UpstreamAnswer> {
        let address = self.address;
        let answer = ask(&Target::plain(address).await?).await;
        let answer = answer.with_context(|| format!("the upstream at {address}"))?;
        if !answer.0.is_success() {
            bail!("the upstream at {address} answers {}", answer.0);
        }
        Ok(answer)
    }
}

/// Whether the sample upstream would do nothing that nginx does not.
fn is_plain(args: &UpstreamArgs) -> bool {
    args.delay.is_zero() && args.error_rate == 0.0 && args.answer_size.as_u64() == 16
}

/// A target of `--target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTarget {
    /// Its name in tables.
    pub name: String,
    /// What is asked.
    pub url: Uri,
    /// Where to connect, if not to the URL's host.
    pub connect_to: Option<SocketAddr>,
    /// Its processes, on this machine.
    pub pids: Vec<u32>,
}

impl FromStr for NamedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            return Err("a target is written NAME=URL[,PID...], such as \
                        frp=http://127.0.0.1:8080,4711,4712"
                .to_owned());
        };
        let name = name.trim();
        if name.is_empty() || name.contains([',', '/', ':']) {
            return Err(format!(
                "{name:?} is no name of a target: the name stands before the ="
            ));
        }
        let mut parts = rest.split(',').map(str::trim);
        let url = parts.next().unwrap_or_default();
        let url = parse_url(url).map_err(|reason| format!("{name}: {reason}"))?;
        let mut target = Self {
            name: name.to_owned(),
            url,
            connect_to: None,
            pids: Vec::new(),
        };
        for part in parts {
            if let Ok(pid) = part.parse::<u32>() {
                target.pids.push(pid);
            } else if let Ok(address) = part.parse() {
                if target.connect_to.replace(address).is_some() {
                    return Err(format!(
                        "{name}: there is more than one address to connect to"
                    ));
                }
            } else {
                return Err(format!(
                    "{name}: {part:?} is neither the id of a process nor an IP:PORT to connect to"
                ));
            }
        }
        Ok(target)
    }
}

fn parse_url(text: &str) -> Result<Uri, String> {
    let url: Uri = text
        .parse()
        .map_err(|error| format!("{text:?} is no URL: {error}"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
        return Err(format!(
            "{text:?} is no URL that starts with http:// or https://"
        ));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_named_or_has_an_address() {
        assert_eq!("nginx".parse(), Ok(UpstreamChoice::Nginx));
        let address = ([127, 0, 0, 1], 80).into();
        assert_eq!("127.0.0.1:80".parse(), Ok(UpstreamChoice::At(address)));
        let error = "localhost".parse::<UpstreamChoice>().unwrap_err();
        assert!(error.contains("nor an IP:PORT"), "{error}");
    }

    #[test]
    fn a_target_has_a_name_a_url_and_maybe_processes() {
        let target: NamedTarget = "frp=http://a.example:8080/x,4711, 4712,127.0.0.1:80"
            .parse()
            .unwrap();
        assert_eq!(target.name, "frp");
        assert_eq!(target.url, "http://a.example:8080/x");
        assert_eq!(target.pids, [4711, 4712]);
        assert_eq!(target.connect_to, Some(([127, 0, 0, 1], 80).into()));
        let plain: NamedTarget = "a=https://b".parse().unwrap();
        assert!(plain.pids.is_empty() && plain.connect_to.is_none());
        // What stands after the first = belongs to the URL.
        let query: NamedTarget = "a=http://b/?c=d".parse().unwrap();
        assert_eq!(query.url, "http://b/?c=d");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let cases = [
            ("http://a:80", "NAME=URL"),
            ("=http://a", "is no name"),
            ("http://a/?b=c", "is no name"),
            ("a=b", "http:// or https://"),
            ("a=ftp://b", "http:// or https://"),
            ("a=", "a: \"\" is no URL"),
            ("a=http://b,nginx", "\"nginx\" is neither"),
            ("a=http://b,-1", "\"-1\" is neither"),
            ("a=http://b,1.2.3.4:5,1.2.3.4:5", "more than one address"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<NamedTarget>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
