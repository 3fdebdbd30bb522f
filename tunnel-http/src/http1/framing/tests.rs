//! Tests of the framing: what each rule refuses, what is passed on, and that pieces of any size come to the same.

use super::*;
use Violation as V;
use proptest::prelude::*;
use testkit::{
    differential::{
        random_http1::{self, ClientBytes},
        strict::{self, Ending},
    },
    random::Random,
};
use tunnel_proto::problem::Fault;

const LIMITS: HeadLimits = HeadLimits {
    bytes: 16 * 1024,
    fields: 100,
};

/// What is handed on of `pieces` that come one after another, and how it ends.
fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Scan, Framing) {
    let mut framing = Framing::new(LIMITS);
    let mut held = Vec::new();
    let mut sum = Scan::default();
    let mut passed = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        let scan = framing.scan(&held);
        passed.extend(held.drain(..scan.pass));
        sum = Scan {
            pass: sum.pass + scan.pass,
            heads: sum.heads + scan.heads,
            violation: scan.violation,
        };
    }
    (passed, sum, framing)
}

/// Scans `input` whole and byte by byte, which must give equal results.
fn scan(input: &[u8]) -> Scan {
    let (passed, whole, _) = feed([input]);
    assert_eq!(passed, input[..whole.pass], "handed on something else");
    let (_, bytewise, _) = feed(input.chunks(1));
    assert_eq!(whole, bytewise, "{}", input.escape_ascii());
    whole
}

#[track_caller]
fn good(input: impl AsRef<[u8]>, heads: usize) {
    let input = input.as_ref();
    let expected = Scan {
        pass: input.len(),
        heads,
        violation: None,
    };
    assert_eq!(scan(input), expected, "{}", input.escape_ascii());
}

#[track_caller]
fn bad(input: impl AsRef<[u8]>, violation: Violation) {
    let input = input.as_ref();
    let scan = scan(input);
    assert_eq!(scan.violation, Some(violation), "{}", input.escape_ascii());
    assert_eq!((scan.pass, scan.heads), (0, 0), "{}", input.escape_ascii());
}

