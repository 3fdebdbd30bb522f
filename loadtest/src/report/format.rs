//! Numbers as people read them: three significant digits, and a unit that keeps them short.
//!
//! In go bare values in seconds, bytes, events or quantiles; out come words such as `87.0 µs`. The
//! renderings for people share it, so that a figure looks alike wherever it is shown. What is not
//! finite is written as a dash. Nothing here knows what is being measured.

use super::Unit;

/// What stands where there is no number.
pub(crate) const NONE: &str = "–";

/// A unit of a family: how many of the basic unit it holds, and its name.
type Step = (f64, &'static str);

const SECONDS: [Step; 4] = [(1e-9, " ns"), (1e-6, " µs"), (1e-3, " ms"), (1.0, " s")];
const BYTES: [Step; 5] = [
    (1.0, " B"),
    (1024.0, " KiB"),
    (1_048_576.0, " MiB"),
    (1_073_741_824.0, " GiB"),
    (1_099_511_627_776.0, " TiB"),
];
/// A duration: `87.0 µs`, `1.25 ms`, `12.3 s`.
pub(crate) fn seconds(value: f64) -> String {
    if value == 0.0 {
        return "0 s".to_owned();
    }
    scaled(value, &SECONDS)
}

/// A size: `512 B`, `34.1 MiB`.
pub(crate) fn bytes(value: f64) -> String {
    // Below a kibibyte nothing is rounded: there are no parts of a byte.
    if value.abs() < 1_000.0 {
        return suffixed(count(value), " B");
    }
    scaled(value, &BYTES)
}

/// A throughput: `1.20 GiB/s`.
pub(crate) fn bytes_per_second(value: f64) -> String {
    suffixed(bytes(value), "/s")
}

/// A rate: `18,342/s`.
pub(crate) fn per_second(value: f64) -> String {
    suffixed(count(value), "/s")
}

/// A bare number: `1,024`, `0.97`.
pub(crate) fn count(value: f64) -> String {
    if !value.is_finite() {
        NONE.to_owned()
    } else if value == value.trunc() {
        grouped(value, 0)
    } else {
        significant(value)
    }
}

/// A quantile from 0 to 1, with as many nines as it has: `50 %`, `99.9 %`.
pub(crate) fn percentile(quantile: f64) -> String {
    if !quantile.is_finite() {
        return NONE.to_owned();
    }
    let nines = -(1.0 - quantile).max(1e-9).log10();
    // One digit more than there are nines, so that neighbours differ.
    let digits = (nines + 1.0).clamp(0.0, 9.0) as usize;
    format!("{} %", trimmed(&format!("{:.*}", digits, quantile * 100.0)))
}

/// This figure, or a dash.
pub(crate) fn cell<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| NONE.to_owned(), show)
}

/// A value of an axis, in full.
pub(crate) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Count => count(value),
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => bytes_per_second(value),
        Unit::PerSecond => per_second(value),
        Unit::Quantile => percentile(value),
        Unit::Seconds => seconds(value),
    }
}

/// A mark on an axis: as [`value`], without digits that say nothing.
pub(crate) fn tick(unit: Unit, mark: f64) -> String {
    let text = value(unit, mark);
    match text.split_once(' ') {
        Some((number, unit)) => format!("{} {unit}", trimmed(number)),
        None => text,
    }
}

/// The value in the unit that fits it.
fn scaled(value: f64, steps: &[Step]) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    let (size, name) = fitting(value, steps);
    significant(value / size) + name
}

/// The largest unit of which there is at least one once the value is rounded, else the smallest.
fn fitting(value: f64, steps: &[Step]) -> Step {
    let rounded = value.abs() * 1.0005;
    (steps.iter().rev().find(|(size, _)| rounded >= *size))
        .or_else(|| steps.first())
        .copied()
        .unwrap_or((1.0, ""))
}

/// Three significant digits, or all digits before the point.
fn significant(number: f64) -> String {
    let digits = (2 - magnitude(number)).clamp(0, 9) as usize;
    grouped(number, digits)
}

/// The power of ten of the first digit, once the number is rounded to three.
fn magnitude(number: f64) -> i32 {
    match (number.abs() * 1.0005).log10() {
        power if power.is_finite() => power.floor() as i32,
        _ => 0,
    }
}

/// The number with commas between thousands.
fn grouped(number: f64, digits: usize) -> String {
    let plain = format!("{number:.digits$}");
    let (sign, plain) = match plain.strip_prefix('-') {
        Some(rest) if rest.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) => ("-", rest),
        Some(rest) => ("", rest),
        None => ("", plain.as_str()),
    };
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out.push_str(fraction);
    out
}

/// Without the zeros that end a fraction.
fn trimmed(number: &str) -> &str {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.')
}

/// With a suffix, unless there is no number.
fn suffixed(number: String, suffix: &str) -> String {
    if number == NONE {
        number
    } else {
        number + suffix
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits_and_the_unit_that_fits() {
        let cases = [
            (0.0, "0 s"),
            (8.7e-8, "87.0 ns"),
            (8.7e-5, "87.0 µs"),
            (0.001_25, "1.25 ms"),
            (0.012_34, "12.3 ms"),
            (12.345, "12.3 s"),
            (3_605.0, "3,605 s"),
            // Rounding must not leave a thousand of the smaller unit.
            (0.000_999_7, "1.00 ms"),
            (9.999e-6, "10.0 µs"),
        ];
        for (value, text) in cases {
            assert_eq!(seconds(value), text);
        }
    }

    #[test]
    fn sizes_are_binary_and_whole_below_a_kibibyte() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1_536.0), "1.50 KiB");
        assert_eq!(bytes(1_048_575.0), "1.00 MiB");
        assert_eq!(bytes_per_second(2.5 * 1_073_741_824.0), "2.50 GiB/s");
    }

    #[test]
    fn counts_and_rates_keep_their_digits() {
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(0.4949), "0.495");
        assert_eq!(count(-1_234.0), "-1,234");
        assert_eq!(count(-0.0), "0");
        assert_eq!(per_second(18_342.4), "18,342/s");
        assert_eq!(per_second(0.5), "0.500/s");
    }

    #[test]
    fn percentiles_show_the_nines_that_matter() {
        let cases = [
            (0.0, "0 %"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.99, "99 %"),
            (0.995, "99.5 %"),
            (0.999, "99.9 %"),
            (0.999_87, "99.987 %"),
            (1.0, "100 %"),
        ];
        for (value, text) in cases {
            assert_eq!(percentile(value), text);
        }
    }

    #[test]
    fn marks_have_no_digit_that_says_nothing() {
        assert_eq!(tick(Unit::Seconds, 0.5), "500 ms");
        assert_eq!(tick(Unit::PerSecond, 20_000.0), "20,000/s");
        assert_eq!(
            tick(Unit::BytesPerSecond, 1.5 * 1_073_741_824.0),
            "1.5 GiB/s"
        );
        assert_eq!(tick(Unit::Count, 256.0), "256");
        assert_eq!(tick(Unit::Bytes, 0.0), "0 B");
    }

    #[test]
    fn what_is_not_finite_is_a_dash() {
        let units = [
            Unit::Count,
            Unit::Bytes,
            Unit::BytesPerSecond,
            Unit::PerSecond,
            Unit::Quantile,
            Unit::Seconds,
        ];
        for unit in units {
            for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                assert_eq!(value(unit, number), NONE);
                assert_eq!(tick(unit, number), NONE);
            }
        }
    }
}
