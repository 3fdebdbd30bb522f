//! `tunnel-client serve` as it is run in a container: set by variables, and writing nothing.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use testkit::{ca::self_signed, deadline::SOON, http1::RawConnection, program::Signal};
use tokio::time::timeout;

use crate::program::{self, PROGRAM};
use testkit::scripted::ScriptedUpstream;

async fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    raw(address, &request).await
}

#[tokio::test]
async fn it_serves_by_variables_alone_and_writes_no_file() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let (folder, url) = (tempfile::tempdir().unwrap(), upstream.url());
    let path = folder.path().to_owned();
    let mut program = program::start(
        "serve",
        &path,
        &[
            ("TUNNEL_CLIENT_UPSTREAM", url.as_str()),
            ("TUNNEL_CLIENT_LISTEN", "127.0.0.1:0"),
            ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
        ],
    );
    let (admin, front) = (
        program::address(&mut program, "admin").await,
        program::address(&mut program, "front").await,
    );
    assert!(get(front, "/").await.ends_with("\r\n\r\nok"));
    assert!(get(admin, "/readyz").await.starts_with("HTTP/1.1 200 "));
    assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(program.writable_files(), Vec::<String>::new());
    assert_eq!(program.stop().await, Some(0));
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "nothing is left in the only folder that it knows");
}

#[tokio::test]
async fn a_tunnel_is_kept_without_a_file_being_written() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("token"), "tnlrt_1_secret\n").unwrap();
    let made = self_signed("localhost");
    fs::write(folder.path().join("ca.pem"), &made.certificate).unwrap();
    let mut program = program::start(
        "run",
        folder.path(),
        &[
            ("TUNNEL_CLIENT_SERVER", "wss://127.0.0.1:1"),
            ("TUNNEL_CLIENT_TOKEN_FILE", "token"),
            ("TUNNEL_CLIENT_CA_FILE", "ca.pem"),
            ("TUNNEL_CLIENT_UPSTREAM", "http://127.0.0.1:3000"),
            ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
        ],
    );
    let admin = program::address(&mut program, "admin").await;
    program.next_line("dialling").await;
    assert!(
        get(admin, "/readyz").await.starts_with("HTTP/1.1 503 "),
        "there is no session"
    );
    assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(program.writable_files(), Vec::<String>::new());
    assert_eq!(program.stop().await, Some(0));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// What else stands in the file counts with the next start, which it is not to prevent unseen.
