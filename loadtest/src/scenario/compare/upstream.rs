//! What answers behind all targets.

use std::{net::SocketAddr, str::FromStr};

use super::{
    Args,
    preset::{NGINX_UPSTREAM, Programs, Values},
    sample::warm_size,
};
use crate::{
    stack::{Running, start_upstream},
    upstream::UpstreamArgs,
};

/// Which upstream is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// nginx, for which the generator is no measure: it sends files.
    Nginx,
    /// That of `loadtest upstream`.
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
            address => (address.parse())
                .map(Self::At)
                .map_err(|_| format!("{address:?} is neither nginx nor sample nor an IP:PORT")),
        }
    }
}

/// An upstream. Dropping it ends what was started for it.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) about: &'static str,
    pub(super) address: SocketAddr,
    pub(super) pid: Option<u32>,
    /// The sample upstream to which uploads must go, if this one takes none.
    pub(super) uploads: Option<(SocketAddr, u32)>,
    _sample: Option<Running>,
    _nginx: Option<Programs>,
}

impl Upstream {
    pub(super) async fn open(args: &Args) -> anyhow::Result<Self> {
        let listen = args.upstream_listen;
        let is_nginx = || NGINX_UPSTREAM.is_installed() && is_plain(&args.stack.upstream);
        let choice = args.upstream.clone().unwrap_or_else(|| match is_nginx() {
            true => Choice::Nginx,
            false => Choice::Sample,
        });
        let listen_sample = listen.filter(|_| choice == Choice::Sample);
        if let Choice::At(address) = choice {
            return Ok(Self::at("an upstream that ran already", address, None));
        }
        let sample = start_upstream(&args.stack.upstream, listen_sample).await?;
        let (address, pid) = (sample.address, sample.child.id());
        let mut upstream = Self::at("sample upstream", address, Some(pid));
        if choice == Choice::Nginx {
            let size = args.size.as_u64();
            let sizes = format!("{size} {}", warm_size(size));
            let values = Values::from([("sizes", sizes)]);
            let nginx = NGINX_UPSTREAM.start(address, listen, values).await?;
            let pid = nginx.children.first().map(|(_, child)| child.id());
            upstream = Self::at(NGINX_UPSTREAM.about, nginx.address, pid);
            upstream.uploads = Some((address, sample.child.id()));
            upstream._nginx = Some(nginx);
        }
        upstream._sample = Some(sample);
        Ok(upstream)
    }

    /// One that is kept running by other means.
    pub(super) fn at(about: &'static str, address: SocketAddr, pid: Option<u32>) -> Self {
        Self {
            about,
            address,
            pid,
            uploads: None,
            _sample: None,
            _nginx: None,
        }
    }
}

/// Whether the sample upstream would do nothing that nginx does not.
fn is_plain(args: &UpstreamArgs) -> bool {
    args.delay.is_zero() && args.error_rate == 0.0 && args.answer_size.as_u64() == 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_named_or_has_an_address() {
        assert_eq!("nginx".parse(), Ok(Choice::Nginx));
        let address = ([127, 0, 0, 1], 80).into();
        assert_eq!("127.0.0.1:80".parse(), Ok(Choice::At(address)));
        let error = "localhost".parse::<Choice>().unwrap_err();
        assert!(error.contains("nor an IP:PORT"), "{error}");
    }
}
