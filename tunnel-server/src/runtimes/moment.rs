//! Moments in files and flags: `2027-01-01T00:00:00Z`, a TOML date-time with its offset.
//!
//! In: text or a TOML value. Out: a point in time to the second, shown in UTC. A moment without an offset is refused,
//! because its meaning would depend on the machine.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::de::{self, Deserialize, Deserializer};
use toml::value::{Datetime, Offset};
use toml_edit::Value;

const EXPECTED: &str = "expected a moment with its offset, such as `2027-01-01T00:00:00Z`";

/// A moment, to the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(SystemTime);

/// The text is not a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{EXPECTED}")]
pub struct NotAMoment;

impl Moment {
    /// This moment as a value of a TOML file.
    pub(super) fn to_toml(self) -> Option<Value> {
        let written: Result<Datetime, _> = self.to_string().parse();
        written.ok().map(Value::from)
    }
}

impl From<SystemTime> for Moment {
    /// Truncates to seconds, since fractions are not shown.
    fn from(time: SystemTime) -> Self {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        // The last second of a four-digit year; a later one could not be shown.
        let seconds = since.as_secs().min(253_402_300_799);
        Self(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }
}

impl From<Moment> for SystemTime {
    fn from(moment: Moment) -> Self {
        moment.0
    }
}

impl FromStr for Moment {
    type Err = NotAMoment;

    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        let written: Datetime = text.parse().map_err(|_| NotAMoment)?;
        Self::try_from(written)
    }
}

impl TryFrom<Datetime> for Moment {
    type Error = NotAMoment;

    fn try_from(written: Datetime) -> Result<Self, NotAMoment> {
        let (Some(date), Some(time), Some(offset)) = (written.date, written.time, written.offset)
        else {
            return Err(NotAMoment);
        };
        let minutes = match offset {
            Offset::Z => 0,
            Offset::Custom { minutes } => i64::from(minutes),
        };
        let (hour, minute, second) = (time.hour, time.minute, time.second.unwrap_or(0));
        let utc = format!("{date}T{hour:02}:{minute:02}:{second:02}Z");
        let local = humantime::parse_rfc3339(&utc).map_err(|_| NotAMoment)?;
        let offset = Duration::from_secs(minutes.unsigned_abs() * 60);
        let utc = match minutes < 0 {
            true => local.checked_add(offset),
            false => local.checked_sub(offset),
        };
        let moment = utc.filter(|moment| *moment >= SystemTime::UNIX_EPOCH);
        moment.map(Self::from).ok_or(NotAMoment)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = humantime::format_rfc3339_seconds(self.0).to_string();
        f.pad(&text)
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Datetime::deserialize(deserializer).map_err(|error| {
            de::Error::custom(format!("{EXPECTED} and without quotes: {error}"))
        })?;
        Self::try_from(written).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_moment_is_shown_in_utc() {
        for (given, shown) in [
            ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2027-01-01T02:00:00+02:00", "2027-01-01T00:00:00Z"),
            ("2026-12-31T19:30:00.75-04:30", "2027-01-01T00:00:00Z"),
        ] {
            let moment: Moment = given.parse().unwrap();
            assert_eq!(moment.to_string(), shown);
            assert_eq!(shown.parse(), Ok(moment));
            assert_eq!(moment.to_toml().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn malformed_moments_and_those_without_offset_are_refused() {
        for bad in [
            "",
            "2027-01-01",
            "00:00:00",
            "2027-01-01T00:00:00",
            "2027-02-30T00:00:00Z",
            "1970-01-01T00:00:00+01:00",
            "tomorrow",
        ] {
            assert_eq!(bad.parse::<Moment>(), Err(NotAMoment), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_moment_parses_to_itself(seconds in any::<u64>()) {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds >> 20);
            let moment = Moment::from(time);
            prop_assert_eq!(moment.to_string().parse(), Ok(moment));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9TZ:.+-]{0,40}|\\PC{0,40}") {
            let _ = text.parse::<Moment>();
        }
    }
}
