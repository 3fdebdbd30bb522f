//! A route as written, each value with its position, so that a fault can be located.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};
use toml::Spanned;
use tunnel_ops::config_value::{self, ValueError};
use tunnel_ops::settings::FileOnly;

/// A text with its position.
pub(super) type Text = Spanned<String>;

/// `[[route]]`, not checked yet.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRoute {
    pub(super) name: Text,
    pub(super) host: Option<Text>,
    pub(super) methods: Option<Spanned<Vec<Text>>>,
    pub(super) path: Text,
    #[serde(default)]
    pub(super) allow_paths_with: Vec<Text>,
    /// The former name of `allow_paths_with`, for an error that says so.
    pub(super) allow_odd_paths: Option<Spanned<bool>>,
    #[serde(default)]
    pub(super) values: BTreeMap<String, Spanned<Vec<Text>>>,
    pub(super) upstream: Option<Text>,
    pub(super) upstreams: Option<Spanned<Vec<RawMember>>>,
    pub(super) respond: Option<Spanned<RawDirectResponse>>,
    pub(super) deny: Option<Text>,
    pub(super) strip_prefix: Option<Text>,
    pub(super) replace_prefix: Option<Spanned<RawPrefix>>,
    pub(super) host_header: Option<Text>,
    pub(super) request_headers: Option<Spanned<RawChanges>>,
    pub(super) response_headers: Option<Spanned<RawChanges>>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) connect_timeout: Option<Text>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) head_timeout: Option<Text>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) idle_timeout: Option<Text>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) max_body: Option<Text>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) http: Option<Text>,
    pub(super) cors: Option<Spanned<RawCors>>,
    pub(super) tls: Option<Spanned<RawTls>>,
    pub(super) health: Option<Spanned<RawHealth>>,
    pub(super) ejection: Option<Spanned<RawEjection>>,
}

/// An element of `upstreams`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMember {
    pub(super) url: Text,
    pub(super) weight: Option<Spanned<i64>>,
}

/// `respond`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDirectResponse {
    pub(super) status: Option<Spanned<i64>>,
    pub(super) content_type: Option<Text>,
    pub(super) body: Option<Text>,
}

/// `replace_prefix`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPrefix {
    pub(super) from: Text,
    pub(super) to: Text,
}

/// `request_headers`, `response_headers`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawChanges {
    #[serde(default)]
    pub(super) set: BTreeMap<String, Text>,
    #[serde(default)]
    pub(super) add: BTreeMap<String, Text>,
    #[serde(default)]
    pub(super) remove: Vec<Text>,
}

/// `cors`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCors {
    pub(super) origins: Spanned<Vec<Text>>,
    pub(super) methods: Option<Vec<Text>>,
    #[serde(default)]
    pub(super) headers: Vec<Text>,
    #[serde(default)]
    pub(super) credentials: bool,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) max_age: Option<Text>,
}

/// `tls`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTls {
    pub(super) ca_file: Option<Spanned<PathBuf>>,
    pub(super) server_name: Option<Text>,
    pub(super) client_cert: Option<Spanned<PathBuf>>,
    pub(super) client_key: Option<Spanned<PathBuf>>,
    pub(super) insecure: Option<Spanned<bool>>,
}

/// `health`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHealth {
    pub(super) path: Text,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) interval: Option<Text>,
    #[serde(default, deserialize_with = "value_text")]
    pub(super) timeout: Option<Text>,
    pub(super) unhealthy_after: Option<Spanned<i64>>,
    pub(super) healthy_after: Option<Spanned<i64>>,
}

/// `ejection`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEjection {
    pub(super) after: Option<Spanned<i64>>,
    #[serde(rename = "for", default, deserialize_with = "value_text")]
    pub(super) duration: Option<Text>,
}

/// Reads a duration or a size as a text, and a number as its digits, so that the type of the value reports what is
/// wrong with a number without a unit.
fn value_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Text>, D::Error> {
    struct Value(String);

    impl FromStr for Value {
        type Err = ValueError;

        fn from_str(text: &str) -> Result<Self, ValueError> {
            Ok(Self(text.to_owned()))
        }
    }

    impl<'de> Deserialize<'de> for Value {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            config_value::from_text(deserializer)
        }
    }

    let given = Spanned::<Value>::deserialize(deserializer)?;
    let span = given.span();
    Ok(Some(Spanned::new(span, given.into_inner().0)))
}

impl FileOnly for RawRoute {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        let tls = self.tls.iter_mut().map(Spanned::get_mut);
        let paths =
            tls.flat_map(|tls| [&mut tls.ca_file, &mut tls.client_cert, &mut tls.client_key]);
        paths.flatten().map(Spanned::get_mut).collect()
    }
}
