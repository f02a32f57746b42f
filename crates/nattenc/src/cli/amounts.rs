//! Sizes and times as they are written on the command line and in the environment.

use crate::failure::Failure;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The failure of a size that is none.
pub(super) fn no_size(from: &str, text: &str) -> Failure {
    Failure::config(format!("{from}: {text:?} is not a size"))
        .hint("write it as 12G or 800M; G and M are powers of 1024")
}

/// `12G`, `1.5G`, `800M` as bytes; `from` is what said so.
pub(super) fn size(from: &str, text: &str) -> anyhow::Result<u64> {
    bytes(text).ok_or_else(|| no_size(from, text).into())
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 1u64 << 30),
        None => (text.strip_suffix(['M', 'm'])?, 1 << 20),
    };
    let number: f64 = number.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0 && *n < 1e9)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Some((number * unit as f64) as u64)
}

/// `30d`, `5h30m`, `90s` as a time; `from` is what said so.
pub(super) fn duration(from: &str, text: &str) -> anyhow::Result<Duration> {
    time(text).ok_or_else(|| {
        Failure::config(format!("{from}: {text:?} is not a time"))
            .hint("write it as 30d, 5h30m, 90m or 45s: days, hours, minutes and seconds")
            .into()
    })
}

fn time(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return None;
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit = match tail.chars().next()? {
            's' => 1.0,
            'm' => 60.0,
            'h' => 3600.0,
            'd' => 86400.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = &tail[1..];
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_secs() < 1 << 32)
}

/// `5h30m` from now, or `2026-12-01T17:30:00Z`, with any offset; `from` is what said so. A moment that is past
/// is now.
pub(super) fn moment(from: &str, text: &str) -> anyhow::Result<Instant> {
    let left = match (time(text), since_epoch(text)) {
        (Some(left), _) => left,
        (None, Some(then)) => {
            then.saturating_sub(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
        }
        (None, None) => {
            return Err(Failure::config(format!("{from}: {text:?} is neither a time nor a moment"))
                .hint("write it as 330m or 5h30m from now, or as 2026-12-01T17:30:00Z (`date -Is -d 17:30` prints one)")
                .into());
        }
    };
    Instant::now().checked_add(left).ok_or_else(|| {
        Failure::config(format!("{from}: {text:?} is too far away")).hint("leave it out").into()
    })
}

/// A moment with its offset from UTC, as time since the epoch.
fn since_epoch(text: &str) -> Option<Duration> {
    let moment: toml::value::Datetime = text.parse().ok()?;
    let (date, time) = (moment.date?, moment.time?);
    let offset = match moment.offset? {
        toml::value::Offset::Z => 0,
        toml::value::Offset::Custom { minutes } => i64::from(minutes),
    };
    // Days since the epoch, in years that begin in March.
    let (month, day) = (i64::from(date.month), i64::from(date.day));
    let year = i64::from(date.year) - i64::from(month <= 2);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    let minutes = (days * 24 + i64::from(time.hour)) * 60 + i64::from(time.minute) - offset;
    u64::try_from(minutes * 60 + i64::from(time.second)).ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, size) in [
            ("12G", Some(12 << 30)),
            ("1.5g", Some(3 << 29)),
            ("800M", Some(800 << 20)),
            ("0G", Some(0)),
            ("12", None),
            ("G", None),
            ("-1G", None),
            ("infG", None),
            ("12GB", None),
        ] {
            assert_eq!(bytes(text), size, "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, milliseconds) in [
            ("30d", Some(30 * 86_400_000)),
            ("5h30m", Some(19_800_000)),
            ("330m", Some(19_800_000)),
            ("1.5s", Some(1500)),
            ("", None),
            ("30", None),
            ("m", None),
            ("-1s", None),
            ("1w", None),
            ("1h30", None),
            ("1.2.3s", None),
            ("99999999999d", None),
        ] {
            assert_eq!(time(text), milliseconds.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn moments_need_an_offset() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-12-01T17:30:00+01:00", Some(1_796_142_600)),
            ("2026-12-01T16:30:00Z", Some(1_796_142_600)),
            ("2024-12-31T23:59:59-05:30", Some(1_735_709_399)),
            ("2026-12-01T17:30:00", None),
            ("17:30", None),
            ("2026-12-01", None),
            ("2026-13-01T17:30:00Z", None),
        ] {
            assert_eq!(since_epoch(text), seconds.map(Duration::from_secs), "{text}");
        }
        let left = |text| moment("--deadline", text).unwrap().saturating_duration_since(Instant::now());
        assert!(left("90m") > Duration::from_secs(5390) && left("90m") <= Duration::from_secs(5400));
        assert_eq!(left("2001-01-01T00:00:00Z"), Duration::ZERO);
        let error = moment("--deadline", "17:30").unwrap_err().to_string();
        assert!(error.contains("--deadline") && error.contains("17:30"), "{error}");
    }
}
