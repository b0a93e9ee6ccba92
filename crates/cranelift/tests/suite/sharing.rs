//! Several modules in the same packs: calls between them, threads, many functions, one core synchronisation for all.

use std::thread;

use super::common::{add_n, add_n_to, call1, declare};
use cranelift_module::{Linkage, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};
use palimpsest_text::Packs;

fn builder_in(packs: &Packs) -> PackModuleBuilder {
    let mut builder = PackModuleBuilder::new(default_libcall_names()).unwrap();
    builder.packs(packs.clone());
    builder
}

#[test]
fn modules_call_each_other() {
    let packs = Packs::new().unwrap();
    let mut library = PackModule::new(builder_in(&packs));
    let one = add_n(&mut library, "one", 1);
    library.finalize_definitions().unwrap();

    let mut builder = builder_in(&packs);
    builder.symbol("one", library.get_finalized_function(one));
    let mut program = PackModule::new(builder);
    let imported = declare(&mut program, "one", Linkage::Import, 1);
    // A final linkage makes Cranelift emit a direct call; packs can reach each other.
    let near = declare(&mut program, "near_one", Linkage::Local, 1);
    let far_caller = add_n_to(&mut program, "far_caller", imported, 1);
    program.finalize_definitions().unwrap();
    assert_eq!(call1(program.get_finalized_function(far_caller), 40), 42);
    let near_caller = add_n_to(&mut program, "near_caller", near, 1);
    assert!(program.finalize_definitions().is_err(), "nobody knows near_one");
    program.free_function(near_caller).unwrap();

    let mut builder = builder_in(&packs);
    builder.symbol("near_one", library.get_finalized_function(one));
    let mut program = PackModule::new(builder);
    let near = declare(&mut program, "near_one", Linkage::Local, 1);
    let near_caller = add_n_to(&mut program, "near_caller", near, 1);
    program.finalize_definitions().unwrap();
    assert_eq!(call1(program.get_finalized_function(near_caller), 40), 42);
    let range = packs.region();
    for (module, id) in [(&library, one), (&program, near_caller)] {
        assert!(range.contains(&(module.get_finalized_function(id) as usize)));
    }
    // All calls reach, so only Cranelift's code was placed.
    assert_eq!(program.program(near_caller).unwrap().len(), program.code_len(near_caller).unwrap());
}

#[test]
fn many_small_functions() {
    const COUNT: i64 = 10_000;
    let packs = Packs::new().unwrap();
    // Verifying takes most of the time of an unoptimised Cranelift.
    let flags = [("enable_verifier", "false")];
    let mut builder = PackModuleBuilder::with_flags(&flags, default_libcall_names()).unwrap();
    builder.packs(packs.clone());
    let mut module = PackModule::new(builder);
    let syncs = packs.stats().core_syncs;
    let ids: Vec<_> = (0..COUNT).map(|n| add_n(&mut module, &format!("f{n}"), n)).collect();
    module.finalize_definitions().unwrap();
    let stats = packs.stats();
    assert_eq!(stats.programs, ids.len());
    assert!(stats.core_syncs <= syncs + 1, "{} core synchronisations", stats.core_syncs - syncs);
    for (id, n) in ids.iter().zip(0..) {
        assert_eq!(call1(module.get_finalized_function(*id), 1), n + 1);
    }
    for id in ids {
        module.free_function(id).unwrap();
    }
    packs.reclaim().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes, stats.retired_bytes), (0, 0, 0));
}

#[test]
fn threads_share_packs() {
    let packs = Packs::new().unwrap();
    thread::scope(|scope| {
        for thread in 0..4_i64 {
            let packs = packs.clone();
            scope.spawn(move || {
                for round in 0..20 {
                    let mut module = PackModule::new(builder_in(&packs));
                    let base = thread * 1_000_000 + round * 1000;
                    let mut last = add_n(&mut module, "f0", base);
                    let mut all = vec![last];
                    for n in 1..30 {
                        last = add_n_to(&mut module, &format!("f{n}"), last, 1);
                        all.push(last);
                    }
                    module.finalize_definitions().unwrap();
                    for (n, id) in (0..).zip(&all) {
                        assert_eq!(call1(module.get_finalized_function(*id), 7), 7 + base + n);
                    }
                    // Frees callers first; simply drops every other module.
                    if round % 2 == 0 {
                        for id in all.into_iter().rev() {
                            module.free_function(id).unwrap();
                        }
                    }
                    packs.reclaim().unwrap();
                }
            });
        }
    });
    packs.reclaim().unwrap();
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.used_bytes), (0, 0));
}

/// A module may move to another thread and outlive the handle that its packs came from.
#[test]
fn modules_keep_their_packs() {
    let packs = Packs::new().unwrap();
    let mut module = PackModule::new(builder_in(&packs));
    let id = add_n(&mut module, "f", 2);
    module.finalize_definitions().unwrap();
    drop(packs);
    let answer = thread::spawn(move || call1(module.get_finalized_function(id), 40));
    assert_eq!(answer.join().unwrap(), 42);
}
