//! The files of the client's page.

use tunnel_ops::admin::PageFile;

/// The document, and the module of its own.
pub(super) const FILES: &[PageFile] = &[
    PageFile {
        name: "index.html",
        content: include_str!("page/index.html"),
    },
    PageFile {
        name: "main.js",
        content: include_str!("page/main.js"),
    },
];
