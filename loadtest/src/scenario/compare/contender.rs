//! One of those that are compared: how it is started, and whether it answers as it should.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, StatusCode, Uri};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::body::Outgoing,
    measure::usage::{self, UPSTREAM},
    scenario::compare::{
        Args,
        named::Named,
        nginx::{self, Nginx},
        rathole::{self, Rathole},
        site::Site,
    },
    stack::{Plan, RUNTIME, Running, Stack, child::Child},
    target::{Manner, Target},
};

/// The name of the two nginx hops.
pub(super) const NGINX: &str = "nginx";

/// A tunnel that was started a moment ago may still be dialling.
const PATIENCE: Duration = Duration::from_secs(3);

/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What can be compared.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// The upstream itself.
    Direct,
    /// A plain hyper proxy.
    Hop,
    /// Two nginx with TLS between.
    Nginx,
    /// Our tunnel.
    Ours,
    /// rathole.
    Rathole,
    /// What somebody else started.
    Named(Named),
}

impl Kind {
    /// Those that the flags ask for, in the order of the table.
    pub(super) fn chosen(args: &Args) -> anyhow::Result<Vec<Self>> {
        let mut kinds = vec![Self::Direct, Self::Hop, Self::Nginx, Self::Ours];
        let is_wanted = |name: &str| args.only.iter().any(|only| only == name);
        if rathole::program().is_some() || is_wanted("rathole") {
            kinds.push(Self::Rathole);
        }
        for target in &args.targets {
            if kinds.iter().any(|kind| kind.name() == target.name) {
                bail!(
                    "--target {}: there is another target of this name",
                    target.name
                );
            }
            kinds.push(Self::Named(target.clone()));
        }
        let names: Vec<_> = kinds.iter().map(|kind| kind.name().to_owned()).collect();
        if let Some(unknown) = args.only.iter().find(|only| !names.contains(*only)) {
            bail!(
                "--only {unknown}: no such target; there are {}",
                names.join(", ")
            );
        }
        if !args.only.is_empty() {
            kinds.retain(|kind| is_wanted(kind.name()));
        } else if nginx::program().is_none() {
            kinds.retain(|kind| !matches!(kind, Self::Nginx));
        }
        Ok(kinds)
    }

    /// Whether it runs on this machine, maybe, in processes that nobody has named.
    pub(super) fn has_unknown_processes(&self) -> bool {
        matches!(self, Self::Named(target) if target.pids.is_empty())
    }

    /// Its name in tables.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Direct => "direct",
            Self::Hop => "hop",
            Self::Nginx => NGINX,
            Self::Ours => "ours",
            Self::Rathole => "rathole",
            Self::Named(target) => &target.name,
        }
    }
}

/// A target that runs and answers. What was started for it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Contender {
    /// What is asked.
    pub(super) target: Target,
    /// What it is, for people.
    pub(super) about: String,
    _processes: Processes,
}

/// What ends with a contender. The directories go last.
#[derive(Debug, Default)]
struct Processes {
    _children: Vec<Child>,
    _nginx: Option<(Nginx, Nginx)>,
    _stack: Option<Stack>,
    _directory: Option<TempDir>,
}

/// What a target answers to a small request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    status: StatusCode,
    content: Bytes,
}

/// What all targets must answer: what the upstream itself does.
pub(super) async fn expected(site: &Site) -> anyhow::Result<Answer> {
    let target = at(site.address, site).await?;
    let answer = ask(&target, Method::GET, None, Outgoing::Empty).await;
    let answer = answer.with_context(|| format!("the upstream at {}", site.address))?;
    if !answer.status.is_success() {
        bail!("the upstream at {} answers {}", site.address, answer.status);
    }
    Ok(answer)
}

