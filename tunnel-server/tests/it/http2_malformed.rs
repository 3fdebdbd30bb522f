//! HTTP/2 requests that break a rule: refused, and nobody behind the tunnel has seen them.

use testkit::deadline::soon;
use testkit::http2::Frame;
use testkit::tunnel::{
    body::{BodyEnd, collect, empty, endings, full, internal, status},
    client::FakeClient,
};

use crate::{
    frames::{Frames, Verdict, block},
    rig::{DEV, DEV_HOST, PROD, PROD_HOST, Rig},
};

type Field<'a> = (&'a str, &'a [u8]);

const METHOD: Field<'static> = (":method", b"GET");
const SCHEME: Field<'static> = (":scheme", b"http");
const AUTHORITY: Field<'static> = (":authority", PROD_HOST.as_bytes());
const PATH: Field<'static> = (":path", b"/");

/// A request that is in order but for these fields.
fn with<'a>(fields: &[Field<'a>]) -> Vec<Field<'a>> {
    [&[METHOD, SCHEME, AUTHORITY, PATH], fields].concat()
}

/// Asks on a connection of its own.
async fn ask(rig: &Rig, fields: &[Field<'_>]) -> Verdict {
    let mut frames = Frames::new(rig.raw().await).await;
    frames
        .send(
            Frame::HEADERS,
            Frame::END_HEADERS | Frame::END_STREAM,
            1,
            &block(fields),
        )
        .await;
    frames.verdict(1).await
}

/// Asks with each, and checks that none is answered by anybody but the server.
async fn all_refused(cases: Vec<Vec<Field<'_>>>) {
    let rig = Rig::start().await;
    let prod = FakeClient::describing(&rig, PROD).await;
    let dev = FakeClient::describing(&rig, DEV).await;
    for fields in cases {
        let what: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.escape_ascii()))
            .collect();
        match ask(&rig, &fields).await {
            Verdict::Answered(Some(400) | None) | Verdict::Reset(_) | Verdict::Gone => {}
            verdict @ Verdict::Answered(_) => panic!("{what:?}: {verdict:?}"),
        }
        assert_eq!((prod.paths(), dev.paths()), (vec![], vec![]), "{what:?}");
    }
    assert_eq!(ask(&rig, &with(&[])).await, Verdict::Answered(Some(200)));
    assert_eq!(prod.paths(), ["/"]);
}

#[tokio::test]
async fn names_and_values_that_are_none() {
    all_refused(vec![
        with(&[("X-Upper", b"x")]),
        with(&[("x y", b"x")]),
        with(&[("x:y", b"x")]),
        with(&[("", b"x")]),
        with(&[("x\u{e4}", b"x")]),
        with(&[("x\"y", b"x")]),
        with(&[("x_forwarded_for", b"1.1.1.1")]),
        with(&[("x\r\nevil", b"x")]),
        with(&[("x", b"a\r\nb: c")]),
        with(&[("x", b"a\nb")]),
        with(&[("x", b"a\0b")]),
        with(&[("x", b"a\x01b")]),
        with(&[("x", b"a\x7fb")]),
        with(&[("x", b" a")]),
        with(&[("x", b"a ")]),
        with(&[("x", b"\ta")]),
    ])
    .await;
}

#[tokio::test]
async fn fields_of_a_connection() {
    all_refused(vec![
        with(&[("connection", b"close")]),
        with(&[("keep-alive", b"timeout=5")]),
        with(&[("proxy-connection", b"keep-alive")]),
        with(&[("transfer-encoding", b"chunked")]),
        with(&[("upgrade", b"websocket")]),
        with(&[("te", b"gzip")]),
        with(&[("te", b"trailers, gzip")]),
        with(&[("te", b"trailers"), ("te", b"gzip")]),
    ])
    .await;
}

#[tokio::test]
async fn control_data_that_is_missing_repeated_late_or_unknown() {
    all_refused(vec![
        vec![SCHEME, AUTHORITY, PATH],
        vec![METHOD, AUTHORITY, PATH],
        vec![METHOD, SCHEME, AUTHORITY],
        vec![METHOD, SCHEME, PATH],
        vec![METHOD, METHOD, SCHEME, AUTHORITY, PATH],
        vec![METHOD, SCHEME, AUTHORITY, PATH, PATH],
        vec![METHOD, SCHEME, AUTHORITY, AUTHORITY, PATH],
        vec![METHOD, SCHEME, AUTHORITY, ("x", b"y"), PATH],
        with(&[(":status", b"200")]),
        with(&[(":problem", b"connection_refused")]),
        with(&[(":protocol", b"websocket")]),
        vec![
            (":method", b"CONNECT"),
            SCHEME,
            AUTHORITY,
            PATH,
            (":protocol", b"connect-udp"),
        ],
        vec![(":method", b"CONNECT"), AUTHORITY],
        vec![(":method", b"TRACE"), SCHEME, AUTHORITY, PATH],
        vec![(":method", b"G ET"), SCHEME, AUTHORITY, PATH],
        vec![(":method", b""), SCHEME, AUTHORITY, PATH],
    ])
    .await;
}