#[tokio::test]
async fn what_is_not_taken_over_is_told_once_and_so_is_what_would_refuse_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let write = |more: &str| {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n\
             upstream = \"http://127.0.0.1:1\"\n{more}"
        );
        // A rename, so that half of it is never read.
        fs::write(folder.path().join("next"), text).unwrap();
        fs::rename(
            folder.path().join("next"),
            folder.path().join("client.toml"),
        )
        .unwrap();
    };
    write("");
    let variables = [("TUNNEL_CLIENT_CONFIG", "client.toml")];
    let mut program = program::start("serve", folder.path(), &variables);
    program::address(&mut program, "front").await;
    write("listen_cert = \"cert.pem\"\n");
    let refused = program
        .next_line("would not start with these settings")
        .await;
    assert!(refused.contains("--listen-key"), "{refused}");
    program.next_line("other than the routes").await;
    program.next_line("the routes are valid and").await;
    // It is what runs, again.
    let before = program.text().len();
    write("");
    program.next_line("the routes are valid and").await;
    let after = &program.text()[before..];
    assert!(!after.contains("other than the routes"), "{after}");
    assert!(!after.contains("would not start"), "{after}");
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn it_answers_by_the_routes_of_its_file_and_reads_them_again() {
    let upstream =
        ScriptedUpstream::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let (folder, url) = (tempfile::tempdir().unwrap(), upstream.url());
    let file = folder.path().join("client.toml");
    let write = move |words: &str| {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\n\
             [[route]]\nname = \"app\"\npath = \"/app/*\"\nupstream = \"{url}\"\n\
             [[route]]\nname = \"ready\"\npath = \"/readyz\"\n\
             respond = {{ status = 200, content_type = \"text/plain\", body = \"{words}\" }}\n\
             [[route]]\nname = \"inner\"\npath = \"/app/inner/*\"\ndeny = \"not for the outside\"\n"
        );
        fs::write(&file, text).unwrap();
    };
    write("first");
    let path = folder.path().to_owned();
    let variables = [("TUNNEL_CLIENT_CONFIG", "client.toml")];
    let mut program = program::start("serve", &path, &variables);
    let _admin = program::address(&mut program, "admin").await;
    let front = program::address(&mut program, "front").await;
    assert!(get(front, "/app/x").await.ends_with("\r\n\r\nok"));
    assert!(get(front, "/readyz").await.ends_with("\r\n\r\nfirst"));
    let denied = get(front, "/app/inner/x").await;
    assert!(denied.starts_with("HTTP/1.1 403 "), "{denied}");
    assert!(denied.contains("not for the outside"), "{denied}");
    let unknown = get(front, "/other").await;
    assert!(unknown.starts_with("HTTP/1.1 404 "), "{unknown}");
    assert!(
        unknown.contains("\"reason\":\"route_unknown\""),
        "{unknown}"
    );
    write("second");
    let told = program.next_line("the routes are valid and in use").await;
    assert!(told.contains("difference=\"changed ready\""), "{told}");
    assert!(get(front, "/readyz").await.ends_with("\r\n\r\nsecond"));
    assert_eq!(program.stop().await, Some(0));
}

/// The answer to these bytes, up to the end of the connection.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut connection = RawConnection::connect(address).await;
    connection.send(request).await;
    String::from_utf8(connection.rest().await.0).unwrap()
}

