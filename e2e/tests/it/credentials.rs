//! Every kind of credential by the two real programs: a good one of each is up and answers, a wrong one is
//! refused by its own name, to the client and in the server's metric, and what is taken back is cut.

use std::{fs, path::PathBuf, time::Duration};

use e2e::{
    ca::{Ca, Certificate},
    client::{Client, ClientOptions},
    deadline::{SOON, within},
    issuer::{AUDIENCE, ISSUER, Issuer, LATE, OVER},
    platform::PlatformClient,
    scripted::ScriptedUpstream,
    system::{Options, System},
    upstream::Upstream,
};
use tempfile::TempDir;

/// What the platform alone knows.
const KNOWN: &str = "known-to-the-platform-and-nobody-else-0123456789";

/// What nobody knows, of the platform's form and of our own.
const UNKNOWN: [&str; 2] = [
    "known-to-nobody-at-all-and-not-of-our-form-0123456789",
    "tnlrt_0123456789abcdef_ThisSecretOfThisTestIsNotKnownToAnybody0123",
];

/// The serial number of the good certificate.
const SERIAL: u64 = 77;

/// What a client shows.
enum Shown {
    Token(String),
    Certificate(Certificate),
}

/// A server that takes every kind, and who makes them.
struct Stage {
    system: System,
    issuer: Issuer,
    authority: Ca,
    revoked: PathBuf,
    directory: TempDir,
    _platform: ScriptedUpstream,
}

