//! What stands behind all targets and answers: nginx, the sample upstream, or what runs already.

use std::{net::SocketAddr, process::Command, str::FromStr, time::Duration};

use anyhow::Context as _;

use crate::{
    measure::usage::UPSTREAM,
    scenario::compare::{Args, nginx},
    stack::child::Child,
    upstream::UpstreamArgs,
};

/// A program that has not said where it listens by then never will.
pub(super) const START_LIMIT: Duration = Duration::from_secs(20);

/// Which upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// nginx with one worker.
    Nginx,
    /// `loadtest upstream`.
    Sample,
    /// One that runs already.
    At(SocketAddr),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nginx" => Ok(Self::Nginx),
            "sample" => Ok(Self::Sample),
            address => address
                .parse()
                .map(Self::At)
                .map_err(|_| format!("{address:?} is neither nginx nor sample nor an IP:PORT")),
        }
    }
}

/// An upstream that runs; if it was started here, it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Site {
    /// What it is, for people.
    pub(super) about: String,
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Its process, if known.
    pub(super) pid: Option<u32>,
    sink: Option<Sink>,
    nginx: Option<nginx::Nginx>,
}

/// The sample upstream that takes the uploads.
#[derive(Debug)]
struct Sink {
    address: SocketAddr,
    child: Child,
}

/// Where uploads go, if not to the site itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct SinkAt {
    address: SocketAddr,
    pid: u32,
}

impl Site {
    /// Starts what the flags ask for, with a file of `size` for downloads.
    pub(super) async fn open(
        args: &Args,
        size: u64,
        listen: Option<SocketAddr>,
    ) -> anyhow::Result<Self> {
        let choice = match &args.upstream {
            Some(choice) => choice.clone(),
            // Only the sample upstream can be slow or wrong on purpose.
            None if nginx::program().is_some() && is_plain(&args.stack.upstream) => Choice::Nginx,
            None => Choice::Sample,
        };
        match choice {
            Choice::At(address) => Ok(Self::of("an upstream that ran already", address, None)),
            Choice::Sample => {
                let sample = start_sample(&args.stack.upstream, listen).await?;
                let (address, pid) = (sample.address, sample.child.id());
                let mut site = Self::of("sample upstream", address, Some(pid));
                site.sink = Some(sample);
                Ok(site)
            }
            Choice::Nginx => {
                let sink = start_sample(&args.stack.upstream, None).await?;
                let nginx = nginx::upstream(size, sink.address, listen).await?;
                let mut site = Self::of("nginx upstream", nginx.address, Some(nginx.child.id()));
                site.sink = Some(sink);
                site.nginx = Some(nginx);
                Ok(site)
            }
        }
    }

    /// The sink of another site, as a site.
    pub(super) fn at(sink: SinkAt) -> Self {
        Self::of("sample upstream", sink.address, Some(sink.pid))
    }

    /// Whether uploads may go here as they go elsewhere.
    pub(super) fn takes_uploads(&self) -> bool {
        self.nginx.is_none()
    }

    /// Where they may go else.
    pub(super) fn sink(&self) -> Option<SinkAt> {
        self.sink.as_ref().map(|sink| SinkAt {
            address: sink.address,
            pid: sink.child.id(),
        })
    }

    fn of(about: &str, address: SocketAddr, pid: Option<u32>) -> Self {
        Self {
            about: about.to_owned(),
            address,
            pid,
            sink: None,
            nginx: None,
        }
    }
}

fn is_plain(args: &UpstreamArgs) -> bool {
    args.delay.is_zero() && args.error_rate == 0.0 && args.answer_size.as_u64() == 16
}

async fn start_sample(args: &UpstreamArgs, listen: Option<SocketAddr>) -> anyhow::Result<Sink> {
    let listen = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command
        .args(["upstream", "--listen", &listen.to_string()])
        .args(args.flags());
    let (child, address) = start(UPSTREAM, command).await?;
    Ok(Sink { address, child })
}

/// Starts one of this program's own servers, which say where they listen.
pub(super) async fn start(role: &str, command: Command) -> anyhow::Result<(Child, SocketAddr)> {
    let child = Child::start(role, command)?;
    let find = |line: &str| line.strip_prefix("listening on http://")?.parse().ok();
    let address = child
        .wait_line("where it listens", START_LIMIT, find)
        .await?;
    Ok((child, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_named_or_has_an_address() {
        assert_eq!("nginx".parse(), Ok(Choice::Nginx));
        assert_eq!(
            "127.0.0.1:80".parse(),
            Ok(Choice::At(([127, 0, 0, 1], 80).into()))
        );
        let error = "localhost".parse::<Choice>().unwrap_err();
        assert!(error.contains("nor an IP:PORT"), "{error}");
    }
}
