//! Where fairness is measured: a tunnel, maybe a neighbour's, maybe the upstream itself.

use crate::{
    measure::usage::UPSTREAM,
    scenario::fairness::{Args, limits, phase::Spot},
    stack::{Plan, RUNTIME, Stack},
    target::Target,
};

/// The runtime beside that of a plain stack.
const NEIGHBOUR: &str = "neighbour";

/// Open targets. The programs that were started for them end when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    tunnel: Target,
    neighbour: Option<Target>,
    direct: Option<Target>,
    /// One server with two tunnels, both of which lead to one upstream.
    _stack: Option<Stack>,
}

impl Place {
    /// Opens what the flags name.
    pub(super) async fn open(args: &Args) -> anyhow::Result<Self> {
        if args.target.self_contained {
            return self_contained(args).await;
        }
        let tunnel = args.target.open().await?;
        let neighbour = match &args.neighbour {
            Some(url) => Some(args.target.at(url, args.target.connect_to).await?),
            None => None,
        };
        Ok(Self {
            tunnel,
            neighbour,
            direct: None,
            _stack: None,
        })
    }

    /// Whether there is a neighbour's tunnel.
    pub(super) fn has_neighbour(&self) -> bool {
        self.neighbour.is_some()
    }

    /// The target there.
    pub(super) fn at(&self, spot: Spot) -> &Target {
        let other = match spot {
            Spot::Tunnel => None,
            Spot::Neighbour => self.neighbour.as_ref(),
            Spot::Direct => self.direct.as_ref(),
        };
        other.unwrap_or(&self.tunnel)
    }
}

async fn self_contained(args: &Args) -> anyhow::Result<Place> {
    let plan = Plan {
        runtimes: &[RUNTIME, NEIGHBOUR],
        ..Plan::default()
    };
    let mut programs = args.target.stack.clone();
    if args.limits {
        // Before those given, which win.
        programs.server_flags.splice(0..0, limits::server_flags());
    }
    let stack = Box::pin(Stack::start(&programs, plan)).await?;
    let tunnel = args.target.in_stack(&stack, RUNTIME).await?;
    let neighbour = args.target.in_stack(&stack, NEIGHBOUR).await?;
    let mut direct = None;
    if let Some(upstream) = &stack.upstream {
        let (address, id) = (upstream.address, upstream.child.id());
        let url = format!("http://{address}/").parse()?;
        let mut target = args.target.at(&url, Some(address)).await?;
        target.roles.add(UPSTREAM, id);
        direct = Some(target);
    }
    Ok(Place {
        tunnel,
        neighbour: Some(neighbour),
        direct,
        _stack: Some(stack),
    })
}
