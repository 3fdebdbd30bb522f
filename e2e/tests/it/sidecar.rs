//! The client as a sidecar in a cluster: as the user `nobody`, in a read-only directory, with little memory.

use std::os::unix::fs::{PermissionsExt, chown};

use e2e::{
    client::Client,
    platform::PlatformClient,
    program::{NOBODY, Signal, is_root},
    system::{Options, System},
    upstream::Upstream,
};

/// The memory that an idle client may use, also in a debug build.
const MEMORY_LIMIT: u64 = 64 * 1024 * 1024;

#[tokio::test]
async fn it_runs_as_nobody_where_nothing_can_be_written() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).not_connected();
    let mut system = System::with(options).await;
    let directory = tempfile::tempdir().unwrap();
    let mut options = system.client_options("demo-app").clone();
    for file in [&mut options.token, &mut options.ca] {
        let copy = directory.path().join(file.file_name().unwrap());
        std::fs::copy(&*file, &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o440)).unwrap();
        if is_root() {
            chown(&copy, None, Some(NOBODY)).unwrap();
        }
        *file = copy;
    }
    let mode = |mode| {
        let permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(directory.path(), permissions).unwrap();
    };
    mode(0o555);
    let mut client = Client::start_as_nobody(&options, directory.path()).await;
    client.admin().wait_ready(true).await;
    let mut platform = PlatformClient::http1(&system.entry()).await;
    assert_eq!(platform.get("/status/200").await.status, 200);
    let memory = client.program().memory();
    eprintln!("resident at rest: {} KiB", memory.bytes / 1024);
    assert!(memory.bytes < MEMORY_LIMIT, "{memory:?}");
    client.program().signal(Signal::TERM);
    let ended = client.program_mut().wait_exit(e2e::deadline::SOON).await;
    assert!(ended.success(), "{ended}");
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 2, "it wrote something");
    mode(0o755);
}

/// Live while it runs, ready while a session answers.
#[tokio::test]
async fn ready_and_live_tell_the_truth() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).through_relay();
    let options = options.client_flags(&["--redial-cap", "500ms", "--redial-base", "100ms"]);
    let mut system = System::with(options).await;
    let admin = system.client().admin();
    assert_eq!(admin.status("/healthz").await, 200);
    system.kill_server();
    admin.wait_ready(false).await;
    assert_eq!(
        admin.status("/healthz").await,
        200,
        "a client that is not ready is alive"
    );
    system.start_server().await;
    admin.wait_ready(true).await;
}

/// Helm charts set environment variables only.
#[tokio::test]
async fn it_is_started_by_environment_alone() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).not_connected();
    let mut system = System::with(options).await;
    let options = system.client_options("demo-app").clone();
    let given = [
        ("SERVER", format!("wss://{}", options.server)),
        ("UPSTREAM", options.upstream.clone()),
        ("TOKEN_FILE", options.token.to_str().unwrap().to_owned()),
        ("CA_FILE", options.ca.to_str().unwrap().to_owned()),
        ("LOG_FORMAT", "json".to_owned()),
        ("ADMIN_LISTEN", "127.0.0.1:0".to_owned()),
    ];
    let given = given.map(|(name, value)| (format!("TUNNEL_CLIENT_{name}"), value));
    let client = Client::start_with(&["run"], &given).await;
    client.admin().wait_ready(true).await;
    let mut platform = PlatformClient::http1(&system.entry()).await;
    assert_eq!(platform.get("/status/200").await.status, 200);
}
