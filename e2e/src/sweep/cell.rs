//! One cell of the sweep: programs of their own, neighbours, and one shape at one place over one protocol.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use testkit::tunnel::{
    server::FakeServer,
    server::refusal,
    wire::{Side, Wire},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Mutex,
    task::JoinSet,
    time::sleep,
};

use super::{
    Attack, Callers, Deed, Place, Protocol, Shape, Stage, hold,
    neighbour::{Neighbours, Seen},
    origin::{Manner, Origin},
    peer::{LARGEST_WINDOW, Peer, Reads},
    tunnel_end::TunnelEnd,
};
use crate::{
    entry::Entry,
    program::{Memory, Program},
    served::Served,
    stranger::{INSTANCE_LINE, Stranger},
    system::{Options, System},
};

/// The addresses of hostile platform clients, each in a network of its own: one address gets no more than a share.
const ADDRESSES: [Ipv4Addr; 3] = [
    Ipv4Addr::new(127, 1, 0, 1),
    Ipv4Addr::new(127, 2, 0, 1),
    Ipv4Addr::new(127, 3, 0, 1),
];

/// The receive buffer of those who read nothing: what they leave waits in the programs and not in the kernel.
const BUFFER: u32 = 4 * 1024;

/// Until those of a hostile round are gone.
const SETTLE: Duration = Duration::from_millis(300);

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How often the hostile peers come and go.
    pub rounds: usize,
    /// How long each time without them is.
    pub quiet: Duration,
    /// How long each time with them is.
    pub hostile: Duration,
    /// How many small requests each neighbour sends in a second.
    pub per_second: u32,
}

/// What came of a cell.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By how much the server has grown at most, in bytes.
    pub server: Option<u64>,
    /// By how much the client, or `serve`, has.
    pub client: Option<u64>,
    /// What the neighbours saw.
    pub seen: Seen,
    /// Bytes that hostile platform clients have sent.
    pub sent: u64,
    /// Bytes of their requests that the upstream has received.
    pub received: u64,
}

/// Runs a shape at a place over a protocol; `None` where it is nothing there.
pub async fn measure(
    shape: &Shape,
    place: Place,
    protocol: Protocol,
    plan: Plan,
) -> Option<Outcome> {
    let attack = (shape.attack)(place, protocol)?;
    let stand = Stand::start(attack, place, protocol).await;
    let neighbours = Neighbours::start(stand.neighbours(), plan.per_second);
    sleep(plan.quiet).await;
    let rest = stand.rest();
    for _ in 0..plan.rounds {
        neighbours.set_hostile(true);
        let hostile = stand.hostile();
        sleep(plan.hostile).await;
        drop(hostile);
        sleep(SETTLE).await;
        neighbours.set_hostile(false);
        sleep(plan.quiet).await;
    }
    stand.origins.iter().for_each(Origin::finish);
    let seen = neighbours.finish().await;
    let grown = |program: Option<&Program>, rest: Option<Memory>| {
        let peak = program?.memory().peak_bytes;
        Some(peak.saturating_sub(rest?.bytes))
    };
    Some(Outcome {
        server: grown(stand.server(), rest.0),
        client: grown(stand.client(), rest.1),
        seen,
        sent: stand.sent.load(Ordering::Relaxed),
        received: stand.origins[0].received(),
    })
}

/// The programs of a cell.
struct Stand {
    place: Place,
    protocol: Protocol,
    attack: Attack,
    origins: [Origin; 3],
    programs: Programs,
    sent: Arc<AtomicU64>,
    fake: Option<Arc<Mutex<FakeServer>>>,
    /// `Authorization` of the hostile tunnel client.
    login: String,
}

enum Programs {
    Tunnel(Box<System>),
    Serve(Served),
}

const APP: &str = "demo-app";
const OTHER: &str = "demo-other";

