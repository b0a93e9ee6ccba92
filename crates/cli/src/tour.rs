//! `palimpsest tour`: seven things that Palimpsest does, live, within half a minute. The default command.

mod lines;

use std::process::ExitCode;

use clap::Args;
use palimpsest_bench::harness::{BenchError, Effort, Group, Request, Suite, run as measure};
use palimpsest_bench::suites;

use crate::bench::output::{OutputError, Outputs};
use crate::{complain, exit};
use lines::Lines;

/// Where the figures go besides the terminal.
#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    outputs: Outputs,
    /// One round of each part: only check that it works.
    #[arg(long, hide = true)]
    check: bool,
}

/// Why the tour failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Output(#[from] OutputError),
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match show(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            if matches!(failure, Failure::Output(OutputError::Crowded { .. })) {
                exit::USAGE.into()
            } else {
                exit::FAILED.into()
            }
        }
    }
}

fn show(arguments: &Arguments) -> Result<(), Failure> {
    let outputs = arguments.outputs.open()?;
    let parts = suites::tour();
    let lines = Lines::new(outputs.take_standard_output(), &parts);
    // The first line appears before anything is looked at.
    lines.open(parts.len());
    let machine = suites::machine();
    lines.describe(&machine);
    let groups: Vec<Group> = parts.iter().flat_map(Suite::groups).collect();
    let request = Request::default().effort(if arguments.check { Effort::Check } else { Effort::Quick });
    let request = match std::env::current_exe() {
        Ok(program) if program.is_file() => request.program(program),
        // The parts that need it say so.
        _ => request,
    };
    let parts = parts.into_iter().map(|part| -> Box<dyn Suite> { Box::new(part) }).collect();
    let report = measure(parts, machine, &request, &lines)?;
    lines.close(&report);
    Ok(outputs.write("palimpsest tour", &report, &groups)?)
}
