//! The page of an admin listener: files that the program has in it, and how a browser is to treat them.
//!
//! In: a program's own files, its document first. Out: routes for these and for those that the pages of all programs share. The
//! files hold no data, so anybody may read them; what the page shows it asks the program's API for, by the API's own rules.
//! Nothing is loaded from elsewhere.

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

/// Scripts and styles come from this listener alone, and no other page may frame this one: a click on it is meant for it. Text
/// cannot become markup or script, even by mistake (`require-trusted-types-for`): paths and hosts are what strangers send.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// One file of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFile {
    /// Its name below `/page/`; the extension decides the type. The document is `index.html`, at `/`.
    pub name: &'static str,
    /// Its content.
    pub content: &'static str,
}

/// The files that the pages of all programs share.
const SHARED: [PageFile; 6] = [
    PageFile {
        name: "icon.svg",
        content: include_str!("page/icon.svg"),
    },
    PageFile {
        name: "page.css",
        content: include_str!("page/page.css"),
    },
    PageFile {
        name: "dom.js",
        content: include_str!("page/dom.js"),
    },
    PageFile {
        name: "format.js",
        content: include_str!("page/format.js"),
    },
    PageFile {
        name: "api.js",
        content: include_str!("page/api.js"),
    },
    PageFile {
        name: "tail.js",
        content: include_str!("page/tail.js"),
    },
];

impl PageFile {
    fn path(&self) -> String {
        match self.name {
            "index.html" => "/".to_owned(),
            name => format!("/page/{name}"),
        }
    }

    fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// Adds the routes of a page with these files of its own.
pub(super) fn add(router: Router, own: &'static [PageFile]) -> Router {
    let files = SHARED.iter().chain(own).copied();
    files.fold(router, |router, file| {
        let answer = async move || {
            let fields = [
                (CONTENT_TYPE, file.content_type()),
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (REFERRER_POLICY, "no-referrer"),
            ];
            (fields, file.content).into_response()
        };
        router.route(&file.path(), get(answer))
    })
}