impl Stand {
    async fn start(attack: Attack, place: Place, protocol: Protocol) -> Self {
        let honest = || Manner {
            answer: super::deed(hold),
            reads: Reads::Frames,
            window: LARGEST_WINDOW,
        };
        let origins = [
            Origin::start(attack.upstream.clone()).await,
            Origin::start(honest()).await,
            Origin::start(honest()).await,
        ];
        let is_http2 = match protocol {
            Protocol::Grpc => true,
            Protocol::Http2 => place != Place::Public && place != Place::Serve,
            Protocol::Http1 | Protocol::WebSocket => false,
        };
        let (scheme, address) = match attack.stage {
            Stage::UpstreamTls => ("https", origins[0].address()),
            Stage::NoUpstream => ("http", ([127, 0, 0, 1], 1).into()),
            _ if is_http2 => ("h2c", origins[0].address()),
            _ => ("http", origins[0].address()),
        };
        let routes = [
            ("a", format!("{scheme}://{address}")),
            ("b", format!("http://{}", origins[1].address())),
            ("c", format!("http://{}", origins[2].address())),
        ];
        let routes = routes.map(|(name, upstream)| {
            format!(
                "[[route]]\nname = \"{name}\"\npath = \"/{name}/*\"\nupstream = \"{upstream}\"\n"
            )
        });
        let routes = routes.concat();
        let (mut fake, mut login) = (None, String::new());
        let programs = if place == Place::Serve {
            Programs::Serve(Served::start(&routes, &[]).await)
        } else {
            if place == Place::TunnelServer {
                fake = Some(Arc::new(Mutex::new(fake_server(attack.stage).await)));
            }
            let mut system = start_system(&routes, attack.stage).await;
            if let Some(fake) = &fake {
                let fake = fake.lock().await;
                let file = system.ca().file();
                let roots = std::fs::read_to_string(&file).unwrap() + fake.pem();
                std::fs::write(file, roots).unwrap();
                let second = ["--server".to_owned(), fake.url()];
                system.client_options(APP).flags.extend(second);
            }
            if place == Place::TunnelClient {
                login = hostile_login(&mut system, attack.stage);
            } else {
                system.start_client(APP).await;
            }
            system.start_client(OTHER).await;
            Programs::Tunnel(system)
        };
        Self {
            place,
            protocol,
            origins,
            programs,
            sent: Arc::default(),
            fake,
            login,
            attack,
        }
    }

    /// Where neighbours ask, and the first part of their paths.
    fn neighbours(&self) -> Vec<(&'static str, Entry, &'static str)> {
        let (app, other) = match &self.programs {
            Programs::Serve(served) => (served.entry(), None),
            Programs::Tunnel(system) => (system.entry_of(APP), Some(system.entry_of(OTHER))),
        };
        let mut all = Vec::new();
        let has_upstream = !matches!(self.attack.stage, Stage::UpstreamTls | Stage::NoUpstream);
        if self.place != Place::TunnelClient {
            if has_upstream {
                all.push(("same upstream", app.clone(), "/a"));
            }
            all.push(("same runtime", app, "/b"));
        }
        all.extend(other.map(|other| ("other runtime", other, "/c")));
        all
    }

    fn server(&self) -> Option<&Program> {
        match &self.programs {
            Programs::Tunnel(system) => Some(system.server().program()),
            Programs::Serve(_) => None,
        }
    }

    fn client(&self) -> Option<&Program> {
        match &self.programs {
            Programs::Serve(served) => Some(served.program()),
            Programs::Tunnel(_) if self.place == Place::TunnelClient => None,
            Programs::Tunnel(system) => Some(system.client_of(APP).program()),
        }
    }

    /// What the programs take without hostile peers; their peaks count from now on.
    fn rest(&self) -> (Option<Memory>, Option<Memory>) {
        let rest = |program: Option<&Program>| program.map(Program::forget_peak);
        (rest(self.server()), rest(self.client()))
    }

    /// The hostile peers, until this is dropped.
    fn hostile(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if let Some(callers) = &self.attack.callers {
            for number in 0..callers.count {
                let caller = Caller {
                    callers: callers.clone(),
                    number,
                    target: self.target(),
                    authority: self.authority(),
                    protocol: self.caller_protocol(),
                    sent: Arc::clone(&self.sent),
                };
                if self.attack.stage == Stage::WrongToken {
                    tasks.spawn(dial_wrongly(self.tunnel_entry(), self.login.clone()));
                } else {
                    tasks.spawn(caller.run());
                }
            }
        }
        if let Some(deed) = &self.attack.tunnel_end {
            let deed = Arc::clone(deed);
            match &self.fake {
                Some(fake) => tasks.spawn(serve_tunnel(Arc::clone(fake), deed)),
                None => tasks.spawn(dial(self.tunnel_entry(), self.login.clone(), deed)),
            };
        }
        tasks
    }

    fn tunnel_entry(&self) -> Entry {
        match &self.programs {
            Programs::Tunnel(system) => system.tunnel_entry(),
            Programs::Serve(served) => served.entry(),
        }
    }

