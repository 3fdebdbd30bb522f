//! Who gets which exchange, and what a slow reader misses.

use futures_util::FutureExt;

use super::*;

fn exchange(runtime: Option<&str>, path: &str) -> ExchangeView {
    ExchangeView {
        runtime: runtime.map(str::to_owned),
        path: Some(path.to_owned()),
        status: Some(200),
        end: "whole".to_owned(),
        ..ExchangeView::default()
    }
}

fn paths(batch: Vec<Tailed>) -> Vec<String> {
    let path = |tailed| match tailed {
        Tailed::Exchange(view) => view.path.clone().unwrap(),
        Tailed::Missed(missed) => format!("missed {missed}"),
    };
    batch.into_iter().map(path).collect()
}

#[tokio::test]
async fn a_tail_gets_the_exchanges_of_its_runtime_that_pass_its_filter() {
    let tails = Arc::new(Tails::default());
    assert!(!tails.is_read());
    let mut filter = TailFilter::default();
    filter.add("path", "/api").unwrap();
    let mut of_one = tails.open(Some("acme-prod"), filter).unwrap();
    let mut of_all = tails.open(None, TailFilter::default()).unwrap();
    for (runtime, path) in [
        (Some("acme-prod"), "/api/1"),
        (Some("acme-prod"), "/other"),
        (Some("acme-test"), "/api/2"),
        (None, "/api/3"),
    ] {
        tails.record(exchange(runtime, path));
    }
    assert_eq!(paths(of_one.next().await), ["/api/1"]);
    assert!(of_one.next().now_or_never().is_none());
    let all = ["/api/1", "/other", "/api/2", "/api/3"];
    assert_eq!(paths(of_all.next().await), all);
    assert!(tails.is_read_for(None));
    drop(of_all);
    assert!(tails.is_read_for(Some("acme-prod")));
    assert!(!tails.is_read_for(Some("acme-test")) && !tails.is_read_for(None));
    drop(of_one);
    assert!(!tails.is_read());
}

#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let tails = Arc::new(Tails::default());
    let mut tail = tails.open(None, TailFilter::default()).unwrap();
    let (read, ()) = tokio::join!(tail.next(), async {
        tokio::task::yield_now().await;
        tails.record(exchange(None, "/"));
    });
    assert_eq!(read.len(), 1);
}

#[tokio::test]
async fn a_slow_reader_misses_the_oldest_and_is_told_how_many() {
    let tails = Arc::new(Tails::default());
    let mut tail = tails.open(None, TailFilter::default()).unwrap();
    for number in 0..RING + 17 {
        tails.record(exchange(None, &format!("/{number}")));
    }
    assert_eq!(paths(tail.next().await)[..2], ["missed 17", "/17"]);
    // What is left is there, and nothing else is missing.
    assert_eq!(paths(tail.next().await)[0], format!("/{}", 17 + BATCH));
}

#[tokio::test]
async fn long_paths_are_bounded_by_their_bytes() {
    let tails = Arc::new(Tails::default());
    let mut tail = tails.open(None, TailFilter::default()).unwrap();
    let long = format!("/{}", "x".repeat(100 * 1024));
    for _ in 0..20 {
        tails.record(exchange(None, &long));
    }
    let mut batch = tail.next().await;
    assert_eq!(batch.remove(0), Tailed::Missed(10));
    assert_eq!(batch.len(), 10);
    assert_eq!(tail.shared.ring.lock().bytes, 0);
}

#[test]
fn tails_are_bounded_in_all_and_for_each_runtime() {
    let tails = Arc::new(Tails::default());
    let open = |runtime| tails.open(runtime, TailFilter::default());
    let mut opened: Vec<_> = (0..MAX_RUNTIME_TAILS)
        .map(|_| open(Some("one")).unwrap())
        .collect();
    let full = open(Some("one")).unwrap_err();
    assert!(
        full.to_string()
            .contains("8 tails are open for this runtime"),
        "{full}"
    );
    while opened.len() < MAX_TAILS {
        opened.push(open(None).unwrap());
    }
    let full = open(Some("two")).unwrap_err();
    assert!(
        full.to_string().starts_with("32 tails are open, "),
        "{full}"
    );
    opened.pop();
    open(Some("two")).unwrap();
}
