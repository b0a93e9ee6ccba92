//! A target of AFL++ in Rust: `afl-fuzz -i seeds -o out -- target/release/examples/book_afl`. Without a fuzzer it runs
//! once, with standard input.

use palimpsest_forkserver::{Mode, Server, edge};

fn fill() -> Vec<String> {
    (0..100_000).map(|number| number.to_string()).collect()
}

fn query(database: &[String], input: &[u8]) {
    edge!();
    assert!(!database.iter().any(|line| line.as_bytes() == input), "found");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: server
    let database = fill();
    let server = Server::new(Mode::reset()); // or Mode::frozen(), Mode::Plain
    // SAFETY: (1) no other thread; (2) glibc's allocator; (3) descriptors 198 and 199 are AFL++'s or closed.
    unsafe { server.start(|input| query(&database, input)) }?;
    // ANCHOR_END: server
    Ok(())
}
