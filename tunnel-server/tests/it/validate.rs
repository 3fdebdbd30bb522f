//! `tunnel-server validate`: checks all that `run` reads, and says what would change of a running server.

use tokio::task::spawn_blocking;

use crate::{
    authority::{Authority, that_ran_out},
    program::{Ended, Folder},
    serving::{Files, Serving},
};

const FILES: [&str; 3] = [
    "--tls-cert=server.pem",
    "--tls-key=server.key",
    "--runtimes=runtimes.toml",
];

#[test]
fn each_file_that_cannot_be_used_is_named() {
    let folder = Folder::with_all_files();
    let files = [
        "tls-cert",
        "tls-key",
        "public-tls-cert",
        "public-tls-key",
        "runtimes",
        "admin-token-file",
        "webhook-secret-file",
        "etcd-ca",
        "etcd-cert",
        "etcd-key",
        "peer-ca",
        "peer-cert",
        "peer-key",
        "problem-page",
        "auth-ca-file",
        "revocations",
        "jwks",
        "auth-token-file",
        "client-ca",
        "client-crl",
    ];
    let flags = files.map(|flag| format!("--{flag}=no-{flag}"));
    let others = [
        "--webhook-url=https://a.test",
        "--etcd=https://a.test",
        "--node=a",
        "--peer-listen=127.0.0.1:1",
        "--jwt-issuer=x",
        "--jwt-audience=y",
        "--auth-url=https://a.test",
    ]
    .map(str::to_owned);
    let ended = folder.run([&["validate".to_owned()], &flags[..], &others[..]].concat());
    assert_eq!(ended.code, Some(2));
    for file in files {
        let is_named = |line: &&str| {
            let place = format!("error: --{file}: no-{file}: cannot be read");
            line.starts_with(&place)
        };
        assert_eq!(
            ended.stderr.lines().filter(is_named).count(),
            1,
            "{file}: {}",
            ended.stderr
        );
    }
}

#[test]
fn every_file_that_is_named_is_read_by_both_commands() {
    let folder = Folder::with_all_files();
    folder.write("ca.pem", &Authority::new().pem());
    folder.write("bad", "not good");
    let jwt = ["--jwt-issuer=x", "--jwt-audience=y"];
    let url = ["--auth-url=https://id.example"];
    for (flags, fault) in [
        (vec!["--revocations=bad"], "bad:1:5: "),
        (
            vec!["--client-ca=bad"],
            "--client-ca: bad: holds no certificate",
        ),
        (
            vec!["--client-ca=ca.pem", "--client-crl=bad"],
            "--client-crl: bad: holds no revocation list",
        ),
        (
            [&jwt[..], &["--jwks=bad"]].concat(),
            "--jwks: bad: is not a JWK set",
        ),
        (
            [&url[..], &["--auth-token-file=bad"]].concat(),
            "--auth-token-file: bad: holds no token",
        ),
        (
            [&url[..], &["--auth-ca-file=bad"]].concat(),
            "--auth-ca-file: bad: holds no certificate",
        ),
        (
            vec!["--admin-token-file=bad"],
            "--admin-token-file: bad: holds no usable token",
        ),
    ] {
        for command in ["run", "validate"] {
            let all = [command].into_iter().chain(FILES).chain(flags.clone());
            let ended = folder.run(all);
            assert_eq!(ended.code, Some(2), "{flags:?}: {}", ended.stderr);
            let told = ended.stderr.lines().last().unwrap();
            let expected = format!("error: {fault}");
            assert!(told.starts_with(&expected), "{flags:?}: {told}");
        }
    }
}

#[test]
fn an_expired_certificate_is_reported_before_it_is_served() {
    let folder = Folder::with_all_files();
    let (cert, key) = that_ran_out();
    folder.write("over.pem", &cert);
    folder.write("over.key", &key);
    let public = |name| {
        let pair = [
            format!("--public-tls-cert={name}.pem"),
            format!("--public-tls-key={name}.key"),
        ];
        let all = ["validate".to_owned()].into_iter();
        folder.run(all.chain(FILES.map(str::to_owned)).chain(pair))
    };
    let good = public("server");
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    let over = public("over");
    assert_eq!(over.code, Some(2), "{}", over.stdout);
    let told = over.stderr.lines().last().unwrap();
    assert!(told.starts_with("error: --public-tls-cert: "), "{told}");
    assert!(told.contains("expired on 2021-02-01T00:00:00Z"), "{told}");
}

