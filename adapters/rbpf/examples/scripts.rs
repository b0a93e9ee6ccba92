//! Compiles scripts with Roto, one module each, calls them in turn, and drops them: `scripts COUNT ROUNDS`. Prints for
//! each round what one of them took, and the mappings of the process, and panics if a script is wrong. It names nothing
//! of this crate, so that the same file, compiled without the patch, measures plain `cranelift-jit`.

use std::time::Instant;
use std::{env, fs};

use roto::Runtime;

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

fn number(at: usize, default: u64) -> u64 {
    env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What the calls add up to.
fn in_rust(calls: u64, count: u64, stride: u64) -> u64 {
    let one = |x: u64| (if x.is_multiple_of(2) { x / 2 } else { x }).wrapping_add(x.wrapping_mul(stride) % count);
    (0..calls).map(one).fold(0, u64::wrapping_add)
}

fn main() {
    const CALLS: u64 = 2_000_000;
    let (count, rounds) = (number(1, 1000), number(2, 5));
    let runtime = Runtime::new();
    let file = env::temp_dir().join(format!("palimpsest-roto-{}.roto", std::process::id()));
    for _ in 0..rounds {
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
        let mapped = mappings() - before;
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
        println!("load {load:?}, call {call:.1} ns, drop {free:?}, mappings {mapped}, sum {sum}");
    }
    let _ = fs::remove_file(&file);
}
