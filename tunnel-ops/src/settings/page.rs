//! The reference page of a program's settings, as Markdown.

use std::fmt::Write;

use super::{GivenSettings, Reload, Setting, SettingDefault};

/// The page, with a table for each section.
pub fn page<S: GivenSettings>(program: &str) -> String {
    let mut page = format!(
        "# Settings of {program}\n\n\
         Made from the program's own table of settings; a test compares the two, and writes this file where the variable \
         `UPDATE_PAGES` is set. What the flags, variables and keys have in common is in \
         [commands](commands.md#settings).\n\n\
         `--public-listen` in the table is also the variable `{}PUBLIC_LISTEN` and the key `public_listen` of the file, \
         and so on. The column *reload* says whether a running program takes over another value as soon as the file has \
         changed.\n",
        S::VARIABLES
    );
    let mut section = "";
    for setting in S::SETTINGS {
        if setting.section != section {
            section = setting.section;
            let _ = write!(
                page,
                "\n## {section}\n\n| flag | default | values | reload | what |\n|---|---|---|---|---|\n"
            );
        }
        row(&mut page, setting);
    }
    page
}

fn row(page: &mut String, setting: &Setting) {
    let default = match (setting.default)() {
        SettingDefault::Value(value) => format!("`{value}`"),
        SettingDefault::Without("") => "-".to_owned(),
        SettingDefault::Without(words) => words.to_owned(),
    };
    let value = setting.value_name;
    let values =
        (setting.bounds)().map_or_else(|| value.to_owned(), |bounds| format!("{value}: {bounds}"));
    let reload = match setting.reload {
        Reload::AtOnce => "at once",
        Reload::Restart => "restart",
        Reload::Depends(_) => "depends",
    };
    let what = setting.paragraphs().collect::<Vec<_>>().join(". ");
    let cells = [&default, &values, reload, &what].map(|cell| cell.replace('|', "\\|"));
    let _ = writeln!(page, "| `{setting}` | {} |", cells.join(" | "));
}
