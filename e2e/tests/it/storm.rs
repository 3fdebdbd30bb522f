//! Many clients that come at once: the server takes in as many as it can, sends the others away
//! with a time to come back, and in the end all are served.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use e2e::{
    ca::Certificate,
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    inside::InsideClient,
    platform::PlatformClient,
    raw::RawClient,
    record::Record,
    stranger::Stranger,
    system::{Options, System},
    upstream::Upstream,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_rustls::TlsAcceptor;

const CLIENTS: usize = 100;

/// Handshakes at once.
const GATE: usize = 4;

/// A client that returns quickly, and in no other way than all do.
const CLIENT: [&str; 6] = [
    "--sessions",
    "1",
    "--redial-base",
    "200ms",
    "--redial-cap",
    "2s",
];

fn label(number: usize) -> String {
    match number {
        0 => "demo-app".to_owned(),
        _ => format!("demo-r{number}"),
    }
}

async fn wait_sessions(system: &System, count: usize) {
    let admin = system.server().admin();
    let wanted = f64::from(u32::try_from(count).unwrap());
    let sessions = async || {
        let sessions = admin.metric("tunnel_server_sessions", &[]).await;
        (sessions == Some(wanted)).then_some(())
    };
    eventually(3 * SOON, &format!("{count} sessions"), sessions).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_served_again_when_their_server_was_killed() {
    let upstream = Upstream::start().await;
    let gate = format!("{GATE}");
    let mut options = Options::to(&upstream.url())
        .server_flags(&["--max-handshakes", &gate, "--handshake-queue", "8"])
        .client_flags(&CLIENT)
        .not_connected();
    for number in 1..CLIENTS {
        options = options.and("demo", &format!("r{number}"), &upstream.url());
    }
    let mut system = System::with(options).await;
    let _clients: Vec<_> = (0..CLIENTS)
        .map(|number| InsideClient::start(system.client_options(&label(number))))
        .collect();
    wait_sessions(&system, CLIENTS).await;

    system.kill_server();
    system.start_server().await;
    let admin = system.server().admin();
    let began = Instant::now();
    wait_sessions(&system, CLIENTS).await;
    let took = began.elapsed();
    for number in 0..CLIENTS {
        let entry = system.entry_of(&label(number));
        let answer = PlatformClient::http1(&entry).await.get("/status/200").await;
        assert_eq!(answer.status, 200, "{}", label(number));
    }
    let dials = admin.metric("tunnel_server_handshakes_total", &[]).await;
    eprintln!("all {CLIENTS} were back after {took:?}, with {dials:?} session requests");
    let most = f64::from(u32::try_from(10 * CLIENTS).unwrap());
    assert!(dials.is_some_and(|dials| dials <= most), "{dials:?}");
}

/// The type of a record of TLS with which a handshake begins.
const TLS_HANDSHAKE: u8 = 22;

/// A way to a server on which handshakes stand still: of each connection the client's first bytes pass, the
/// server's first bytes are counted if they are TLS, and nothing goes on before it is let go.
struct Slow {
    address: SocketAddr,
    came: Arc<AtomicUsize>,
    begun: Arc<AtomicUsize>,
    go: watch::Sender<bool>,
    _carrying: JoinSet<()>,
}

impl Slow {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (came, begun) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let go = watch::Sender::new(false);
        let mut carrying = JoinSet::new();
        let (counted, answered, going) = (came.clone(), begun.clone(), go.clone());
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (answered, going) = (answered.clone(), going.subscribe());
                connections.spawn(async move {
                    // What breaks off was given up by either side.
                    drop(Self::carry(client, server, &answered, going).await);
                });
            }
        });
        Self {
            address,
            came,
            begun,
            go,
            _carrying: carrying,
        }
    }

    async fn carry(
        mut client: TcpStream,
        server: SocketAddr,
        begun: &AtomicUsize,
        mut go: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        let mut server = TcpStream::connect(server).await?;
        let mut first = vec![0; 16 * 1024];
        let length = client.read(&mut first).await?;
        server.write_all(&first[..length]).await?;
        let length = server.read(&mut first).await?;
        if first[..length].first() == Some(&TLS_HANDSHAKE) && !*go.borrow() {
            begun.fetch_add(1, Ordering::SeqCst);
        }
        drop(go.wait_for(|go| *go).await);
        client.write_all(&first[..length]).await?;
        tokio::io::copy_bidirectional(&mut client, &mut server).await?;
        Ok(())
    }
}