/// A head of HTTP/1.1 that is in order but for `lines`.
fn with(lines: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

/// A request line and a host.
fn line(line: &str) -> String {
    format!("{line}\r\nHost: a\r\n\r\n")
}

/// Checks what is said about `body` behind a head that announces chunks.
#[track_caller]
fn bad_chunks(body: &str, violation: Violation, passed: usize) {
    let head = with("Transfer-Encoding: chunked\r\n");
    let scan = scan(format!("{head}{body}").as_bytes());
    assert_eq!(scan.violation, Some(violation), "{body:?}");
    assert_eq!(scan.pass, head.len() + passed, "{body:?}");
}

#[test]
fn hosts() {
    good("GET / HTTP/1.1\r\nhOST:a:80\r\n\r\n", 1);
    good("GET / HTTP/1.1\r\nHost: \t [::1]:80 \t \r\n\r\n", 1);
    good("GET / HTTP/1.0\r\n\r\n", 1);
    good("GET / HTTP/1.0\r\nHost: a\r\n\r\n", 1);
    bad("GET / HTTP/1.1\r\n\r\n", V::HostMissing);
    bad("GET / HTTP/1.1\r\nHosts: a\r\n\r\n", V::HostMissing);
    bad(
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        V::HostRepeated,
    );
    bad(
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nhost: b\r\n\r\n",
        V::HostRepeated,
    );
    bad(
        "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
        V::HostRepeated,
    );
    for host in [
        "",
        " ",
        "a b",
        "a,b",
        "a@b",
        "a/b",
        "0.0.0.0=5000",
        "a:",
        "a:x",
        "[::1",
    ] {
        bad(
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            V::HostInvalid,
        );
        bad(
            format!("GET / HTTP/1.0\r\nHost: {host}\r\n\r\n"),
            V::HostInvalid,
        );
    }
}

#[test]
fn targets() {
    for target in [
        "/",
        "/a//b/%2e%2e/;x?y=%zz",
        "/?",
        "/a?b?c",
        "//a",
        "/a:b@c",
        "/{\"a\"}",
        "/[|^\\",
        "/?a={}`|",
        "http://a",
        "http://a/",
        "HTTP://a:80/b?c",
        "https://[::1]:1?x",
        "*",
    ] {
        good(line(&format!("OPTIONS {target} HTTP/1.1")), 1);
    }
    good(line(&format!("GET /{} HTTP/1.1", "x".repeat(8000))), 1);
    bad(line("GET * HTTP/1.1"), V::TargetForm);
    for target in [
        "a", "a:443", "foo/bar", "?a", "ftp://a/", "http:/a", "http//a", "\\", "%2f",
    ] {
        bad(line(&format!("GET {target} HTTP/1.1")), V::TargetForm);
    }
    for target in ["/#", "/a#b", "http://a/#", "*#", "#"] {
        bad(
            line(&format!("OPTIONS {target} HTTP/1.1")),
            V::TargetFragment,
        );
    }
    for target in [
        "http://",
        "http:///",
        "http://u@a/",
        "http://a:b/",
        "http://a,b",
        "https://?",
    ] {
        bad(line(&format!("GET {target} HTTP/1.1")), V::TargetAuthority);
    }
    for target in [
        "/ä",
        "/\u{7f}",
        "/a\tb",
        "/<",
        "/?\"",
        "/\0",
        "http://a/\u{a0}",
    ] {
        bad(line(&format!("GET {target} HTTP/1.1")), V::TargetCharacter);
    }
}

#[test]
fn request_lines() {
    good(line("M-SEARCH / HTTP/1.1"), 1);
    good(line("get / HTTP/1.1"), 1);
    for request in [
        "GET /",
        "GET / ",
        "GET",
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET /a b HTTP/1.1",
        "GET  HTTP/1.1",
        "GET / HTTP/1.1 x",
    ] {
        let violation = match request {
            "GET / " => V::VersionSyntax,
            _ => V::RequestLine,
        };
        bad(line(request), violation);
    }
    for version in ["HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0", "HTTP/9.9"] {
        bad(line(&format!("GET / {version}")), V::VersionUnsupported);
    }
    bad("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", V::VersionUnsupported);
    for version in [
        "http/1.1",
        "HTTP/1",
        "HTTP/11",
        "HTTP/1.1a",
        "HTTP/1,1",
        "HTP/1.1",
        "/1.1",
    ] {
        bad(line(&format!("GET / {version}")), V::VersionSyntax);
    }
    for method in ["G(T", "GE\tT", "G\u{e4}T", "GET:"] {
        bad(line(&format!("{method} / HTTP/1.1")), V::MethodSyntax);
    }
    for start in [
        "\u{16}\u{3}\u{1}",
        " GET / HTTP/1.1",
        "\0",
        "\u{e4}",
        "{\"a\":1}",
    ] {
        bad(start, V::MethodSyntax);
    }
    for method in ["CONNECT", "TRACE"] {
        bad(line(&format!("{method} / HTTP/1.1")), V::MethodRefused);
    }
    bad(line("CONNECT a:443 HTTP/1.1"), V::MethodRefused);
    bad(
        line(&format!("{} / HTTP/1.1", "M".repeat(33))),
        V::MethodTooLong,
    );
    for start in [
        "\r\n\r\nGET / HTTP/1.1\r\n",
        "\r\n\n",
        "\r\n\r",
        "\rGET",
        "\r\r",
        "\nGET",
        "\n",
    ] {
        bad(start, V::LeadingEmptyLine);
    }
}

#[test]
fn one_empty_line_in_front_of_a_request_goes_on_with_it() {
    let get = line("GET / HTTP/1.1");
    good(format!("\r\n{get}"), 1);
    good(format!("\r\n{get}\r\n{get}{get}"), 3);
    let post = with("Content-Length: 1\r\n");
    good(format!("{post}a\r\n{get}"), 2);
    let chunked = with("Transfer-Encoding: chunked\r\n");
    good(format!("{chunked}0\r\n\r\n\r\n{get}"), 2);
    // Alone it is nothing, and nothing of it is handed on.
    for piece in ["\r", "\r\n"] {
        assert_eq!(scan(piece.as_bytes()), Scan::default());
        let passed = scan(format!("{post}a{piece}").as_bytes());
        assert_eq!(
            (passed.pass, passed.heads, passed.violation),
            (post.len() + 1, 1, None)
        );
    }
    // A second one is what a request could be hidden behind.
    let two = scan(format!("{post}a\r\n\r\n{get}").as_bytes());
    assert_eq!(two.violation, Some(V::LeadingEmptyLine));
    assert_eq!(two.pass, post.len() + 1);
    bad("\r\n\u{16}\u{3}\u{1}", V::MethodSyntax);
}

#[test]
fn line_ends() {
    bad("GET / HTTP/1.1\nHost: a\n\n", V::BareLineFeed);
    bad("GET / HTTP/1.1\r\nHost: a\n\r\n", V::BareLineFeed);
    bad("GET / HTTP/1.1\r\nHost: a\r\n\n", V::BareLineFeed);
    bad("GET / HTTP/1.1\rHost: a\r\r", V::BareCarriageReturn);
    bad(
        "GET / HTTP/1.1\r\nHost: a\r\rX: y\r\n\r\n",
        V::BareCarriageReturn,
    );
    bad("GET /\r HTTP/1.1\r\n", V::BareCarriageReturn);
    bad(with("X: a\rY: b\r\n"), V::BareCarriageReturn);
    bad(with("X: a\r\r\n"), V::BareCarriageReturn);
    bad(with("X: a\nY: b\r\n"), V::BareLineFeed);
}

#[test]
fn field_lines() {
    good(
        with("X:\r\nY: \t \r\nZ: a\tb\r\nA!#$%&'*+-.^`|~1: \"\u{e4}\"\r\n"),
        1,
    );
    good(
        [&b"GET / HTTP/1.1\r\nHost: a\r\nX: \x80\xff\r\n\r\n"[..]].concat(),
        1,
    );
    for (lines, violation) in [
        ("X : a\r\n", V::FieldNameSpace),
        ("X\t: a\r\n", V::FieldNameSpace),
        ("X y: a\r\n", V::FieldNameSpace),
        (" X: a\r\n", V::FieldFolded),
        ("X: a\r\n b\r\n", V::FieldFolded),
        ("X: a\r\n\tb: c\r\n", V::FieldFolded),
        ("X: a\r\n \r\n", V::FieldFolded),
        ("X\r\n", V::FieldWithoutColon),
        ("X y\r\n", V::FieldWithoutColon),
        (": a\r\n", V::FieldNameEmpty),
        ("(: a\r\n", V::FieldNameSyntax),
        ("X\u{e4}: a\r\n", V::FieldNameSyntax),
        ("X\0: a\r\n", V::FieldNameSyntax),
        ("X_y: a\r\n", V::FieldNameUnderscore),
        ("_: a\r\n", V::FieldNameUnderscore),
        ("Transfer_Encoding: chunked\r\n", V::FieldNameUnderscore),
        (":status: 200\r\n", V::FieldNameEmpty),
        ("X: a\0b\r\n", V::FieldValueCharacter),
        ("X: \u{7f}\r\n", V::FieldValueCharacter),
        ("X: \u{b}chunked\r\n", V::FieldValueCharacter),
        ("X: a\u{1b}[2J\r\n", V::FieldValueCharacter),
    ] {
        bad(with(lines), violation);
    }
    bad("GET / HTTP/1.1\r\n Host: a\r\n\r\n", V::FieldFolded);
    bad(
        with(&format!("{}: a\r\n", "x".repeat(1025))),
        V::FieldNameTooLong,
    );
}

#[test]
fn lengths() {
    for (value, length) in [("0", 0), ("3", 3), ("003", 3), (" \t3 ", 3)] {
        let request = with(&format!("Content-Length: {value}\r\n"));
        good(
            format!("{request}{}{}", &"abc"[..length], line("GET / HTTP/1.1")),
            2,
        );
    }
    for value in [
        "",
        "+1",
        "-1",
        "0x1",
        "1.0",
        "1,1",
        "1, 1",
        "1 1",
        "a",
        "1;",
        "\"1\"",
        "18446744073709551614",
        "18446744073709551615",
        "18446744073709551616",
    ] {
        bad(
            with(&format!("Content-Length: {value}\r\n")),
            V::ContentLengthInvalid,
        );
    }
    good(with("Content-Length: 18446744073709551613\r\n"), 1);
    bad(
        with("Content-Length: 1\r\ncontent-length: 1\r\n"),
        V::ContentLengthRepeated,
    );
    bad(
        with("Content-Length: 1\r\nContent-Length: 2\r\n"),
        V::ContentLengthRepeated,
    );
}

#[test]
fn transfer_encodings() {
    good(with("Transfer-Encoding: chunked\r\n"), 1);
    good(with("transfer-encoding:CHUNKED \r\n"), 1);
    for (value, violation) in [
        ("xchunked", V::TransferEncodingUnknown),
        ("gzip, chunked", V::TransferEncodingUnknown),
        ("chunked, identity", V::TransferEncodingUnknown),
        ("identity", V::TransferEncodingUnknown),
        ("chunked-", V::TransferEncodingUnknown),
        ("", V::TransferEncodingInvalid),
        (",chunked", V::TransferEncodingInvalid),
        ("chunked,", V::TransferEncodingInvalid),
        ("chunked, chunked", V::TransferEncodingInvalid),
        ("chunked;a=b", V::TransferEncodingInvalid),
        ("\"chunked\"", V::TransferEncodingInvalid),
        ("chunked chunked", V::TransferEncodingInvalid),
        ("\u{a0}chunked", V::TransferEncodingInvalid),
        ("\u{b}chunked", V::FieldValueCharacter),
    ] {
        bad(with(&format!("Transfer-Encoding: {value}\r\n")), violation);
    }
    let te = "Transfer-Encoding: chunked\r\n";
    bad(with(&format!("{te}{te}")), V::TransferEncodingRepeated);
    bad(
        with(&format!("{te}Transfer-Encoding: identity\r\n")),
        V::TransferEncodingRepeated,
    );
    bad(with(&format!("Content-Length: 4\r\n{te}")), V::TwoLengths);
    bad(with(&format!("{te}Content-Length: 0\r\n")), V::TwoLengths);
    bad(
        format!("POST / HTTP/1.0\r\n{te}\r\n"),
        V::TransferEncodingInHttp10,
    );
    bad(
        format!("POST / HTTP/1.0\r\nContent-Length: 4\r\n{te}\r\n"),
        V::TransferEncodingInHttp10,
    );
}

#[test]
fn limits() {
    let room = LIMITS.bytes - with("X: \r\n").len();
    good(with(&format!("X: {}\r\n", "a".repeat(room))), 1);
    bad(
        with(&format!("X: {}\r\n", "a".repeat(room + 1))),
        V::HeadTooLarge,
    );
    bad(
        with(&format!("X: {}\r\n", "a".repeat(room + 2))),
        V::HeadTooLarge,
    );
    bad(
        with(&format!("X: {}", "a".repeat(LIMITS.bytes))),
        V::HeadTooLarge,
    );
    bad(
        format!("GET /{}", "a".repeat(LIMITS.bytes)),
        V::TargetTooLong,
    );
    good(with(&"X: a\r\n".repeat(LIMITS.fields - 1)), 1);
    bad(with(&"X: a\r\n".repeat(LIMITS.fields)), V::TooManyFields);

    let mut framing = Framing::new(HeadLimits {
        bytes: 128 * 1024,
        fields: 100,
    });
    let long = line(&format!("GET /{} HTTP/1.1", "a".repeat(65_534)));
    assert_eq!(
        framing.scan(long.as_bytes()).violation,
        Some(V::TargetTooLong)
    );
}

#[test]
fn chunks() {
    let head = with("Transfer-Encoding: chunked\r\n");
    for body in [
        "0\r\n\r\n",
        "3\r\nabc\r\n0\r\n\r\n",
        "003;a=b\r\nabc\r\nA\r\n0123456789\r\n00\r\n\r\n",
        "3; a ; b=\"c;d\u{e4}\"\r\n\r\n\n\r\n0;x\r\n\r\n",
        "0000000000000003\r\nabc\r\n0\r\n\r\n",
        "0\r\nX-Checksum: a\r\nContent-Digest: sha-256=:AA==:\r\nGrpc-Status: 0\r\n\r\n",
    ] {
        good(format!("{head}{body}{}", line("GET / HTTP/1.1")), 2);
    }
    for (body, violation, passed) in [
        ("0x1\r\n", V::ChunkSize, 1),
        ("+1\r\n", V::ChunkSize, 0),
        ("-1\r\n", V::ChunkSize, 0),
        ("1_0\r\n", V::ChunkSize, 1),
        (" 1\r\n", V::ChunkSize, 0),
        ("1 \r\n", V::ChunkSize, 1),
        ("1\t;a\r\n", V::ChunkSize, 1),
        ("\r\n", V::ChunkSize, 0),
        (";a\r\n", V::ChunkSize, 0),
        ("g\r\n", V::ChunkSize, 0),
        ("1\n", V::ChunkLineEnding, 1),
        ("1\r\r\n", V::ChunkLineEnding, 2),
        ("1\ra\r\n", V::ChunkLineEnding, 2),
        ("00000000000000001\r\n", V::ChunkSizeTooLong, 16),
        ("1;\r\na\r\n", V::ChunkExtension, 2),
        ("1;a\n", V::ChunkExtension, 3),
        ("1;a\0\r\n", V::ChunkExtension, 3),
        ("1;=a\r\n", V::ChunkExtension, 2),
        ("1;a\r;\r\n", V::ChunkLineEnding, 4),
        ("1\r\na\n", V::ChunkDataEnding, 4),
        ("1\r\nab\r\n", V::ChunkDataEnding, 4),
        ("1\r\na\r\r", V::ChunkDataEnding, 5),
        ("3\r\nabc0\r\n\r\n", V::ChunkDataEnding, 6),
    ] {
        bad_chunks(body, violation, passed);
    }
    let most = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(1024));
    good(format!("{head}{most}"), 1);
    bad_chunks(
        &format!("1;{}\r\n", "x".repeat(1025)),
        V::ChunkExtensionTooLong,
        2 + 1024,
    );
    let most = format!("1;{}\r\na\r\n", "x".repeat(1024)).repeat(15);
    good(format!("{head}{most}0\r\n\r\n"), 1);
    let passed = most.len() + 2;
    bad_chunks(&(most + "1;x\r\n"), V::ChunkExtensionsTooLong, passed);
}

