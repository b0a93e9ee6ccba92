//! Counts by key in a hash map, and tells the host every third time through a ring buffer.

use std::sync::Arc;

use palimpsest_bpf::host::{Host, HostedProgram};
use palimpsest_bpf::map::{Definition, HashHandle, Kind, Map};
use palimpsest_bpf::verify::{Argument, ContextAccess, Contract, Signature};
use palimpsest_bpf::{Code, Packs, asm};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let counts = Arc::new(Map::new(Definition::new("counts", Kind::Hash, 4, 8, 100))?);
    let ring = Arc::new(Map::new(Definition::new("ring", Kind::RingBuffer, 0, 0, 4096))?);
    // A helper of our own, beside Linux's.
    let is_third = Signature::new([Argument::Number]);
    let host = Host::builder()
        .map(Arc::clone(&counts))
        .map(Arc::clone(&ring))
        .helper(1000, is_third, |call| Ok(u64::from(call.number(0) % 3 == 0)))
        .build();
    let bytes = asm::assemble(
        "       r6 = r1                        ; the key is the context
                r1 = map[idx:0] ll
                r2 = r6
                call 1                         ; look it up
                if r0 != 0 goto count
                *(u64 *)(r10 - 8) = 0
                r1 = map[idx:0] ll
                r2 = r6
                r3 = r10
                r3 += -8
                r4 = 1
                call 2                         ; put it in, if nobody was faster
                r1 = map[idx:0] ll
                r2 = r6
                call 1
                if r0 == 0 goto out            ; the map is full
         count: r7 = 1
                r7 = atomic_fetch_add((u64 *)(r0 + 0), r7)
                r7 += 1
                r1 = r7
                call 1000
                if r0 == 0 goto out
                r1 = map[idx:1] ll
                r2 = r6
                r3 = 4
                r4 = 0
                call 130                       ; a record with the key
         out:   r0 = 0
                exit",
    )?;
    let linked = host.verify(Contract::new().context(4, ContextAccess::Read), Code::new(&bytes)?)?;
    let packs = Packs::new()?; // once per process, for all programs
    let program = HostedProgram::load(&packs, &linked)?;
    for key in [1_u32, 2, 1, 1, 2] {
        program.run_read_only(&key.to_ne_bytes())?;
    }
    let counts = HashHandle::<u32, u64>::new(counts)?;
    assert_eq!((counts.get(&1), counts.get(&2)), (Some(3), Some(2)));
    let mut consumer = ring.ring().and_then(|ring| ring.take_consumer()).ok_or("the only consumer")?;
    consumer.drain(|key| println!("a third time: {key:?}"));
    Ok(())
}
