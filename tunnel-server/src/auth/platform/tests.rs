//! What valid_for while the platform is away, by a clock that is moved by hand. Real queries are in the
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
    };
    let peer = "192.0.2.7:4000".parse().unwrap();
    Arc::new(PlatformQuery::new(token, &greeting, peer))
}

fn say_yes(verifier: &PlatformVerifier, query: &PlatformQuery, valid_for: Option<u64>) -> Approval {
    let valid_for = valid_for.map_or(String::new(), |valid_for| {
        format!(", \"expires_in\": {valid_for}")
    });
    let json = format!("{{\"account\": \"a\", \"runtime\": \"b\"{valid_for}}}");
    let good = Approval::new(Answer::parse(json.as_bytes()).unwrap());
    verifier.memory.lock().good(query.sha256, good.clone());
    good
}

fn fail(verifier: &PlatformVerifier) {
    Attempt::begin(&verifier.breaker).unwrap().failed();
}

#[tokio::test(start_paused = true)]
async fn a_good_token_goes_on_for_a_set_time_and_a_stranger_does_not() {
    let verifier = verifier();
    let (known, stranger) = (query("known"), query("stranger"));
    say_yes(&verifier, &known, None);
    advance(Duration::from_secs(7200)).await;
    assert_eq!(
        verifier.without_platform(&known).err(),
        Some(AWAY),
        "it is not away"
    );
    fail(&verifier);
    let going_on = verifier.without_platform(&known).unwrap();
    let left = going_on.credential.expires.unwrap();
    let left = left.duration_since(SystemTime::now()).unwrap();
    assert!(left <= OUTAGE && left > OUTAGE - Duration::from_secs(60));
    assert!(going_on.renew_at < going_on.credential.expires);
    assert_eq!(verifier.without_platform(&stranger).err(), Some(AWAY));
    advance(OUTAGE - Duration::from_secs(1)).await;
    fail(&verifier);
    assert!(verifier.without_platform(&known).is_ok());
    advance(Duration::from_secs(1)).await;
    assert_eq!(verifier.without_platform(&known).err(), Some(AWAY));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_had_run_out_before_is_not_good_any_more() {
    let verifier = verifier();
    let (short, long) = (query("short"), query("long"));
    say_yes(&verifier, &short, Some(60));
    say_yes(&verifier, &long, Some(600));
    advance(Duration::from_secs(60)).await;
    fail(&verifier);
    advance(Duration::from_secs(1800)).await;
    assert_eq!(verifier.without_platform(&short).err(), Some(AWAY));
    assert!(
        verifier.without_platform(&long).is_ok(),
        "it held when it went away"
    );
    let denial = Denial::new(AWAY);
    verifier.memory.lock().refused(long.sha256, denial);
    assert_eq!(verifier.without_platform(&long).err(), Some(AWAY));
}

#[tokio::test(start_paused = true)]
async fn a_good_token_whose_answer_cannot_be_used_goes_on_for_the_same_time() {
    let verifier = verifier();
    let (known, short) = (query("known"), query("short"));
    say_yes(&verifier, &known, None);
    say_yes(&verifier, &short, Some(60));
    let unclear = |query: &PlatformQuery| {
        let denial = Denial::new(AuthRefusal::PlatformUnclear("it is malformed".into()));
        verifier.memory.lock().unclear(query.sha256, denial);
    };
    advance(Duration::from_secs(60)).await;
    unclear(&known);
    unclear(&short);
    assert!(!verifier.is_away(), "for nobody else");
    let going_on = verifier.verify(&known).await.unwrap();
    assert!(
        going_on.credential.expires.is_some() && going_on.renew_at < going_on.credential.expires
    );
    let over = verifier.verify(&short).await.err().unwrap();
    assert_eq!(over.name(), "auth_unclear", "it had run out before");
    // Neither more of the same nor a platform that goes away in between makes it longer.
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
async fn an_answer_is_used_again_for_a_moment_and_renewed_before_it_runs_out() {
    let verifier = verifier();
    let query = query("known");
    let cache = Duration::from_secs(10);
    let good = say_yes(&verifier, &query, Some(8));
    let fresh = || verifier.memory.lock().fresh(&query.sha256, cache).is_some();
    let verified = verifier.good(&query, &good);
    let renew_in = verified
        .renew_at
        .unwrap()
        .duration_since(good.received_at)
        .unwrap();
    assert!(renew_in >= Duration::from_millis(5600) && renew_in <= Duration::from_millis(7200));
    assert!(fresh());
    advance(Duration::from_secs(4)).await;
    assert!(
        !fresh(),
        "else whoever renews would get the same answer again"
    );
    say_yes(&verifier, &query, None);
    advance(Duration::from_secs(9)).await;
    assert!(fresh());
    advance(Duration::from_secs(1)).await;
    assert!(!fresh());
}

#[tokio::test]
async fn who_gave_up_leaves_nothing_behind() {
    let verifier = verifier();
    let seats = [
        verifier.join_flight([1; 32]),
        verifier.join_flight([1; 32]),
        verifier.join_flight([2; 32]),
    ];
    assert!(Arc::ptr_eq(&seats[0].flight, &seats[1].flight));
    assert_eq!(verifier.flights.lock().len(), 2);
    drop(seats);
    assert!(verifier.flights.lock().is_empty());
}

#[tokio::test]
async fn two_who_leave_at_once_leave_nothing_behind() {
    let verifier = verifier();
    let (one, other) = (verifier.join_flight([1; 32]), verifier.join_flight([1; 32]));
    // As if one had left the table, and not let go of the query yet, when the other leaves.
    let not_yet_gone = one.flight.clone();
    drop((one, other));
    assert!(verifier.flights.lock().is_empty());
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
