//! What is secret stays so: with all kinds of credentials, good ones and bad ones, nothing that
//! either program writes, counts, answers or shows has any of it.

use std::{fs, time::Duration};

use e2e::{
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    entry::Entry,
    issuer::{AUDIENCE, ISSUER, Issuer, LATE, OVER},
    platform::{PlatformClient, empty},
    program::{OutputLine, Program},
    raw::RawClient,
    scripted::ScriptedUpstream,
    secrets,
    stranger::{Refusal, Stranger},
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use http::Request;
use serde_json::json;
use tokio::time::timeout;

/// What the platform knows this server by, and a token that only the platform knows.
const AUTH_TOKEN: &str = "by-which-the-platform-knows-us-0987654321";
const PLATFORM_TOKEN: &str = "known-to-the-platform-alone-abcdefghijklmnop";
/// One that nobody knows.
const UNKNOWN_TOKEN: &str = "tnlrt_0123456789abcdef_ThisSecretIsNotKnownToAnybodyAtAllAndWrong0";

/// Everything that was said, and by whom.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn add(&mut self, who: &str, text: String) {
        self.0.push((who.to_owned(), text));
    }

    fn add_program(&mut self, who: &str, program: &Program) {
        let lines = program.log().all();
        let lines: Vec<_> = lines.iter().map(OutputLine::text).collect();
        assert!(!lines.is_empty(), "{who} wrote nothing: nothing was tested");
        self.add(who, lines.join("\n"));
    }

    fn add_refusal(&mut self, who: &str, refusal: &Refusal) {
        self.add(who, format!("{refusal:?}"));
    }

    /// Nothing of it is among the secrets that any test has made so far.
    fn assert_hidden(&self) {
        for (who, text) in &self.0 {
            secrets::assert_hidden(who, text);
        }
    }
}

