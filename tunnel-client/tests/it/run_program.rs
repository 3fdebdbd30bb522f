//! `tunnel-client run` as people see it: what it logs when it is stuck, and when its file changes.

use std::fs;

use testkit::listener::Listener;
use testkit::{ca::Authority, program::Program};
use tokio::net::TcpListener;

use crate::program;

/// In a folder with a token and a CA, given this server and further variables.
fn start(folder: &tempfile::TempDir, server: &str, more: &[(&str, &str)]) -> Program {
    fs::write(folder.path().join("token"), "tnlrt_1_secret\n").unwrap();
    let authority = Authority::new("Own");
    fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let variables = [
        ("TUNNEL_CLIENT_SERVER", server),
        ("TUNNEL_CLIENT_TOKEN_FILE", "token"),
        ("TUNNEL_CLIENT_CA_FILE", "ca.pem"),
        ("TUNNEL_CLIENT_UPSTREAM", "http://127.0.0.1:1"),
        ("TUNNEL_CLIENT_ADMIN_LISTEN", "127.0.0.1:0"),
        ("TUNNEL_CLIENT_REDIAL_BASE", "1ms"),
        ("TUNNEL_CLIENT_REDIAL_CAP", "5ms"),
    ];
    program::start("run", folder.path(), &[&variables, more].concat())
}

/// How often it was said what tells more, after a few dials in vain.
async fn hints(mut program: Program) -> usize {
    for _ in 0..4 {
        program.next_line("no session, dialling again").await;
    }
    let (code, said) = (program.stop().await, program.text());
    assert_eq!(code, Some(0), "{said}");
    said.matches("`tunnel-client check`").count()
}

#[tokio::test]
async fn whoever_is_stuck_on_the_way_is_told_once_what_tells_more() {
    let other = Authority::new("Inspection");
    let server = Listener::tls(&other.issue(&["127.0.0.1"]).identity(), None, |_stream| {
        Box::pin(async {})
    })
    .await;
    let url = server.url();
    let folder = tempfile::tempdir().unwrap();
    let unknown_ca = hints(start(&folder, &url, &[])).await;
    assert_eq!(unknown_ca, 1, "an unknown CA");

    let proxy = Listener::plain(|mut stream| async move {
        use tokio::io::AsyncWriteExt;
        crate::network::head(&mut stream).await;
        let answer = b"HTTP/1.1 403 Blocked\r\ncontent-length: 0\r\n\r\n";
        let _ = stream.write_all(answer).await;
    })
    .await;
    let url = format!("http://{}", proxy.address);
    let proxy = [("TUNNEL_CLIENT_PROXY", url.as_str())];
    let by_proxy = hints(start(&folder, "wss://tunnel.test", &proxy)).await;
    assert_eq!(by_proxy, 1, "a proxy that refuses");

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("wss://{}", closed.local_addr().unwrap());
    drop(closed);
    let refused = hints(start(&folder, &url, &[])).await;
    assert_eq!(refused, 1, "a port at which nothing listens");
}

#[tokio::test]
async fn what_has_changed_in_its_files_is_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        // A rename, so that half of it is never read.
        let next = folder.path().join("next");
        fs::write(&next, text).unwrap();
        fs::rename(next, folder.path().join("client.toml")).unwrap();
    };
    let route = |name: &str, words: &str| {
        format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\ndeny = \"{words}\"\n")
    };
    write(&(route("one", "no") + &route("two", "no")));
    let more = [("TUNNEL_CLIENT_CONFIG", "client.toml")];
    let mut program = start(&folder, "wss://127.0.0.1:1", &more);
    program.next_line("no session, dialling again").await;
    write(&("sessions = 3\n".to_owned() + &route("two", "never") + &route("three", "no")));
    let warned = program
        .next_line("settings other than the routes have changed")
        .await;
    assert!(warned.contains("settings=\"sessions\""), "{warned}");
    let told = program.next_line("the routes are valid and in use").await;
    let difference = "difference=\"added three; removed one; changed two\"";
    assert!(told.contains(difference), "{told}");
    fs::write(folder.path().join("token"), "tnlrt_2_secret\n").unwrap();
    let told = program
        .next_line("the files of the credential have been read again")
        .await;
    assert!(told.contains("changed=\"token\""), "{told}");
    let (code, said) = (program.stop().await, program.text());
    assert_eq!(code, Some(0));
    assert!(!said.contains("secret"), "{said}");
}
