//! The programs, upstreams and neighbours that an attack runs beside.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use testkit::tunnel::{
    server::{FakeServer, refusal},
    wire::{Side, TEXT, Wire},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinSet,
    time::timeout,
};

use super::{
    Attack, Place, Protocol, Stage,
    hostile::{ADDRESSES, Caller, dial, dial_wrongly},
    line::Line,
    neighbour::{Neighbours, Phase, Seen},
    origin::Origin,
    tunnel_end::TunnelEnd,
};
use crate::{
    entry::Entry,
    program::{Memory, Program},
    served::Served,
    stranger::INSTANCE_LINE,
    system::{Options, System},
};

/// The runtime that hostile peers have to do with, and the one beside it.
const APP: &str = "demo-app";
const OTHER: &str = "demo-other";

/// How the hostile server welcomes the client.
const WELCOME: &str = r#"{"type":"welcome","runtime":"a-b","session":"1","version":"stranger"}"#;

/// How long a client may take to dial the hostile server, beside the good one.
const DIALLED: Duration = Duration::from_secs(5);

/// A running stand.
pub struct Stand {
    place: Place,
    stage: Stage,
    programs: Programs,
    /// The hostile one, another of the same runtime, and one of another runtime.
    origins: [Origin; 3],
    neighbours: Neighbours,
    line: Arc<Line>,
    /// The hostile server, and its end of the client's session until that is used.
    fake: Option<(FakeServer, Mutex<Option<Wire>>)>,
    /// `Authorization` and instance of the hostile tunnel client.
    login: String,
    _honest: Honest,
}

/// The runtime of neighbours and upstreams.
struct Honest(Option<Runtime>);

impl Honest {
    fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self(Some(runtime.unwrap()))
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().unwrap().handle()
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        // What is left ends with it, but a runtime may not be waited for within another.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

enum Programs {
    Tunnel(Box<System>),
    Serve(Served),
}

/// Resident memory of both programs, where they are there.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    server: Option<Memory>,
    client: Option<Memory>,
}

/// By how many bytes the programs have grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The server.
    pub server: Option<u64>,
    /// The client, or `serve`.
    pub client: Option<u64>,
}

impl Stand {
    /// Starts all that is not hostile. Each neighbour sends so many small requests in a second.
    ///
    /// # Panics
    /// When a program does not come up.
    pub async fn start(place: Place, stage: Stage, per_second: u32) -> Self {
        let line = Arc::<Line>::default();
        let honest = Honest::start();
        let origin = || Origin::start(Arc::clone(&line), honest.handle());
        let origins = [origin().await, origin().await, origin().await];
        let routes = routes(stage, &origins);
        let (mut fake, mut session, mut login) = (None, None, String::new());
        let programs = if place == Place::Serve {
            Programs::Serve(Served::start(&routes, &[]).await)
        } else {
            if place == Place::TunnelServer {
                fake = Some(fake_server(stage).await);
            }
            let mut system = start_system(&routes, stage).await;
            if let Some(fake) = &fake {
                lead_to(fake, &mut system);
            }
            if place == Place::TunnelClient {
                login = hostile_login(&mut system, stage);
            } else {
                system.start_client(APP).await;
            }
            if let Some(fake) = fake.as_mut().filter(|_| stage == Stage::Plain) {
                session = Some(welcome(fake, &mut system).await);
            }
            system.start_client(OTHER).await;
            Programs::Tunnel(system)
        };
        Self {
            neighbours: Neighbours::start(programs.neighbours(place), per_second, honest.handle()),
            place,
            stage,
            programs,
            origins,
            line,
            fake: fake.map(|fake| (fake, Mutex::new(session))),
            login,
            _honest: honest,
        }
    }

    /// What the programs take now; their peaks count from here.
    pub fn rest(&self) -> Rest {
        let rest = |program: Option<&Program>| program.map(Program::forget_peak);
        Rest {
            server: rest(self.programs.server()),
            client: rest(self.programs.client(self.place)),
        }
    }

    /// By how much the programs have grown at most.
    pub fn grown(&self, rest: Rest) -> Grown {
        let grown = |program: Option<&Program>, rest: Option<Memory>| {
            let peak = program?.memory().peak_bytes;
            Some(peak.saturating_sub(rest?.bytes))
        };
        Grown {
            server: grown(self.programs.server(), rest.server),
            client: grown(self.programs.client(self.place), rest.client),
        }
    }

    /// The time that the programs that are measured have run.
    pub fn cpu_time(&self) -> Duration {
        let programs = [self.programs.server(), self.programs.client(self.place)];
        programs.into_iter().flatten().map(Program::cpu_time).sum()
    }

    /// Bytes that hostile platform clients have sent.
    pub fn sent(&self) -> u64 {
        self.line.sent()
    }

    /// Bytes of hostile requests that the upstream has received.
    pub fn received(&self) -> u64 {
        self.origins[0].received()
    }

    /// Says what the hostile peers do from now on.
    pub fn set(&self, phase: Phase) {
        self.line.set_slow(phase == Phase::Beside);
        self.neighbours.set(phase);
    }

    /// Whether the hostile peer is one that is dialled, once.
    pub fn keeps_session(&self) -> bool {
        self.fake.is_some()
    }

    /// The neighbours.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Ends the neighbours' downloads in order; what they all saw.
    pub async fn finish(self) -> Seen {
        self.origins.iter().for_each(Origin::finish);
        self.neighbours.finish().await
    }

