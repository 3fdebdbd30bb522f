//! What a stranger learns of a failure, and what the operator finds by its request id.

use serde_json::Value;
use testkit::{http1::RawConnection, http1::RawResponse, tunnel::client::FakeClient};
use tunnel_proto::problem::{Hop, Problem, Reason};

use crate::{
    access_lines::logged,
    rig::{PROD, PROD_HOST, Rig, connect},
    serving::{Files, VERSION},
};

const BROWSER: &str = "accept: text/html,*/*;q=0.8\r\n";

async fn ask(raw: &mut RawConnection, method: &str, path: &str, lines: &str) -> RawResponse {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {PROD_HOST}\r\n{lines}\r\n");
    raw.send(request).await;
    raw.response_to(method).await
}

#[tokio::test]
async fn a_stranger_gets_the_reason_and_an_id_by_which_the_log_tells_the_rest() {
    const INSIDE: &str = "http://grafana.monitoring.svc:3000: connection refused";
    let rig = Rig::start().await;
    let _client = FakeClient::new(&rig, PROD, |_| async move {
        Err(Problem::new(Hop::Client, Reason::ConnectionRefused, INSIDE))
    })
    .await;
    let mut raw = rig.raw().await;
    for (path, lines, kind) in [
        ("/problem-json", "", "application/json"),
        ("/problem-page", BROWSER, "text/html; charset=utf-8"),
    ] {
        let answer = ask(&mut raw, "GET", path, lines).await;
        assert_eq!(answer.head.status(), 502);
        assert_eq!(answer.head.value("content-type"), Some(kind));
        assert_eq!(answer.head.value("vary"), Some("accept"));
        let text = format!("{:?} {}", answer.head, answer.text());
        assert!(!text.contains("grafana"), "{text}");
        assert!(text.contains("connection_refused"), "{text}");
        let id = answer.head.value("x-request-id").unwrap();
        assert!(answer.text().contains(id), "{text}");
        let line = logged(path).unwrap();
        assert_eq!((&*line["detail"], &*line["request_id"]), (INSIDE, id));
        let head = ask(&mut raw, "HEAD", path, lines).await;
        let length = answer.text().len().to_string();
        assert_eq!(head.head.value("content-length"), Some(&*length));
    }
}

#[tokio::test]
async fn a_refusal_before_the_tunnel_has_an_id_too() {
    let rig = Rig::with(|config| config.settings.max_open_exchanges = 0).await;
    let _client = FakeClient::describing(&rig, PROD).await;
    let mut raw = rig.raw().await;
    let answer = ask(&mut raw, "GET", "/problem-limit", "").await;
    let body: Value = serde_json::from_str(&answer.text()).unwrap();
    assert_eq!(body["reason"], "server_limit");
    assert_eq!(
        body["request_id"],
        answer.head.value("x-request-id").unwrap()
    );
}

#[tokio::test]
async fn a_page_and_the_detail_are_reloaded() {
    let files = Files::new();
    files.add("acme", "prod");
    let serving = files.serve("offline_wait = \"0s\"\n").await;
    let mut raw = RawConnection::over(connect(serving.public).await);
    serving.folder.write("page.html", "<p>{{reason}}: call 112");
    serving.set("problem_page = \"page.html\"\nproblem_detail = \"full\"\noffline_wait = \"0s\"\n");
    serving.metric_becomes(VERSION, 2.0).await;
    let answer = ask(&mut raw, "GET", "/", BROWSER).await;
    assert_eq!(answer.text(), "<p>runtime_offline: call 112");
    assert_eq!(answer.head.value("content-security-policy"), None);
    let detail = answer.head.value("proxy-status").unwrap();
    assert!(
        detail.contains("the runtime's tunnel client is not connected"),
        "{detail}"
    );
    serving.folder.write("page.html", "<p>\n{{why}}");
    let is_fault = |line: &Value| {
        let fault = line["fault"].as_str().unwrap_or_default();
        fault.contains("page.html:2: unknown placeholder `{{why}}`")
            && fault.contains("problem_page")
    };
    serving.logged("the fault", is_fault).await;
    serving.stop().await;
}
