//! A tunnel made of its parts, where a scenario needs another one than [`Stack::start`] makes: the
//! upstream spoken to in another protocol, or a slow link between tunnel client and tunnel server.

use std::time::Duration;

use crate::{
    relay::{self, Link},
    stack::{self, Running, Stack, StackArgs, files::Files},
    target::{Target, TargetArgs},
};

/// A tunnel that is not connected by then never will be.
const START_LIMIT: Duration = Duration::from_secs(20);

/// A target, and what this scenario started beside its stack. The programs end with it.
#[derive(Debug)]
pub(super) struct Opened {
    /// The target.
    pub(super) target: Target,
    /// The relay between tunnel client and tunnel server.
    _relay: Option<Running>,
}

/// Opens the target that `args` name. When it is self-contained, the tunnel client speaks `scheme`
/// (`http` or `h2c`) to the upstream, and dials the server by way of `link`.
pub(super) async fn open(
    args: &TargetArgs,
    scheme: &str,
    link: Option<Link>,
) -> anyhow::Result<Opened> {
    if !args.self_contained {
        return Ok(Opened {
            target: args.open().await?,
            _relay: None,
        });
    }
    let (stack, relay) = Box::pin(start(&args.stack, scheme, link)).await?;
    let mut target = args.at(&stack.url(), Some(stack.public_address())).await?;
    "self-contained".clone_into(&mut target.name);
    target.roles.extend(&stack.roles());
    if let Some(relay) = &relay {
        target.roles.add(relay::ROLE, relay.child.id());
    }
    target.stack = Some(stack);
    Ok(Opened {
        target,
        _relay: relay,
    })
}

async fn start(
    args: &StackArgs,
    scheme: &str,
    link: Option<Link>,
) -> anyhow::Result<(Stack, Option<Running>)> {
    let files = Files::new(args)?;
    let token = files.create_token(stack::ACCOUNT, stack::RUNTIME)?;
    let upstream = stack::start_upstream(&args.upstream).await?;
    let server = stack::start_server(args, &files, None).await?;
    let relay = match link {
        Some(link) => Some(relay::start(server.tunnel, link).await?),
        None => None,
    };
    let dialled = relay.as_ref().map_or(server.tunnel, |relay| relay.address);
    let url = format!("{scheme}://{}", upstream.address);
    let client = stack::start_client(args, &files, dialled, &token, &url).await?;
    client.child.wait_ready(client.address, START_LIMIT).await?;
    let stack = Stack {
        client,
        server,
        upstream,
        files,
    };
    Ok((stack, relay))
}
