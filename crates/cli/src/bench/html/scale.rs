//! Maps values to places on an axis, and chooses the axis's marks.

/// How the axis runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From zero, equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios.
    Logarithmic,
}

/// An axis from `low` to `high` on `start..=end` pixels; `end` may be smaller than `start`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// Makes an axis from zero with room for `largest`.
    pub(super) fn linear(largest: f64, start: f64, end: f64) -> Self {
        Self { kind: Kind::Linear, low: 0.0, high: if largest > 0.0 { largest } else { 1.0 }, start, end }
    }

    /// Makes an axis with equal distances for equal ratios, a little wider than `smallest..=largest`, both above zero.
    pub(super) fn logarithmic(smallest: f64, largest: f64, start: f64, end: f64) -> Self {
        Self { kind: Kind::Logarithmic, low: smallest / 1.25, high: largest * 1.25, start, end }
    }

    /// Returns where `value` lies, in pixels.
    pub(super) fn place(self, value: f64) -> f64 {
        let part = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Logarithmic => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        self.start + part * (self.end - self.start)
    }

    /// Returns values to mark: round ones, few enough to label.
    pub(super) fn ticks(self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = round_step((self.high - self.low) / 5.0);
                let steps = ((self.high - self.low) / step).floor() as u32;
                (0..=steps).map(|number| f64::from(number) * step).collect()
            }
            Kind::Logarithmic => {
                let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
                // Over many decades the powers of ten suffice.
                let marks: &[f64] = if self.high / self.low > 2000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
                (first..=last)
                    .flat_map(|decade| marks.iter().map(move |mark| mark * 10_f64.powi(decade)))
                    .filter(|tick| (self.low..=self.high).contains(tick))
                    .collect()
            }
        }
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, … (and of their tenths) that is not below `step`.
fn round_step(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|mark| mark * decade)
        .find(|rounded| *rounded >= step * 0.999)
        .unwrap_or(10.0 * decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_start_at_zero() {
        let scale = Scale::linear(200.0, 10.0, 110.0);
        assert_eq!(scale.place(0.0), 10.0);
        assert_eq!(scale.place(200.0), 110.0);
        assert_eq!(scale.ticks(), [0.0, 50.0, 100.0, 150.0, 200.0]);
    }

    #[test]
    fn logarithmic_axes_give_equal_ratios_equal_room() {
        let scale = Scale::logarithmic(10.0, 1000.0, 0.0, 300.0);
        let (one, two, three) = (scale.place(10.0), scale.place(100.0), scale.place(1000.0));
        assert!((two - one - (three - two)).abs() < 1e-9);
        assert_eq!(scale.ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
    }

    #[test]
    fn an_axis_without_values_has_a_width() {
        assert!(Scale::linear(0.0, 0.0, 100.0).place(0.5).is_finite());
    }
}