    /// The hostile peers, until this is dropped.
    pub fn hostile(&self, attack: &Attack, protocol: Protocol) -> JoinSet<()> {
        self.origins[0].set(Arc::clone(&attack.upstream));
        let mut tasks = JoinSet::new();
        let (entry, path) = (self.programs.entry(), self.path(protocol));
        let callers = attack.callers.iter();
        let callers =
            callers.flat_map(|callers| (0..callers.count).map(move |number| (callers, number)));
        for (callers, number) in callers {
            if self.stage == Stage::WrongToken {
                tasks.spawn(dial_wrongly(
                    self.programs.tunnel_entry(),
                    self.login.clone(),
                ));
                continue;
            }
            let target = match self.stage {
                Stage::TunnelListener => self.programs.tunnel_entry().address(),
                _ => entry.address(),
            };
            let caller = Caller {
                callers: callers.clone(),
                number,
                target,
                authority: entry.authority().to_owned(),
                path,
                protocol: self.caller_protocol(protocol),
                line: Arc::clone(&self.line),
            };
            tasks.spawn(caller.run());
        }
        if let Some(deed) = attack.tunnel_end.clone() {
            let line = Arc::clone(&self.line);
            let session = self.fake.as_ref().map(|(_, session)| session.lock().take());
            match session {
                Some(Some(wire)) => drop(tasks.spawn(deed(TunnelEnd::server(wire, line, path)))),
                Some(None) => {}
                None => {
                    let (entry, login) = (self.programs.tunnel_entry(), self.login.clone());
                    tasks.spawn(dial(entry, login, line, deed));
                }
            }
        }
        tasks
    }

    /// What hostile requests ask for: the hostile upstream, by the version that it speaks to this protocol.
    fn path(&self, protocol: Protocol) -> &'static str {
        let is_client = matches!(self.place, Place::Public | Place::Serve);
        match protocol {
            _ if matches!(self.stage, Stage::UpstreamTls | Stage::NoUpstream) => "/x/x",
            Protocol::Grpc => "/h/x",
            Protocol::Http2 if !is_client => "/h/x",
            _ => "/a/x",
        }
    }

    /// A hostile upstream of HTTP/1.1 is asked over HTTP/2, where one connection can ask for most.
    fn caller_protocol(&self, protocol: Protocol) -> Protocol {
        match (self.place, protocol) {
            (Place::Upstream, Protocol::Http1) => Protocol::Http2,
            (_, protocol) => protocol,
        }
    }
}

impl Programs {
    /// Where neighbours ask, and the first part of their paths.
    fn neighbours(&self, place: Place) -> Vec<(&'static str, Entry, &'static str)> {
        let mut all = Vec::new();
        if place != Place::TunnelClient {
            let app = self.entry();
            all.push(("same upstream", app.clone(), "/a"));
            all.push(("same upstream, HTTP/2", app.clone(), "/h"));
            all.push(("same runtime", app, "/b"));
        }
        if let Self::Tunnel(system) = self {
            all.push(("other runtime", system.entry_of(OTHER), "/c"));
        }
        all
    }

    fn server(&self) -> Option<&Program> {
        match self {
            Self::Tunnel(system) => Some(system.server().program()),
            Self::Serve(_) => None,
        }
    }

    fn client(&self, place: Place) -> Option<&Program> {
        match self {
            Self::Serve(served) => Some(served.program()),
            Self::Tunnel(_) if place == Place::TunnelClient => None,
            Self::Tunnel(system) => Some(system.client_of(APP).program()),
        }
    }

    fn entry(&self) -> Entry {
        match self {
            Self::Tunnel(system) => system.entry_of(APP),
            Self::Serve(served) => served.entry(),
        }
    }

    fn tunnel_entry(&self) -> Entry {
        match self {
            Self::Tunnel(system) => system.tunnel_entry(),
            Self::Serve(served) => served.entry(),
        }
    }
}

/// The routes of all clients: the hostile upstream by both versions, and one that is never as it should be.
fn routes(stage: Stage, origins: &[Origin; 3]) -> String {
    let [hostile, same, other] = origins.each_ref().map(Origin::address);
    let broken = match stage {
        Stage::NoUpstream => "http://127.0.0.1:1".to_owned(),
        _ => format!("https://{hostile}"),
    };
    let routes = [
        ("a", format!("http://{hostile}")),
        ("h", format!("h2c://{hostile}")),
        ("b", format!("http://{same}")),
        ("c", format!("http://{other}")),
        ("x", broken),
    ];
    let routes = routes.map(|(name, upstream)| {
        format!("[[route]]\nname = \"{name}\"\npath = \"/{name}/*\"\nupstream = \"{upstream}\"\n")
    });
    routes.concat()
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

/// Has the client dial the hostile server beside the good one.
fn lead_to(fake: &FakeServer, system: &mut System) {
    let file = system.ca().file();
    let roots = std::fs::read_to_string(&file).unwrap() + fake.pem();
    std::fs::write(file, roots).unwrap();
    let second = ["--server".to_owned(), fake.url()];
    system.client_options(APP).flags.extend(second);
}

/// The session of the client with the hostile server. A client whose session with it has ended stays with the good one, and
/// is started again.
async fn welcome(fake: &mut FakeServer, system: &mut System) -> Wire {
    loop {
        if let Ok(stream) = timeout(DIALLED, fake.accept_bytes()).await {
            let mut wire = Wire::new(stream, &[], Side::Server);
            if wire.try_round_trip().await {
                wire.frame(TEXT, WELCOME.as_bytes()).await;
                return wire;
            }
        }
        system.restart_client(APP).await;
    }
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