#[test]
fn trailers() {
    for (lines, violation) in [
        ("Host: a\r\n\r\n", V::TrailerForbidden),
        ("content-length: 1\r\n\r\n", V::TrailerForbidden),
        (
            "X: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            V::TrailerForbidden,
        ),
        ("Content-Type: a\r\n", V::TrailerForbidden),
        ("Set-Cookie: a\r\n", V::TrailerForbidden),
        ("Cookie: a\r\n", V::TrailerForbidden),
        ("TE: a\r\n", V::TrailerForbidden),
        ("Trailer: a\r\n", V::TrailerForbidden),
        ("Connection: a\r\n", V::TrailerForbidden),
        ("Authorization: a\r\n", V::TrailerForbidden),
        ("Proxy-Authorization: a\r\n", V::TrailerForbidden),
        ("X-Forwarded-For: a\r\n", V::TrailerForbidden),
        ("Forwarded: a\r\n", V::TrailerForbidden),
        (" X: a\r\n", V::FieldFolded),
        ("X : a\r\n", V::FieldNameSpace),
        ("X_y: a\r\n", V::FieldNameUnderscore),
        ("X: a\n\r\n", V::BareLineFeed),
        ("\n", V::BareLineFeed),
        ("X: a\r\n\rX", V::BareCarriageReturn),
        ("X: \0\r\n\r\n", V::FieldValueCharacter),
    ] {
        // The last chunk goes on, but never the end of the body.
        bad_chunks(&format!("0\r\n{lines}"), violation, 3);
    }
    let head = with("Transfer-Encoding: chunked\r\n");
    let room = TRAILER_BYTES - "X: \r\n\r\n".len();
    good(format!("{head}0\r\nX: {}\r\n\r\n", "a".repeat(room)), 1);
    for over in 1..4 {
        let long = format!("0\r\nX: {}\r\n\r\n", "a".repeat(room + over));
        bad_chunks(&long, V::TrailersTooLarge, 3);
    }
    let many = format!("0\r\n{}\r\n", "X: a\r\n".repeat(LIMITS.fields + 1));
    bad_chunks(&many, V::TooManyFields, 3);
}

