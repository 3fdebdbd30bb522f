//! What is varied: a flag and its levels, and where they lie on the axis of a chart.

use std::str::FromStr;

use bytesize::ByteSize;

use crate::report::{self, Scale, Unit};

/// Levels that lie further apart than this are spaced by their logarithm.
const WIDE: f64 = 10.0;

/// A flag and its levels.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name, without dashes.
    pub flag: String,
    levels: Vec<Level>,
    unit: Unit,
}

/// One level.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// As it was written.
    pub text: String,
    /// Its place on the axis.
    pub value: f64,
}

impl Axis {
    /// The levels, in the order in which they were written.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The axis of a chart. Zero has no place on a logarithmic one.
    pub(super) fn of_chart(&self) -> report::Axis {
        let values = self.levels.iter().map(|level| level.value);
        let above = values.filter(|value| *value > 0.0);
        let (low, high) = above.fold((f64::MAX, 0.0f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let scale = if high > low * WIDE {
            Scale::Log
        } else {
            Scale::Linear
        };
        report::Axis::new(&self.flag, self.unit, scale)
    }
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (flag, levels) = text.split_once('=').unwrap_or((text, ""));
        let flag = flag.trim().trim_start_matches('-');
        let levels: Vec<_> = levels
            .split(',')
            .map(str::trim)
            .filter(|level| !level.is_empty())
            .collect();
        if flag.is_empty() || levels.is_empty() {
            return Err(
                "levels are written FLAG=LEVEL,LEVEL, such as connections=1,8,64".to_owned(),
            );
        }
        // One unit for all, so that they share an axis: the first that all of them can be read in.
        let units = [Unit::Count, Unit::Seconds, Unit::Bytes];
        for unit in units {
            let values: Option<Vec<f64>> = levels.iter().map(|level| read(level, unit)).collect();
            if let Some(values) = values {
                let levels = levels.iter().zip(values).map(|(text, value)| Level {
                    text: (*text).to_owned(),
                    value,
                });
                return Ok(Self {
                    flag: flag.to_owned(),
                    levels: levels.collect(),
                    unit,
                });
            }
        }
        Err(format!(
            "{flag}: levels are all numbers, all sizes such as 10KiB, or all times such as 5ms"
        ))
    }
}

fn read(level: &str, unit: Unit) -> Option<f64> {
    match unit {
        Unit::Bytes => Some(level.parse::<ByteSize>().ok()?.as_u64() as f64),
        Unit::Seconds => Some(humantime::parse_duration(level).ok()?.as_secs_f64()),
        _ => level
            .parse::<f64>()
            .ok()
            .filter(|value| value.is_finite() && *value >= 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> (Unit, Vec<f64>) {
        let axis: Axis = text.parse().unwrap();
        (
            axis.unit,
            axis.levels().iter().map(|level| level.value).collect(),
        )
    }

    #[test]
    fn levels_share_a_unit() {
        assert_eq!(
            values("connections=1, 8,64"),
            (Unit::Count, vec![1.0, 8.0, 64.0])
        );
        assert_eq!(
            values("body-size=0,1KiB,1MiB"),
            (Unit::Bytes, vec![0.0, 1024.0, 1_048_576.0])
        );
        assert_eq!(values("--delay=5ms,1s"), (Unit::Seconds, vec![0.005, 1.0]));
    }

    #[test]
    fn wide_levels_are_spaced_by_their_logarithm() {
        let scale = |text: &str| text.parse::<Axis>().unwrap().of_chart().scale;
        assert_eq!(scale("connections=1,8,64"), Scale::Log);
        assert_eq!(scale("shards=1,2,4"), Scale::Linear);
        assert_eq!(scale("body-size=0,1KiB,1MiB"), Scale::Log);
        assert_eq!(scale("body-size=0"), Scale::Linear);
    }

    #[test]
    fn errors_say_how_it_is_written() {
        for (text, expected) in [
            ("connections", "FLAG=LEVEL"),
            ("=1,2", "FLAG=LEVEL"),
            ("connections=,", "FLAG=LEVEL"),
            ("connections=1,many", "all numbers"),
            ("connections=1,-2", "all numbers"),
        ] {
            let error = text.parse::<Axis>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
