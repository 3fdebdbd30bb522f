//! What is secret stays so: with all kinds of credentials, good ones and bad ones, nothing that
//! either program writes, counts, answers or shows has any of it.

use std::fs;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use e2e::{
    client::{Client, ClientOptions},
    deadline::{SOON, eventually},
    platform::PlatformClient,
    program::{Line, Program},
    raw::RawClient,
    scripted::ScriptedUpstream,
    stranger::{Refusal, Stranger},
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use serde_json::{Value, json};

const ISSUER: &str = "https://platform.example";
const AUDIENCE: &str = "tunnel-server";

/// What the platform knows this server by, and a token that only the platform knows.
const AUTH_TOKEN: &str = "by-which-the-platform-knows-us-0987654321";
const PLATFORM_TOKEN: &str = "known-to-the-platform-alone-abcdefghijklmnop";
/// One that nobody knows.
const UNKNOWN_TOKEN: &str = "tnlrt_0123456789abcdef_ThisSecretIsNotKnownToAnybodyAtAllAndWrong0";

/// Signs JSON Web Tokens.
struct Issuer(KeyPair);

impl Issuer {
    fn new() -> Self {
        Self(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    /// The public key as a JWK set (RFC 8037).
    fn key_set(&self) -> String {
        let x = URL_SAFE_NO_PAD.encode(self.0.der_bytes());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "one", "x": x});
        json!({ "keys": [key] }).to_string()
    }

    fn token(&self, runtime: &str, expires: u64) -> String {
        let claims = json!({
            "iss": ISSUER, "aud": AUDIENCE, "sub": "test", "jti": format!("id-of-{runtime}"),
            "iat": 1_700_000_000, "exp": expires, "account": "demo", "runtime": runtime,
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = json!({"alg": "EdDSA", "typ": "JWT", "kid": "one"});
        let signed = format!("{}.{}", part(&head), part(&claims));
        let signature = self.0.sign(signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Everything that was said, and by whom.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn add(&mut self, who: &str, text: String) {
        self.0.push((who.to_owned(), text));
    }

    fn add_program(&mut self, who: &str, program: &Program) {
        let lines = program.log().all();
        let lines: Vec<_> = lines.iter().map(Line::text).collect();
        assert!(!lines.is_empty(), "{who} wrote nothing: nothing was tested");
        self.add(who, lines.join("\n"));
    }

    fn add_refusal(&mut self, who: &str, refusal: &Refusal) {
        self.add(who, format!("{refusal:?}"));
    }

    fn assert_without(&self, secrets: &[String]) {
        for (who, text) in &self.0 {
            for secret in secrets {
                assert!(secret.len() >= 16, "too short to mean anything: {secret}");
                assert!(
                    !text.contains(secret.as_str()),
                    "{who} shows {secret}:\n{text}"
                );
            }
        }
    }
}

/// A whole token, and the part of it that is secret.
fn secrets_of(token: &str) -> Vec<String> {
    let token = token.trim();
    let between = if token.contains('.') { '.' } else { '_' };
    let secret = token.rsplit(between).next().unwrap();
    vec![token.to_owned(), secret.to_owned()]
}

struct Stage {
    system: System,
    tokens: Vec<(&'static str, String)>,
    _platform: ScriptedUpstream,
}

async fn stage(upstream: &Upstream) -> Stage {
    let issuer = Issuer::new();
    let answer = json!({"account": "demo", "runtime": "asked", "id": "platform-1"}).to_string();
    let length = answer.len();
    let platform = ScriptedUpstream::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{answer}"
    ))
    .await;
    let options = Options::to(&upstream.url())
        .server_flags(&["--log-level", "debug", "--offline-wait", "100ms"])
        .server_flags(&["--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE])
        .server_flags(&["--auth-url", &platform.url()])
        .server_file("--auth-token-file", "auth.token", AUTH_TOKEN)
        .server_file("--jwks", "jwks.json", &issuer.key_set())
        .with_admin_token()
        .client_flags(&["--log-level", "debug"]);
    let system = System::with(options).await;
    let tokens = vec![
        ("jwt", issuer.token("signed", 4_000_000_000)),
        ("expired", issuer.token("expired", 1_700_000_100)),
        ("foreign", Issuer::new().token("foreign", 4_000_000_000)),
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
    let upstream = Upstream::start().await;
    let Stage {
        mut system,
        tokens,
        _platform,
    } = stage(&upstream).await;
    let mut said = Said::default();
    let mut secrets = vec![AUTH_TOKEN.to_owned(), ADMIN_TOKEN.to_owned()];
    let plain = fs::read_to_string(system.token_of("demo-app")).unwrap();
    secrets.extend(secrets_of(&plain));
    for (name, token) in &tokens {
        secrets.extend(secrets_of(token));
        show_token(&mut system, name, token, &mut said).await;
    }
    secrets.extend(show_key(&mut system, &mut said).await);
    secrets.extend(replace_and_revoke(&mut system, &mut said).await);
    ask_everything(&system, &plain, &mut said).await;

    // The server's files hold hashes, and no token.
    let runtimes = fs::read_to_string(&system.files().runtimes).unwrap();
    said.add("runtimes", runtimes);
    said.add_program("server", system.server().program());
    said.add_program("first", system.client().program());
    said.assert_without(&secrets);
}

/// A token once by the real client, and once by one that shows the answer as it came.
async fn show_token(system: &mut System, name: &str, token: &str, said: &mut Said) {
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
    if eventually(SOON, &format!("{name} to be answered"), settled).await {
        said.add(name, client.admin().metrics().await);
    }
    said.add_program(name, client.program());
    if let Err(refusal) = Stranger::dial(&system.tunnel_entry(), &file).await {
        said.add_refusal(name, &refusal);
    }
}

/// A certificate's key is a secret too, whether it lets anybody in or not.
async fn show_key(system: &mut System, said: &mut Said) -> Vec<String> {
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
    let key = fs::read_to_string(&certificate.key).unwrap();
    let lines = key.lines().filter(|line| line.len() >= 40);
    lines.map(str::to_owned).collect()
}

/// A token that is replaced on a live session, and one that is revoked.
async fn replace_and_revoke(system: &mut System, said: &mut Said) -> Vec<String> {
    let file = system.token_of("demo-app");
    let client = Client::start(system.client_options("demo-app")).await;
    client.admin().wait_ready(true).await;
    let newer = system.files().create_token("demo", "app");
    let token = fs::read_to_string(&newer).unwrap();
    fs::rename(&newer, &file).unwrap();
    client.program().wait_for_line("new token", SOON).await;
    system.files().revoke_token("demo", "app", None);
    let log = client.program();
    log.wait_for_line("no longer good", SOON).await;
    said.add_program("client", log);
    secrets_of(&token)
}

/// What is asked for, and what is refused, at the public and at the admin listener.
async fn ask_everything(system: &System, token: &str, said: &mut Said) {
    let stolen = format!("Authorization: Bearer {}\r\n", token.trim());
    let mut platform = RawClient::connect(&system.entry()).await;
    let answer = platform.exchange("GET", "/offline", &stolen).await;
    said.add("public", format!("{answer:?}"));
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
    ] {
        said.add(path, format!("{:?}", admin.get(path).await));
    }
    let path = "/api/v1/runtimes/demo-signed/disconnect";
    for token in [None, Some(AUTH_TOKEN), Some(ADMIN_TOKEN)] {
        said.add(path, format!("{:?}", admin.post(path, token).await));
    }
}

/// The search would find what it looks for.
#[test]
fn a_secret_that_is_shown_is_found() {
    let mut said = Said::default();
    said.add("log", format!("token={UNKNOWN_TOKEN}"));
    for secret in secrets_of(UNKNOWN_TOKEN) {
        let found = std::panic::catch_unwind(|| said.assert_without(&[secret]));
        assert!(found.is_err());
    }
}