#[test]
fn what_follows_a_violation_is_never_handed_on() {
    let first = with("Content-Length: 2\r\n") + "ab";
    let smuggled = line("GET /admin HTTP/1.1");
    for second in [
        with("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n"),
        line("GET /b HTTP/1.1").replace("\r\n", "\n"),
        "garbage\r\n\r\n".to_owned(),
    ] {
        let found = scan(format!("{first}{second}{smuggled}{smuggled}").as_bytes());
        assert_eq!((found.pass, found.heads), (first.len(), 1));
        assert!(found.violation.is_some());
    }
    let mut framing = Framing::new(LIMITS);
    let violation = framing.scan(b"\n").violation;
    let again = framing.scan(smuggled.as_bytes());
    assert_eq!(
        again,
        Scan {
            pass: 0,
            heads: 0,
            violation
        }
    );
}

#[test]
fn upgrades() {
    let websocket = with("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n");
    let early = line("GET /early HTTP/1.1");
    let (passed, scan, mut framing) = feed([(websocket.clone() + &early).as_bytes()]);
    assert_eq!((passed, scan.heads), (websocket.clone().into_bytes(), 1));
    assert_eq!(framing.phase(), Phase::Upgrade);
    assert_eq!(framing.scan(early.as_bytes()), Scan::default());
    framing.not_upgraded();
    assert_eq!(framing.scan(early.as_bytes()).pass, early.len());

    let (.., mut framing) = feed([websocket.as_bytes()]);
    framing.upgraded();
    assert_eq!(framing.scan(b"\n\0\xff").pass, 3);
    assert_eq!(framing.phase(), Phase::Raw);
    framing.not_upgraded();
    assert_eq!(framing.phase(), Phase::Raw);

    let upgrade = "Connection: close\r\nconnection: upgrade\r\nUpgrade: a/1, b\r\n";
    assert_eq!(feed([with(upgrade).as_bytes()]).2.phase(), Phase::Upgrade);
    assert_eq!(
        feed([with(&format!("{upgrade}Content-Length: 0\r\n")).as_bytes()])
            .2
            .phase(),
        Phase::Upgrade
    );
    bad(
        with(&format!("{upgrade}Content-Length: 1\r\n")),
        V::UpgradeWithBody,
    );
    bad(
        with(&format!("Transfer-Encoding: chunked\r\n{upgrade}")),
        V::UpgradeWithBody,
    );

    // Nobody may take these for a request to speak something else.
    for no_upgrade in [
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: \r\n",
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
        "Connection: upgrades\r\nUpgrade: websocket\r\n",
    ] {
        let body = "Content-Length: 1\r\n";
        good(
            format!("{}a{early}", with(&format!("{no_upgrade}{body}"))),
            2,
        );
    }
    good(format!("GET / HTTP/1.0\r\n{upgrade}\r\n{early}"), 2);
}

