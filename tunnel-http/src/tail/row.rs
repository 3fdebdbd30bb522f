//! An exchange as one line for people.

use tunnel_ops::terminal::{Paint, printable};

use super::ExchangeView;

/// Widest column of hosts and paths, in characters: a longer one moves the rest of its own line only.
const WIDEST: usize = 60;

/// Makes lines whose columns are aligned, as far as that is known line by line.
#[derive(Debug)]
pub(super) struct Rows {
    paint: Paint,
    /// The width of the column of hosts and paths so far.
    width: usize,
}

impl Rows {
    pub(super) fn new(paint: Paint) -> Self {
        Self { paint, width: 0 }
    }

    /// Time, status, method, host and path, duration, end, and of a problem who met it and what happened.
    pub(super) fn row(&mut self, view: &ExchangeView) -> String {
        let paint = self.paint;
        let text = |value: &Option<String>| printable(value.as_deref().unwrap_or_default());
        // Without the date and the microseconds.
        let time = view.timestamp.get(11..23).unwrap_or(&view.timestamp);
        let status = match view.status {
            Some(status @ ..400) => paint.good(&status.to_string()),
            Some(status) => paint.bad(&status.to_string()),
            None => paint.soft("---"),
        };
        let method = text(&view.method);
        let target = format!("{}{}", text(&view.host), text(&view.path));
        self.width = self.width.max(target.chars().count().min(WIDEST));
        let width = self.width;
        let took = view.duration_ms.map_or_else(|| "-".to_owned(), duration);
        let end = printable(&view.end);
        let end = match (&view.hop, &*end) {
            (None, "whole") => end,
            (None, _) => paint.soft(&end),
            (Some(hop), _) => {
                let problem = format!("{end} at the {}", printable(hop));
                let detail = text(&view.detail);
                match detail.is_empty() {
                    true => paint.bad(&problem),
                    false => format!("{}: {detail}", paint.bad(&problem)),
                }
            }
        };
        let time = paint.soft(&printable(time));
        format!("{time}  {status}  {method:<7} {target:<width$}  {took:>9}  {end}\n")
    }
}

fn duration(milliseconds: f64) -> String {
    match milliseconds {
        ..9_999.95 => format!("{milliseconds:.1} ms"),
        _ => format!("{:.1} s", milliseconds / 1_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_aligned_and_cannot_steer_a_terminal() {
        let mut rows = Rows::new(Paint::PLAIN);
        let whole = ExchangeView {
            timestamp: "2026-01-02T03:04:05.678901Z".to_owned(),
            method: Some("GET".to_owned()),
            host: Some("app.example".to_owned()),
            path: Some("/a/long/path".to_owned()),
            status: Some(200),
            end: "whole".to_owned(),
            duration_ms: Some(12.345),
            ..ExchangeView::default()
        };
        let failed = ExchangeView {
            path: Some("/\x1b[2J".to_owned()),
            status: Some(502),
            end: "connection_refused".to_owned(),
            hop: Some("tunnel-client".to_owned()),
            detail: Some("port 1".to_owned()),
            duration_ms: Some(61_000.0),
            ..whole.clone()
        };
        let cancelled = ExchangeView {
            method: None,
            status: None,
            end: "cancelled".to_owned(),
            duration_ms: None,
            ..whole.clone()
        };
        assert_eq!(
            [&whole, &failed, &cancelled].map(|view| rows.row(view)).concat(),
            "\
03:04:05.678  200  GET     app.example/a/long/path    12.3 ms  whole
03:04:05.678  502  GET     app.example/\u{fffd}[2J            61.0 s  connection_refused at the tunnel-client: port 1
03:04:05.678  ---          app.example/a/long/path          -  cancelled
"
        );
    }
}
