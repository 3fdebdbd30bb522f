//! No two programs read a request in two ways: random ambiguous ones pass as the strict reader reads them, or not at all.
//!
//! `E2E_DIFFERENTIAL_STEPS` and `E2E_DIFFERENTIAL_SEED` send more and others.

use std::time::Duration;

use e2e::{
    deadline::within,
    differential::{Gateway, Recorded, Recorder, Report, Version, origins::Origin, run},
    random::Random,
    served::Served,
    system::System,
};

/// How many clients of each version there are before each gateway.
const CLIENTS: usize = 4_000;

/// How many of a hundred requests that are valid by the RFCs pass at least. Others are refused for their host, a field name
/// with an underscore, or an absolute target with another host, or lost with a connection of HTTP/2 that another request ends.
const PASSING: usize = 30;

/// How many faults of origins are shown.
const SHOWN: usize = 20;

/// Sends clients of both versions.
async fn assert_same(gateway: &Gateway, recorder: &Recorder) -> Vec<Recorded> {
    let mut distinct = Vec::new();
    for version in [Version::Http1, Version::Http2] {
        let (clients, mut random) = Random::of_test_with("DIFFERENTIAL", CLIENTS, 1);
        let limit =
            Duration::from_secs(60) + Duration::from_millis(5) * u32::try_from(clients).unwrap();
        let run = run(gateway, recorder, version, clients, &mut random);
        let report: Report = within(limit, "all clients", run).await;
        eprintln!("{} {version:?}: {report}", gateway.name);
        report.assert_good(PASSING);
        distinct.extend(report.distinct());
    }
    distinct
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_serve_forwards_is_what_it_was_asked() {
    let recorder = Recorder::start().await;
    let address = recorder.address();
    let table =
        format!("[[route]]\nname = \"all\"\npath = \"/*\"\nupstream = \"http://{address}\"\n");
    let served = Served::start(&table, &[]).await;
    served.admin().wait_ready(true).await;
    let gateway = Gateway {
        name: "serve",
        address: served.entry().address(),
        host: "origin.test".to_owned(),
    };
    let forwarded = assert_same(&gateway, &recorder).await;
    let origins = Origin::all().await;
    let mut faults = Vec::new();
    for origin in &origins {
        let opinion = origin.ask(&forwarded).await;
        let (same, refused) = (opinion.same, opinion.refused);
        eprintln!("{}: {same} read alike, {refused} refused", origin.name());
        assert!(same > refused, "{} refuses most", origin.name());
        faults.extend(opinion.faults);
    }
    let shown: Vec<_> = faults.iter().take(SHOWN).collect();
    assert!(faults.is_empty(), "{} faults: {shown:#?}", faults.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_the_tunnel_is_what_it_was_asked() {
    let recorder = Recorder::start().await;
    let system = System::start(&format!("http://{}", recorder.address())).await;
    let gateway = Gateway {
        name: "tunnel",
        address: system.entry().address(),
        host: system.entry().host().to_owned(),
    };
    assert_same(&gateway, &recorder).await;
}
