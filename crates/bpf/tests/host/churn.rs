//! Programs that come and go: on many threads, and until the packs are full.

use palimpsest_bpf::LoadError;

use super::*;

/// Loads a program that counts its calls in the array, and returns `value`.
fn counting(packs: &Packs, host: &Arc<Host>, value: u64) -> Result<Arc<HostedProgram>, LoadError> {
    let text = found(0, &format!("r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr0 = {value}"));
    let linked = host.verify(contract(), code(&text)).expect("harmless");
    HostedProgram::load(packs, &linked).map(Arc::new)
}

#[test]
fn eight_threads_load_run_replace_and_free() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 60;
    const SLOTS: u64 = 4;
    let Some(packs) = packs() else { return };
    let host = builder().build();
    let load = |value: u64| counting(&packs, &host, value).expect("room");
    let slots: Vec<Slot> = (0..SLOTS).map(|slot| Slot::new(load(slot))).collect();
    let runs = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, runs, packs, load) = (&slots, &runs, &packs, &load);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let at = (thread * 7 + round * 3) % SLOTS;
                    let replaced = slots[at as usize].replace(load(at + SLOTS * (thread * ROUNDS + round)));
                    // The old one runs on, for whoever has it; another thread may replace the new one meanwhile.
                    for program in [replaced, Arc::clone(&slots[at as usize].get())] {
                        let value = program.run(&mut [0; LEN]).expect("a context");
                        assert!(value % SLOTS == at && value < SLOTS * (THREADS * ROUNDS + 1), "{value} in {at}");
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                    if round % 5 == thread % 5 {
                        packs.reclaim().expect("it works");
                    }
                }
            });
        }
    });
    let counted = ArrayHandle::<[u64; 2]>::new(Arc::clone(host.map("array").expect("there"))).expect("its types");
    assert_eq!(counted.get(0), Some([2 * THREADS * ROUNDS, 0]));
    assert_eq!(runs.into_inner(), 2 * THREADS * ROUNDS);
    drop(slots);
    packs.reclaim().expect("no program is left");
    assert_eq!(packs.stats().programs, 0);
}

#[test]
fn full_packs_refuse_programs_until_others_are_gone() {
    if !common::compiles() {
        return;
    }
    let packs = Packs::builder().region_len(2 << 20).open().expect("packs");
    let host = builder().build();
    // Long ones, so that few fill the packs.
    let long = format!("{}exit", "r0 = 0x1122334455667788 ll\n".repeat(20_000));
    let linked = host.verify(contract(), code(&long)).expect("harmless");
    let mut loaded = Vec::new();
    let refused = loop {
        match HostedProgram::load(&packs, &linked) {
            Ok(program) => loaded.push(program),
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, LoadError::Place { len, .. } if *len >= 200_000), "{refused:?}");
    let causes = std::iter::successors(Some(&refused as &dyn std::error::Error), |error| error.source());
    let causes: String = causes.map(|error| format!("{error}: ")).collect();
    assert!(causes.contains("there is no place for the program's") && causes.contains("region_len"), "{causes}");
    assert!((2..11).contains(&loaded.len()), "{} were loaded", loaded.len());
    for program in &loaded {
        assert_eq!(program.run(&mut [0; LEN]), Ok(0x1122_3344_5566_7788), "an error changes nothing");
    }
    let count = loaded.len();
    loaded.clear();
    packs.reclaim().expect("no program is left");
    loaded.extend((0..count).map(|_| HostedProgram::load(&packs, &linked).expect("there is room again")));
}
