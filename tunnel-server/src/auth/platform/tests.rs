//! What holds while the platform is away, by a clock that is moved by hand. Real questions are in the
//! tests of the whole server.

use tokio::time::advance;
use tunnel_proto::handshake::InstanceSecret;

use super::*;
use crate::config::HttpUrl;

const OUTAGE: Duration = Duration::from_secs(3600);

fn judge() -> PlatformJudge {
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
    PlatformJudge::new(settings, client, None)
}

fn question(token: &str) -> Arc<Question> {
    let greeting = Greeting {
        instance: InstanceSecret::from_random([7; 16]),
        version: "0.1.0".into(),
        session_number: 1,
        allow_from: None,
        is_check: false,
    };
    let peer = "192.0.2.7:4000".parse().unwrap();
    Arc::new(Question::new(token, &greeting, peer))
}

fn say_yes(judge: &PlatformJudge, question: &Question, holds: Option<u64>) -> Approval {
    let holds = holds.map_or(String::new(), |holds| format!(", \"expires_in\": {holds}"));
    let json = format!("{{\"account\": \"a\", \"runtime\": \"b\"{holds}}}");
    let good = Approval::new(Answer::parse(json.as_bytes()).unwrap());
    judge.memory.lock().good(question.sha256, good.clone());
    good
}

fn fail(judge: &PlatformJudge) {
    Attempt::begin(&judge.breaker).unwrap().failed();
}

#[tokio::test(start_paused = true)]
async fn a_good_token_goes_on_for_a_set_time_and_a_stranger_does_not() {
    let judge = judge();
    let (known, stranger) = (question("known"), question("stranger"));
    say_yes(&judge, &known, None);
    advance(Duration::from_secs(7200)).await;
    assert_eq!(
        judge.without_platform(&known).err(),
        Some(AWAY),
        "it is not away"
    );
    fail(&judge);
    let going_on = judge.without_platform(&known).unwrap();
    let left = going_on.part.expires.unwrap();
    let left = left.duration_since(SystemTime::now()).unwrap();
    assert!(left <= OUTAGE && left > OUTAGE - Duration::from_secs(60));
    assert!(going_on.renew_at < going_on.part.expires);
    assert_eq!(judge.without_platform(&stranger).err(), Some(AWAY));
    advance(OUTAGE - Duration::from_secs(1)).await;
    fail(&judge);
    assert!(judge.without_platform(&known).is_ok());
    advance(Duration::from_secs(1)).await;
    assert_eq!(judge.without_platform(&known).err(), Some(AWAY));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_had_run_out_before_is_not_good_any_more() {
    let judge = judge();
    let (short, long) = (question("short"), question("long"));
    say_yes(&judge, &short, Some(60));
    say_yes(&judge, &long, Some(600));
    advance(Duration::from_secs(60)).await;
    fail(&judge);
    advance(Duration::from_secs(1800)).await;
    assert_eq!(judge.without_platform(&short).err(), Some(AWAY));
    assert!(
        judge.without_platform(&long).is_ok(),
        "it held when it went away"
    );
    let no = No::new(AWAY);
    judge.memory.lock().refused(long.sha256, no);
    assert_eq!(judge.without_platform(&long).err(), Some(AWAY));
}

#[tokio::test(start_paused = true)]
async fn a_good_token_whose_answer_cannot_be_used_goes_on_for_the_same_time() {
    let judge = judge();
    let (known, short) = (question("known"), question("short"));
    say_yes(&judge, &known, None);
    say_yes(&judge, &short, Some(60));
    let unclear = |question: &Question| {
        let no = No::new(AuthRefusal::PlatformUnclear("it is malformed".into()));
        judge.memory.lock().unclear(question.sha256, no);
    };
    advance(Duration::from_secs(60)).await;
    unclear(&known);
    unclear(&short);
    assert!(!judge.is_away(), "for nobody else");
    let going_on = judge.judge(&known).await.unwrap();
    assert!(going_on.part.expires.is_some() && going_on.renew_at < going_on.part.expires);
    let over = judge.judge(&short).await.err().unwrap();
    assert_eq!(over.name(), "auth_unclear", "it had run out before");
    // Neither more of the same nor a platform that goes away in between makes it longer.
    advance(OUTAGE - Duration::from_secs(1)).await;
    unclear(&known);
    fail(&judge);
    assert!(judge.judge(&known).await.is_ok());
    advance(Duration::from_secs(1)).await;
    let over = judge.judge(&known).await.err().unwrap();
    assert_eq!(
        (over.name(), over.is_no(), over.is_revoked()),
        ("auth_unclear", false, false)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_used_again_for_a_moment_and_renewed_before_it_runs_out() {
    let judge = judge();
    let question = question("known");
    let cache = Duration::from_secs(10);
    let good = say_yes(&judge, &question, Some(8));
    let fresh = || judge.memory.lock().fresh(&question.sha256, cache).is_some();
    let judged = judge.good(&question, &good);
    let renew_in = judged.renew_at.unwrap().duration_since(good.at).unwrap();
    assert!(renew_in >= Duration::from_millis(5600) && renew_in <= Duration::from_millis(7200));
    assert!(fresh());
    advance(Duration::from_secs(4)).await;
    assert!(
        !fresh(),
        "else whoever renews would get the same answer again"
    );
    say_yes(&judge, &question, None);
    advance(Duration::from_secs(9)).await;
    assert!(fresh());
    advance(Duration::from_secs(1)).await;
    assert!(!fresh());
}

#[tokio::test]
async fn who_gave_up_leaves_nothing_behind() {
    let judge = judge();
    let seats = [
        judge.seat([1; 32]),
        judge.seat([1; 32]),
        judge.seat([2; 32]),
    ];
    assert!(Arc::ptr_eq(&seats[0].flight, &seats[1].flight));
    assert_eq!(judge.flights.lock().len(), 2);
    drop(seats);
    assert!(judge.flights.lock().is_empty());
}

#[tokio::test]
async fn two_who_leave_at_once_leave_nothing_behind() {
    let judge = judge();
    let (one, other) = (judge.seat([1; 32]), judge.seat([1; 32]));
    // As if one had left the table, and not let go of the question yet, when the other leaves.
    let not_yet_gone = one.flight.clone();
    drop((one, other));
    assert!(judge.flights.lock().is_empty());
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
