//! Which tokens stay valid while the platform is unreachable, on a paused clock. Real queries are in the
//! tests of the whole server.

use tokio::time::advance;
use tunnel_proto::handshake::InstanceSecret;

use super::*;
use crate::config::HttpUrl;

const OUTAGE: Duration = Duration::from_secs(3600);

fn verifier() -> PlatformVerifier {
    let settings = PlatformSettings {
        url: "https://platform.example/auth".parse::<HttpUrl>().unwrap(),
        token_file: None,
        concurrency: 1,
        cache: Duration::from_secs(10),
        outage: OUTAGE,
    };
    let ca = tempfile::NamedTempFile::new().unwrap();
    let made = crate::certs::generate(&["localhost".to_owned()], 1).unwrap();
    std::fs::write(ca.path(), made.ca_pem).unwrap();
    let client = HttpsClient::new(Some(ca.path()), Duration::from_secs(5)).unwrap();
    PlatformVerifier::new(settings, client, None)
}

fn query(token: &str) -> Arc<PlatformQuery> {
    let greeting = Greeting {
        instance: InstanceSecret::from_random([7; 16]),
        version: "0.1.0".into(),
        session_number: 1,
        allow_from: None,
        is_check: false,
        stands_by: false,
        placement: None,
    };
    let peer = std::net::SocketAddr::from(([192, 0, 2, 7], 4000)).into();
    Arc::new(PlatformQuery::new(token, &greeting, peer))
}

fn approve(verifier: &PlatformVerifier, query: &PlatformQuery, valid_for: Option<u64>) -> Approval {
    let valid_for = valid_for.map_or(String::new(), |valid_for| {
        format!(", \"expires_in\": {valid_for}")
    });
    let json = format!("{{\"account\": \"a\", \"runtime\": \"b\"{valid_for}}}");
    let approval = Approval::new(Answer::parse(json.as_bytes()).unwrap());
    verifier
        .cache
        .lock()
        .insert_approval(query.sha256, approval.clone());
    approval
}

fn fail(verifier: &PlatformVerifier) {
    let attempt = Attempt::begin(&verifier.breaker, Subject::Stranger([192, 0, 2, 7].into()));
    attempt.unwrap().failed(Failure::NoConnection);
}

