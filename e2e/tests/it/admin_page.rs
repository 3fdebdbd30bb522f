//! The pages of the admin listeners, in a browser.
//!
//! The browser also fails a test for an error in its console, such as a breach of the page's own Content-Security-Policy, and
//! for a page that is wider than its window.

use std::time::Duration;

use e2e::{
    deadline::SOON,
    peers::browser::{
        BrowserStep::{self, Await, Key, Run, Type, Width},
        Window, walk,
    },
    platform::PlatformClient,
    program::Signal,
    raw::RawClient,
    stranger::Stranger,
    system::{ADMIN_TOKEN, Options, System},
    upstream::Upstream,
};
use serde_json::json;
use tokio::time::sleep;

/// What would run if it became markup.
const HOSTILE: &str = "<img src=x onerror=document.title=1>";

/// The runtimes that the list shows.
fn await_runtimes(labels: &str) -> BrowserStep {
    Await(format!(
        "[...document.querySelectorAll('td.lead a')].map(link => link.textContent).join(' ') == {labels:?}"
    ))
}

/// Makes requests through the tunnel, for a page that shows them from some moment on. Does not end.
async fn ask_again_and_again(system: &System, target: &str) {
    let mut platform = PlatformClient::http1(&system.entry()).await;
    loop {
        platform.get(target).await;
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn the_servers_page_is_used_by_keyboard_alone_and_shows_hostile_text_as_text() {
    let upstream = Upstream::start().await;
    let options = Options::to(&upstream.url()).and("demo", "hostile", "");
    let mut system = System::with(options.with_admin_token().not_connected()).await;
    system.start_client("demo-app").await;
    let token = system.token_of("demo-hostile");
    let mut stranger = Stranger::dial(&system.tunnel_entry(), &token)
        .await
        .unwrap();
    stranger.greet().await;
    let route = json!({ "name": HOSTILE, "matches": HOSTILE, "to": "", "state": "up" });
    let report = json!({ "type": "routes", "routes": [route] });
    stranger.control(report).await;

    let steps = [
        await_runtimes("demo-app demo-hostile"),
        Key("/"),
        Type("app".to_owned()),
        await_runtimes("demo-app"),
        BrowserStep::tab_to_text("demo-app"),
        Key("Enter"),
        BrowserStep::await_text("All runtimes"),
        Await("document.querySelector('h2').textContent == 'demo-app'".to_owned()),
        Await("!document.querySelector('.heading button').disabled".to_owned()),
        BrowserStep::tab_to_text("Drain…"),
        Key("Enter"),
        BrowserStep::await_text("nothing is lost"),
        BrowserStep::tab_to_text("Drain"),
        Key("Enter"),
        // The API wants the token, and the page asks for it.
        Await("document.activeElement.type == 'password'".to_owned()),
        Type(ADMIN_TOKEN.to_owned()),
        Key("Enter"),
        BrowserStep::await_text("Drained demo-app: "),
        Await(format!(
            "!location.href.includes({ADMIN_TOKEN:?}) && !document.querySelector('dialog')"
        )),
        BrowserStep::await_text("session-began"),
        BrowserStep::tab_to_text("Start"),
        Key("Enter"),
        BrowserStep::await_text("GET /status/201"),
        Width(400),
        BrowserStep::tab_to_text("← All runtimes"),
        Key("Enter"),
        await_runtimes("demo-app"),
        Run("location.hash = '#/runtimes/demo-hostile'".to_owned()),
        BrowserStep::await_text(HOSTILE),
        Await(
            "document.title.startsWith('demo-hostile') && !document.querySelector('td img')"
                .to_owned(),
        ),
    ];
    let url = format!("http://{}/", system.server().admin().0);
    let window = Window {
        width: 1280,
        scheme: "light",
    };
    let walking = walk(&url, window, &steps);
    // It reads, so that its session lasts.
    let attending = stranger.wait_close(6 * SOON);
    tokio::select! {
        _ = walking => {}
        () = ask_again_and_again(&system, "/status/201") => {}
        code = attending => panic!("the stranger's session has ended: {code:?}"),
    }
}

/// Also while a request is open at the old process, which the page goes on to read.
#[tokio::test]
async fn the_servers_page_follows_an_upgrade() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let admin = system.server().admin();
    let steps = [
        Run("location.hash = '#/runtimes/demo-app'".to_owned()),
        BrowserStep::await_text("Live exchanges"),
        Run("document.querySelector('form.filters button').click()".to_owned()),
        BrowserStep::await_text("takes over"),
        BrowserStep::await_text("GET /status/201"),
        BrowserStep::await_text("GET /events"),
    ];
    let url = format!("http://{}/", admin.0);
    let window = Window {
        width: 1280,
        scheme: "dark",
    };
    let upgrading = async {
        let tails = ["table=\"tails\""];
        admin
            .wait_metric("tunnel_server_held", &tails, |tails| tails > 0.0)
            .await;
        let mut long = RawClient::connect(&system.entry()).await;
        let target = "/events?count=20&every_ms=100";
        long.request("GET", target, "", b"").await;
        let head = long.head().await.unwrap();
        let server = system.server_mut();
        server.program().signal(Signal::USR2);
        let taken_over = "platform clients are served here";
        server.program().wait_for_line(taken_over, SOON).await;
        server.find_successor().await;
        admin
            .wait_metric("tunnel_server_held", &tails, |tails| tails > 0.0)
            .await;
        let mut platform = PlatformClient::http1(&system.entry()).await;
        platform.get("/status/201").await;
        long.content(head.response_framing("GET")).await;
    };
    tokio::join!(walk(&url, window, &steps), upgrading);
}

#[tokio::test]
async fn the_clients_page_says_whether_the_tunnel_is_up_and_why_not() {
    let upstream = Upstream::start().await;
    let mut system = System::start(&upstream.url()).await;
    let url = format!("http://{}/", system.client().admin().0);
    let up = [
        BrowserStep::await_text("demo-app"),
        BrowserStep::await_text("online"),
        BrowserStep::await_text(&upstream.url()),
        Width(400),
        BrowserStep::await_text("Sessions"),
        BrowserStep::tab_to_text("Start"),
        Key("Enter"),
        BrowserStep::await_text("GET /status/503"),
    ];
    let window = Window {
        width: 900,
        scheme: "dark",
    };
    tokio::select! {
        _ = walk(&url, window, &up) => {}
        () = ask_again_and_again(&system, "/status/503") => {}
    }
    system.kill_server();
    let down = [BrowserStep::await_text("There is no session: ")];
    walk(&url, window, &down).await;
}
