//! How a client keeps its tunnel up, and when it gives up.

use std::time::Duration;

use http::Response;
use testkit::deadline::SOON;
use testkit::scripted::slow;
use testkit::tunnel::server::{FakeServer, refusal};
use tokio::time::{Instant, timeout};
use tunnel_client::client::ClientError;
use tunnel_client::config::OnRefusal;
use tunnel_proto::close::CloseReason;
use tunnel_proto::control::Control;

use crate::setup::{Running, Setup, get};

/// An upstream nobody asks anything.
const NOBODY: &str = "http://127.0.0.1:1";

#[tokio::test]
async fn a_client_says_who_it_is_and_shows_its_token() {
    let mut setup = Setup::new(NOBODY).await;
    let authorization = setup.session.request.authorization.as_deref();
    assert_eq!(authorization, Some("Bearer tnlrt_1_secret"));
    assert_eq!(setup.session.request.greeting.session_number, 1);
    assert_eq!(
        setup.session.request.greeting.version,
        env!("CARGO_PKG_VERSION")
    );
    assert!(matches!(
        setup.session.receive().await,
        Control::Hello { .. }
    ));
}

#[tokio::test]
async fn a_lost_session_is_followed_by_another_of_the_same_instance() {
    let mut setup = Setup::new(NOBODY).await;
    let instance = setup.session.request.greeting.instance.clone();
    for number in 2..5 {
        setup.client.wait_ready(true).await;
        drop(setup.session);
        setup.client.wait_ready(false).await;
        setup.session = setup.server.welcome().await;
        assert_eq!(setup.session.request.greeting.instance, instance);
        assert_eq!(setup.session.request.greeting.session_number, number);
    }
    setup
        .client
        .wait_metric("dials_total{result=\"accepted\"}", 4.0)
        .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_dialled_until_it_is() {
    let mut server = FakeServer::start().await;
    let answers = [502, 503, 429].map(|status| {
        Response::builder()
            .status(status)
            .body("<html>".to_owned())
            .unwrap()
    });
    server.refuse(answers);
    let client = Running::start(&server, NOBODY, |_| {});
    let session = server.welcome().await;
    assert_eq!(session.request.greeting.session_number, 4);
    client.wait_ready(true).await;
    client
        .wait_metric("dials_total{result=\"refused\"}", 3.0)
        .await;
}

#[tokio::test]
async fn a_refusal_for_good_ends_the_client_with_one_plain_line() {
    let server = FakeServer::start().await;
    server.refuse([refusal(401, "token_unknown", true)]);
    let client = Running::start(&server, NOBODY, |_| {});
    let Err(error) = client.ended().await else {
        panic!("it should have failed")
    };
    assert!(matches!(error, ClientError::GivenUp(_)));
    let text = error.to_string();
    let why = "refused: the test says token_unknown (token_unknown), status 401; the credential is that in `/";
    assert!(text.contains(why), "{text}");
    assert!(!text.contains('\n') && !text.contains("tnlrt"), "{text}");
}

#[tokio::test]
async fn a_refusal_for_good_is_waited_out_if_that_is_wanted() {
    let mut server = FakeServer::start().await;
    server.refuse([refusal(401, "token_unknown", true)]);
    let wait = Duration::from_millis(200);
    let started = Instant::now();
    let _client = Running::start(&server, NOBODY, |config| {
        config.settings.on_refusal = OnRefusal::Retry;
        config.settings.refusal_wait = wait;
    });
    server.welcome().await;
    assert!(started.elapsed() >= wait / 2);
}

/// A list that lacks the token for a moment, as while it is edited, ends nobody, whatever is set.
#[tokio::test]
async fn a_token_that_is_not_known_for_a_moment_is_shown_again() {
    let mut server = FakeServer::start().await;
    server.refuse([
        refusal(401, "token_refused", true),
        refusal(401, "token_refused", false),
    ]);
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.on_refusal = OnRefusal::Exit;
        config.settings.refusal_wait = Duration::from_millis(200);
    });
    let session = server.welcome().await;
    assert_eq!(session.request.greeting.session_number, 3);
    client.wait_ready(true).await;
}

