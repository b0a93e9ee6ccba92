//! `palimpsest bench` of a build without the suites: `cargo test --package palimpsest-live-cli` runs this, and with
//! `--all-features` there is nothing to run.
#![cfg(not(feature = "bench"))]
#![forbid(unsafe_code)]

use std::process::Command;

#[test]
fn bench_names_the_way_to_the_suites() {
    let output = Command::new(env!("CARGO_BIN_EXE_palimpsest")).args(["bench", "pack", "--quick"]).output();
    let output = output.expect("the program was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cargo xtask bench pack --quick"), "{said}");
}