    fn target(&self) -> SocketAddr {
        match &self.programs {
            Programs::Tunnel(system) if self.attack.stage == Stage::TunnelListener => {
                system.tunnel_entry().address()
            }
            Programs::Tunnel(system) => system.entry_of(APP).address(),
            Programs::Serve(served) => served.entry().address(),
        }
    }

    fn authority(&self) -> String {
        match &self.programs {
            Programs::Tunnel(system) => system.entry_of(APP).authority().to_owned(),
            Programs::Serve(served) => served.entry().authority().to_owned(),
        }
    }

    /// A hostile upstream of HTTP/1.1 is asked over HTTP/2, where one connection can ask for most.
    fn caller_protocol(&self) -> Protocol {
        match (self.place, self.protocol) {
            (Place::Upstream, Protocol::Http1) if self.attack.stage != Stage::UpstreamTls => {
                Protocol::Http2
            }
            (_, protocol) => protocol,
        }
    }
}

/// A server with two runtimes, and no client yet.
async fn start_system(routes: &str, stage: Stage) -> Box<System> {
    let options = Options::to("").and("demo", "other", "").client_file(routes);
    let mut options = options.not_connected();
    match stage {
        Stage::PublicTls => options = options.public_tls(),
        Stage::ProxyHeader => {
            let trusted = ADDRESSES.map(|address| format!("{address}/32")).join(",");
            let flags = ["--trusted-proxies", &trusted, "--proxy-protocol=true"];
            options = options.server_flags(&flags);
        }
        _ => {}
    }
    Box::new(System::with(options).await)
}

async fn fake_server(stage: Stage) -> FakeServer {
    let fake = FakeServer::start().await;
    if stage == Stage::RefusingServer {
        fake.refuse((0..1_000).map(|_| refusal(503, "server_busy", false)));
    }
    fake
}

/// `Authorization` and instance of the hostile tunnel client.
fn hostile_login(system: &mut System, stage: Stage) -> String {
    let token = std::fs::read_to_string(system.token_of(APP)).unwrap();
    let token = match stage {
        Stage::WrongToken => token.trim().chars().rev().collect(),
        _ => token.trim().to_owned(),
    };
    format!("Authorization: Bearer {token}\r\n{INSTANCE_LINE}")
}

/// A connection of a hostile platform client, or one after the other.
struct Caller {
    callers: Callers,
    number: usize,
    target: SocketAddr,
    authority: String,
    protocol: Protocol,
    sent: Arc<AtomicU64>,
}

impl Caller {
    async fn run(self) {
        let Callers {
            deed,
            reads,
            window,
            is_repeated,
            ..
        } = &self.callers;
        loop {
            let Ok(socket) = self.connect(*reads).await else {
                sleep(SETTLE).await;
                continue;
            };
            let sent = Arc::clone(&self.sent);
            let peer = Peer::client(
                socket,
                self.protocol,
                &self.authority,
                (*reads, *window),
                sent,
            );
            let peer = peer.await;
            deed(Arc::clone(&peer)).await;
            if !is_repeated {
                std::future::pending().await
            }
        }
    }

    async fn connect(&self, reads: Reads) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        if reads != Reads::All {
            socket.set_recv_buffer_size(BUFFER)?;
        }
        socket.bind((ADDRESSES[self.number % ADDRESSES.len()], 0).into())?;
        let socket = socket.connect(self.target).await?;
        socket.set_nodelay(true)?;
        Ok(socket)
    }
}

/// A hostile tunnel client, and the next one when its session has ended.
async fn dial(entry: Entry, login: String, deed: Deed<TunnelEnd>) {
    loop {
        if let Ok((_, connection)) = Stranger::dial_raw(&entry, &login).await {
            let (stream, rest) = connection.into_parts();
            deed(TunnelEnd::client(Wire::new(stream, &rest, Side::Client)).await).await;
        }
        sleep(SETTLE).await;
    }
}

async fn dial_wrongly(entry: Entry, login: String) {
    loop {
        drop(Stranger::dial_raw(&entry, &login).await);
    }
}

/// A hostile tunnel server, for one session after the other.
async fn serve_tunnel(fake: Arc<Mutex<FakeServer>>, deed: Deed<TunnelEnd>) {
    let mut fake = fake.lock().await;
    loop {
        let stream = fake.accept_bytes().await;
        deed(TunnelEnd::server(Wire::new(stream, &[], Side::Server)).await).await;
    }
}
