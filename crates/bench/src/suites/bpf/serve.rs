//! The process apart, of which [`super::apart`] asks samples.

use std::io::{self, Write};

use super::apart::Sampler;
use super::engine::{Refusal, Who};
use super::{call, load, roundrobin};
use crate::harness::BenchError;

/// Takes a sample of `group` for each line of the standard input, with the engine of this name.
///
/// # Errors
///
/// Unknown or missing engines, groups of which nobody samples apart, failed loads and calls, broken pipes.
pub(in crate::suites) fn serve_samples(group: &str, contestant: &str) -> Result<(), BenchError> {
    let refused =
        |reason: Refusal| BenchError::Helper { contestant: contestant.to_owned(), reason: reason.to_string() };
    let mut sampler = sampler(group, contestant).map_err(refused)?;
    let say = |line: String| writeln!(io::stdout().lock(), "{line}").map_err(|error| refused(error.into()));
    say("ready".to_owned())?;
    for line in io::stdin().lines() {
        line.map_err(|error| refused(error.into()))?;
        say(sampler()?.to_string())?;
    }
    Ok(())
}

fn sampler(group: &str, contestant: &str) -> Result<Sampler, Refusal> {
    let who = Who::named(contestant).ok_or("there is no such engine")?;
    let engine = who.open()?;
    Ok(match group.split('.').collect::<Vec<_>>()[..] {
        ["bpf", "load", len] => {
            let len = len.parse()?;
            load::sampler(len, who, engine, &load::programs(len)?)?
        }
        ["bpf", "call", program] => {
            call::sampler(call::Program::named(program).ok_or("no such program")?, who, engine)?
        }
        ["bpf", "roundrobin", count] => {
            let count = count.parse()?;
            roundrobin::sampler(count, who, engine, &roundrobin::programs(count)?)?
        }
        _ => return Err(format!("{group} is not sampled apart").into()),
    })
}
