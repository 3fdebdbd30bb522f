//! The estimate as a table, and sessions over paths that keep, cut or lose an idle connection, on a paused clock.

use bytes::Bytes;
use testkit::tunnel::{FakeEnd, without_pings};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tunnel_ops::task::Owned;
use tunnel_proto::session::Side;

use super::*;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn idle_times_double_up_to_what_was_asked_for() {
    assert_eq!(times(secs(300)), [15, 30, 60, 120, 240, 300].map(secs));
    assert_eq!(times(secs(15)), [secs(15)]);
    assert_eq!(times(secs(5)), [secs(5)]);
    let most = times(secs(100_000));
    assert_eq!(most.len(), SESSIONS);
    assert_eq!(most.last(), Some(&LONGEST));
}

#[test]
fn what_is_found_and_advised() {
    for (outcomes, limit, proven, advised) in [
        (
            vec![(15, IdleOutcome::Alive), (30, IdleOutcome::Alive)],
            None,
            30,
            15,
        ),
        (
            vec![(15, IdleOutcome::Alive), (30, IdleOutcome::Silent)],
            Some((15, 30)),
            15,
            7,
        ),
        (vec![(15, IdleOutcome::Silent)], Some((0, 15)), 0, 1),
        (
            vec![
                (15, IdleOutcome::Alive),
                (30, IdleOutcome::Alive),
                (120, IdleOutcome::CutAfter(secs(60))),
            ],
            Some((60, 60)),
            30,
            15,
        ),
        (
            vec![(15, IdleOutcome::CutAfter(secs(10)))],
            Some((10, 10)),
            0,
            5,
        ),
    ] {
        let mut estimate = IdleLimitEstimate::default();
        for (idle, outcome) in &outcomes {
            assert!(!estimate.is_over());
            estimate.add(secs(*idle), *outcome).unwrap();
        }
        let report = estimate.report();
        let limit = limit.map(|(from, to)| (secs(from), secs(to)));
        assert_eq!(report.limit, limit, "{outcomes:?}");
        assert_eq!(estimate.is_over(), limit.is_some());
        assert_eq!(
            (report.proven, report.advised.as_secs()),
            (secs(proven), advised),
            "{outcomes:?}"
        );
    }
}

#[test]
fn pings_that_come_too_seldom_are_named() {
    let report = IdleReport {
        limit: Some((secs(10), secs(10))),
        proven: secs(0),
        advised: secs(5),
    };
    let line = report.line(secs(15));
    assert!(
        line.contains("after 10s") && line.contains("--ping-interval=5s"),
        "{line}"
    );
    assert!(report.line(secs(5)).contains("a ping every 5s is enough"));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(
        json,
        r#"{"limit_ms":[10000,10000],"proven_ms":0,"advised_ping_interval_ms":5000}"#
    );
}

/// What the path does with an idle connection.
#[derive(Clone, Copy)]
enum Path {
    Keeps,
    CutsAfter(Duration),
    LosesAfter(Duration),
}

/// A check's session over such a path, and the server's end.
fn session(path: Path) -> (CheckSession, (FakeEnd, Owned<()>)) {
    let (client, near) = duplex(64 * 1024);
    let (far, server) = duplex(64 * 1024);
    let server = FakeEnd::new(server, Bytes::new(), Side::Server, without_pings());
    let relay = Owned::spawn("path", relay(near, far, path));
    (CheckSession::begin(client, Bytes::new()), (server, relay))
}

async fn relay(mut near: DuplexStream, mut far: DuplexStream, path: Path) {
    let (mut there, mut back) = (vec![0; 4096], vec![0; 4096]);
    let limit = match path {
        Path::Keeps => secs(1_000_000),
        Path::CutsAfter(limit) | Path::LosesAfter(limit) => limit,
    };
    loop {
        tokio::select! {
            read = near.read(&mut there) => match read {
                Ok(length @ 1..) => far.write_all(&there[..length]).await.unwrap(),
                _ => return,
            },
            read = far.read(&mut back) => match read {
                Ok(length @ 1..) => near.write_all(&back[..length]).await.unwrap(),
                _ => return,
            },
            () = sleep(limit) => match path {
                Path::LosesAfter(_) => std::future::pending().await,
                _ => return,
            },
        }
    }
}

async fn find(path: Path, longest: u64) -> (IdleReport, Duration, Vec<String>) {
    let (mut sessions, mut servers) = (Vec::new(), Vec::new());
    for idle in times(secs(longest)) {
        let (check, server) = session(path);
        sessions.push((idle, check));
        servers.push(server);
    }
    let began = Instant::now();
    let mut lines = Vec::new();
    let report = probe(sessions, Timing::default(), &mut |line| lines.push(line)).await;
    (report.unwrap(), began.elapsed(), lines)
}

#[tokio::test(start_paused = true)]
async fn a_path_that_keeps_idle_connections_has_no_limit() {
    let (report, took, lines) = find(Path::Keeps, 120).await;
    assert_eq!((report.limit, report.proven), (None, secs(120)));
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(took < secs(130), "side by side: {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_says_when() {
    let (report, took, lines) = find(Path::CutsAfter(secs(45)), 300).await;
    let (from, to) = report.limit.unwrap();
    assert!(
        (44..=46).contains(&from.as_secs()) && (44..=46).contains(&to.as_secs()),
        "{report:?}"
    );
    assert_eq!(report.proven, secs(30));
    assert!(took < secs(60), "the rest is not waited for: {took:?}");
    assert!(lines.last().unwrap().contains("was cut"), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn silence_says_between_which_times() {
    let (report, took, lines) = find(Path::LosesAfter(secs(45)), 300).await;
    assert_eq!(report.limit, Some((secs(30), secs(60))));
    assert!(took < secs(90), "{took:?}");
    assert!(
        lines.last().unwrap().contains("without a close"),
        "{lines:?}"
    );
    assert_eq!(report.advised, secs(15));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_ends_itself_is_no_limit_of_the_way() {
    for (reason, is_its_own) in [
        (CloseReason::Drained, true),
        (CloseReason::Revoked, true),
        (CloseReason::Expired, true),
        (CloseReason::Disconnected, true),
        // As a proxy on the path closes what has been idle for too long.
        (CloseReason::Other(1001), false),
    ] {
        let (mut sessions, mut servers) = (Vec::new(), Vec::new());
        for idle in times(secs(60)) {
            let (check, server) = session(Path::Keeps);
            sessions.push((idle, check));
            servers.push(server);
        }
        let ending = Owned::spawn("ending", async move {
            sleep(secs(20)).await;
            servers
                .iter()
                .for_each(|(server, ..)| server.session.cut(reason));
            std::future::pending::<()>().await;
        });
        let found = probe(sessions, Timing::default(), &mut |_| {}).await;
        match is_its_own {
            true => assert_eq!(found.unwrap_err(), reason),
            false => assert!(found.unwrap().limit.is_some(), "{reason:?}"),
        }
        drop(ending);
    }
}