#[test]
fn a_head_that_comes_byte_by_byte_costs_no_more_than_its_bytes() {
    let limits = HeadLimits {
        bytes: 1024 * 1024,
        fields: 100,
    };
    let request = with(&format!("X: {}\r\n", "a".repeat(900_000)));
    let mut framing = Framing::new(limits);
    // If each byte had the whole head searched again, this would be 4 * 10^11 steps.
    for end in 1..request.len() {
        assert_eq!(framing.scan(&request.as_bytes()[..end]), Scan::default());
    }
    assert_eq!(framing.scan(request.as_bytes()).pass, request.len());
}

#[test]
fn every_violation_has_an_answer_that_ends_the_connection_in_its_own_words() {
    for violation in [V::RequestLine, V::TwoLengths, V::ChunkSize, V::HeadTooLarge] {
        assert_eq!(violation.reason().fault(), Fault::PlatformClient);
        assert_eq!(violation.to_string(), violation.detail());
        assert!(!violation.detail().ends_with('.'));
    }
}

fn request() -> impl Strategy<Value = String> {
    let head = (
        "[!#$%&'*+.^`|~A-Z0-9-]{1,8}",
        "/[!$-;=@-Z|~a-z]{0,30}(\\?[!$-;=?-~]{0,30})?",
    );
    let fields = prop::collection::vec(
        ("X[a-z-]{0,9}", "[ \t]{0,2}[ -~\t\u{80}-\u{ff}]{0,30}"),
        0..6,
    );
    let body = prop_oneof![
        Just("\r\n".to_owned()),
        "[\\x00-\\x7f]{0,80}"
            .prop_map(|body| format!("Content-Length: {}\r\n\r\n{body}", body.len())),
        (
            prop::collection::vec(
                ("[\\x00-\\x7f]{1,40}", "(;[a-z]{1,3}(=[a-z]{1,3})?)?"),
                0..4
            ),
            "(X-[a-z]{1,4}: [ -~]{0,9}\r\n){0,3}"
        )
            .prop_map(|(chunks, trailers)| {
                let chunks: String = chunks
                    .iter()
                    .map(|(data, extension)| format!("{:x}{extension}\r\n{data}\r\n", data.len()))
                    .collect();
                format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n{trailers}\r\n")
            }),
    ];
    (head, fields, body)
        .prop_filter("is refused", |((method, _), ..)| {
            !matches!(&method[..], "CONNECT" | "TRACE")
        })
        .prop_map(|((method, target), fields, body)| {
            let fields: String = fields
                .iter()
                .map(|(name, value)| format!("{name}:{value}\r\n"))
                .collect();
            format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}{body}")
        })
}