/// What `validate` says of the server's own file with these flags more.
async fn validated(serving: &Serving, flags: &[&str]) -> Ended {
    let against = format!("--against=http://{}", serving.admin);
    let all = ["validate", "--config=server.toml", &against];
    let command = serving.folder.command(all.iter().chain(flags));
    let output = spawn_blocking(move || { command }.output());
    crate::program::ended(output.await.unwrap().unwrap())
}

#[tokio::test]
async fn changes_are_listed_before_they_are_applied() {
    let files = Files::new();
    let old = files.add("acme", "prod");
    files.folder.write("revoked.toml", "");
    let serving = files.serve("revocations = \"revoked.toml\"\n").await;
    let same = validated(&serving, &[]).await;
    assert_eq!(
        (same.code, same.stdout.as_str(), same.stderr.as_str()),
        (
            Some(0),
            "ok: runtimes 1, tokens 1\nno changes: the running server has this configuration, as version 1\n",
            ""
        )
    );
    let flags = ["--grace-period=3s", "--shards=3", "--limit-websockets=7"];
    let told = validated(&serving, &flags).await;
    assert_eq!(
        (told.code, told.stdout.as_str()),
        (
            Some(0),
            "ok: runtimes 1, tokens 1\nchanges to the running server's version 1:\n  \
             grace-period: 1s -> 3s\n  limit-websockets: 1024 -> 7\n  \
             shards: 1 -> 3 (only after a restart)\n"
        )
    );
    // What is in files is compared too. Other ones, which the server does not follow.
    let text = serving.folder.read("runtimes.toml");
    let more = text.replace("acme", "globex") + &text;
    serving.folder.write(
        "more.toml",
        &more.replacen(old.id().as_str(), "0000000000000000", 1),
    );
    serving
        .folder
        .write("taken.toml", "[[revoked]]\naccount = \"acme\"\n");
    let flags = ["--runtimes=more.toml", "--revocations=taken.toml"];
    let told = validated(&serving, &flags).await;
    let mut lines = told.stdout.lines().skip(2);
    let revocations = lines.next().unwrap();
    assert!(
        revocations.starts_with("  revocations: /")
            && revocations.contains("revoked.toml, 0 entries, "),
        "{}",
        told.stdout
    );
    assert!(
        revocations.contains("taken.toml, 1 entries, "),
        "{revocations}"
    );
    let added = "  runtime globex-prod: added, tokens 0000000000000000";
    assert_eq!(lines.next(), Some(added));
    let files = lines.next().unwrap();
    assert!(
        files.starts_with("  runtimes: /") && files.ends_with("/more.toml"),
        "{files}"
    );
    assert_eq!(lines.next(), None);
    serving.stop().await;
}

#[tokio::test]
async fn a_server_with_an_operators_token_is_asked_with_it() {
    let files = Files::new();
    files.folder.write("admin.token", "a-token-of-the-operator");
    files
        .folder
        .write("other.token", "a-token-of-somebody-else");
    let serving = files.serve("admin_token_file = \"admin.token\"\n").await;
    let same = validated(&serving, &[]).await;
    assert_eq!(same.code, Some(0), "{}", same.stderr);
    let refused = validated(&serving, &["--admin-token-file=other.token"]).await;
    assert_eq!(refused.code, Some(1));
    let expected = "refused the token in other.token";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    let admin = serving.admin;
    let folder = serving.folder.path("server.toml");
    serving.signal("-TERM").await;
    let against = format!("--against=http://{admin}");
    let gone = testkit::deadline::eventually(testkit::deadline::SOON, "its end", async || {
        let config = format!("--config={}", folder.display());
        let ended = serving.folder.run(["validate", &config, &against]);
        (ended.code == Some(1)).then_some(ended.stderr)
    });
    let gone = gone.await;
    assert!(
        gone.contains("no server answers at") && gone.contains("--against"),
        "{gone}"
    );
}
