//! Which exchanges a reader of the tail gets.
//!
//! One type for the flags of a command, for the parameters of the admin API, and for the comparison with an exchange.

use std::{fmt, str::FromStr};

use clap::Args;
use form_urlencoded::Serializer;
use http::Method;
use tunnel_proto::problem::Reason;

use super::ExchangeView;
use crate::end::End;

/// What an exchange has to be. Of several values in one list one has to fit; an empty list fits all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct TailFilter {
    /// Only exchanges with this status, such as 503 or 5xx; may be repeated
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub status: Vec<StatusMatch>,

    /// Only exchanges whose path begins with this
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub path: Option<String>,

    /// Only exchanges with this method; may be repeated
    #[arg(long, value_name = "METHOD", value_delimiter = ',', value_parser = method)]
    pub method: Vec<Method>,

    /// Only exchanges that ended so: whole, moved, cancelled, cut_by_stop, or the reason of a problem such as runtime_offline; may be
    /// repeated
    #[arg(long, value_name = "END", value_delimiter = ',')]
    pub end: Vec<EndWord>,
}

/// A status, or a class of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusMatch {
    /// This status.
    Status(u16),
    /// All statuses with this first digit.
    Class(u16),
}

/// How an exchange ended: the word of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndWord(&'static str);

/// A value that no exchange can have, or a parameter that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not a status.
    #[error("expected a status such as `503`, or a class such as `5xx`")]
    Status,
    /// Not a path.
    #[error("expected the beginning of a path, with its `/`")]
    Path,
    /// Not a method.
    #[error("expected a method such as `GET`")]
    Method,
    /// Not an end.
    #[error(
        "expected `whole`, `moved`, `cancelled`, `cut_by_stop`, or the reason of a problem such as `runtime_offline`"
    )]
    End,
    /// No such parameter.
    #[error("no such parameter: there are `status`, `path`, `method` and `end`")]
    Parameter,
}

impl TailFilter {
    /// Adds a parameter of a query. A list has commas between its values, and may be given more than once.
    ///
    /// # Errors
    /// When there is no such parameter, or no such value.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), FilterError> {
        let values = value.split(',');
        match name {
            "status" => add_all(&mut self.status, values.map(str::parse)),
            "path" => prefix(value).map(|path| self.path = Some(path)),
            "method" => add_all(&mut self.method, values.map(method)),
            "end" => add_all(&mut self.end, values.map(str::parse)),
            _ => Err(FilterError::Parameter),
        }
    }

    /// Adds the parameters of this filter to a query.
    pub fn append_to(&self, query: &mut Serializer<'_, String>) {
        let lists = [
            (
                "status",
                self.status.iter().map(ToString::to_string).collect(),
            ),
            ("path", self.path.iter().cloned().collect()),
            (
                "method",
                self.method.iter().map(ToString::to_string).collect(),
            ),
            (
                "end",
                self.end
                    .iter()
                    .map(|end| end.0.to_owned())
                    .collect::<Vec<_>>(),
            ),
        ];
        for (name, values) in lists {
            if !values.is_empty() {
                query.append_pair(name, &values.join(","));
            }
        }
    }

    /// Whether an exchange is one of those.
    #[must_use]
    pub(super) fn passes(&self, exchange: &ExchangeView) -> bool {
        let has_status = |of: &StatusMatch| exchange.status.is_some_and(|status| of.fits(status));
        let has_method = |method: &Method| exchange.method.as_deref() == Some(method.as_str());
        let path = exchange.path.as_deref().unwrap_or_default();
        (self.status.is_empty() || self.status.iter().any(has_status))
            && (self.path.as_ref()).is_none_or(|prefix| path.starts_with(prefix))
            && (self.method.is_empty() || self.method.iter().any(has_method))
            && (self.end.is_empty() || self.end.iter().any(|end| end.0 == exchange.end))
    }
}

fn add_all<T>(
    list: &mut Vec<T>,
    values: impl Iterator<Item = Result<T, FilterError>>,
) -> Result<(), FilterError> {
    for value in values {
        list.push(value?);
    }
    Ok(())
}

impl StatusMatch {
    fn fits(self, status: u16) -> bool {
        match self {
            Self::Status(this) => status == this,
            Self::Class(first) => status / 100 == first,
        }
    }
}

