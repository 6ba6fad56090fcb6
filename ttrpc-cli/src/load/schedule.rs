//! A rate or a concurrency over the time of a load: constant, a ramp, or steps.

use std::{fmt, str::FromStr, time::Duration};

/// What there is of something at each time.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    Constant(f64),
    /// From the first to the second, evenly.
    Ramp(f64, f64),
    /// Each for an equal part of the time.
    Steps(Vec<f64>),
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.trim().parse::<f64>() {
            Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
            _ => Err(format!(
                "`{text}` is no number above 0; give one (100), a ramp (100..5000) or steps (100,500,2000)"
            )),
        };
        if let Some((from, to)) = text.split_once("..") {
            return Ok(Schedule::Ramp(number(from)?, number(to)?));
        }
        let numbers: Vec<f64> = text.split(',').map(number).collect::<Result<_, _>>()?;
        Ok(match numbers[..] {
            [only] => Schedule::Constant(only),
            _ => Schedule::Steps(numbers),
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant(value) => write!(f, "{value}"),
            Schedule::Ramp(from, to) => write!(f, "{from}..{to}"),
            Schedule::Steps(values) => {
                let values: Vec<_> = values.iter().map(f64::to_string).collect();
                f.write_str(&values.join(","))
            }
        }
    }
}

/// Whole numbers in a range.
///
/// # Errors
/// For others.
pub fn parse_counts(text: &str) -> Result<Schedule, String> {
    let schedule: Schedule = text.parse()?;
    let range = 1.0..=65_536.0;
    let fits = |count: &f64| count.fract() == 0.0 && range.contains(count);
    match schedule.values().iter().all(fits) {
        true => Ok(schedule),
        false => Err("a number of calls in flight is from 1 to 65536".to_owned()),
    }
}

impl Schedule {
    fn values(&self) -> Vec<f64> {
        match self {
            Schedule::Constant(value) => vec![*value],
            Schedule::Ramp(from, to) => vec![*from, *to],
            Schedule::Steps(values) => values.clone(),
        }
    }

    pub fn is_constant(&self) -> bool {
        matches!(self, Schedule::Constant(_))
    }

    /// The number of steps, if it has some.
    pub fn steps(&self) -> Option<usize> {
        match self {
            Schedule::Steps(values) => Some(values.len()),
            _ => None,
        }
    }

    pub fn max(&self) -> f64 {
        self.values().into_iter().fold(0.0, f64::max)
    }

    /// The value at a time of a load that takes so long.
    pub fn at(&self, time: Duration, whole: Duration) -> f64 {
        let part = (time.as_secs_f64() / whole.as_secs_f64().max(1e-9)).clamp(0.0, 1.0);
        match self {
            Schedule::Constant(value) => *value,
            Schedule::Ramp(from, to) => from + (to - from) * part,
            Schedule::Steps(values) => {
                values[((part * values.len() as f64) as usize).min(values.len() - 1)]
            }
        }
    }

    /// When a rate has made so many, in a load that takes so long; `None` for never.
    pub fn time_of(&self, count: u64, whole: Duration) -> Option<Duration> {
        let (count, seconds) = (count as f64, whole.as_secs_f64());
        let time = match self {
            Schedule::Constant(rate) => count / rate,
            Schedule::Ramp(from, to) => {
                // The solution of `from · t + slope · t² / 2 = count` that stays exact for a slope near 0.
                let slope = (to - from) / seconds;
                let root = from * from + 2.0 * count * slope;
                if root < 0.0 {
                    return None;
                }
                2.0 * count / (from + root.sqrt())
            }
            Schedule::Steps(rates) => {
                let (mut left, length) = (count, seconds / rates.len() as f64);
                let mut begin = 0.0;
                let mut time = None;
                for rate in rates {
                    if left < rate * length {
                        time = Some(begin + left / rate);
                        break;
                    }
                    left -= rate * length;
                    begin += length;
                }
                time?
            }
        };
        Duration::try_from_secs_f64(time).ok()
    }

