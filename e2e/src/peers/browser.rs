//! Chromium, driven by a small script under `e2e/peers`.

use std::process::Command;

use serde_json::{Value, json};

use super::python::{python, script};
use crate::{deadline::within, program::Program};

/// How a page is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Width in pixels.
    pub width: u32,
    /// `light` or `dark`, as the page's user prefers.
    pub scheme: &'static str,
}

/// What a person does at a page.
#[derive(Clone, Debug)]
pub enum BrowserStep {
    /// Runs a script in the page.
    Run(String),
    /// Waits until an expression is true.
    Await(String),
    /// Presses a key: `Tab`, `Enter`, `Escape`, or a character.
    Key(&'static str),
    /// Presses Tab until an expression is true.
    TabTo(String),
    /// Types into what has the focus.
    Type(String),
    /// Makes the window as wide, in pixels.
    Width(u32),
}

impl BrowserStep {
    /// Waits until the page shows this text.
    pub fn await_text(text: &str) -> Self {
        Self::Await(format!("document.body.innerText.includes({text:?})"))
    }

    /// Presses Tab until the focus is on what has this text.
    pub fn tab_to_text(text: &str) -> Self {
        Self::TabTo(format!(
            "document.activeElement.textContent.trim() == {text:?}"
        ))
    }

    fn json(&self) -> Value {
        match self {
            Self::Run(script) => json!(["run", script]),
            Self::Await(expression) => json!(["await", expression]),
            Self::Key(key) => json!(["key", key]),
            Self::TabTo(expression) => json!(["tab", expression]),
            Self::Type(text) => json!(["type", text]),
            Self::Width(width) => json!(["width", width]),
        }
    }
}

/// Opens a page, runs `act` in it, and waits until `expected`, an expression, is true. Gives back
/// the text that the page shows.
///
/// # Panics
/// As [`walk`].
pub async fn visit(url: &str, window: Window, act: &str, expected: &str) -> String {
    let steps = [
        BrowserStep::Run(act.to_owned()),
        BrowserStep::Await(expected.to_owned()),
    ];
    walk(url, window, &steps).await
}

/// Opens a page and takes these steps. Gives back the text that the page shows.
///
/// # Panics
/// With the page's text when a step does not succeed, the page is wider than the window, or its console has an error.
pub async fn walk(url: &str, window: Window, steps: &[BrowserStep]) -> String {
    let steps: Vec<_> = steps.iter().map(BrowserStep::json).collect();
    let mut command = Command::new(python());
    command.arg(script("browser.py")).args([
        "chromium",
        url,
        &json!(steps).to_string(),
        &window.width.to_string(),
        window.scheme,
    ]);
    let mut browser = Program::start("browser.py", &mut command);
    let limit = std::time::Duration::from_secs(60);
    let status = within(limit, "the browser to end", browser.wait_exit(limit)).await;
    let text: Vec<_> = (browser.log().all().iter())
        .map(|line| line.text().to_owned())
        .collect();
    assert!(status.success(), "{}", text.join("\n"));
    text.join("\n")
}
