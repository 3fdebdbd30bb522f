//! `tunnel-server certs`: which files, with which modes, and what is never replaced unasked.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::program::Folder;

const FILES: [(&str, u32); 6] = [
    ("ca.key", 0o600),
    ("ca.pem", 0o644),
    ("client.key", 0o600),
    ("client.pem", 0o644),
    ("server.key", 0o600),
    ("server.pem", 0o644),
];

#[test]
fn six_files_are_written_and_only_owners_read_keys() {
    let folder = Folder::new();
    let ended = folder.run([
        "certs",
        "--out=new/certs",
        "--name=localhost",
        "--name=*.tunnels.localhost",
        "--name=::1",
    ]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), ""),
        "{}",
        ended.stderr
    );
    let out = folder.path("new/certs");
    assert_eq!(fs::read_dir(&out).unwrap().count(), FILES.len());
    for (name, mode) in FILES {
        let path = out.join(name);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            mode,
            "{name}"
        );
        assert!(
            fs::read_to_string(&path)
                .unwrap()
                .starts_with("-----BEGIN "),
            "{name}"
        );
    }
}

#[test]
fn a_server_takes_what_was_made() {
    let folder = Folder::with_all_files();
    folder.run(["certs", "--out=c", "--name=localhost"]);
    let validate = |key: &str| {
        let key = format!("--tls-key={key}");
        folder.run([
            "validate",
            "--tls-cert=c/server.pem",
            &key,
            "--runtimes=runtimes.toml",
        ])
    };
    assert_eq!(validate("c/server.key").code, Some(0));
    let mismatch = validate("c/client.key");
    assert_eq!(mismatch.code, Some(2));
    assert!(
        mismatch
            .stderr
            .starts_with("error: --tls-key: c/client.key: the key does not belong"),
        "{}",
        mismatch.stderr
    );
}

#[test]
fn existing_files_are_kept_and_missing_ones_are_made() {
    let folder = Folder::new();
    let make = ["certs", "--out=c", "--name=localhost"];
    assert_eq!(folder.run(make).code, Some(0));
    let read = || FILES.map(|(name, _)| folder.read(&format!("c/{name}")));
    let before = read();
    let again = folder.run(make);
    assert_eq!((again.code, read()), (Some(0), before.clone()));
    assert_eq!(
        again.stderr.matches("kept c/").count(),
        6,
        "{}",
        again.stderr
    );
    assert!(!again.stderr.contains("wrote"), "{}", again.stderr);

    for lacking in ["server.pem", "client.pem"] {
        fs::remove_file(folder.path(&format!("c/{lacking}"))).unwrap();
    }
    fs::remove_file(folder.path("c/client.key")).unwrap();
    let ended = folder.run(make);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let told: Vec<_> = ended.stderr.lines().collect();
    assert_eq!(
        told,
        [
            "kept c/ca.pem",
            "kept c/ca.key",
            "wrote c/server.pem",
            "kept c/server.key",
            "wrote c/client.pem",
            "wrote c/client.key",
        ]
    );
    folder.write("runtimes.toml", "");
    let valid = folder.run([
        "validate",
        "--tls-cert=c/server.pem",
        "--tls-key=c/server.key",
        "--client-ca=c/ca.pem",
    ]);
    assert_eq!(valid.code, Some(0), "{}", valid.stderr);

    let other = folder.run(["certs", "--out=c", "--name=localhost", "--name=other.test"]);
    assert_eq!(other.code, Some(0));
    assert!(
        other
            .stderr
            .contains("warning: c/server.pem, which was kept, is not for other.test"),
        "{}",
        other.stderr
    );
    assert_eq!(
        folder.run(make.into_iter().chain(["--force"])).code,
        Some(0)
    );
    let forced = read();
    assert!(
        before
            .iter()
            .zip(&forced)
            .all(|(before, after)| before != after)
    );
    let mode = fs::metadata(folder.path("c/client.key")).unwrap();
    assert_eq!(
        mode.permissions().mode() & 0o777,
        0o600,
        "a replaced key is as private as a new one"
    );
}

#[test]
fn files_that_cannot_be_completed_are_refused_and_nothing_is_written() {
    let folder = Folder::new();
    let make = ["certs", "--out=c", "--name=localhost"];
    for (lacking, reason) in [
        (
            &["ca.key", "client.pem"][..],
            "ca.pem exists and its key, ca.key, does not",
        ),
        (
            &["ca.pem", "ca.key"],
            "server.pem exists and the CA that signed it, ca.pem, does not",
        ),
        (
            &["server.key"],
            "server.pem exists and its key, server.key, does not",
        ),
    ] {
        let forced = folder.run(make.into_iter().chain(["--force"]));
        assert_eq!(forced.code, Some(0), "{}", forced.stderr);
        for name in lacking {
            fs::remove_file(folder.path(&format!("c/{name}"))).unwrap();
        }
        let ended = folder.run(make);
        assert_eq!(ended.code, Some(2), "{lacking:?}");
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
        let left = fs::read_dir(folder.path("c")).unwrap().count();
        assert_eq!(left, FILES.len() - lacking.len(), "nothing was written");
    }
    fs::remove_dir_all(folder.path("c")).unwrap();
    fs::create_dir(folder.path("c")).unwrap();
    folder.write("c/client.key", "mine");
    let ended = folder.run(make);
    assert_eq!(ended.code, Some(2));
    assert!(
        ended
            .stderr
            .contains("client.key holds no usable private key"),
        "{}",
        ended.stderr
    );
    assert_eq!(folder.read("c/client.key"), "mine");
    assert_eq!(fs::read_dir(folder.path("c")).unwrap().count(), 1);
}

#[test]
fn invalid_names_and_days_are_bad_usage() {
    let folder = Folder::new();
    for arguments in [
        &["--name=a b"][..],
        &["--name=https://a"],
        &["--name=a", "--days=0"],
        &["--name=a", "--days=9999"],
        &[],
    ] {
        let ended = folder.run(["certs", "--out=c"].iter().chain(arguments));
        assert_eq!(ended.code, Some(2), "{arguments:?}");
    }
    assert!(!folder.path("c").exists());
}
