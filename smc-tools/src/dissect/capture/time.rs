//! Timestamps of a capture.

use std::fmt;

/// A point in time of a capture. `Display` gives it in UTC, as RFC 3339 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Timestamp {
    /// Since 1970-01-01 00:00 UTC.
    seconds: i64,
    /// Below one second.
    nanos: u32,
    /// Whether the file records more than microseconds.
    precise: bool,
}

impl Timestamp {
    /// A time stamp of a classic pcap record.
    pub(crate) fn classic(seconds: u32, fraction: u32, nanoseconds: bool) -> Self {
        let nanos = match nanoseconds {
            true => u64::from(fraction),
            false => u64::from(fraction) * 1_000,
        };
        // A fraction above one second is wrong, but harmless.
        let carry = nanos / 1_000_000_000;
        Self {
            seconds: i64::from(seconds).saturating_add_unsigned(carry),
            nanos: u32::try_from(nanos % 1_000_000_000).unwrap_or(0),
            precise: nanoseconds,
        }
    }

    /// A point in time with nanoseconds.
    pub(crate) fn exact(seconds: i64, nanos: i64) -> Self {
        Self {
            seconds,
            nanos: u32::try_from(nanos).unwrap_or(0),
            precise: true,
        }
    }

    /// A time stamp of pcapng: `ticks` of `clock`.
    pub(crate) fn ng(ticks: u64, clock: Clock) -> Self {
        let per_second = u128::from(clock.per_second.max(1));
        let seconds = u128::from(ticks) / per_second;
        let nanos = u128::from(ticks) % per_second * 1_000_000_000 / per_second;
        Self {
            seconds: i64::try_from(seconds)
                .unwrap_or(i64::MAX)
                .saturating_add(clock.offset),
            nanos: u32::try_from(nanos).unwrap_or(0),
            precise: clock.per_second > 1_000_000,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: i64 = 86_400;
        let (year, month, day) = civil(self.seconds.div_euclid(DAY));
        let second = self.seconds.rem_euclid(DAY);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}."
        )?;
        match self.precise {
            true => write!(f, "{:09}Z", self.nanos),
            false => write!(f, "{:06}Z", self.nanos / 1_000),
        }
    }
}

/// How an interface of a pcapng file counts time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Ticks in a second.
    pub(crate) per_second: u64,
    /// Seconds to add.
    pub(crate) offset: i64,
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years are taken
/// to begin in March, so that the leap day comes last; 400 of them have 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year_of_era + era * 400 + carry, month, day)
}
