//! What stands behind all targets and answers: nginx, the sample upstream, or what runs already.

use std::{net::SocketAddr, str::FromStr};

use crate::{
    scenario::compare::{Args, nginx},
    stack::{Running, start_upstream},
    upstream::UpstreamArgs,
};

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
    sink: Option<Running>,
    nginx: Option<nginx::Nginx>,
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
                let sample = start_upstream(&args.stack.upstream, listen).await?;
                let (address, pid) = (sample.address, sample.child.id());
                let mut site = Self::of("sample upstream", address, Some(pid));
                site.sink = Some(sample);
                Ok(site)
            }
            Choice::Nginx => {
                let sink = start_upstream(&args.stack.upstream, None).await?;
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