#[tokio::test]
async fn paths_and_schemes_that_no_gateway_serves() {
    let path = |path: &'static [u8]| vec![METHOD, SCHEME, AUTHORITY, (":path", path)];
    let scheme = |scheme: &'static [u8]| vec![METHOD, (":scheme", scheme), AUTHORITY, PATH];
    all_refused(vec![
        path(b""),
        path(b"x"),
        path(b"?x"),
        path(b"*"),
        path(b"/a b"),
        path(b"/a\0"),
        path(b"/a\r\nx: y"),
        path(b"/\xe4"),
        path(b"http://evil.test/"),
        scheme(b"ftp"),
        scheme(b""),
        scheme(b"http://evil.test/?"),
        scheme(b"javascript"),
    ])
    .await;
}

#[tokio::test]
async fn authorities_that_disagree_or_are_none() {
    let both = |authority: &'static str, host: &'static str| {
        vec![
            METHOD,
            SCHEME,
            (":authority", authority.as_bytes()),
            PATH,
            ("host", host.as_bytes()),
        ]
    };
    let host = |host: &'static [u8]| vec![METHOD, SCHEME, PATH, ("host", host)];
    let authority =
        |authority: &'static [u8]| vec![METHOD, SCHEME, (":authority", authority), PATH];
    all_refused(vec![
        both(PROD_HOST, DEV_HOST),
        both(DEV_HOST, PROD_HOST),
        both(PROD_HOST, "acme-prod.tunnels.test:81"),
        both(PROD_HOST, ""),
        vec![
            METHOD,
            SCHEME,
            PATH,
            ("host", b"a.test"),
            ("host", b"a.test"),
        ],
        vec![
            METHOD,
            SCHEME,
            AUTHORITY,
            PATH,
            ("host", b"a.test"),
            ("host", PROD_HOST.as_bytes()),
        ],
        host(b""),
        host(b"a b"),
        host(b"user@acme-prod.tunnels.test"),
        authority(b""),
        authority(b"user@acme-prod.tunnels.test"),
        authority(b"user:pass@acme-prod.tunnels.test:80"),
        authority(b"acme-prod.tunnels.test/x"),
        authority(b"a,b"),
    ])
    .await;
}

#[tokio::test]
async fn lengths_that_are_none_or_wrong() {
    all_refused(vec![
        with(&[("content-length", b"+1")]),
        with(&[("content-length", b"1, 1")]),
        with(&[("content-length", b"0"), ("content-length", b"0")]),
        with(&[("content-length", b"")]),
        with(&[("content-length", b"99999999999999999999")]),
        // Announced, and the stream ends at once.
        with(&[("content-length", b"5")]),
        with(&[("expect", b"banana")]),
    ])
    .await;
}

/// The head has gone on already when the body turns out to be wrong: then it is cut.
#[tokio::test]
async fn a_body_that_is_not_as_long_as_announced_is_cut() {
    let rig = Rig::start().await;
    let (endings, mut ends) = endings();
    let _client = FakeClient::new(&rig, PROD, move |request| {
        let mut ending = endings.next();
        async move {
            let (_, end) = collect(request.into_body()).await;
            ending.on_read(&end);
            end.map_err(|_| internal())?;
            Ok(status(200, empty()))
        }
    })
    .await;
    let head = block(&with(&[("content-length", b"5")]));
    for (body, trailers) in [
        (&b"123"[..], None),
        (b"1234567", None),
        (b"123", Some(vec![("x-sum", &b"7"[..])])),
        (b"12345", Some(vec![("Upper", &b"x"[..])])),
    ] {
        let mut frames = Frames::new(rig.raw().await).await;
        frames
            .send(Frame::HEADERS, Frame::END_HEADERS, 1, &head)
            .await;
        let flags = if trailers.is_none() {
            Frame::END_STREAM
        } else {
            0
        };
        frames.send(Frame::DATA, flags, 1, body).await;
        let what = trailers.clone();
        if let Some(trailers) = trailers {
            frames
                .send(
                    Frame::HEADERS,
                    Frame::END_HEADERS | Frame::END_STREAM,
                    1,
                    &block(&trailers),
                )
                .await;
        }
        let verdict = frames.verdict(1).await;
        let is_refused = matches!(
            verdict,
            Verdict::Reset(_) | Verdict::Gone | Verdict::Answered(Some(400))
        );
        assert!(is_refused, "{} {what:?}: {verdict:?}", body.escape_ascii());
    }
    while let Ok(end) = ends.try_recv() {
        assert_eq!(end, BodyEnd::Cut);
    }
    let mut frames = Frames::new(rig.raw().await).await;
    frames
        .send(Frame::HEADERS, Frame::END_HEADERS, 1, &head)
        .await;
    frames
        .send(Frame::DATA, Frame::END_STREAM, 1, b"12345")
        .await;
    assert_eq!(frames.verdict(1).await, Verdict::Answered(Some(200)));
    let end = soon("the good one's end", async {
        loop {
            if let Some(BodyEnd::Whole) = ends.recv().await {
                break;
            }
        }
    });
    end.await;
}

