//! Defers the relocations of an object: `defer FROM TO`.

use std::error::Error;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let [from, to] = env::args_os().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "usage: defer FROM TO")?;
    fs::write(to, palimpsest_defer::deferred(&fs::read(from)?)?)?;
    Ok(())
}