#[tokio::test]
async fn a_server_that_asks_for_time_gets_it() {
    let mut server = FakeServer::start().await;
    let mut answer = refusal(503, "overloaded", false);
    answer
        .headers_mut()
        .insert("retry-after", "1".parse().unwrap());
    server.refuse([answer]);
    let started = Instant::now();
    let _client = Running::start(&server, NOBODY, |_| {});
    server.welcome().await;
    assert!(started.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_session_without_a_welcome_is_no_session() {
    let mut server = FakeServer::start().await;
    let limit = Duration::from_millis(200);
    let client = Running::start(&server, NOBODY, |config| {
        config.settings.dial_timeout = limit
    });
    let mut silent = server.accept().await;
    client.wait_ready(false).await;
    assert_eq!(silent.ended().await.reason(), CloseReason::ProtocolError);
    let _session = server.welcome().await;
    client.wait_ready(true).await;
    client
        .wait_metric("dials_total{result=\"unwelcome\"}", 1.0)
        .await;
}

#[tokio::test]
async fn when_the_server_drains_the_next_session_comes_before_the_old_one_leaves() {
    let (upstream, mut asked, answer) = slow().await;
    let mut setup = Setup::new(&upstream.url()).await;
    let mut old = setup.session;
    let open = async {
        let response = old.fetch(get("/")).await;
        assert_eq!(response.body(), "late", "what was open ends well");
    };
    let replace = async {
        asked.recv().await.unwrap();
        old.send(Control::Drain {
            spread_ms: Some(10),
        });
        let new = setup.server.welcome().await;
        assert_eq!(new.request.greeting.session_number, 2);
        assert!(!old.session.is_closed());
        answer.send(()).await.unwrap();
        new
    };
    let ((), new) = tokio::join!(open, replace);
    // It stands until the server needs it no more.
    old.session.close(CloseReason::Drained);
    assert_eq!(old.ended().await.reason(), CloseReason::Drained);
    setup.client.wait_metric("sessions", 1.0).await;
    assert!(!new.session.is_closed());
}

#[tokio::test]
async fn a_session_that_ends_while_the_next_dial_is_put_off_is_followed_at_once() {
    let mut setup = Setup::new(NOBODY).await;
    setup.session.send(Control::Drain {
        spread_ms: Some(u64::MAX),
    });
    setup.session.session.close(CloseReason::Drained);
    let next = setup.server.welcome().await;
    assert_eq!(next.request.greeting.session_number, 2);
}

#[tokio::test]
async fn a_client_that_is_superseded_while_its_session_drains_stands_by() {
    let mut setup = Setup::new(NOBODY).await;
    setup.session.send(Control::Drain {
        spread_ms: Some(u64::MAX),
    });
    setup.session.send(Control::Superseded {
        instance: "0".repeat(32),
    });
    assert_eq!(setup.session.ended().await.reason(), CloseReason::Left);
    let mut server = setup.server;
    assert!(server.is_left_alone(Duration::from_millis(100)).await);
    setup.client.trigger.request();
    setup.client.ended().await.unwrap();
}

#[tokio::test]
async fn a_client_that_is_asked_to_stop_leaves_without_loss() {
    let (upstream, mut asked, answer) = slow().await;
    let mut setup = Setup::new(&upstream.url()).await;
    assert!(matches!(
        setup.session.receive().await,
        Control::Hello { .. }
    ));
    let session = setup.session.session.clone();
    let mut open = Box::pin(tunnel_proto::exchange::exchange(
        &session,
        get("/"),
        |_, _| {},
    ));
    tokio::select! {
        _ = &mut open => panic!("nobody answers yet"),
        _ = asked.recv() => {}
    }
    setup.client.trigger.request();
    assert!(matches!(
        setup.session.notice().await,
        Control::Drain { .. }
    ));
    answer.send(()).await.unwrap();
    let response = timeout(SOON, open).await.unwrap().unwrap();
    assert_eq!(testkit::tunnel::whole(response).await.body(), "late");
    assert_eq!(setup.session.ended().await.reason(), CloseReason::Left);
    setup.client.ended().await.unwrap();
}

#[tokio::test]
async fn the_grace_period_is_the_longest_that_a_client_stays() {
    let (upstream, mut asked, _answer) = slow().await;
    let grace = Duration::from_millis(200);
    let setup = Setup::with(&upstream.url(), |config| {
        config.settings.grace_period = grace
    })
    .await;
    let session = setup.session.session.clone();
    let mut open = Box::pin(tunnel_proto::exchange::exchange(
        &session,
        get("/"),
        |_, _| {},
    ));
    tokio::select! {
        _ = &mut open => panic!("nobody answers"),
        _ = asked.recv() => {}
    }
    setup.client.trigger.request();
    let (answer, ended) = tokio::join!(open, setup.client.ended());
    assert!(answer.is_err(), "cut");
    ended.unwrap();
}

#[tokio::test]
async fn who_forces_does_not_wait() {
    let (upstream, mut asked, _answer) = slow().await;
    let setup = Setup::new(&upstream.url()).await;
    let session = setup.session.session.clone();
    let mut open = Box::pin(tunnel_proto::exchange::exchange(
        &session,
        get("/"),
        |_, _| {},
    ));
    tokio::select! {
        _ = &mut open => panic!("nobody answers"),
        _ = asked.recv() => {}
    }
    setup.client.trigger.request();
    setup.client.trigger.force();
    setup.client.ended().await.unwrap();
}

#[tokio::test]
async fn a_superseded_client_leaves_and_comes_back_for_its_runtime() {
    let mut setup = Setup::with(NOBODY, |config| {
        config.settings.on_refusal = OnRefusal::Exit;
        config.settings.refusal_wait = Duration::from_millis(400);
    })
    .await;
    let told = Instant::now();
    setup.session.send(Control::Superseded {
        instance: "0".repeat(32),
    });
    assert_eq!(setup.session.ended().await.reason(), CloseReason::Left);
    // The other has it still.
    setup.server.refuse([refusal(409, "superseded", true)]);
    let _back = setup.server.welcome().await;
    assert!(told.elapsed() >= Duration::from_millis(200));
    setup.client.wait_ready(true).await;
}

#[tokio::test]
async fn a_client_whose_token_was_revoked_gives_up() {
    let setup = Setup::new(NOBODY).await;
    setup.session.send(Control::Revoked {
        detail: "it was lost".to_owned(),
    });
    setup.session.session.close(CloseReason::Revoked);
    let Err(error) = setup.client.ended().await else {
        panic!("it should have failed")
    };
    assert!(error.to_string().contains("no longer valid"), "{error}");
}