    /// How many a rate has made by then.
    pub fn count_by(&self, time: Duration, whole: Duration) -> u64 {
        let (time, seconds) = (time.as_secs_f64(), whole.as_secs_f64());
        let count = match self {
            Schedule::Constant(rate) => time * rate,
            Schedule::Ramp(from, to) => {
                from * time + (to - from) / seconds.max(1e-9) * time * time / 2.0
            }
            Schedule::Steps(rates) => {
                let length = seconds / rates.len() as f64;
                let of = |(at, rate): (usize, &f64)| {
                    (time - at as f64 * length).clamp(0.0, length) * rate
                };
                rates.iter().enumerate().map(of).sum()
            }
        };
        count.ceil() as u64
    }

    /// The next time at which there are more than so many; `None` if there never are again.
    pub fn next_above(&self, count: f64, now: Duration, whole: Duration) -> Option<Duration> {
        if self.at(now, whole).floor() > count {
            return Some(now);
        }
        match self {
            Schedule::Constant(_) => None,
            Schedule::Ramp(from, to) => {
                let part = (count + 1.0 - from) / (to - from);
                let is_ahead = to > from && part <= 1.0;
                let time = Duration::try_from_secs_f64(whole.as_secs_f64() * part.max(0.0));
                let soon = now.saturating_add(Duration::from_micros(1));
                is_ahead.then(|| time.unwrap_or(Duration::MAX).max(soon))
            }
            Schedule::Steps(values) => {
                let length = whole / u32::try_from(values.len()).unwrap_or(u32::MAX);
                let begin = |at: usize| length * u32::try_from(at).unwrap_or(u32::MAX);
                let later = (0..values.len()).find(|at| begin(*at) > now && values[*at] > count);
                later.map(begin)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Duration = Duration::from_secs(10);

    fn of(text: &str) -> Schedule {
        text.parse().unwrap()
    }

    #[test]
    fn a_schedule_is_a_number_a_ramp_or_steps() {
        assert_eq!(of("100"), Schedule::Constant(100.0));
        assert_eq!(of("1..5"), Schedule::Ramp(1.0, 5.0));
        assert_eq!(of("1, 2,3"), Schedule::Steps(vec![1.0, 2.0, 3.0]));
        for wrong in ["", "0", "-1", "a", "1..", "..", "1,,2", "inf", "NaN", "1..0"] {
            assert!(wrong.parse::<Schedule>().is_err(), "{wrong}");
        }
        assert!(parse_counts("1..64").is_ok() && parse_counts("1.5").is_err());
        assert!(parse_counts("65537").is_err());
        for text in ["100", "1..5", "1,2,3"] {
            assert_eq!(of(text).to_string(), text);
        }
    }

    #[test]
    fn calls_are_due_when_the_rate_has_made_as_many() {
        for text in ["100", "10..200", "200..10", "10,500,20"] {
            let rate = of(text);
            let all = rate.count_by(WHOLE, WHOLE);
            let mut before = Duration::ZERO;
            for count in 0..all {
                let due = rate.time_of(count, WHOLE).unwrap();
                assert!(due >= before && due <= WHOLE, "{text}: {count} at {due:?}");
                let counted = rate.count_by(due, WHOLE);
                assert!(counted.abs_diff(count) <= 1, "{text}: {count} at {due:?}, {counted}");
                before = due;
            }
        }
        assert_eq!(of("10..200").count_by(WHOLE, WHOLE), 1050);
        // The rate falls to nothing that would make more.
        assert!(of("10,10").time_of(1000, WHOLE).is_none());
        assert!(of("1e-300").time_of(1, WHOLE).is_none());
    }

    #[test]
    fn a_worker_waits_until_it_is_needed() {
        let next = |text: &str, count: f64, seconds| {
            let next = of(text).next_above(count, Duration::from_secs(seconds), WHOLE);
            next.map(|time| time.as_secs())
        };
        assert_eq!(next("4", 3.0, 2), Some(2));
        assert_eq!(next("4", 4.0, 2), None);
        assert_eq!(next("1..11", 5.0, 0), Some(5));
        assert_eq!(next("11..1", 5.0, 0), Some(0));
        assert_eq!(next("11..1", 5.0, 8), None);
        assert_eq!(next("1,8", 3.0, 0), Some(5));
        assert_eq!(next("8,1", 3.0, 6), None);
        for text in ["1..11", "1,8"] {
            for whole in [Duration::MAX, Duration::ZERO] {
                let _ = of(text).next_above(5.0, Duration::ZERO, whole);
                let _ = (of(text).time_of(5, whole), of(text).count_by(whole, whole));
            }
        }
    }
}