impl Contender {
    /// Starts it, and checks that it answers like the upstream itself.
    pub(super) async fn open(
        kind: &Kind,
        args: &Args,
        site: &Site,
        expected: &Answer,
    ) -> anyhow::Result<Self> {
        let contender = match kind {
            Kind::Direct => direct(site).await,
            Kind::Hop => hop(site).await,
            Kind::Nginx => nginx_pair(site).await,
            Kind::Ours => Box::pin(ours(args, site)).await,
            Kind::Rathole => rathole_pair(site).await,
            Kind::Named(target) => named(args, target, site).await,
        }?;
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = ask(&contender.target, Method::GET, None, Outgoing::Empty).await;
            let wrong = match answer {
                Ok(answer) if answer == *expected => return Ok(contender),
                Ok(answer) => anyhow::anyhow!(
                    "it answers {} ({} bytes) where the upstream answers {} ({} bytes); all \
                     targets must lead to the same upstream: see --upstream and --upstream-listen",
                    answer.status,
                    answer.content.len(),
                    expected.status,
                    expected.content.len()
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

/// One request over a connection of its own.
pub(super) async fn ask(
    target: &Target,
    method: Method,
    path: Option<&str>,
    content: Outgoing,
) -> anyhow::Result<Answer> {
    let template = target.template(method, path)?;
    let asked = timeout(PATIENCE, async {
        let mut connection = target.dialer.http1().await?;
        let (head, mut rest) = connection
            .send(template.request(content))
            .await?
            .into_parts();
        let mut content = Vec::new();
        while let Some(piece) = connection.frame(&mut rest).await? {
            content.extend_from_slice(&piece);
        }
        Ok(Answer {
            status: head.status,
            content: content.into(),
        })
    });
    let answer = asked.await.context("it does not answer in time")?;
    answer
        .map_err(|failure: crate::measure::errors::Failure| anyhow::anyhow!("it fails: {failure}"))
}

/// Whatever listens there, by its address.
async fn at(address: SocketAddr, site: &Site) -> anyhow::Result<Target> {
    let url: Uri = format!("http://{address}/").parse()?;
    let mut target = Target::at(&url, Some(address), &Manner::default()).await?;
    if let Some(pid) = site.pid {
        target.roles.add(UPSTREAM, pid);
    }
    Ok(target)
}

async fn direct(site: &Site) -> anyhow::Result<Contender> {
    Ok(Contender {
        target: at(site.address, site).await?,
        about: "the upstream itself".to_owned(),
        _processes: Processes::default(),
    })
}

async fn hop(site: &Site) -> anyhow::Result<Contender> {
    let upstream = format!("--upstream={}", site.address);
    let flags = [
        "hop".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        upstream,
    ];
    let Running { child, address } = Running::start_own("hop", flags).await?;
    let mut target = at(address, site).await?;
    target.roles.add("hop", child.id());
    Ok(Contender {
        target,
        about: "one plain hyper proxy on one thread, no TLS, no checks".to_owned(),
        _processes: Processes {
            _children: vec![child],
            ..Processes::default()
        },
    })
}

async fn nginx_pair(site: &Site) -> anyhow::Result<Contender> {
    let (first, second) = nginx::pair(site.address).await?;
    let mut target = at(first.address, site).await?;
    target.roles.add("first nginx", first.child.id());
    target.roles.add("second nginx", second.child.id());
    Ok(Contender {
        target,
        about: "two nginx of one worker each, TLS 1.3 between, 512 kept connections".to_owned(),
        _processes: Processes {
            _nginx: Some((first, second)),
            ..Processes::default()
        },
    })
}

async fn ours(args: &Args, site: &Site) -> anyhow::Result<Contender> {
    let plan = Plan {
        upstream: Some(site.address),
        ..Plan::default()
    };
    let stack = Stack::start(&args.stack, plan).await?;
    let public = Some(stack.public_address());
    let mut target = Target::at(&stack.url(RUNTIME), public, &Manner::default()).await?;
    target.roles.extend(&stack.roles());
    if let Some(pid) = site.pid {
        target.roles.add(UPSTREAM, pid);
    }
    Ok(Contender {
        target,
        about: format!(
            "tunnel server ({}) and tunnel client, TLS 1.3 between",
            match args.stack.shards {
                1 => "1 shard".to_owned(),
                shards => format!("{shards} shards"),
            }
        ),
        _processes: Processes {
            _stack: Some(stack),
            ..Processes::default()
        },
    })
}

async fn rathole_pair(site: &Site) -> anyhow::Result<Contender> {
    let Rathole {
        server,
        client,
        address,
        directory,
    } = rathole::start(site.address).await?;
    let mut target = at(address, site).await?;
    target.roles.add("rathole server", server.id());
    target.roles.add("rathole client", client.id());
    Ok(Contender {
        target,
        about: "server and client with the Noise protocol between; forwards bytes only".to_owned(),
        _processes: Processes {
            _children: vec![server, client],
            _directory: Some(directory),
            ..Processes::default()
        },
    })
}

async fn named(args: &Args, named: &Named, site: &Site) -> anyhow::Result<Contender> {
    let manner = Manner {
        headers: args.headers.clone(),
        http2: false,
        insecure: args.insecure,
        ca: args.ca.clone(),
    };
    let mut target = Target::at(&named.url, named.connect_to, &manner).await?;
    for pid in &named.pids {
        usage::check(*pid).with_context(|| format!("there is no process {pid}"))?;
        target.roles.add(&named.name, *pid);
    }
    if let Some(pid) = site.pid {
        target.roles.add(UPSTREAM, pid);
    }
    let about = match named.pids.len() {
        0 => format!(
            "{}; its processes are not known, so its cost is not either",
            named.url
        ),
        count => format!("{} with {count} processes", named.url),
    };
    Ok(Contender {
        target,
        about,
        _processes: Processes::default(),
    })
}
