//! Suite `redis`: how long Redis stands still when it forks to save 700 MB.
//!
//! In each round every mode has a turn with a new server and the same data: the first fork, which plans a freeze in
//! slices; forks with nothing written in between; forks after writes to existing keys, from few pages to most; forks of
//! a server that nobody asks for anything meanwhile; and forks in a row with nothing written again, until the policy
//! has had the chance to repair. The saving child is killed at once, since its file does not matter. Redis reports how
//! long its fork took; a slice or a repair before a fork counts as part of it.

use std::thread;
use std::time::Duration;

use super::server::{PROGRAM, Server};
use super::{Mode, Needs, Scratch, Threads, Tool, groups, measure};
use crate::harness::{Asked, BenchError, Context, Group, Suite, failed};

/// See the module.
pub(in crate::suites) struct Redis;

/// The states, and what a fork in them is.
const STATES: [(&str, &str); 8] = [
    ("first", "Redis forks with 700 MB: the first time, at which it is frozen"),
    ("idle", "Redis forks with 700 MB, nothing written since"),
    ("same100k", "Redis forks with 700 MB, after 100 000 writes to one key"),
    ("set1k", "Redis forks with 700 MB, after 1000 writes to any keys"),
    ("hot100k", "Redis forks with 700 MB, after 100 000 writes to 1000 keys"),
    ("set100k", "Redis forks with 700 MB, after 100 000 writes to any keys"),
    ("rested", "Redis forks with 700 MB, a second and more after the last fork, nothing written since"),
    ("settled", "Redis forks with 700 MB, 60 forks after the last write"),
];

/// Keys, with values of this many bytes: 700 MB as Redis keeps them.
const KEYS: u64 = 1_250_000;
const VALUE: usize = 400;

/// No new round begins after this time.
const LIMIT: Duration = Duration::from_secs(80);

/// Forks in a row with nothing written in between.
const IDLE_FORKS: usize = 5;

/// How long the server is left alone before each fork of a rested one.
const REST: Duration = Duration::from_millis(1200);

/// Forks after the last writes, before those that show the policy's effect.
const SETTLING_FORKS: usize = 60;

/// Writes between forks: name, number, and how many different keys. Each key has its entry and its value in pages of
/// their own.
const WRITES: [(&str, usize, u64); 4] =
    [("same100k", 100_000, 1), ("set1k", 1000, KEYS), ("hot100k", 100_000, 1000), ("set100k", 100_000, KEYS)];

impl Suite for Redis {
    fn id(&self) -> &'static str {
        "redis"
    }

    fn description(&self) -> &'static str {
        "forks of an unmodified Redis that saves: plain, with huge pages, empty, by default, frozen, gathered"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        groups("redis", &STATES)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let tool = Tool { program: PROGRAM, package: PROGRAM };
        let needs = Needs { tool, memory: 2500 << 20, rounds: (5, 1), budget: LIMIT };
        let folder = Scratch::new("redis").map_err(failed("redis", "redis"))?;
        measure(context, self.groups(), &needs, |context, mode, sink| {
            let mut server = Server::start(mode.command(context, PROGRAM, Threads::Stop)?, mode, &folder.0)?;
            server.populate(mode.data(KEYS), VALUE)?;
            sink("first", server.fork()?);
            for _ in 0..IDLE_FORKS {
                sink("idle", server.fork()?);
            }
            for (state, writes, keys) in WRITES {
                // Writes would fill a server without data.
                if mode != Mode::Empty {
                    server.set(writes, keys, KEYS, VALUE)?;
                }
                sink(state, server.fork()?);
            }
            for _ in 0..IDLE_FORKS {
                thread::sleep(REST);
                sink("rested", server.fork()?);
            }
            for _ in 0..SETTLING_FORKS {
                server.fork()?;
            }
            for _ in 0..IDLE_FORKS {
                sink("settled", server.fork()?);
            }
            Ok(())
        })
    }
}
