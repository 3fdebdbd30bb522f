//! The files of the server's page.

use tunnel_ops::admin::PageFile;

/// The document, and the modules of its own.
pub(super) const FILES: &[PageFile] = &[
    PageFile {
        name: "index.html",
        content: include_str!("page/index.html"),
    },
    PageFile {
        name: "main.js",
        content: include_str!("page/main.js"),
    },
    PageFile {
        name: "fleet.js",
        content: include_str!("page/fleet.js"),
    },
    PageFile {
        name: "overview.js",
        content: include_str!("page/overview.js"),
    },
    PageFile {
        name: "runtime.js",
        content: include_str!("page/runtime.js"),
    },
    PageFile {
        name: "dialogs.js",
        content: include_str!("page/dialogs.js"),
    },
];