/// What `httparse`, and the crate that hyper keeps requests in, make of the first head.
fn reference(input: &[u8]) -> (usize, usize) {
    let mut fields = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut fields);
    let status = request
        .parse(input)
        .expect("httparse refuses what was accepted");
    http::Method::try_from(request.method.unwrap()).expect("method");
    let target = request.path.unwrap();
    let uri = http::Uri::try_from(target).expect("target");
    if target.starts_with('/') {
        assert_eq!(uri.path_and_query().unwrap().as_str(), target);
    }
    for field in request.headers.iter() {
        http::HeaderName::from_bytes(field.name.as_bytes()).expect("name");
        http::HeaderValue::from_bytes(field.value).expect("value");
    }
    (status.unwrap(), request.headers.len())
}

/// The length of the first head that is accepted and the number of its fields, when there is one.
fn accepted(input: &[u8]) -> Option<(usize, usize)> {
    let mut framing = Framing::new(LIMITS);
    let end = (1..=input.len()).find(|&end| framing.scan(&input[..end]).heads == 1)?;
    let head = input.strip_prefix(b"\r\n").unwrap_or(input);
    let head = &head[..end - (input.len() - head.len())];
    let lines = head.windows(2).filter(|two| two == b"\r\n").count();
    Some((end, lines - 2))
}

