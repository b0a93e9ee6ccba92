//! Moves the program's own text into huge pages on the node that it runs on.
#![forbid(unsafe_code)]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // ANCHOR: localize
    let text = palimpsest_numa::ProgramText::localize(&palimpsest_numa::TextOptions::default())?;
    println!("{text}"); // 14336 KiB of text on node 0, 14336 KiB of it in huge pages
    // ANCHOR_END: localize
    Ok(())
}
