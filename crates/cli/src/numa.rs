//! `palimpsest numa`: the nodes of this machine, and where the memory of a process is.

mod machine;
mod picture;
mod process;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use palimpsest_numa::{Topology, current_node, locating};
use rustix::process::Pid;
use serde::Serialize;

use crate::{complain, exit};
use machine::Machine;
use process::{Detail, Process, ProcessError};

/// Shows the NUMA nodes of this machine; or, for a process, how much of its text, data and copies is on which node.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Look at this process
    #[arg(value_parser = pid)]
    process: Option<Pid>,
    /// Show every page of it: the node's number, `.` for absent, `?` for unknown
    #[arg(long, requires = "process")]
    pages: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// A process as the command line names it.
pub(crate) fn pid(text: &str) -> Result<Pid, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.and_then(Pid::from_raw).ok_or_else(|| "a process id is a number above 0".to_owned())
}

/// Why nothing was shown.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("cannot make JSON of it")]
    Json(#[from] serde_json::Error),
    #[error("the report cannot be written")]
    Output(#[from] io::Error),
}

/// Does what the line says.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match report(arguments).and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            ExitCode::from(exit::FAILED)
        }
    }
}

fn report(arguments: &Arguments) -> Result<String, Failure> {
    let Some(pid) = arguments.process else {
        let machine = Machine::new(&Topology::read(), current_node(), locating());
        return Ok(if arguments.json { json(&machine)? } else { machine.to_string() });
    };
    let detail = if arguments.pages { Detail::Pages } else { Detail::Mappings };
    let process = Process::read(pid, detail)?;
    Ok(if arguments.json { json(&process)? } else { picture::of(&process) })
}

fn json(report: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(report).map(|text| text + "\n")
}

fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has seen enough, as in `palimpsest numa 1 | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
