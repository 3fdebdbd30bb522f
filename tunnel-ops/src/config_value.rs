//! Values in flags, environment variables and configuration files: durations, sizes, counts, addresses,
//! networks.
//!
//! Each type is parsed by `FromStr`, which both clap and serde use, so that a value has one meaning and one
//! error text in all three. Nothing here knows the purpose of a value.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{self, Deserializer, Visitor};

/// Longest accepted duration: a longer one is a mistake, and adding it to an instant could overflow.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A value is invalid. The text says what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// A duration with its unit: `250ms`, `5s`, `10m`, `1h 30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationText(Duration);

/// A duration longer than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PositiveDuration(Duration);

/// A duration of at least `MS` milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationFrom<const MS: u64>(Duration);

/// A size in bytes with its unit: `512B`, `64KiB`, `1MiB`, `2GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeText(u64);

/// A size between `MIN` and `MAX` KiB, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BoundedSize<const MIN: u32, const MAX: u32>(SizeText);

/// A size of at least `MIN` KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizeFrom<const MIN: u32>(SizeText);

/// A whole number between `MIN` and `MAX`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count<const MIN: u32, const MAX: u32>(u32);

/// The address of a listener: an IP address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenAddress(SocketAddr);

/// The address of a listener, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionalListenAddress(Option<SocketAddr>);

/// A network, or one address: `10.0.0.0/8`, `192.0.2.7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(IpNet);

impl ValueError {
    /// An error with this text: lower case, no full stop, saying what was expected.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl FromStr for DurationText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        // humantime accepts `0` without a unit. It is refused here, like `10`.
        if is_bare_number(text) {
            return Err(ValueError::new(
                "a duration needs a unit, such as `5s`, `250ms` or `10m`",
            ));
        }
        let duration = humantime::parse_duration(text).map_err(|error| {
            ValueError::new(format!(
                "expected a duration such as `5s`, `250ms` or `10m`: {error}"
            ))
        })?;
        if duration > MAX_DURATION {
            return Err(ValueError::new("expected a duration of at most 365 days"));
        }
        Ok(Self(duration))
    }
}

impl FromStr for PositiveDuration {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse()? {
            DurationText(Duration::ZERO) => Err(ValueError::new("must be longer than 0s")),
            DurationText(duration) => Ok(Self(duration)),
        }
    }
}

impl<const MS: u64> FromStr for DurationFrom<MS> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let DurationText(duration) = text.parse()?;
        let least = Duration::from_millis(MS);
        match duration >= least {
            true => Ok(Self(duration)),
            false => Err(ValueError::new(format!(
                "must be at least {}",
                duration_text(&least)
            ))),
        }
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl FromStr for SizeText {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let unit_at = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(unit_at);
        // Only binary units, because `64KB` is ambiguous: 64,000 or 65,536.
        let factor: u64 = match unit.trim_start() {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "" => {
                return Err(ValueError::new(
                    "a size needs a unit, such as `64KiB` or `1MiB`",
                ));
            }
            _ => {
                return Err(ValueError::new(
                    "expected a size such as `512B`, `64KiB`, `1MiB` or `2GiB`",
                ));
            }
        };
        let size = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(factor));
        size.map(Self).ok_or_else(|| {
            ValueError::new("expected a size such as `512B`, `64KiB`, `1MiB` or `2GiB`")
        })
    }
}

impl<const MIN: u32, const MAX: u32> FromStr for BoundedSize<MIN, MAX> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let size: SizeText = text.parse()?;
        let bytes = |kib: u32| u64::from(kib) << 10;
        match (bytes(MIN)..=bytes(MAX)).contains(&size.0) {
            true => Ok(Self(size)),
            false => Err(ValueError::new(format!(
                "must lie between {MIN}KiB and {MAX}KiB"
            ))),
        }
    }
}

impl<const MIN: u32> FromStr for SizeFrom<MIN> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let size: SizeText = text.parse()?;
        match size >= least::<MIN>() {
            true => Ok(Self(size)),
            false => Err(ValueError::new(format!(
                "must be at least {}",
                least::<MIN>()
            ))),
        }
    }
}

