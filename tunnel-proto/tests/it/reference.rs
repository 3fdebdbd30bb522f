//! The tables of problems and refusals in `docs/reference` are those of the code.

use std::{fmt::Write, fs};

use tunnel_proto::{problem::Reason, refusal::RefusalReason};

/// Compares what stands between the marks `begin: name` and `end: name` of the page with `table`. Where `UPDATE_PAGES`
/// is set, writes it there first.
fn compare(name: &str, table: &str) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/reference/problems-and-refusals.md"
    );
    let begin = format!("<!-- begin: {name} (generated) -->\n");
    let end = format!("<!-- end: {name} -->\n");
    let page = fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(&begin).expect("the page has the mark");
    let (there, after) = rest.split_once(&end).expect("the page has the mark");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        fs::write(path, [before, &begin, table, &end, after].concat()).unwrap();
        return;
    }
    let other = there.lines().zip(table.lines()).find(|(a, b)| a != b);
    assert_eq!(other, None, "{name}: set UPDATE_PAGES=1 to write it anew");
    assert_eq!(there.len(), table.len(), "{name}");
}

// One test, since both tables stand on one page.
#[test]
fn the_tables_of_problems_and_refusals_are_those_of_the_code() {
    let mut table =
        "| problem | status | error of `Proxy-Status` | when |\n|---|---|---|---|\n".to_owned();
    for reason in Reason::ALL {
        let (name, status, error) = (
            reason.name(),
            reason.status().as_u16(),
            reason.proxy_error(),
        );
        writeln!(
            table,
            "| `{name}` | {status} | `{error}` | {} |",
            reason.when()
        )
        .unwrap();
    }
    compare("problems", &table);

    let mut table = "| refusal | status | kind | when |\n|---|---|---|---|\n".to_owned();
    for reason in RefusalReason::ALL {
        let (name, status, kind) = (
            reason.name(),
            reason.status().as_u16(),
            reason.finality().name(),
        );
        writeln!(
            table,
            "| `{name}` | {status} | {kind} | {} |",
            reason.when()
        )
        .unwrap();
    }
    compare("refusals", &table);
}
