//! `palimpsest top`: what freezing and gathering costs running processes, and what it saves them.
//!
//! A process tells it in its own memory ([`palimpsest_fork::figures`]), which this program reads as a debugger would:
//! it needs the right to (`ptrace(2)`), and gives nobody any. Everything that it reads may come from an attacker.

mod figures;
mod folder;
mod found;
mod looker;
mod process;
mod refusal;
mod table;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use rustix::process::Pid;

use crate::{complain, exit};
use looker::{Looker, Patience, Process};
use process::{Detail, Look, Untold};

/// How long looking at processes may take: one that lets its memory be read on its own terms can take for ever.
const PATIENCE: Patience = Patience { silence: Duration::from_secs(2), round: Duration::from_secs(10) };

/// Shows what is frozen in processes or gathered in huge pages, what that has cost and saved, and when it pays, again
/// and again.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Look at these processes; without any, at all that `run` serves or that are frozen
    #[arg(value_parser = crate::numa::pid, value_name = "PID")]
    processes: Vec<Pid>,
    /// Show every mapping of frozen or gathered memory
    #[arg(short, long)]
    verbose: bool,
    /// Look once
    #[arg(long)]
    once: bool,
    /// Print JSON: for each look a line with a list of processes
    #[arg(long)]
    json: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,
}

/// Why nothing was shown.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot list processes in /proc; is it mounted here?")]
    List(#[source] io::Error),
    #[error("cannot make JSON of it")]
    Json(#[from] serde_json::Error),
    #[error("it cannot be written")]
    Output(#[source] io::Error),
}

/// Does what the line says.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    match watch(arguments) {
        Ok(code) => code,
        // The reader has seen enough, as in `palimpsest top | head`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            complain(&failure);
            ExitCode::from(exit::FAILED)
        }
    }
}

fn watch(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let detail = if arguments.verbose { Detail::Mappings } else { Detail::Sums };
    let named = !arguments.processes.is_empty();
    let is_wanted = move |pid| named || found::is_worth_a_look(pid);
    let mut looker = Looker::new(PATIENCE, move |pid| is_wanted(pid).then(|| process::look(pid, detail)));
    let mut code = ExitCode::SUCCESS;
    loop {
        let pids = if named { each_once(&arguments.processes) } else { found::all().map_err(Failure::List)? };
        let processes: Vec<Process> = pids.into_iter().map(Process::of).collect();
        let mut looks = looker.look(&processes);
        if !named {
            // Gone since the list was made.
            looks.retain(|look| !matches!(look.untold, Some(Untold::Absent | Untold::Ended)));
        }
        let is_told = |look: &Look| look.untold.as_ref().is_none_or(|untold| !untold.is_failure());
        if !looks.iter().all(is_told) && arguments.once {
            code = ExitCode::from(exit::FAILED);
        }
        let is_over = named && looks.iter().all(|look| matches!(look.untold, Some(Untold::Absent | Untold::Ended)));
        show(arguments, &looks)?;
        if arguments.once {
            return Ok(code);
        }
        if is_over {
            return Ok(ExitCode::from(if looker.has_seen() { 0 } else { exit::FAILED }));
        }
        thread::sleep(Duration::from_secs(arguments.every.into()));
    }
}

fn each_once(pids: &[Pid]) -> Vec<Pid> {
    let mut seen = HashSet::new();
    pids.iter().copied().filter(|&pid| seen.insert(pid)).collect()
}

/// Returns the looks as one line of JSON without control characters for a terminal: names can contain any sign.
fn json(looks: &[Look]) -> Result<String, serde_json::Error> {
    let mut text = String::new();
    // Outside strings all signs are plain; control characters below the blank are escaped already.
    for sign in serde_json::to_string(looks)?.chars() {
        if matches!(sign, ' '..='~') {
            text.push(sign);
        } else {
            for unit in sign.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    Ok(text + "\n")
}

/// Clears a terminal and moves to its upper left corner.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn show(arguments: &Arguments, looks: &[Look]) -> Result<(), Failure> {
    let mut text = if arguments.json { json(looks)? } else { table::of(looks) };
    let mut output = io::stdout().lock();
    if !arguments.once && !arguments.json {
        let is_terminal = output.is_terminal();
        text = if is_terminal { format!("{CLEAR}{text}") } else { text + "\n" };
    }
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_json_do_not_talk_to_the_terminal() {
        let own = rustix::process::getpid();
        let name = "\u{1b}[2J\u{9b}2J\u{202e}\u{7f}\n\u{1f600}\"é".to_owned();
        let text = json(&[Look { name: name.clone(), ..Look::untold(own, Untold::Silent) }]).expect("JSON");
        assert!(text.trim_end().chars().all(|sign| (' '..='~').contains(&sign)), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read[0]["name"], name);
    }
}
