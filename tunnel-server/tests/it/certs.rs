//! `tunnel-server certs`: which files, with which modes, and what is never replaced unasked.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::program::Folder;

const FILES: [(&str, u32); 5] = [
    ("ca.pem", 0o644),
    ("client.key", 0o600),
    ("client.pem", 0o644),
    ("server.key", 0o600),
    ("server.pem", 0o644),
];

#[test]
fn five_files_are_written_and_only_owners_read_keys() {
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
            .starts_with("error: c/client.key: the key does not belong"),
        "{}",
        mismatch.stderr
    );
}

#[test]
fn nothing_is_replaced_unless_forced() {
    let folder = Folder::new();
    let make = ["certs", "--out=c", "--name=localhost"];
    fs::create_dir(folder.path("c")).unwrap();
    folder.write("c/client.key", "mine");
    let refused = folder.run(make);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .stderr
            .contains("c/client.key is there already: use --force"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        fs::read_dir(folder.path("c")).unwrap().count(),
        1,
        "nothing was written"
    );
    assert_eq!(
        folder.run(make.into_iter().chain(["--force"])).code,
        Some(0)
    );
    assert_ne!(folder.read("c/client.key"), "mine");
    let mode = fs::metadata(folder.path("c/client.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o777,
        0o600,
        "a replaced key is as private as a new one"
    );
}

#[test]
fn what_no_certificate_can_carry_is_bad_usage() {
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
