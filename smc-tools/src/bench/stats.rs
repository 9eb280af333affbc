//! Statistics of several rounds, and when they prove nothing.

use std::fmt;

use serde::Serialize;

/// Median and spread of the rounds of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) rounds: usize,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// How far the rounds lie apart: see [`Spread::of`].
    pub(super) spread: f64,
}

impl Spread {
    /// `None` if there are no values.
    ///
    /// The spread is the range of all values while there are less than [`MANY`], and that of the
    /// middle half of them from then on: one round in which the machine did something else must
    /// not spoil what many others agree on.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let spread = match values.len() < MANY {
            true => max - min,
            false => quantile(&values, 0.75) - quantile(&values, 0.25),
        };
        Some(Self {
            rounds: values.len(),
            median: quantile(&values, 0.5),
            min,
            max,
            spread,
        })
    }

    /// Half the spread in percent of the median.
    fn percent(&self) -> f64 {
        if self.median == 0.0 {
            0.0
        } else {
            50.0 * self.spread / self.median
        }
    }
}

/// What may be concluded from two spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// The medians differ by more than the rounds do.
    Better,
    /// The same, the other way round.
    Worse,
    /// The rounds differ by as much as the medians, or are too few.
    Unclear,
}

impl fmt::Display for Spread {
    /// As an addition to the median; nothing if there was one round only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rounds {
            1 => Ok(()),
            _ => write!(f, "±{:.0}%", self.percent()),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A figure of one transport beside the same of another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Comparison {
    /// How many times better it is, by the medians; less than 1 is worse.
    pub(super) ratio: f64,
    pub(super) verdict: Verdict,
}

impl Comparison {
    /// How `this` compares to `base`.
    pub(super) fn new(this: &Spread, base: &Spread, is_higher_better: bool) -> Option<Self> {
        let (over, under) = match is_higher_better {
            true => (this.median, base.median),
            false => (base.median, this.median),
        };
        if under == 0.0 {
            return None;
        }
        let difference = (this.median - base.median).abs();
        let is_clear =
            this.rounds.min(base.rounds) >= FEW && difference > this.spread.max(base.spread);
        let verdict = match is_clear {
            false => Verdict::Unclear,
            true if over > under => Verdict::Better,
            true => Verdict::Worse,
        };
        Some(Self {
            ratio: over / under,
            verdict,
        })
    }
}

/// Of values in ascending order, at least one; between two of them where need be.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let place = at * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    let share = place - place.floor();
    sorted[below] * (1.0 - share) + sorted[above] * share
}

/// Rounds that show a spread at all.
const FEW: usize = 3;

/// Rounds from which on the middle half counts.
const MANY: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(this: &[f64], base: &[f64], is_higher_better: bool) -> Comparison {
        let [this, base] = [this, base].map(|values| Spread::of(values).unwrap());
        Comparison::new(&this, &base, is_higher_better).unwrap()
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(&[7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn few_rounds_all_count_and_of_many_the_middle_half() {
        let few = Spread::of(&[10.0, 11.0, 12.0, 30.0]).unwrap();
        assert_eq!((few.spread, few.min, few.max), (20.0, 10.0, 30.0));
        let many = Spread::of(&[10.0, 11.0, 12.0, 13.0, 30.0]).unwrap();
        assert_eq!((many.spread, many.max), (2.0, 30.0));
        assert_eq!(Spread::of(&[8.0, 10.0, 12.0]).unwrap().percent(), 20.0);
    }

    #[test]
    fn a_ratio_above_one_is_better_whatever_the_figure() {
        let rate = compare(&[20.0, 20.0, 20.0], &[10.0, 10.0, 10.0], true);
        assert_eq!((rate.ratio, rate.verdict), (2.0, Verdict::Better));
        let latency = compare(&[20.0, 20.0, 20.0], &[10.0, 10.0, 10.0], false);
        assert_eq!((latency.ratio, latency.verdict), (0.5, Verdict::Worse));
    }

    #[test]
    fn nothing_is_concluded_when_the_rounds_differ_more_than_the_medians() {
        let noisy = compare(&[9.0, 12.0, 15.0], &[10.0, 10.0, 10.0], true);
        assert_eq!((noisy.ratio, noisy.verdict), (1.2, Verdict::Unclear));
        let base = compare(&[12.0, 12.0, 12.0], &[7.0, 10.0, 13.0], true);
        assert_eq!(base.verdict, Verdict::Unclear);
        let same = compare(&[10.0, 10.0, 10.0], &[10.0, 10.0, 10.0], true);
        assert_eq!((same.ratio, same.verdict), (1.0, Verdict::Unclear));
    }

    #[test]
    fn nothing_is_concluded_from_too_few_rounds() {
        let once = compare(&[100.0, 100.0], &[1.0, 1.0], true);
        assert_eq!((once.ratio, once.verdict), (100.0, Verdict::Unclear));
    }

    #[test]
    fn nothing_compares_to_zero() {
        let [some, zero] = [[1.0; 3], [0.0; 3]].map(|values| Spread::of(&values).unwrap());
        assert_eq!(Comparison::new(&some, &zero, true), None);
        assert_eq!(Comparison::new(&zero, &some, false), None);
    }
}
