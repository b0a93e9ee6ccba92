//! Programs and forks: a child runs the programs that it inherits, and loads its own into new packs.

use palimpsest::Packs;
use palimpsest::fork::{Forked, fork};
use palimpsest_examples::ADD_ONE;
use rustix::process::{WaitOptions, waitpid};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let packs = Packs::new()?;
    let program = packs.load(ADD_ONE, 16)?;
    // SAFETY: the bytes are a function of that type, and `program` outlives the calls.
    let f = unsafe { program.function::<extern "C" fn(u64) -> u64>() };
    // ANCHOR: fork
    // SAFETY: 1. this process has one thread; 2. nothing is frozen.
    match unsafe { fork() }? {
        Forked::Child => {
            let own = packs.load(ADD_ONE, 16).expect("a child has packs of its own");
            let both = packs.lookup(program.address().get()).is_some() && packs.lookup(own.address().get()).is_some();
            std::process::exit(if both && f(41) == 42 { 0 } else { 1 });
        }
        Forked::Parent(child) => {
            let (_, status) = waitpid(Some(child), WaitOptions::empty())?.expect("it has ended");
            assert_eq!(status.exit_status(), Some(0));
        }
    }
    // ANCHOR_END: fork
    Ok(())
}
