//! Scripts that Roto compiles: their results, and their places in packs. A process of its own, since all modules of a
//! process share packs, and this counts what is there.

use std::fs;

use palimpsest_rbpf::packs;
use roto::{Package, Runtime, TypedFunc};

/// How many scripts; each is a module of its own.
const SCRIPTS: u64 = 200;

/// A script of three functions, with calls, a branch and a constant of its own.
fn script(number: u64) -> String {
    format!(
        "fn half(x: u64) -> u64 {{ x / 2 }}
         fn thrice(x: u64) -> u64 {{ x * 3 }}
         fn main(x: u64) -> u64 {{
             if x % 2 == 0 {{
                 half(x) + {number}
             }} else {{
                 thrice(x) + {number}
             }}
         }}"
    )
}

/// Computes the same in Rust.
fn expected(number: u64, x: u64) -> u64 {
    number + if x.is_multiple_of(2) { x / 2 } else { x * 3 }
}

#[test]
fn two_hundred_scripts_share_packs_and_give_their_code_back() {
    let runtime = Runtime::new();
    let file = std::env::temp_dir().join(format!("palimpsest-roto-{}.roto", std::process::id()));
    let compile = |number| {
        fs::write(&file, script(number)).expect("the temporary directory is writable");
        let mut package: Package<_> = runtime.compile(&file).unwrap_or_else(|error| panic!("{error}"));
        let main: TypedFunc<_, fn(u64) -> u64> = package.get_function("main").expect("it has this signature");
        (package, main)
    };
    let scripts: Vec<_> = (0..SCRIPTS).map(compile).collect();
    fs::remove_file(&file).expect("it is ours");
    let stats = packs().stats();
    assert!(stats.programs as u64 >= 3 * SCRIPTS && stats.packs <= 2, "{stats:?}");
    for x in [0, 1, 7, 1 << 40] {
        for (number, (_, main)) in (0..).zip(&scripts) {
            assert_eq!(main.call(x), expected(number, x));
        }
    }
    // One by one, while the others run.
    let mut scripts = scripts.into_iter();
    drop(scripts.by_ref().take(100).collect::<Vec<_>>());
    packs().reclaim().expect("reclaimed");
    assert!(packs().stats().programs <= stats.programs / 2, "{:?}", packs().stats());
    for (number, (_, main)) in (100..).zip(scripts.as_slice()) {
        assert_eq!(main.call(9), expected(number, 9));
    }
    drop(scripts);
    packs().reclaim().expect("reclaimed");
    assert_eq!(packs().stats().programs, 0, "a script that is dropped gives its code back");
}
