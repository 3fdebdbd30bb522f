//! The rate of a link as people write it: bits a second, in steps of a thousand.

use std::{str::FromStr, time::Duration};

/// Names of the units, and their size in bits. The longer ones come first, as `bit` ends them all.
const UNITS: [(&str, f64); 4] = [("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// So many bits a second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(u64);

impl BitRate {
    /// Bits a second.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Bytes a second.
    pub fn bytes(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// How long so many bytes take.
    pub fn time(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes())
    }
}

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a rate is written as 200Mbit (kbit, Mbit or Gbit a second)".to_owned();
        let lower = text.trim().to_ascii_lowercase();
        let lower = lower.strip_suffix("/s").unwrap_or(&lower);
        let unit = |(name, size): &(&str, f64)| Some((lower.strip_suffix(name)?, *size));
        let (number, size) = UNITS.iter().find_map(unit).ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let bits = number * size;
        if (1.0..=1e15).contains(&bits) {
            Ok(Self(bits.round() as u64))
        } else {
            Err(wrong())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_people_write_it() {
        for (text, bits) in [
            ("200Mbit", 200_000_000),
            ("1.5 gbit/s", 1_500_000_000),
            ("64kbit", 64_000),
            ("9bit", 9),
        ] {
            assert_eq!(text.parse::<BitRate>().unwrap().bits(), bits, "{text}");
        }
        for text in [
            "", "200", "200MB", "-1Mbit", "0Mbit", "NaNbit", "infMbit", "bit",
        ] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
    }
}