impl FromStr for StatusMatch {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u16> = match text.strip_suffix("xx").unwrap_or(text) {
            number if digits(number) => number.parse().ok(),
            _ => None,
        };
        match (number, text.len()) {
            (Some(first @ 1..=5), 3) if text.ends_with('x') => Ok(Self::Class(first)),
            (Some(status @ 100..=599), 3) => Ok(Self::Status(status)),
            _ => Err(FilterError::Status),
        }
    }
}

impl fmt::Display for StatusMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Class(first) => write!(f, "{first}xx"),
        }
    }
}

impl FromStr for EndWord {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let reasons = Reason::ALL.iter().map(|reason| reason.name());
        let mut all = End::WORDS.into_iter().chain(reasons);
        all.find(|word| *word == text)
            .map(Self)
            .ok_or(FilterError::End)
    }
}

fn prefix(text: &str) -> Result<String, FilterError> {
    match text.starts_with('/') {
        true => Ok(text.to_owned()),
        false => Err(FilterError::Path),
    }
}

/// A method, whose letters may be small.
fn method(text: &str) -> Result<Method, FilterError> {
    let parsed = text.to_ascii_uppercase().parse();
    parsed.map_err(|_| FilterError::Method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(pairs: &[(&str, &str)]) -> Result<TailFilter, FilterError> {
        let mut filter = TailFilter::default();
        for (name, value) in pairs {
            filter.add(name, value)?;
        }
        Ok(filter)
    }

    fn exchange() -> ExchangeView {
        ExchangeView {
            method: Some("GET".into()),
            path: Some("/api/users".into()),
            status: Some(503),
            end: "runtime_offline".into(),
            ..ExchangeView::default()
        }
    }

    #[test]
    fn every_condition_has_to_fit_and_one_value_of_its_list() {
        let exchange = exchange();
        for pairs in [
            &[][..],
            &[("status", "5xx")],
            &[("status", "200,503")],
            &[("status", "200"), ("status", "5xx")],
            &[("path", "/api")],
            &[("method", "post,get")],
            &[("end", "whole,runtime_offline")],
            &[
                ("status", "503"),
                ("path", "/api/"),
                ("end", "runtime_offline"),
            ],
        ] {
            assert!(filter(pairs).unwrap().passes(&exchange), "{pairs:?}");
        }
        for pairs in [
            &[("status", "4xx")][..],
            &[("status", "502")],
            &[("path", "/other")],
            &[("method", "POST")],
            &[("end", "whole")],
            &[("status", "503"), ("method", "PUT")],
        ] {
            assert!(!filter(pairs).unwrap().passes(&exchange), "{pairs:?}");
        }
        let without_status = ExchangeView {
            status: None,
            ..exchange
        };
        assert!(
            !filter(&[("status", "5xx")])
                .unwrap()
                .passes(&without_status)
        );
        assert!(filter(&[]).unwrap().passes(&without_status));
    }

    #[test]
    fn what_no_exchange_can_have_is_refused() {
        for text in [
            "", "5", "50", "600", "99", "5xxx", "0xx", "6xx", "+50", "xxx", "5x0", "éx",
        ] {
            assert_eq!(
                filter(&[("status", text)]),
                Err(FilterError::Status),
                "{text}"
            );
        }
        for (name, value, error) in [
            ("path", "api", FilterError::Path),
            ("method", "a b", FilterError::Method),
            ("method", "GET,", FilterError::Method),
            ("end", "done", FilterError::End),
            ("stauts", "503", FilterError::Parameter),
        ] {
            assert_eq!(filter(&[(name, value)]), Err(error), "{value}");
        }
    }

    #[test]
    fn a_filter_survives_its_query() {
        let pairs = [
            ("status", "503,4xx"),
            ("path", "/a b&c,d"),
            ("method", "GET,PUT"),
            ("end", "whole,session_lost"),
        ];
        let filter = filter(&pairs).unwrap();
        let mut query = Serializer::new(String::new());
        filter.append_to(&mut query);
        let mut read = TailFilter::default();
        for (name, value) in form_urlencoded::parse(query.finish().as_bytes()) {
            read.add(&name, &value).unwrap();
        }
        assert_eq!(read, filter);
    }
}
