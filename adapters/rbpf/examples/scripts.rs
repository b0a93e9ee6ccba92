//! Compiles scripts with Roto, one module each, calls them in turn, and drops them.
//!
//! ```text
//! scripts [COUNT [ROUNDS]]                 1000 scripts and 5 rounds, if no numbers are named
//! scripts --samples CONTESTANT [COUNT]     one round; a line for each value: id, unit, value
//! ```
//!
//! Prints for each round what one of them took, and the mappings of the process, and panics if a script is wrong. It
//! names nothing of this crate: the same file, compiled without the patch in `plain`, measures plain `cranelift-jit`.
//! `cargo xtask bench adapters` makes a record of both.

use std::time::{Duration, Instant};
use std::{env, fs};

use roto::Runtime;

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

/// Reads a number, or ends the program with the argument that is none.
fn number(argument: Option<&String>, default: u64) -> u64 {
    argument.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{text} is not a number")))
}

/// What one round took: each time is that of one script, or of one call.
struct Round {
    load: Duration,
    call: f64,
    free: Duration,
    mappings: usize,
    sum: u64,
}

/// What the calls add up to.
fn in_rust(calls: u64, count: u64, stride: u64) -> u64 {
    let one = |x: u64| (if x.is_multiple_of(2) { x / 2 } else { x }).wrapping_add(x.wrapping_mul(stride) % count);
    (0..calls).map(one).fold(0, u64::wrapping_add)
}

fn round(count: u64) -> Round {
    const CALLS: u64 = 2_000_000;
    let runtime = Runtime::new();
    let file = env::temp_dir().join(format!("palimpsest-roto-{}.roto", std::process::id()));
    let before = mappings();
    let start = Instant::now();
    let scripts: Vec<_> = (0..count)
        .map(|number| {
            let text = format!(
                "fn half(x: u64) -> u64 {{ x / 2 }}
                 fn main(x: u64) -> u64 {{ if x % 2 == 0 {{ half(x) + {number} }} else {{ x + {number} }} }}"
            );
            fs::write(&file, text).expect("the temporary directory is writable");
            let mut package = runtime.compile(&file).unwrap_or_else(|error| panic!("{error}"));
            let main = package.get_function::<fn(u64) -> u64>("main").expect("it has this signature");
            (package, main)
        })
        .collect();
    let load = start.elapsed() / count as u32;
    fs::remove_file(&file).expect("it is ours");
    let mappings = mappings() - before;
    // A stride that meets every script.
    let stride = (7919 % count as usize).max(1);
    let (mut at, mut sum) = (0, 0_u64);
    let start = Instant::now();
    for x in 0..CALLS {
        sum = sum.wrapping_add(scripts[at].1.call(x));
        at = (at + stride) % scripts.len();
    }
    let call = start.elapsed().as_secs_f64() * 1e9 / CALLS as f64;
    assert_eq!(sum, in_rust(CALLS, count, stride as u64), "the sum of what scripts return");
    let start = Instant::now();
    drop(scripts);
    let free = start.elapsed() / count as u32;
    Round { load, call, free, mappings, sum }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [samples, contestant, count @ ..] = &arguments[..]
        && samples == "--samples"
    {
        let count = number(count.first(), 1000);
        let Round { load, call, free, mappings, .. } = round(count);
        let print = |what, unit, value: f64| println!("roto.{what}.{count}.{contestant} {unit} {value}");
        print("load", "us", load.as_secs_f64() * 1e6);
        print("call", "ns", call);
        print("free", "us", free.as_secs_f64() * 1e6);
        print("mappings", "mappings", mappings as f64 / count as f64);
    } else {
        let (count, rounds) = (number(arguments.first(), 1000), number(arguments.get(1), 5));
        for _ in 0..rounds {
            let Round { load, call, free, mappings, sum } = round(count);
            println!("load {load:?}, call {call:.1} ns, drop {free:?}, mappings {mappings}, sum {sum}");
        }
    }
}
