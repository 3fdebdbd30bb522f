//! Where fairness is measured: a tunnel, maybe a neighbour's, maybe the upstream itself.

use super::{
    Args,
    phase::{Destination, limit_flags},
};
use crate::{
    report::usage::UPSTREAM,
    stack::{Plan, RUNTIME, Stack},
    target::Target,
};

/// The runtime beside that of a plain stack.
const NEIGHBOUR: &str = "neighbour";

/// Open targets. Dropping it ends the programs that were started for them.
#[derive(Debug)]
pub(super) struct Environment {
    tunnel: Target,
    neighbour: Option<Target>,
    direct: Option<Target>,
    _stack: Option<Stack>,
}

impl Environment {
    /// Opens what the flags name: URLs, or one server with two tunnels to one upstream.
    pub(super) async fn open(args: &Args) -> anyhow::Result<Self> {
        if args.target.self_contained {
            return Self::self_contained(args).await;
        }
        let neighbour = match &args.neighbour {
            Some(url) => Some(args.target.at(url, args.target.connect_to).await?),
            None => None,
        };
        Ok(Self {
            tunnel: args.target.open().await?,
            neighbour,
            direct: None,
            _stack: None,
        })
    }

    async fn self_contained(args: &Args) -> anyhow::Result<Self> {
        let plan = Plan {
            runtimes: &[RUNTIME, NEIGHBOUR],
            ..Plan::default()
        };
        let mut programs = args.target.stack.clone();
        if args.limits {
            programs.programs.server_flags.splice(0..0, limit_flags());
        }
        let stack = Box::pin(Stack::start(&programs, plan)).await?;
        let mut direct = None;
        if let Some(upstream) = &stack.upstream {
            let url = format!("http://{}/", upstream.address).parse()?;
            let mut target = args.target.at(&url, Some(upstream.address)).await?;
            target.roles.add(UPSTREAM, upstream.child.id());
            direct = Some(target);
        }
        Ok(Self {
            tunnel: args.target.in_stack(&stack, RUNTIME).await?,
            neighbour: Some(args.target.in_stack(&stack, NEIGHBOUR).await?),
            direct,
            _stack: Some(stack),
        })
    }

    pub(super) fn has_neighbour(&self) -> bool {
        self.neighbour.is_some()
    }

    pub(super) fn at(&self, destination: Destination) -> &Target {
        let other = match destination {
            Destination::Tunnel => None,
            Destination::Neighbour => self.neighbour.as_ref(),
            Destination::Direct => self.direct.as_ref(),
        };
        other.unwrap_or(&self.tunnel)
    }
}