/// What a reader that knows nothing of this one finds in the passed bytes: as many requests, and no violation.
#[test]
fn another_reader_finds_the_same_requests_in_what_is_passed() {
    for seed in 0..20_000 {
        let ClientBytes { bytes, cuts } = random_http1::draw(&mut Random::new(seed), "a.test");
        let mut framing = Framing::new(LIMITS);
        let (mut pass, mut heads) = (0, 0);
        for end in cuts.into_iter().chain([bytes.len()]) {
            loop {
                let scan = framing.scan(&bytes[pass..end]);
                (pass, heads) = (pass + scan.pass, heads + scan.heads);
                if framing.phase() != Phase::Upgrade {
                    break;
                }
                framing.not_upgraded();
            }
        }
        let (passed, rest) = bytes.split_at(pass);
        let found = strict::read_all(passed);
        let shown = format!(
            "{seed}: {} | {}",
            passed.escape_ascii(),
            rest.escape_ascii()
        );
        assert_ne!(found.ending, Ending::Violation, "{shown}");
        let is_cut = found.ending == Ending::Incomplete;
        assert_eq!(found.messages.len() + usize::from(is_cut), heads, "{shown}");
    }
}

proptest! {
    #[test]
    fn valid_requests_are_handed_on_as_they_came_however_they_are_cut(
        requests in prop::collection::vec(("(\r\n)?", request()), 1..5),
        cuts in prop::collection::vec(1usize..60, 0..40),
    ) {
        let requests: Vec<_> = requests.iter().map(|(line, request)| format!("{line}{request}")).collect();
        let stream = requests.concat().into_bytes();
        let mut rest = &stream[..];
        let mut pieces = Vec::new();
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let (passed, scan, framing) = feed(pieces);
        prop_assert_eq!(passed, &stream[..]);
        prop_assert_eq!(scan.heads, requests.len());
        prop_assert_eq!(scan.violation, None);
        prop_assert_eq!(framing.phase(), Phase::Head);
    }

    #[test]
    fn what_is_accepted_is_read_alike_by_others(
        requests in prop::collection::vec(request(), 1..3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 0..4),
    ) {
        let mut stream = requests.concat().into_bytes();
        for (index, byte, kind) in damage {
            let index = index.index(stream.len());
            match kind {
                0 => stream[index] = byte,
                1 => stream.insert(index, byte),
                _ => { stream.remove(index); }
            }
        }
        let whole = scan(&stream);
        prop_assert!(whole.pass <= stream.len());
        if let Some(read) = accepted(&stream) {
            prop_assert_eq!(read, reference(&stream));
        }
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        scan(&noise);
        let chunked = [with("Transfer-Encoding: chunked\r\n").as_bytes(), &noise].concat();
        scan(&chunked);
        let upgraded = [with("Connection: upgrade\r\nUpgrade: a\r\n").as_bytes(), &noise].concat();
        scan(&upgraded);
    }
}