/// The gate as it is seen from outside: of all who say hello at once the server begins the handshakes of no
/// more than it says, and of as many again whom it sends away.
#[tokio::test]
async fn no_more_handshakes_are_begun_at_once_than_the_gate_lets_in() {
    const COMING: usize = 60;
    let upstream = Upstream::start().await;
    let gate = format!("{GATE}");
    let mut system = System::with(
        Options::to(&upstream.url())
            .server_flags(&["--max-handshakes", &gate, "--handshake-queue", "8"])
            .client_flags(&CLIENT)
            .not_connected(),
    )
    .await;
    let slow = Slow::start(system.server().tunnel_address()).await;
    let options = ClientOptions {
        server: slow.address,
        ..system.client_options("demo-app").clone()
    };
    // All of one runtime, which does not matter here: they are not let in before the end.
    let clients: Vec<_> = (0..COMING).map(|_| InsideClient::start(&options)).collect();
    let all_came = async || (slow.came.load(Ordering::SeqCst) >= COMING).then_some(());
    eventually(SOON, "all of them to come", all_came).await;
    // Less than the silence after which the next have their turn.
    sleep(Duration::from_secs(1)).await;
    let begun = slow.begun.load(Ordering::SeqCst);
    eprintln!("of {COMING} that came at once {begun} were answered");
    assert!(
        (1..=2 * GATE).contains(&begun),
        "{begun} handshakes at once"
    );
    slow.go.send_replace(true);
    drop(clients);
    let one = InsideClient::start(&options);
    wait_sessions(&system, 1).await;
    drop(one);
}

#[tokio::test]
async fn whoever_finds_no_room_is_told_when_to_return() {
    let upstream = Upstream::start().await;
    let flags = ["--max-handshakes", "4", "--handshake-queue", "0"];
    let options = Options::to(&upstream.url()).server_flags(&flags);
    let mut system = System::with(options.not_connected()).await;
    let token = system.token_of("demo-app");
    let entry = system.tunnel_entry();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let refused = async || {
            // They shake hands and say nothing more: half of the handshakes, which is all one address may
            // have. Each time anew, since silence does not keep them for long.
            let _slow = [
                RawClient::connect(&entry).await,
                RawClient::connect(&entry).await,
            ];
            Stranger::dial(&entry, &token).await.err()
        };
        let refusal = eventually(SOON, "a refusal", refused).await;
        assert_eq!(refusal.head.status(), 503, "{refusal:?}");
        assert_eq!(refusal.body["fatal"], false, "{refusal:?}");
        let wait = refusal.head.value("retry-after").map(str::parse::<u64>);
        waits.push(wait.expect("a Retry-After").unwrap());
    }
    assert!(
        waits.iter().all(|wait| (1..=60).contains(wait)),
        "{waits:?}"
    );
    let accepted = async || Stranger::dial(&entry, &token).await.ok();
    eventually(SOON, "room again", accepted).await;
}

/// A server that has no room for anybody, and notes when each comes.
async fn full_server(certificate: Certificate, came: &Record<Instant>, listener: TcpListener) {
    let config = certificate.server_config(&["http/1.1"]);
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = acceptor.accept(socket).await else {
            continue;
        };
        came.push(Instant::now());
        let mut head = vec![0; 4096];
        drop(stream.read(&mut head).await);
        let body = r#"{"reason":"handshake_limit","detail":"no room now","fatal":false}"#;
        let answer = format!(
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        drop(stream.write_all(answer.as_bytes()).await);
        drop(stream.shutdown().await);
    }
}

#[tokio::test]
async fn a_client_that_was_sent_away_returns_no_earlier_than_it_was_told() {
    let mut system = System::with(Options::to("http://127.0.0.1:1").not_connected()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ClientOptions {
        server: listener.local_addr().unwrap(),
        flags: CLIENT.map(str::to_owned).to_vec(),
        ..system.client_options("demo-app").clone()
    };
    let came = Record::default();
    let certificate = system.files().tunnel_certificate.clone();
    let serving = full_server(certificate, &came, listener);
    let dialling = async {
        let _client = Client::start(&options).await;
        let third = async || (came.len() >= 3).then(|| came.all());
        eventually(SOON, "three dials", third).await
    };
    let times = tokio::select! {
        () = serving => unreachable!("it serves for ever"),
        times = dialling => times,
    };
    for pair in times.windows(2) {
        let wait = pair[1] - pair[0];
        assert!(wait >= Duration::from_secs(2), "{wait:?}");
    }
}