#[tokio::test]
async fn floods_end_the_connection_and_nothing_else() {
    let rig = Rig::start().await;
    let client = FakeClient::describing(&rig, PROD).await;
    let good = block(&with(&[]));

    // A head without an end.
    let mut frames = Frames::new(rig.raw().await).await;
    frames.send(Frame::HEADERS, 0, 1, &good).await;
    for _ in 0..10_000 {
        frames
            .send(Frame::CONTINUATION, 0, 1, &block(&[("x", "y")]))
            .await;
    }
    frames
        .send(Frame::CONTINUATION, Frame::END_HEADERS, 1, &[])
        .await;
    assert_ne!(frames.verdict(1).await, Verdict::Answered(Some(200)));

    // A head that is larger than allowed.
    let mut frames = Frames::new(rig.raw().await).await;
    frames
        .send(Frame::HEADERS, Frame::END_STREAM, 1, &good)
        .await;
    for _ in 0..20 {
        let value = "y".repeat(12_000);
        frames
            .send(Frame::CONTINUATION, 0, 1, &block(&[("x", &value)]))
            .await;
    }
    frames
        .send(Frame::CONTINUATION, Frame::END_HEADERS, 1, &[])
        .await;
    assert_ne!(frames.verdict(1).await, Verdict::Answered(Some(200)));

    // Frames that say nothing.
    for kind in [Frame::PING, Frame::SETTINGS] {
        let mut frames = Frames::new(rig.raw().await).await;
        let payload = if kind == Frame::PING {
            &[0; 8][..]
        } else {
            &[]
        };
        let flood: Vec<u8> = std::iter::repeat_n(Frame::new(kind, 0, 0, payload).bytes(), 20_000)
            .flatten()
            .collect();
        frames.raw.send(flood).await;
        frames
            .send(
                Frame::HEADERS,
                Frame::END_HEADERS | Frame::END_STREAM,
                1,
                &good,
            )
            .await;
        let _ = frames.verdict(1).await;
    }
    assert!(client.seen().len() <= 2);
    assert_eq!(ask(&rig, &with(&[])).await, Verdict::Answered(Some(200)));
}

/// Requests that are taken back at once: the tunnel client sees few of them, and the next one on
/// another connection is served.
#[tokio::test]
async fn a_rapid_reset_reaches_no_runtime() {
    let rig = Rig::start().await;
    let client = FakeClient::new(&rig, PROD, |request| async move {
        if request.uri().path() == "/hold" {
            std::future::pending::<()>().await;
        }
        Ok(status(200, full("here")))
    })
    .await;
    let mut held = with(&[]);
    held[3].1 = b"/hold";
    let block_of_held = block(&held);
    let before = resident_kib();
    for burst in [1_u32, 50] {
        let mut frames = Frames::new(rig.raw().await).await;
        let mut stream = 1;
        for _ in 0..20_000 / burst {
            let mut bytes = Vec::new();
            for _ in 0..burst {
                let flags = Frame::END_HEADERS | Frame::END_STREAM;
                bytes.extend(Frame::new(Frame::HEADERS, flags, stream, &block_of_held).bytes());
                bytes
                    .extend(Frame::new(Frame::RST_STREAM, 0, stream, &8_u32.to_be_bytes()).bytes());
                stream += 2;
            }
            frames.raw.send(bytes).await;
        }
        frames.raw.finish().await;
        frames.raw.rest().await;
    }
    assert_eq!(ask(&rig, &with(&[])).await, Verdict::Answered(Some(200)));
    let seen = client.seen().len();
    // What the library lets through before it ends the connection.
    assert!(seen < 1_000, "{seen} of 40,000 requests were seen");
    client.rests().await;
    rig.metric_becomes("tunnel_server_open_exchanges{runtime=\"acme-prod\"}", 0.0)
        .await;
    rig.metric_becomes("tunnel_server_connections{listener=\"public\"}", 0.0)
        .await;
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "grown by {grown} KiB");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