#[tokio::test(start_paused = true)]
async fn an_approved_token_stays_valid_through_an_outage_and_an_unknown_one_is_refused() {
    let verifier = verifier();
    let (known, unknown) = (query("known"), query("unknown"));
    approve(&verifier, &known, None);
    advance(Duration::from_secs(7200)).await;
    assert_eq!(
        verifier.without_platform(&known).err(),
        Some(UNREACHABLE),
        "the platform is reachable"
    );
    fail(&verifier);
    let verified = verifier.without_platform(&known).unwrap();
    let left = verified.credential.expires.unwrap();
    let left = left.duration_since(SystemTime::now()).unwrap();
    assert!(left <= OUTAGE && left > OUTAGE - Duration::from_secs(60));
    assert!(verified.renew_at < verified.credential.expires);
    assert_eq!(verifier.without_platform(&unknown).err(), Some(UNREACHABLE));
    advance(OUTAGE - Duration::from_secs(1)).await;
    fail(&verifier);
    assert!(verifier.without_platform(&known).is_ok());
    advance(Duration::from_secs(1)).await;
    assert_eq!(verifier.without_platform(&known).err(), Some(UNREACHABLE));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_expired_before_the_outage_is_not_accepted() {
    let verifier = verifier();
    let (short, long) = (query("short"), query("long"));
    approve(&verifier, &short, Some(60));
    approve(&verifier, &long, Some(600));
    advance(Duration::from_secs(60)).await;
    fail(&verifier);
    advance(Duration::from_secs(1800)).await;
    assert_eq!(verifier.without_platform(&short).err(), Some(UNREACHABLE));
    assert!(
        verifier.without_platform(&long).is_ok(),
        "it was valid when the outage began"
    );
    let denial = Denial::new(UNREACHABLE);
    verifier.cache.lock().insert_denial(long.sha256, denial);
    assert_eq!(verifier.without_platform(&long).err(), Some(UNREACHABLE));
}

#[tokio::test(start_paused = true)]
async fn an_approved_token_whose_answer_becomes_unusable_stays_valid_as_in_an_outage() {
    let verifier = verifier();
    let (known, short) = (query("known"), query("short"));
    approve(&verifier, &known, None);
    approve(&verifier, &short, Some(60));
    let unclear = |query: &PlatformQuery| {
        let denial = Denial::new(AuthRefusal::PlatformUnclear("it is malformed".into()));
        verifier
            .cache
            .lock()
            .insert_inconclusive(query.sha256, denial);
    };
    advance(Duration::from_secs(60)).await;
    unclear(&known);
    unclear(&short);
    assert!(!verifier.is_unreachable(), "for other tokens");
    let verified = verifier.verify(&known).await.unwrap();
    assert!(
        verified.credential.expires.is_some() && verified.renew_at < verified.credential.expires
    );
    let over = verifier.verify(&short).await.err().unwrap();
    assert_eq!(over.name(), "auth_unclear", "it had expired before");
    // Neither more unusable answers nor an outage in between extends the time.
    advance(OUTAGE - Duration::from_secs(1)).await;
    unclear(&known);
    fail(&verifier);
    assert!(verifier.verify(&known).await.is_ok());
    advance(Duration::from_secs(1)).await;
    let over = verifier.verify(&known).await.err().unwrap();
    assert_eq!(
        (over.name(), over.is_denial(), over.is_revoked()),
        ("auth_unclear", false, false)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_cached_for_a_moment_and_renewed_before_it_expires() {
    let verifier = verifier();
    let query = query("known");
    let cache = Duration::from_secs(10);
    let approval = approve(&verifier, &query, Some(8));
    let fresh = || verifier.cache.lock().fresh(&query.sha256, cache).is_some();
    let verified = PlatformVerifier::approved(&query, &approval);
    let renew_in = verified
        .renew_at
        .unwrap()
        .duration_since(approval.received_at)
        .unwrap();
    assert!(renew_in >= Duration::from_millis(5600) && renew_in <= Duration::from_millis(7200));
    assert!(fresh());
    advance(Duration::from_secs(4)).await;
    assert!(!fresh(), "a renewal must not be answered from the cache");
    approve(&verifier, &query, None);
    advance(Duration::from_secs(9)).await;
    assert!(fresh());
    advance(Duration::from_secs(1)).await;
    assert!(!fresh());
}

#[tokio::test]
async fn the_last_waiter_removes_its_query() {
    let verifier = verifier();
    let waiters = [
        verifier.join_query([1; 32]),
        verifier.join_query([1; 32]),
        verifier.join_query([2; 32]),
    ];
    assert!(Arc::ptr_eq(&waiters[0].shared, &waiters[1].shared));
    assert_eq!(verifier.open_queries.lock().len(), 2);
    drop(waiters);
    assert!(verifier.open_queries.lock().is_empty());
}

#[tokio::test]
async fn two_waiters_that_leave_at_once_remove_their_query() {
    let verifier = verifier();
    let (one, other) = (verifier.join_query([1; 32]), verifier.join_query([1; 32]));
    // As if one waiter were removed from the table but still held the query when the other leaves.
    let not_yet_gone = one.shared.clone();
    drop((one, other));
    assert!(verifier.open_queries.lock().is_empty());
    drop(not_yet_gone);
}

#[test]
fn nothing_shows_a_token() {
    let token = PlatformToken::from_text("s3cr3t-server\n").unwrap();
    assert!(token.0.is_sensitive());
    assert!(!format!("{token:?} {:?}", token.0).contains("s3cr3t"));
    for bad in ["", " \n", "two words", "ä"] {
        assert!(PlatformToken::from_text(bad).is_none(), "{bad}");
    }
}