fn least<const KIB: u32>() -> SizeText {
    SizeText(u64::from(KIB) << 10)
}

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let whole = units
            .iter()
            .find(|(bits, _)| self.0 != 0 && self.0.trailing_zeros() >= *bits);
        match whole {
            Some((bits, unit)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl<const MIN: u32, const MAX: u32> FromStr for Count<MIN, MAX> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse::<u32>() {
            Ok(number) if (MIN..=MAX).contains(&number) => Ok(Self(number)),
            _ => Err(ValueError::new(format!(
                "expected a whole number from {MIN} to {MAX}"
            ))),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.parse().map(Self).map_err(|_| {
            ValueError::new(
                "expected an IP address with a port, such as `127.0.0.1:8080` or `[::]:8080`",
            )
        })
    }
}

impl FromStr for OptionalListenAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text == "off" {
            return Ok(Self(None));
        }
        match text.parse() {
            Ok(ListenAddress(address)) => Ok(Self(Some(address))),
            Err(ValueError(expected)) => Err(ValueError(format!("{expected}, or `off`"))),
        }
    }
}

impl FromStr for Network {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let network = text.parse::<IpNet>().ok();
        let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(|network| Self(network.trunc())).ok_or_else(|| {
            ValueError::new("expected a network such as `10.0.0.0/8`, or an address")
        })
    }
}

/// Whether two listeners would conflict: one port on equal addresses, or on addresses of which one includes
/// the other.
pub fn listeners_overlap(left: SocketAddr, right: SocketAddr) -> bool {
    let covers = |wide: IpAddr, narrow: IpAddr| {
        wide == narrow || (wide.is_unspecified() && (wide.is_ipv6() || narrow.is_ipv4()))
    };
    // Port 0 asks the system for a free one each time.
    left.port() == right.port()
        && left.port() != 0
        && (covers(left.ip(), right.ip()) || covers(right.ip(), left.ip()))
}

/// Deserializes by `FromStr`. Numbers and booleans are converted to text first, so that both `200` and
/// `"200"` are accepted as a count, and `5` or `true` as a duration gives that type's own error.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct Text<T>(std::marker::PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one value")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_bool<E: de::Error>(self, truth: bool) -> Result<T, E> {
            self.visit_str(&truth.to_string())
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_i128<E: de::Error>(self, number: i128) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u128<E: de::Error>(self, number: u128) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(Text(std::marker::PhantomData))
}

crate::text_value!(DurationText as Duration, |time| time.0, duration_text);
crate::text_value!(
    PositiveDuration as Duration,
    |time| time.0,
    duration_text,
    "more than 0s".to_owned()
);
crate::text_value!(
    for [const MS: u64] DurationFrom<MS> as Duration,
    |time| time.0,
    duration_text,
    format!("at least {}", duration_text(&Duration::from_millis(MS)))
);
crate::text_value!(SizeText as u64, |size| size.0, |bytes| SizeText(*bytes)
    .to_string());
crate::text_value!(
    for [const MIN: u32, const MAX: u32] BoundedSize<MIN, MAX> as usize,
    |size| to_usize(size.0.0),
    |bytes| SizeText(*bytes as u64).to_string(),
    format!("{MIN}KiB to {MAX}KiB")
);
crate::text_value!(
    for [const MIN: u32] SizeFrom<MIN> as u64,
    |size| size.0.0,
    |bytes| SizeText(*bytes).to_string(),
    format!("at least {}", least::<MIN>())
);
crate::text_value!(
    for [const MIN: u32, const MAX: u32] Count<MIN, MAX> as u32,
    |count| count.0,
    u32::to_string,
    format!("{MIN} to {MAX}")
);
crate::text_value!(
    ListenAddress as SocketAddr,
    |address| address.0,
    SocketAddr::to_string
);
crate::text_value!(
    OptionalListenAddress as Option<SocketAddr>,
    |address| address.0,
    |address| address.map_or_else(|| "off".to_owned(), |address| address.to_string())
);
crate::text_value!(Network as IpNet, |network| network.0, IpNet::to_string);

