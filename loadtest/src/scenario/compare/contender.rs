//! One of those that are compared: how it is started, and whether it answers as it should.

use std::{env, net::SocketAddr, process::Command, time::Duration};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Parser as _;
use http::{Method, StatusCode, Uri};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    client::body::Outgoing,
    measure::usage::{self, TUNNEL_CLIENT, TUNNEL_SERVER, UPSTREAM},
    scenario::compare::{
        Args,
        named::Named,
        nginx::{self, Nginx},
        rathole::{self, Rathole},
        site::{self, Site},
    },
    stack::{
        ACCOUNT, RUNTIME, Server, StackArgs, child::Child, files::Files, runtime_url, start_client,
        start_server,
    },
    target::{Target, TargetArgs},
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
    _files: Option<Files>,
    _directory: Option<TempDir>,
}

/// What a target answers to a small request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    status: StatusCode,
    content: Bytes,
}

/// What all targets must answer: what the upstream itself does.
pub(super) async fn expected(args: &Args, site: &Site) -> anyhow::Result<Answer> {
    let target = at(&args.stack, site.address, site).await?;
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
            Kind::Direct => direct(args, site).await,
            Kind::Hop => hop(args, site).await,
            Kind::Nginx => nginx_pair(args, site).await,
            Kind::Ours => Box::pin(ours(args, site)).await,
            Kind::Rathole => rathole_pair(args, site).await,
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

/// The flags of a target as they are by default, but for those of the programs.
fn plain(stack: &StackArgs) -> anyhow::Result<TargetArgs> {
    /// Whatever flags targets have.
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        target: TargetArgs,
    }
    let flags = Flags::try_parse_from(["loadtest", "--url", "http://localhost/"])?;
    Ok(TargetArgs {
        url: None,
        stack: stack.clone(),
        ..flags.target
    })
}

/// Whatever listens there, by its address.
async fn at(stack: &StackArgs, address: SocketAddr, site: &Site) -> anyhow::Result<Target> {
    let url: Uri = format!("http://{address}/").parse()?;
    let mut target = plain(stack)?.at(&url, Some(address)).await?;
    if let Some(pid) = site.pid {
        target.roles.add(UPSTREAM, pid);
    }
    Ok(target)
}

async fn direct(args: &Args, site: &Site) -> anyhow::Result<Contender> {
    Ok(Contender {
        target: at(&args.stack, site.address, site).await?,
        about: "the upstream itself".to_owned(),
        _processes: Processes::default(),
    })
}

async fn hop(args: &Args, site: &Site) -> anyhow::Result<Contender> {
    let program = env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args([
        "hop",
        "--listen",
        "127.0.0.1:0",
        "--upstream",
        &site.address.to_string(),
    ]);
    let (child, address) = site::start("hop", command).await?;
    let mut target = at(&args.stack, address, site).await?;
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

async fn nginx_pair(args: &Args, site: &Site) -> anyhow::Result<Contender> {
    let (first, second) = nginx::pair(site.address).await?;
    let mut target = at(&args.stack, first.address, site).await?;
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
    let stack = &args.stack;
    let files = Files::new(stack)?;
    let token = files.create_token(ACCOUNT, RUNTIME)?;
    let server = start_server(stack, &files, None).await?;
    let upstream = format!("http://{}", site.address);
    let client = start_client(stack, &files, server.tunnel, &token, &upstream).await?;
    client
        .child
        .wait_ready(client.address, site::START_LIMIT)
        .await?;
    let Server { child, public, .. } = server;
    let mut target = plain(stack)?
        .at(&runtime_url(RUNTIME, public), Some(public))
        .await?;
    target.roles.add(TUNNEL_SERVER, child.id());
    target.roles.add(TUNNEL_CLIENT, client.child.id());
    if let Some(pid) = site.pid {
        target.roles.add(UPSTREAM, pid);
    }
    Ok(Contender {
        target,
        about: format!(
            "tunnel server ({}) and tunnel client, TLS 1.3 between",
            match stack.shards {
                1 => "1 shard".to_owned(),
                shards => format!("{shards} shards"),
            }
        ),
        _processes: Processes {
            _children: vec![child, client.child],
            _files: Some(files),
            ..Processes::default()
        },
    })
}

async fn rathole_pair(args: &Args, site: &Site) -> anyhow::Result<Contender> {
    let Rathole {
        server,
        client,
        address,
        directory,
    } = rathole::start(site.address).await?;
    let mut target = at(&args.stack, address, site).await?;
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
    let flags = TargetArgs {
        headers: args.headers.clone(),
        insecure: args.insecure,
        ca: args.ca.clone(),
        ..plain(&args.stack)?
    };
    let mut target = flags.at(&named.url, named.connect_to).await?;
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
