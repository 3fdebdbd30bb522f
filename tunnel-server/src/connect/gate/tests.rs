//! Who gets a handshake permit, and what the others are told; [`simulation`] has whole fleets.

mod simulation;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;

fn address(number: u8) -> IpAddr {
    [192, 0, number, 1].into()
}

const LIMIT: Duration = Duration::from_secs(10);

async fn permit(gate: &Arc<Gate>, number: u8) -> HandshakePermit {
    match gate.enter(address(number), LIMIT).await {
        Ok(permit) => permit,
        Err(_) => panic!("no room"),
    }
}

async fn rejection(gate: &Arc<Gate>, number: u8) -> Rejection {
    match gate.enter(address(number), LIMIT).await {
        Ok(_) => panic!("room"),
        Err(rejection) => rejection,
    }
}

#[tokio::test]
async fn beyond_permits_and_queue_clients_are_rejected() {
    let gate = Gate::new(1, 1);
    let first = permit(&gate, 1).await;
    let mut second = pin!(permit(&gate, 2));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(rejection(&gate, 3).await.retry_after >= Duration::from_secs(1));
    drop(first);
    assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(_)));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_waited_for_too_long_is_rejected() {
    let gate = Gate::new(1, 1);
    let held = permit(&gate, 1).await;
    held.on_request();
    let began = Instant::now();
    rejection(&gate, 2).await;
    assert_eq!(began.elapsed(), LIMIT);
    assert_eq!(gate.addresses(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_displaced_and_one_that_has_sent_a_request_is_not() {
    let gate = Gate::new(2, 2);
    let (active, silent) = (permit(&gate, 1).await, permit(&gate, 2).await);
    active.on_request();
    let began = Instant::now();
    let third = tokio::select! {
        third = permit(&gate, 3) => third,
        () = async { tokio::join!(active.displaced(), silent.displaced()); } => unreachable!(),
    };
    assert_eq!(began.elapsed(), GRACE);
    silent.displaced().await;
    drop((active, silent, third));
    assert_eq!(gate.addresses(), 0);
}

#[tokio::test]
async fn few_rejected_clients_have_a_response_over_tls() {
    let gate = Gate::new(1, 0);
    let _held = permit(&gate, 1).await;
    let first = rejection(&gate, 2).await;
    assert!(first.permit.is_some());
    assert!(rejection(&gate, 2).await.permit.is_none());
    drop(first);
    assert!(rejection(&gate, 2).await.permit.is_some());
}

#[tokio::test]
async fn a_waiting_client_that_leaves_is_removed() {
    let gate = Gate::new(1, 1);
    let first = permit(&gate, 1).await;
    {
        let mut given_up = pin!(gate.enter(address(2), LIMIT));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(given_up.as_mut().poll(&mut cx).is_pending());
    }
    drop(first);
    assert_eq!(gate.addresses(), 0);
}
