//! Programs whose modules give samples of times, in microseconds, one after another: `redis` and `python`.

use std::path::Path;

use super::{
    Arguments, BenchError, Outcome,
    modes::{Mode, ProgramError, Sink},
    record::{Figure, Unit},
};
use crate::{process, workspace::Workspace};

/// Rounds of a measurement, of a quick one as well.
const ROUNDS: usize = 5;
const QUICK_ROUNDS: usize = 1;

/// A measurement: the preload object, how many rounds at most, and who gets the samples.
pub(super) type Measure = fn(&Path, usize, &mut Sink<'_>) -> Result<(), ProgramError>;

/// Builds the preload object, lets `measure` use it, and makes figures of its samples.
pub(super) fn run(
    workspace: &Workspace,
    arguments: &Arguments,
    program: &'static str,
    measure: Measure,
) -> Result<Outcome, BenchError> {
    if arguments.check {
        return Err(BenchError::NothingToCheck { program });
    }
    process::stream(process::cargo(workspace).args(["build", "--release", "--package", "palimpsest-preload"]))?;
    let object = workspace.target.join("release/libpalimpsest_preload.so");
    let mut figures = Vec::new();
    let rounds = if arguments.quick { QUICK_ROUNDS } else { ROUNDS };
    measure(&object, rounds, &mut |id, sample| add(&mut figures, id, sample))?;
    Ok(Outcome { figures, remarks: Vec::new() })
}

/// Adds a sample to the figure `id`, whose last word is its mode.
fn add(figures: &mut Vec<Figure>, id: String, sample: f64) {
    if let Some(figure) = figures.iter_mut().find(|figure| figure.id == id) {
        figure.samples.push(sample);
        return;
    }
    let rivals = match id.rsplit_once('.') {
        Some((state, mode)) if mode.starts_with(Mode::Frozen.name()) => {
            [Mode::Plain, Mode::Thp].map(|rival| format!("{state}.{}", rival.name())).to_vec()
        }
        _ => Vec::new(),
    };
    figures.push(Figure { id, unit: Unit::Microseconds, samples: vec![sample], rivals, note: None });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_gather_in_figures_that_know_their_rivals() {
        let mut figures = Vec::new();
        for (id, sample) in
            [("redis.fork.idle.plain", 3.0), ("redis.fork.idle.frozen", 1.0), ("redis.fork.idle.plain", 5.0)]
        {
            add(&mut figures, id.to_owned(), sample);
        }
        assert_eq!(figures[0].samples, [3.0, 5.0]);
        assert!(figures[0].rivals.is_empty());
        assert_eq!(figures[1].rivals, ["redis.fork.idle.plain", "redis.fork.idle.thp"]);
    }
}
