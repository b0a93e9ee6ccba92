//! What operations fetch of the kernel's text and of the tables that lead to it, and from which node, without and with
//! replicas. A model of caches counts it, for the rows of the table in the mail about replication.

use alloc::string::String;
use alloc::{format, vec};

use super::processes::areas;
use crate::caches::{self, Fetches};
use crate::cpu::CPUS;
use crate::fetches::{self, Operation, ROUNDS};
use crate::kernel_space::{self, Copies};
use crate::process::{run_all, spawn, take_exits, user};
use crate::{check, memory, say};

/// How often each row of the mail repeats its measurement.
const REPEATED: u64 = 1024;

/// A row of the mail's table.
struct Row {
    operation: Operation,
    /// The operation's name here.
    name: &'static str,
    /// The operation's name in the mail, how often it is done, and by how many percent it became faster with cold and
    /// with hot caches.
    mail: Option<(&'static str, u64, &'static str, &'static str)>,
}

const fn row(
    operation: Operation,
    name: &'static str,
    mail: Option<(&'static str, u64, &'static str, &'static str)>,
) -> Row {
    Row { operation, name, mail }
}

const ROWS: [Row; 8] = [
    row(Operation::Call, "call", None),
    row(Operation::Fork, "fork", Some(("fork-1", 1, "42.7", "2.3"))),
    row(Operation::Fork, "fork-1024", Some(("fork-1024", REPEATED, "17.1", "10.8"))),
    row(Operation::Map, "map-unmap", Some(("mmap/munmap", REPEATED, "0.4", "0.4"))),
    row(Operation::MapLocked, "map-lock", Some(("mmap/lock", REPEATED, "1.5", "4.2"))),
    row(Operation::Open, "open-close", Some(("open/close", REPEATED, "0.4", "3.2"))),
    row(Operation::Signal, "signal", Some(("kill", 1, "26.1", "4.0"))),
    row(Operation::Protect, "protect", None),
];

type Rounds = [[Fetches; ROUNDS]; Operation::ALL.len()];

/// The watched CPU. It is of the last node; pages and tables with a single copy are on the first.
const WATCHED: usize = CPUS - 1;

/// Runs the watched program on `cpu`.
fn watch(cpu: usize, name: &str) -> Rounds {
    let argument = user::entry(user::signalled).0 | (cpu as u64) << 56;
    spawn(user::operations, argument, &areas(8), cpu);
    run_all();
    let exits = take_exits();
    // The program, a child for each fork, and a child for each signal.
    check::equal(name, exits.iter().map(|exit| exit.code).collect(), vec![0; 1 + 2 * ROUNDS]);
    fetches::take().map(|rounds| rounds.map(Option::unwrap_or_default))
}

fn of(rounds: &Rounds, operation: Operation) -> &[Fetches; ROUNDS] {
    &rounds[operation as usize]
}

/// Returns the sum of `of` over `count` runs of an operation, the first with empty caches. Runs that were not watched
/// count like the last watched one.
fn sum(rounds: &[Fetches; ROUNDS], count: u64, of: impl Fn(&Fetches) -> u64) -> u64 {
    let watched = (ROUNDS as u64).min(count) as usize;
    let rest = count - watched as u64;
    rounds[..watched].iter().map(&of).sum::<u64>() + rest * of(&rounds[ROUNDS - 1])
}

/// Returns how many lines were fetched from other nodes, and lines of code from any node, after the first two rounds,
/// when none should be. (A new process has a new table on its own node.)
fn fetched_again(rounds: &Rounds) -> u64 {
    rounds.iter().flat_map(|rounds| &rounds[2..]).map(|fetches| fetches.remote() + fetches.text.own).sum()
}

pub(super) fn run() {
    let frames = memory::in_use();
    kernel_space::set_copies(Copies::One);
    let first_node = watch(0, "fetch.node-0.runs");
    let without = watch(WATCHED, "fetch.without.runs");
    kernel_space::set_copies(Copies::EachNode);
    let with = watch(WATCHED, "fetch.with.runs");
    check::equal("fetch.leaks", memory::in_use(), frames);

    let all = |rounds: &Rounds, count: fn(&Fetches) -> u64| -> u64 { rounds.iter().flatten().map(count).sum() };
    // On node 0 everything is local.
    check::equal("fetch.node-0.remote", all(&first_node, Fetches::remote), 0);
    // On the other node nothing is local, except the roots.
    check::equal("fetch.without.text.own", all(&without, |fetches| fetches.text.own), 0);
    let cold = |operation| of(&without, operation)[0];
    let remote = Operation::ALL.iter().all(|&operation| cold(operation).text.remote > 0);
    check::holds("fetch.without.text.remote", remote, format_args!("{:?}", Operation::ALL.map(cold)));
    check::equal("fetch.with.remote", all(&with, Fetches::remote), 0);
    check::holds("fetch.with.own", all(&with, Fetches::own) > 0, format_args!("nothing was fetched"));
    check::equal("fetch.hot", [fetched_again(&without), fetched_again(&with)], [0, 0]);
    table(&without, &with);
}

/// Prints the counts, and the table for readers.
fn table(without: &Rounds, with: &Rounds) {
    say!("# fetches from memory by a CPU of node 1, in lines; the caches: {}", caches::geometry());
    say!(
        "# {:<10} {:>12} {:>8}  {:>24}  {:>18}  {:>16}  {:>16}",
        "operation",
        "instructions",
        "with",
        "cold, remote text+tables",
        "with: own, remote",
        "hot: remote/with",
        "mail: cold/hot %"
    );
    for Row { operation, name, mail } in ROWS {
        let (before, after) = (of(without, operation), of(with, operation));
        let count = mail.map_or(1, |(_, count, ..)| count);
        let [text, tables] = [|fetches: &Fetches| fetches.text.remote, |fetches: &Fetches| fetches.tables.remote];
        let [hot, hot_with] = [before[ROUNDS - 1], after[ROUNDS - 1]];
        let cold = [sum(before, count, text), sum(before, count, tables)];
        let [own, remote] = [sum(after, count, Fetches::own), sum(after, count, Fetches::remote)];
        for (when, what, value) in [
            ("without", "instructions", sum(before, count, |fetches| fetches.instructions)),
            ("with", "instructions", sum(after, count, |fetches| fetches.instructions)),
            ("without", "cold.remote-text", cold[0]),
            ("without", "cold.remote-tables", cold[1]),
            ("without", "hot.remote", hot.remote() * count),
            ("with", "cold.remote", remote),
            ("with", "hot.remote", hot_with.remote() * count),
        ] {
            say!("paging.fetch.{name}.{when}.{what} {value}");
        }
        let mail: String = mail.map_or_else(|| "-".into(), |(name, _, cold, hot)| format!("{name} {cold}/{hot}"));
        say!(
            "# {name:<10} {:>12} {:>8}  {:>24}  {:>18}  {:>16}  {mail:>20}",
            before[0].instructions,
            after[0].instructions,
            format!("{}+{}", cold[0], cold[1]),
            format!("{own}, {remote}"),
            format!("{}/{}", hot.remote() * count, hot_with.remote() * count),
        );
    }
    let walks = |rounds: &Rounds| Operation::ALL.map(|operation| of(rounds, operation)[0].walks);
    let past = |rounds: &Rounds| Operation::ALL.map(|operation| of(rounds, operation)[ROUNDS - 1].past_code);
    say!("# walks of the first round {:?}, with replicas {:?}", walks(without), walks(with));
    say!("# lines past the cache of code, hot {:?}, with replicas {:?}", past(without), past(with));
}
