//! On which terms a program is verified.

use clap::{Args, ValueEnum};
use palimpsest_bpf::interp::{Interpreter, OnFault};
use palimpsest_bpf::verify::{ContextAccess, Contract, Trust, Unproven};

/// What happens to loads that the verifier cannot prove harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum Loads {
    /// The program is refused.
    #[default]
    Refuse,
    /// They are tried, and give 0 where nothing is. The program can then read whatever the process can.
    Probe,
}

impl Loads {
    const fn unproven(self) -> Unproven {
        match self {
            Self::Refuse => Unproven::Refuse,
            Self::Probe => Unproven::Probe,
        }
    }

    /// How the interpreter treats them in programs that are not verified.
    const fn on_fault(self) -> OnFault {
        match self {
            Self::Refuse => OnFault::Stop,
            Self::Probe => OnFault::LoadZero,
        }
    }
}

/// What the verifier takes, and what compiled code then does besides what the program says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct Terms {
    /// What happens to loads and stores whose addresses the verifier cannot prove.
    #[arg(long, value_name = "ACTION", default_value = "refuse")]
    unproven: Loads,
    /// Also take loops that are not proven to end: the program may jump back this many times in a run.
    #[arg(long, value_name = "JUMPS")]
    fuel: Option<u64>,
    /// Do not trust the program's maker: blind constants, and guard against speculation.
    #[arg(long)]
    untrusted: bool,
    /// Refuse the program once this many instructions were followed, on all ways together; a million if not given.
    #[arg(long, value_name = "INSTRUCTIONS")]
    budget: Option<usize>,
}

/// The context that a program is promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(super) struct Promise {
    /// Bytes of context that the program gets.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    context: u32,
    /// Give it a context that it must not write.
    #[arg(long)]
    read_only: bool,
}

impl Terms {
    /// Returns the contract with these terms.
    pub(super) fn of(&self, contract: Contract) -> Contract {
        let trust = if self.untrusted { Trust::None } else { Trust::Full };
        let contract = contract.unproven(self.unproven.unproven()).trust(trust);
        let contract = self.fuel.into_iter().fold(contract, Contract::fuel);
        self.budget.into_iter().fold(contract, Contract::budget)
    }

    /// Returns what interprets programs that are not verified.
    pub(super) fn interpreter(&self) -> Interpreter {
        let interpreter = Interpreter::default().on_fault(self.unproven.on_fault());
        self.fuel.map_or(interpreter, |fuel| interpreter.fuel(fuel))
    }
}

impl Promise {
    /// Returns the contract that `begin` makes for the context.
    pub(super) fn contract(&self, begin: impl FnOnce(u32, ContextAccess) -> Contract) -> Contract {
        begin(self.context, if self.read_only { ContextAccess::Read } else { ContextAccess::Write })
    }
}
