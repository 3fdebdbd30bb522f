//! Where fairness is measured: a tunnel, maybe a neighbour's, maybe the upstream itself.

use std::time::Duration;

use crate::{
    measure::usage::{Roles, TUNNEL_CLIENT, TUNNEL_SERVER, UPSTREAM},
    scenario::fairness::{Args, phase::Spot},
    stack::{
        ACCOUNT, RUNTIME, Running, Server, files::Files, runtime_url, start_client, start_server,
        start_upstream,
    },
    target::Target,
};

/// The runtime beside that of a plain stack.
const NEIGHBOUR: &str = "neighbour";

/// A tunnel that is not connected by then never will be.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Open targets. The programs that were started for them end when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    tunnel: Target,
    neighbour: Option<Target>,
    direct: Option<Target>,
    _programs: Option<Programs>,
}

/// One server with two tunnels, both of which lead to one upstream.
#[derive(Debug)]
struct Programs {
    clients: [Running; 2],
    server: Server,
    upstream: Running,
    _files: Files,
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
            _programs: None,
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
    let programs = Box::pin(start(args)).await?;
    let public = programs.server.public;
    let mut roles = Roles::default();
    roles.add(UPSTREAM, programs.upstream.child.id());
    let mut tunnel = args
        .target
        .at(&runtime_url(RUNTIME, public), Some(public))
        .await?;
    let mut neighbour = args
        .target
        .at(&runtime_url(NEIGHBOUR, public), Some(public))
        .await?;
    let upstream = programs.upstream.address;
    let url = format!("http://{upstream}/").parse()?;
    let mut direct = args.target.at(&url, Some(upstream)).await?;
    direct.roles.extend(&roles);
    roles.add(TUNNEL_SERVER, programs.server.child.id());
    for client in &programs.clients {
        roles.add(TUNNEL_CLIENT, client.child.id());
    }
    "self-contained".clone_into(&mut tunnel.name);
    tunnel.roles.extend(&roles);
    neighbour.roles.extend(&roles);
    Ok(Place {
        tunnel,
        neighbour: Some(neighbour),
        direct: Some(direct),
        _programs: Some(programs),
    })
}

async fn start(args: &Args) -> anyhow::Result<Programs> {
    let stack = &args.target.stack;
    let files = Files::new(stack)?;
    let tokens = [
        files.create_token(ACCOUNT, RUNTIME)?,
        files.create_token(ACCOUNT, NEIGHBOUR)?,
    ];
    let upstream = start_upstream(&stack.upstream).await?;
    let server = start_server(stack, &files, None).await?;
    let url = format!("http://{}", upstream.address);
    let [token, neighbour] = &tokens;
    let clients = [
        start_client(stack, &files, server.tunnel, token, &url).await?,
        start_client(stack, &files, server.tunnel, neighbour, &url).await?,
    ];
    for client in &clients {
        client.child.wait_ready(client.address, START_LIMIT).await?;
    }
    Ok(Programs {
        clients,
        server,
        upstream,
        _files: files,
    })
}