fn duration_text(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

/// Lists alternatives as in a sentence: "`a`, `b` or `c`".
pub fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Converts the number, saturating at the largest `usize`.
fn to_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn is_bare_number(text: &str) -> bool {
    let digits = text.trim();
    !digits.is_empty()
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn duration(text: &str) -> Result<Duration, String> {
        text.parse::<DurationText>()
            .map(|d| d.0)
            .map_err(|e| e.to_string())
    }

    fn size(text: &str) -> Result<u64, String> {
        text.parse::<SizeText>()
            .map(|s| s.0)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for text in ["0", "10", "1.5", "-3", " 7 "] {
            let error = duration(text).unwrap_err();
            assert!(error.contains("needs a unit"), "{text}: {error}");
        }
        for text in ["", "s", "5 parsecs", "-5s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(
            duration("366days").unwrap_err(),
            "expected a duration of at most 365 days"
        );
    }

    #[test]
    fn sizes_need_a_binary_unit() {
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(size("1 MiB"), Ok(1 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("7B"), Ok(7));
        assert!(size("64").unwrap_err().contains("needs a unit"));
        for text in ["64KB", "KiB", "-1B", "99999999999GiB", "1.5MiB", ""] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bounded_values_keep_their_bounds() {
        let size = |text: &str| {
            text.parse::<BoundedSize<8, 128>>()
                .map(usize::from)
                .map_err(|e| e.to_string())
        };
        assert_eq!(size("8KiB"), Ok(8192));
        assert_eq!(size("131072B"), Ok(131_072));
        for text in ["8191B", "131073B"] {
            assert_eq!(size(text).unwrap_err(), "must lie between 8KiB and 128KiB");
        }
        let buffer = |text: &str| text.parse::<SizeFrom<1024>>().map(u64::from);
        assert_eq!(buffer("1MiB"), Ok(1 << 20));
        for text in ["0B", "1023KiB"] {
            let error = buffer(text).unwrap_err().to_string();
            assert_eq!(error, "must be at least 1MiB", "{text}");
        }
        assert_eq!(
            "1ms".parse::<PositiveDuration>().map(Duration::from),
            Ok(Duration::from_millis(1))
        );
        assert_eq!(
            "0s".parse::<PositiveDuration>().unwrap_err().to_string(),
            "must be longer than 0s"
        );
    }

    #[test]
    fn counts_keep_their_range() {
        assert_eq!("4096".parse::<Count<1, 4096>>().map(u32::from), Ok(4096));
        let error = "0".parse::<Count<1, 4096>>().unwrap_err();
        assert_eq!(error.to_string(), "expected a whole number from 1 to 4096");
    }

    #[test]
    fn a_listener_can_be_off_only_where_allowed() {
        assert_eq!("off".parse(), Ok(OptionalListenAddress(None)));
        assert!("off".parse::<ListenAddress>().is_err());
        assert!(
            "localhost:80"
                .parse::<OptionalListenAddress>()
                .unwrap_err()
                .to_string()
                .ends_with("or `off`")
        );
    }

    #[test]
    fn networks_are_networks_or_addresses() {
        let text = |network: &str| {
            let network = network.parse::<Network>();
            network.map(|network| IpNet::from(network).to_string())
        };
        assert_eq!(text("10.1.2.3/8").as_deref(), Ok("10.0.0.0/8"));
        assert_eq!(text("192.0.2.7").as_deref(), Ok("192.0.2.7/32"));
        assert_eq!(text("::1").as_deref(), Ok("::1/128"));
        for bad in ["", "10.0.0.0/33", "localhost", "10.0.0/8"] {
            assert!(text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listeners_overlap_when_one_address_includes_the_other() {
        let meet = |l: &str, r: &str| listeners_overlap(l.parse().unwrap(), r.parse().unwrap());
        assert!(meet("127.0.0.1:80", "127.0.0.1:80"));
        assert!(meet("0.0.0.0:80", "127.0.0.1:80"));
        assert!(meet("127.0.0.1:80", "[::]:80"));
        assert!(!meet("127.0.0.1:0", "127.0.0.1:0"));
        assert!(!meet("127.0.0.1:80", "127.0.0.2:80"));
        assert!(!meet("0.0.0.0:80", "[::1]:80"));
        assert!(!meet("127.0.0.1:80", "127.0.0.1:81"));
    }

    proptest! {
        #[test]
        fn a_size_reads_back_as_written(bytes in any::<u64>()) {
            prop_assert_eq!(size(&SizeText(bytes).to_string()), Ok(bytes));
        }

        #[test]
        fn a_duration_reads_back_as_written(ms in 0u64..31_536_000_000) {
            let given = Duration::from_millis(ms);
            prop_assert_eq!(duration(&DurationText(given).to_string()), Ok(given));
        }

        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,20}") {
            let _ = duration(&text);
            let _ = size(&text);
            let _ = text.parse::<Count<0, 9>>();
            let _ = text.parse::<OptionalListenAddress>();
            let _ = text.parse::<Network>();
        }
    }
}
