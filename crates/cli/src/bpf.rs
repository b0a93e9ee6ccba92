//! `palimpsest bpf`: eBPF programs on the command line.

mod bench;
mod conformance;
mod engine;
mod hex;
mod native;
mod report;
mod source;
mod terms;
mod tools;
mod verify;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{complain, exit};

/// The arguments of `palimpsest bpf`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program as the runner of the public conformance suite wants it: byte code in hexadecimal digits on
    /// standard input, memory in the argument, r0 on standard output.
    Conformance(conformance::Arguments),
    /// Print the instructions of a program.
    Disasm(tools::Disasm),
    /// Assemble a program.
    Asm(tools::Asm),
    /// Tell whether a program can do no harm, and if not, what to change.
    Verify(verify::Verify),
    /// Run a program and print r0.
    Run(tools::Run),
    /// Measure what loading and running a program costs.
    Bench(bench::Arguments),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Source(#[from] source::SourceError),
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    #[error("the memory in the argument is not understood")]
    Memory(#[from] hex::HexError),
    #[error("program `{name}`")]
    Program {
        name: String,
        #[source]
        source: Box<engine::EngineError>,
    },
    #[error("the maps of the object are not made")]
    Maps(#[from] palimpsest_bpf::map::MapError),
    #[error("the object has no map `{name}`")]
    NoMap { name: String },
    #[error("--map fills maps of an object file, and this is none")]
    NoMaps,
    #[error("map `{name}` is not filled")]
    Fill {
        name: String,
        #[source]
        source: tools::FillError,
    },
    #[error("--context, --fuel and the like say what machine code does, which `--native` shows")]
    NoMachine,
    #[error("a document on standard output says what is wrong")]
    Told,
    #[error("cannot write the result")]
    Output(#[from] std::io::Error),
}

/// Does what the line says.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.command {
        Command::Conformance(arguments) => conformance::run(arguments),
        Command::Disasm(arguments) => tools::disasm(arguments),
        Command::Asm(arguments) => tools::asm(arguments),
        Command::Verify(arguments) => verify::verify(arguments),
        Command::Run(arguments) => tools::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The document says it.
        Err(Failure::Told) => exit::FAILED.into(),
        Err(failure) => {
            complain(&failure);
            exit::FAILED.into()
        }
    }
}
