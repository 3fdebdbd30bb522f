//! Dependencies are at least as new as `deny.toml` demands.

use e2e::program::root;

/// The first versions without the faults that `deny.toml` names.
const FLOORS: &[(&str, [u32; 3])] = &[
    ("yamux", [0, 14, 1]),
    ("h2", [0, 4, 20]),
    ("hyper", [1, 12, 0]),
    ("rustls", [0, 23, 46]),
    ("rustls-webpki", [0, 103, 16]),
    ("tungstenite", [0, 30, 0]),
];

/// Name and version of everything in the lock file.
fn locked() -> Vec<(String, [u32; 3])> {
    let lock: toml::Table =
        toml::from_str(&std::fs::read_to_string(root().join("Cargo.lock")).unwrap()).unwrap();
    let packages = lock["package"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let numbers = package["version"].as_str().unwrap();
            let numbers = numbers.split(['-', '+']).next().unwrap().split('.');
            let mut version = [0; 3];
            for (place, number) in version.iter_mut().zip(numbers) {
                *place = number.parse().unwrap();
            }
            (package["name"].as_str().unwrap().to_owned(), version)
        })
        .collect()
}

#[test]
fn no_dependency_is_older_than_its_floor() {
    let locked = locked();
    for (name, floor) in FLOORS {
        let versions: Vec<_> = locked.iter().filter(|(locked, _)| locked == name).collect();
        assert!(!versions.is_empty(), "{name} is not depended on any more");
        for (_, version) in versions {
            assert!(
                version >= floor,
                "{name} {version:?} is older than {floor:?}"
            );
        }
    }
}

#[test]
fn deny_toml_has_the_same_floors() {
    let deny = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    for (name, [major, minor, patch]) in FLOORS {
        let short = format!("{name}@<{major}.{minor}\"");
        let long = format!("{name}@<{major}.{minor}.{patch}\"");
        assert!(deny.contains(&short) || deny.contains(&long), "{long}");
    }
}
