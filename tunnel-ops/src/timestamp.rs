//! Moments as the admin APIs write them: RFC 3339 in UTC, to the millisecond, so that two events of one second are
//! distinguished.
//!
//! A moment outside the range of RFC 3339 is clamped to it, so that formatting cannot fail.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The last moment with a four-digit year, since 1970.
const LAST: Duration = Duration::new(253_402_300_799, 999_000_000);

/// A moment by the program's wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(SystemTime);

/// The text is not a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a time such as `2026-01-31T12:00:00Z`")]
pub struct NotATimestamp;

impl Timestamp {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// Whole seconds since 1970.
    #[must_use]
    pub fn seconds(self) -> u64 {
        let since = self.0.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs()
    }

    /// The time since then, by this machine's clock; zero if it is in the future.
    #[must_use]
    pub fn age(self) -> Duration {
        self.0.elapsed().unwrap_or_default()
    }
}

impl From<SystemTime> for Timestamp {
    /// A moment before 1970 or after the year 9999 is clamped: an issuer of a credential may have confused milliseconds
    /// with seconds.
    fn from(time: SystemTime) -> Self {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(SystemTime::UNIX_EPOCH + since.min(LAST))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(self.0).fmt(f)
    }
}

impl FromStr for Timestamp {
    type Err = NotATimestamp;

    fn from_str(text: &str) -> Result<Self, NotATimestamp> {
        humantime::parse_rfc3339(text)
            .map(Self)
            .map_err(|_| NotATimestamp)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_rfc_3339_and_read_again() {
        let moment = Timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_250));
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, "\"1970-01-01T00:16:40.250Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
        assert!(serde_json::from_str::<Timestamp>("\"yesterday\"").is_err());
    }

    #[test]
    fn what_cannot_be_shown_becomes_the_nearest_that_can() {
        let milliseconds = Duration::from_secs(1_790_000_000_000);
        for (time, shown) in [
            (
                SystemTime::UNIX_EPOCH + milliseconds,
                "9999-12-31T23:59:59.999Z",
            ),
            (
                SystemTime::UNIX_EPOCH + LAST + Duration::from_millis(1),
                "9999-12-31T23:59:59.999Z",
            ),
            (
                SystemTime::UNIX_EPOCH - Duration::from_secs(1),
                "1970-01-01T00:00:00.000Z",
            ),
        ] {
            let text = serde_json::to_string(&Timestamp::from(time)).unwrap();
            assert_eq!(text, format!("\"{shown}\""));
            let read: Timestamp = serde_json::from_str(&text).unwrap();
            assert_eq!(read.to_string(), shown);
        }
    }

    #[test]
    fn what_lies_ahead_has_no_age() {
        let ahead = Timestamp(SystemTime::now() + Duration::from_secs(60));
        assert_eq!(ahead.age(), Duration::ZERO);
    }
}
