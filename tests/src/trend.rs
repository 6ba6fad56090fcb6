//! Whether a figure that is sampled over time rises for ever, or only stands higher than before.
//!
//! Memory of a process that leaks nothing goes up in steps: an allocator's arena grows when chance brings more
//! together than ever before, and stays so. A leak goes on in every part of the run. So a figure rises if it has grown by
//! more than it may, and has done so throughout.

/// Parts of a run.
const PARTS: usize = 8;

/// Parts in which everything gets as large as it has to be.
const WARM_UP: usize = 2;

/// Steps from one part to the next that may be none, though the figure rises.
const PAUSES: usize = 1;

/// The medians of a run's parts, without those of its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend([f64; PARTS - WARM_UP]);

impl Trend {
    /// The trend of these samples, which were taken at regular intervals.
    pub fn of(values: &[f64]) -> Self {
        let part =
            |nth: usize| &values[values.len() * nth / PARTS..values.len() * (nth + 1) / PARTS];
        let mut medians = [0.0; PARTS - WARM_UP];
        for (nth, of_part) in medians.iter_mut().enumerate() {
            *of_part = median(part(nth + WARM_UP));
        }
        Trend(medians)
    }

    /// The median of the first part that counts, and that of the last one.
    pub fn ends(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }

    /// Whether the figure goes on rising: it has grown by more than a tenth and `room`, and in all parts but one by at
    /// least a quarter of what it grows in a part on average.
    pub fn rises(&self, room: f64) -> bool {
        let (early, late) = self.ends();
        let steps = self.0.len() - 1;
        let least = (late - early) / steps as f64 / 4.0;
        let rising = self.0.windows(2).filter(|pair| pair[1] - pair[0] >= least).count();
        late > early * 1.1 + room && rising >= steps - PAUSES
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Usage;

    const SAMPLES: usize = 240;

    /// What a random load adds, from one sample to the next.
    fn noise(nth: usize) -> f64 {
        (nth.wrapping_mul(0x9e37_79b9) >> 7) as f64 % 100.0 / 100.0
    }

    fn samples(value: impl Fn(f64) -> f64) -> Vec<f64> {
        (0..SAMPLES).map(|nth| value(nth as f64 / SAMPLES as f64) + noise(nth)).collect()
    }

    /// The second is the one that once failed: 20.5 MiB in the second quarter, 27.2 in the last.
    #[test]
    fn a_figure_that_goes_up_in_steps_and_stays_there_does_not_rise() {
        for (name, values) in [
            ("flat", samples(|_| 20.0)),
            ("a step", samples(|time| if time < 0.6 { 20.0 } else { 26.7 })),
            ("two steps", samples(|time| 20.0 + 4.0 * (time / 0.4).floor())),
            ("three steps", samples(|time| 20.0 + 3.0 * (time / 0.3).floor())),
            ("ever slower", samples(|time| 20.0 + 8.0 * (1.0 - (-12.0 * time).exp()))),
            ("a burst", samples(|time| if (0.5..0.6).contains(&time) { 60.0 } else { 20.0 })),
            ("falling", samples(|time| 40.0 - 20.0 * time)),
            ("nothing", Vec::new()),
        ] {
            assert!(!Trend::of(&values).rises(2.0), "{name}: {:?}", Trend::of(&values));
        }
    }

    /// Controls: whatever leaks is found, also beside a step.
    #[test]
    fn a_figure_that_goes_on_growing_rises() {
        for (name, values) in [
            ("a leak", samples(|time| 20.0 + 8.0 * time)),
            ("a large leak", samples(|time| 20.0 + 800.0 * time)),
            (
                "a leak with a step",
                samples(|time| 20.0 + 12.0 * time + if time < 0.5 { 0.0 } else { 6.0 }),
            ),
            (
                "a leak with a pause",
                samples(|time| 20.0 + 12.0 * (time.min(0.5) + (time - 0.65).max(0.0))),
            ),
            ("ever faster", samples(|time| 20.0 + 20.0 * time * time)),
            ("descriptors", samples(|time| 40.0 + 60.0 * time)),
        ] {
            assert!(Trend::of(&values).rises(2.0), "{name}: {:?}", Trend::of(&values));
        }
    }

    /// The control on a real process, which keeps 64 KiB from each sample to the next.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_leaks_is_caught() {
        let memory = || Usage::of_this_process().unwrap().memory as f64 / f64::from(1 << 20);
        let mut leaked = Vec::new();
        let leaking: Vec<_> = (0..2 * SAMPLES)
            .map(|nth| {
                leaked.push(vec![nth as u8 | 1; 64 << 10]);
                memory()
            })
            .collect();
        assert!(Trend::of(&leaking).rises(2.0), "{:?}", Trend::of(&leaking));
        let resting: Vec<_> = (0..2 * SAMPLES).map(|_| memory()).collect();
        assert!(!Trend::of(&resting).rises(2.0), "{:?}", Trend::of(&resting));
        assert_eq!(leaked.len(), 2 * SAMPLES);
    }
}