/// The platform: one token is a runtime's, all others are nobody's.
async fn platform() -> ScriptedUpstream {
    ScriptedUpstream::start(|mut connection| async move {
        while let Ok(head) = connection.head().await {
            let asked = connection.content(&head).await;
            let asked = String::from_utf8_lossy(&asked.bytes).into_owned();
            let (status, answer) = match asked.contains(KNOWN) {
                true => ("200 OK", r#"{"account":"demo","runtime":"asked","id":"p-1"}"#),
                false => ("403 Forbidden", r#"{"detail":"no such token"}"#),
            };
            let length = answer.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
            );
            connection.send(answer).await;
        }
    })
    .await
}

async fn stage(upstream: &Upstream) -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let (issuer, authority) = (Issuer::new(), Ca::new(directory.path()));
    let revoked = directory.path().join("revoked.pem");
    fs::write(&revoked, authority.revoking(&[1])).unwrap();
    let platform = platform().await;
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let options = Options::to(&upstream.url())
        .server_file("--jwks", "jwks.json", &issuer.key_set())
        .server_flags(&["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE])
        .server_flags(&["--auth-url", &platform.url()])
        .server_flags(&["--client-ca", &path(authority.file())])
        .server_flags(&["--client-crl", &path(revoked.clone())])
        .server_flags(&["--offline-wait", "100ms"])
        .not_connected();
    Stage {
        system: System::with(options).await,
        issuer,
        authority,
        revoked,
        directory,
        _platform: platform,
    }
}

impl Stage {
    /// A client that shows this, and has no other credential.
    async fn client(&mut self, name: &str, shown: &Shown) -> Client {
        let mut options: ClientOptions = self.system.client_options("demo-app").clone();
        match shown {
            Shown::Token(token) => {
                options.token = self.directory.path().join(format!("{name}.token"));
                fs::write(&options.token, token).unwrap();
            }
            Shown::Certificate(certificate) => {
                options.token = PathBuf::new();
                for (flag, path) in [
                    ("--client-cert", &certificate.certificate),
                    ("--client-key", &certificate.key),
                ] {
                    let path = path.to_str().unwrap().to_owned();
                    options.flags.extend([flag.to_owned(), path]);
                }
            }
        }
        Client::start(&options).await
    }

    async fn answers(&self, runtime: &str) -> u16 {
        let entry = self.system.entry_of(&format!("demo-{runtime}"));
        let answer = PlatformClient::http1(&entry).await.get("/status/200").await;
        answer.status.as_u16()
    }

    /// Session requests that came to this.
    async fn handshakes(&self, result: &str) -> f64 {
        let label = format!("result=\"{result}\"");
        let admin = self.system.server().admin();
        let count = admin
            .metric("tunnel_server_handshakes_total", &[&label])
            .await;
        count.unwrap_or_default()
    }

    /// One good credential of each kind, and whose it is.
    fn good(&mut self) -> [(&'static str, Shown); 4] {
        let token = fs::read_to_string(self.system.token_of("demo-app")).unwrap();
        let names = ["keyed.demo.tunnel-client"];
        let certificate = self.authority.issue_numbered("keyed", &names, SERIAL);
        [
            ("app", Shown::Token(token)),
            ("signed", Shown::Token(self.issuer.token("signed", LATE))),
            ("asked", Shown::Token(KNOWN.to_owned())),
            ("keyed", Shown::Certificate(certificate)),
        ]
    }

    /// Wrong ones, and what each is refused with.
    fn wrong(&mut self) -> [(&'static str, Shown, &'static str); 8] {
        let token = fs::read_to_string(self.system.token_of("demo-app")).unwrap();
        let (id, _) = token.rsplit_once('_').unwrap();
        let nameless = self.authority.issue("nameless", &["keyed.demo.example"]);
        let elsewhere = self.issuer.token_for("elsewhere", "signed", LATE);
        let forged = Issuer::new().token("signed", LATE);
        let text = |token: &str| Shown::Token(token.to_owned());
        [
            ("unknown-id", text(UNKNOWN[1]), "token_refused"),
            (
                "wrong-secret",
                Shown::Token(format!("{id}_{}", &"WrongSecret".repeat(4)[..43])),
                "token_refused",
            ),
            (
                "expired",
                Shown::Token(self.issuer.token("signed", OVER)),
                "token_expired",
            ),
            ("forged", Shown::Token(forged), "token_signature"),
            ("elsewhere", Shown::Token(elsewhere), "token_audience"),
            ("unknown", text(UNKNOWN[0]), "token_refused"),
            (
                "nameless",
                Shown::Certificate(nameless),
                "certificate_without_runtime",
            ),
            (
                "malformed",
                Shown::Token(self.issuer.token("-signed-", LATE)),
                "token_malformed",
            ),
        ]
    }
}

#[tokio::test]
async fn each_kind_of_credential_lets_in_its_own_runtime_and_a_wrong_one_is_refused_by_name() {
    let upstream = Upstream::start().await;
    let mut stage = stage(&upstream).await;
    let mut clients = Vec::new();
    for (runtime, shown) in stage.good() {
        let client = stage.client(runtime, &shown).await;
        client.admin().wait_ready(true).await;
        assert_eq!(stage.answers(runtime).await, 200, "{runtime}");
        clients.push(client);
    }
    for (name, shown, reason) in stage.wrong() {
        let before = stage.handshakes(reason).await;
        let client = stage.client(name, &shown).await;
        client.program().wait_for_line(reason, SOON).await;
        // What the server may take a moment later does not end the client.
        if !["token_refused", "token_expired"].contains(&reason) {
            let log = client.program().log();
            log.wait_closed(&format!("the client with {name} to give up"), SOON)
                .await;
        }
        assert_eq!(stage.handshakes(reason).await, before + 1.0, "{name}");
    }

    // The list of revoked certificates is another one, as an editor or Kubernetes makes it.
    let next = stage.revoked.with_extension("next");
    fs::write(&next, stage.authority.revoking(&[1, SERIAL])).unwrap();
    fs::rename(&next, &stage.revoked).unwrap();
    let keyed = clients.pop().unwrap();
    within(Duration::from_secs(3), "its session to be cut", async {
        keyed.program().wait_for_line("no longer valid", SOON).await;
    })
    .await;
    keyed
        .program()
        .log()
        .wait_closed("the client to end", SOON)
        .await;
    assert_eq!(stage.answers("keyed").await, 503);
    for runtime in ["app", "signed", "asked"] {
        assert_eq!(stage.answers(runtime).await, 200, "{runtime} goes on");
    }
}
