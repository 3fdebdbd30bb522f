//! What answers behind all targets.

use std::{net::SocketAddr, str::FromStr};

use super::{
    Args,
    preset::{Preset, Programs},
    sample::{LoadLevel, warm_size},
};
use crate::{
    stack::{Running, child::Child, start_upstream},
    upstream::UpstreamArgs,
};

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
    /// Whether uploads go to it, and whether everything else does.
    takes: (bool, bool),
    _sample: Option<Running>,
    _nginx: Option<Programs>,
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
            return Ok(vec![Self::at("an upstream that ran already", address)]);
        }
        let listen_sample = listen.filter(|_| choice == UpstreamChoice::Sample);
        let running = start_upstream(&args.stack.upstream, listen_sample).await?;
        let sample = Self {
            pid: Some(running.child.id()),
            takes: (true, choice == UpstreamChoice::Sample),
            ..Self::at("sample upstream", running.address)
        };
        let mut all = Vec::new();
        if choice == UpstreamChoice::Nginx {
            let size = args.size.as_u64();
            let sizes = [size, warm_size(size)];
            let programs = nginx.start(sample.address, listen, &sizes).await?;
            let address = programs.address;
            all.push(Self {
                pid: programs.children.first().map(Child::id),
                takes: (false, true),
                _nginx: Some(programs),
                ..Self::at(&nginx.about, address)
            });
        }
        all.push(Self {
            _sample: Some(running),
            ..sample
        });
        Ok(all)
    }

    /// One that takes everything and is kept running by other means.
    fn at(about: &str, address: SocketAddr) -> Self {
        Self {
            about: about.to_owned(),
            address,
            pid: None,
            takes: (true, true),
            _sample: None,
            _nginx: None,
        }
    }

    /// Whether requests of this level go to it.
    pub(super) fn serves(&self, level: LoadLevel) -> bool {
        let (uploads, others) = self.takes;
        match level {
            LoadLevel::Upload(_) => uploads,
            LoadLevel::Http(_) | LoadLevel::Download(_) => others,
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
        assert_eq!("nginx".parse(), Ok(UpstreamChoice::Nginx));
        let address = ([127, 0, 0, 1], 80).into();
        assert_eq!("127.0.0.1:80".parse(), Ok(UpstreamChoice::At(address)));
        let error = "localhost".parse::<UpstreamChoice>().unwrap_err();
        assert!(error.contains("nor an IP:PORT"), "{error}");
    }
}