fn has_words(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// Requests that are refused before they are exchanges, each with its status and what its line has.
fn refused_requests() -> Vec<(String, &'static str, Vec<&'static str>)> {
    let long = "x".repeat(4_000);
    let large = "x".repeat(10_000);
    let close = "connection: close\r\nauthorization: Bearer secret";
    vec![
        // What the guard refuses: nothing of it is known.
        (
            format!("GET / HTTP/1.1\r\nhost: a\r\n folded: secret\r\n{close}\r\n\r\n"),
            "400",
            vec!["end=\"request_malformed\"", "peer=127.0.0.1"],
        ),
        (
            format!("GET /?secret HTTP/1.1\r\nhost: a\r\nx-large: {large}\r\n\r\n"),
            "431",
            vec!["status=431", "peer=127.0.0.1"],
        ),
        (
            format!("CONNECT app.example:80 HTTP/1.1\r\nhost: app.example:80\r\n{close}\r\n\r\n"),
            "405",
            vec!["status=405", "peer=127.0.0.1"],
        ),
        // What is refused when it has been read.
        (
            format!(
                "GET /{long}?secret HTTP/1.1\r\nhost: app.example:80\r\nexpect: secret\r\nx-request-id: one\r\n{close}\r\n\r\n"
            ),
            "417",
            vec![
                "method=\"GET\"",
                "host=\"app.example\"",
                "path=\"/xxx",
                "request_id=\"one\"",
                "peer=127.0.0.1",
            ],
        ),
    ]
}

#[tokio::test]
async fn what_is_refused_before_an_exchange_is_in_the_access_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = program::start(
        "serve",
        folder.path(),
        &[
            ("TUNNEL_CLIENT_UPSTREAM", "http://127.0.0.1:1"),
            ("TUNNEL_CLIENT_LISTEN", "127.0.0.1:0"),
            ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
            ("TUNNEL_CLIENT_MAX_HEAD_SIZE", "8KiB"),
        ],
    );
    let (admin, front) = (
        program::address(&mut program, "admin").await,
        program::address(&mut program, "front").await,
    );
    for (request, status, words) in refused_requests() {
        let answer = raw(front, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        let line = program.next_line(" access: ").await;
        has_words(&line, &["request refused"]);
        has_words(&line, &words);
        assert!(line.len() < 1_000, "{line}");
    }
    // Each counts as a problem too, and one that came to be an exchange has the line of one.
    assert!(
        get(admin, "/metrics")
            .await
            .contains("problems_total{reason=\"request_malformed\"}")
    );
    assert!(get(front, "/").await.starts_with("HTTP/1.1 502 "));
    let line = program.next_line(" access: ").await;
    let words = [
        "exchange",
        "host=\"localhost\"",
        "upgrade=false",
        "peer=127.0.0.1",
    ];
    has_words(&line, &words);
    let said = program.text();
    assert!(!said.contains("secret"), "{said}");
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn it_does_not_say_that_it_lives_while_it_stands_still() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = program::start(
        "serve",
        folder.path(),
        &[
            ("TUNNEL_CLIENT_UPSTREAM", "http://127.0.0.1:3000"),
            ("TUNNEL_CLIENT_LISTEN", "127.0.0.1:0"),
            ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
        ],
    );
    let admin = program::address(&mut program, "admin").await;
    assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200 "));
    program.signal(Signal::STOP);
    let mut probe = RawConnection::connect(admin).await;
    probe
        .send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await;
    // As long as a probe waits.
    let answer = timeout(Duration::from_millis(300), probe.read_some()).await;
    assert!(answer.is_err(), "{answer:?}");
    program.signal(Signal::CONT);
    assert!(get(admin, "/healthz").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(program.stop().await, Some(0));
}

/// As when a container is ended while it starts.
#[tokio::test]
async fn asked_to_stop_while_it_reads_its_files_it_ends_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = self_signed("localhost");
    fs::write(path("key.pem"), &made.key).unwrap();
    let pipe = Command::new("mkfifo").arg(path("cert.pem")).status();
    assert!(pipe.unwrap().success());
    let mut program = program::start(
        "serve",
        folder.path(),
        &[
            ("TUNNEL_CLIENT_UPSTREAM", "http://127.0.0.1:1"),
            ("TUNNEL_CLIENT_LISTEN", "127.0.0.1:0"),
            ("TUNNEL_CLIENT_LISTEN_CERT", "cert.pem"),
            ("TUNNEL_CLIENT_LISTEN_KEY", "key.pem"),
            ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
        ],
    );
    // Opened when the program opens the other end. It may read the file once more later.
    let mut certificate = fs::OpenOptions::new();
    let mut certificate = certificate.write(true).open(path("cert.pem")).unwrap();
    fs::write(path("next"), &made.certificate).unwrap();
    fs::rename(path("next"), path("cert.pem")).unwrap();
    program.signal(Signal::TERM);
    certificate.write_all(made.certificate.as_bytes()).unwrap();
    drop(certificate);
    let (code, said) = (program.wait_exit(SOON).await.code(), program.text());
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn what_serve_needs_is_checked_for_itself() {
    let validate = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["validate", "--serve"]).args(arguments);
        let output = command.env_clear().output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let good = validate(&["--upstream=http://app:80", "--listen=127.0.0.1:8080"]);
    let first = "ok: listen 127.0.0.1:8080, routes 1\n";
    assert!(good.0 == Some(0) && good.1.starts_with(first), "{good:?}");
    assert!(good.1.contains("http://app"), "{good:?}");
    let (code, text) = validate(&[]);
    assert_eq!(code, Some(2));
    assert!(text.starts_with("error: --upstream is missing: "), "{text}");
    assert_eq!(text.lines().count(), 1, "no server and no token: {text}");
    let (code, text) = validate(&["--upstream=http://app:80", "--listen-key=key.pem"]);
    assert_eq!(code, Some(2));
    assert!(
        text.starts_with("error: --listen-key: its certificate is missing"),
        "{text}"
    );
}
