//! Sessions on several threads, where wake-ups can be lost and locks can deadlock.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tunnel_proto::{
    close::CloseReason,
    exchange::{RecvBody, exchange},
};

use crate::{
    content::{TestError, full, pattern, read, request},
    pair::{Pair, Setup, within},
};

/// A pair whose client echoes requests.
async fn echoing(connection_bytes: usize) -> Pair {
    let setup = Setup {
        connection_bytes,
        ..Setup::default()
    };
    Pair::start_with(setup, async |request: Request<RecvBody>| {
        Ok(Response::new(
            request.into_body().map_err(|_| TestError).boxed(),
        ))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost() {
    for connection_bytes in [512, 1 << 20] {
        let pair = echoing(connection_bytes).await;
        let mut users = JoinSet::new();
        for user in 0..16 {
            let server = pair.server.clone();
            users.spawn(async move {
                for round in 0..150 {
                    // Most are small; some wait for the window.
                    let length = if round % 50 == 0 {
                        600_000
                    } else {
                        user * round % 2_000
                    };
                    let request = request(Method::POST, "/", full(pattern(length)));
                    let response = within(exchange(&server, request, |_, _| {})).await.unwrap();
                    let arrived = within(read(response.into_body())).await;
                    assert!(arrived.error.is_none(), "{:?}", arrived.error);
                    assert_eq!(arrived.content.len(), length);
                }
            });
        }
        while let Some(user) = within(users.join_next()).await {
            user.unwrap();
        }
        within(pair.server.at_rest()).await;
        within(pair.client.at_rest()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_session_may_end_at_any_moment() {
    for round in 0..200 {
        let mut pair = echoing(4_096).await;
        let mut users = JoinSet::new();
        for user in 0..8 {
            let server = pair.server.clone();
            users.spawn(async move {
                for _ in 0..1_000 {
                    let request = request(Method::POST, "/", full(pattern(user * 1_000)));
                    let Ok(response) = exchange(&server, request, |_, _| {}).await else {
                        return;
                    };
                    let arrived = read(response.into_body()).await;
                    let content: Bytes = arrived.content.freeze();
                    assert!(arrived.error.is_some() || content.len() == user * 1_000);
                }
            });
        }
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        match round % 3 {
            0 => pair.server.close(CloseReason::Drained),
            1 => pair.client.close(CloseReason::Left),
            _ => pair.drivers.drop_all().await,
        }
        while let Some(user) = within(users.join_next()).await {
            user.unwrap();
        }
        within(pair.serving.join_next()).await.unwrap().unwrap();
        within(pair.server.at_rest()).await;
        assert_eq!(
            (pair.server.outstanding(), pair.client.outstanding()),
            (0, 0)
        );
    }
}