struct Stage {
    system: System,
    tokens: Vec<(&'static str, String)>,
    _platform: ScriptedUpstream,
}

async fn stage(upstream: &Upstream, level: &str) -> Stage {
    let issuer = Issuer::new();
    let answer = json!({"account": "demo", "runtime": "asked", "id": "platform-1"}).to_string();
    let length = answer.len();
    let platform = ScriptedUpstream::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
    ))
    .await;
    let options = Options::to(&upstream.url())
        .server_flags(&["--log-level", level, "--offline-wait", "100ms"])
        .server_flags(&["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE])
        .server_flags(&["--auth-url", &platform.url()])
        .server_file("--auth-token-file", "auth.token", AUTH_TOKEN)
        .server_file("--jwks", "jwks.json", &issuer.key_set())
        .with_admin_token()
        .client_flags(&["--log-level", level]);
    let system = System::with(options).await;
    let tokens = vec![
        ("jwt", issuer.token("signed", LATE)),
        ("expired", issuer.token("expired", OVER)),
        ("foreign", Issuer::new().token("foreign", LATE)),
        ("platform", PLATFORM_TOKEN.to_owned()),
        ("unknown", UNKNOWN_TOKEN.to_owned()),
    ];
    Stage {
        system,
        tokens,
        _platform: platform,
    }
}

#[tokio::test]
async fn no_secret_is_in_anything_that_is_written_or_answered() {
    assert_nothing_shown("debug").await;
}

/// A level for all: the libraries below, which may tell header values, say no more by it.
#[tokio::test]
async fn no_secret_is_in_the_finest_log() {
    assert_nothing_shown("trace").await;
}

async fn assert_nothing_shown(level: &str) {
    let upstream = Upstream::start().await;
    let Stage {
        mut system,
        tokens,
        _platform,
    } = stage(&upstream, level).await;
    let mut said = Said::default();
    let reader = read_along(&system).await;
    for token in [AUTH_TOKEN, ADMIN_TOKEN, UNKNOWN_TOKEN, PLATFORM_TOKEN] {
        secrets::keep("a token of this test", token);
    }
    let plain = fs::read_to_string(system.token_of("demo-app")).unwrap();
    for (name, token) in &tokens {
        secrets::keep(name, token);
        let is_good = ["jwt", "platform"].contains(name);
        let is_in = show_token(&mut system, name, token, &mut said).await;
        assert_eq!(is_in, is_good, "whether {name} was let in");
    }
    show_key(&mut system, &mut said).await;
    replace_and_revoke(&mut system, &mut said).await;
    ask_everything(&system, &plain, &mut said).await;
    said.add("/api/v1/events", events(reader).await);

    // The server's files hold hashes, and no token.
    let runtimes = fs::read_to_string(&system.files().runtimes).unwrap();
    said.add("runtimes", runtimes);
    said.add_program("server", system.server().program());
    said.add_program("first", system.client().program());
    said.assert_hidden();
}

/// A token once by the real client, and once by one that shows the answer as it came.
/// Whether it was let in.
async fn show_token(system: &mut System, name: &str, token: &str, said: &mut Said) -> bool {
    let file = system.directory().join(format!("{name}.secret"));
    fs::write(&file, token).unwrap();
    let options = ClientOptions {
        token: file.clone(),
        ..system.client_options("demo-app").clone()
    };
    let client = Client::start(&options).await;
    let settled = async || {
        let log = client.program().log().all();
        let says = |what: &str| log.iter().any(|line| line.text().contains(what));
        let is_up = says("the tunnel is up");
        (is_up || says("refused")).then_some(is_up)
    };
    // One that is refused ends at once.
    let is_in = eventually(SOON, &format!("{name} to be answered"), settled).await;
    if is_in {
        said.add(name, client.admin().metrics().await);
    }
    said.add_program(name, client.program());
    if let Err(refusal) = Stranger::dial(&system.tunnel_entry(), &file).await {
        said.add_refusal(name, &refusal);
    }
    is_in
}

/// A certificate's key is a secret too, whether it lets anybody in or not.
async fn show_key(system: &mut System, said: &mut Said) {
    let certificate = system.ca().issue("machine", &["keyed.demo.tunnel-client"]);
    let mut options = system.client_options("demo-app").clone();
    for (flag, path) in [
        ("--client-cert", &certificate.certificate),
        ("--client-key", &certificate.key),
    ] {
        options.flags.push(flag.to_owned());
        options.flags.push(path.to_str().unwrap().to_owned());
    }
    let keyed = Client::start(&options).await;
    keyed.program().wait_for_line("dialling", SOON).await;
    said.add_program("keyed", keyed.program());
}

/// A token that is replaced on a live session, and one that is revoked.
async fn replace_and_revoke(system: &mut System, said: &mut Said) {
    let file = system.token_of("demo-app");
    let client = Client::start(system.client_options("demo-app")).await;
    client.admin().wait_ready(true).await;
    let newer = system.files().create_token("demo", "app");
    fs::rename(&newer, &file).unwrap();
    client.program().wait_for_line("new token", SOON).await;
    system.files().revoke_token("demo", "app", None);
    let log = client.program();
    log.wait_for_line("no longer valid", SOON).await;
    said.add_program("client", log);
}

/// What is asked for, and what is refused, at the public and at the admin listener.
async fn ask_everything(system: &System, token: &str, said: &mut Said) {
    let stolen = format!("Authorization: Bearer {}\r\n", token.trim());
    let mut platform = RawClient::connect(&system.entry()).await;
    let answer = platform.exchange("GET", "/offline", &stolen).await;
    said.add("public", format!("{answer:?}"));
    // By HTTP/2 too, whose library tells of each frame in the finest log.
    let bearer = format!("Bearer {}", token.trim());
    let request = Request::get("/offline").header("authorization", bearer);
    let request = request.body(empty()).unwrap();
    let mut platform = PlatformClient::http2(&system.entry()).await;
    said.add("public", format!("{:?}", platform.ask(request).await));
    let unknown = system.entry().with_host("nobody.tunnels.localhost");
    let answer = PlatformClient::http1(&unknown).await.get("/").await;
    said.add("public", format!("{answer:?}"));
    let admin = system.server().admin();
    for path in [
        "/metrics",
        "/readyz",
        "/api/v1/status",
        "/api/v1/runtimes",
        "/api/v1/runtimes/demo-app",
        "/api/v1/config",
    ] {
        let answer = admin.get_as(path, Some(ADMIN_TOKEN)).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        said.add(path, format!("{answer:?}"));
    }
    let path = "/api/v1/runtimes/demo-signed/disconnect";
    for token in [None, Some(AUTH_TOKEN), Some(ADMIN_TOKEN)] {
        said.add(path, format!("{:?}", admin.post(path, token).await));
    }
}

/// Reads along what happens from now on.
async fn read_along(system: &System) -> RawClient {
    let mut reader = RawClient::connect(&Entry::direct(system.server().admin().0)).await;
    reader.request("GET", "/api/v1/events", "", b"").await;
    assert_eq!(reader.head().await.unwrap().status(), 200);
    reader
}

/// All that has happened meanwhile: up to what a second client brings, and what follows at once.
async fn events(mut reader: RawClient) -> String {
    let mut told = String::new();
    while !told.contains("superseded") {
        let some = timeout(SOON, reader.read_some()).await;
        let some = some.unwrap_or_else(|_| panic!("nothing of a takeover in {told}"));
        told.push_str(&String::from_utf8_lossy(&some.unwrap()));
    }
    while let Ok(some) = timeout(Duration::from_millis(300), reader.read_some()).await {
        told.push_str(&String::from_utf8_lossy(&some.unwrap()));
    }
    told
}

/// The search would find what it looks for, in what a program writes too.
#[tokio::test]
async fn a_secret_that_a_program_shows_is_found() {
    let secret = "shown-by-a-program-that-should-not-have";
    let mut said = Said::default();
    let mut shell = std::process::Command::new("sh");
    let shell = Program::start("sh", shell.args(["-c", &format!("echo a {secret} b")]));
    shell.wait_for_line(secret, SOON).await;
    said.add_program("sh", &shell);
    let shown = said.0.iter().find_map(|(_, text)| secrets::search(text));
    assert_eq!(shown, None, "nobody knows of it");
    secrets::keep("this one", secret);
    let shown = said.0.iter().find_map(|(_, text)| secrets::search(text));
    assert!(shown.is_some_and(|shown| shown.contains("this one")));
}
