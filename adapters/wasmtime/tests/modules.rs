//! Modules in packs: each promise, and each refusal.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palimpsest_text::{Backing, Packs, ReclaimPolicy, ReleaseError, WriteView};
use palimpsest_wasmtime::{EngineError, LoadError, PackedEngine};
use wasmtime::{Config, Engine, Func, Instance, Linker, Memory, MemoryType, Module, Store, Trap};

/// Tests that count what is reclaimed, and tests that fork, run alone: another test's child would hold their modules.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn packed() -> PackedEngine {
    let packs = Packs::builder().reclaim(ReclaimPolicy::Manual).open().expect("packs open");
    PackedEngine::new(Config::new(), packs).expect("an engine")
}

fn returning(number: i32) -> String {
    format!(r#"(module (func (export "run") (result i32) i32.const {number}))"#)
}

fn call(packed: &PackedEngine, module: &Module) -> i32 {
    let mut store = Store::new(packed.engine(), ());
    let instance = Instance::new(&mut store, module, &[]).expect("nothing is imported");
    instance.get_typed_func::<(), i32>(&mut store, "run").expect("exported").call(&mut store, ()).expect("it returns")
}

fn reclaim(packed: &PackedEngine) {
    while packed.packs().reclaim().expect("reclaimed").waiting_for_children > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_thousand_modules_share_a_few_packs_and_come_and_go_one_by_one() {
    let _one = one_at_a_time();
    let packed = packed();
    let image = packed.engine().precompile_module(returning(7).as_bytes()).expect("compiled");
    let before = maps();
    // SAFETY: 1. just compiled.
    let mut modules: Vec<_> = (0..1000).map(|_| unsafe { packed.deserialize(&image) }.expect("loaded")).collect();
    let stats = packed.packs().stats();
    assert_eq!((stats.programs, stats.packs), (1000, (1000 * (image.len() + 1)).div_ceil(2 << 20).max(stats.packs)));
    // Two mappings for each pack; the heap may have grown by some.
    assert!(maps() - before < 2 * stats.packs + 40, "{} mappings for {stats:?}", maps() - before);
    modules.retain(|module| {
        assert_eq!(call(&packed, module), 7);
        module.text().as_ptr().addr().is_multiple_of(128)
    });
    reclaim(&packed);
    assert_eq!(packed.packs().stats().programs, modules.len());
    assert!(modules.iter().all(|module| call(&packed, module) == 7), "the others are left alone");
    drop(modules);
    reclaim(&packed);
    assert_eq!(packed.packs().stats().used_bytes, 0);
}

fn maps() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("readable").lines().count()
}

#[test]
fn memory_is_kept_by_whatever_can_still_run_it() {
    let _one = one_at_a_time();
    let packed = packed();
    let mut store = Store::new(packed.engine(), ());
    let module = packed.compile(returning(5).as_bytes()).expect("compiled");
    let clone = module.clone();
    let instance = Instance::new(&mut store, &module, &[]).expect("nothing is imported");
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").expect("exported");
    drop((module, clone));
    reclaim(&packed);
    assert_eq!(run.call(&mut store, ()).expect("its store keeps it"), 5);
    drop(store);
    reclaim(&packed);
    assert_eq!(packed.packs().stats().programs, 0);
}

#[test]
fn nobody_releases_a_living_module_by_its_address() {
    let _one = one_at_a_time();
    let packed = packed();
    let module = packed.compile(returning(5).as_bytes()).expect("compiled");
    let address = module.image_range().start.addr();
    assert!(matches!(packed.packs().release(address), Err(ReleaseError::Held { .. })));
    reclaim(&packed);
    assert_eq!(packed.packs().stats().programs, 1);
    assert_eq!(call(&packed, &module), 5);
    drop(module);
    reclaim(&packed);
    assert_eq!(packed.packs().stats().programs, 0);
}

#[test]
fn engines_of_interpreters_are_refused() {
    let mut config = Config::new();
    config.target("pulley64").expect("a known target");
    let packs = Packs::new().expect("packs open");
    let error = PackedEngine::new(config, packs).expect_err("nothing of it would be given back");
    assert!(matches!(error.downcast_ref(), Some(EngineError::Interpreted)), "{error:?}");
}

#[test]
fn modules_run_on_every_backing_and_write_view() {
    let _one = one_at_a_time();
    for backing in Backing::ALL {
        for view in [WriteView::Standing, WriteView::DuringCopies, WriteView::None] {
            let Ok(packs) = Packs::builder().backing(backing).write_view(view).open() else {
                println!("skipped: {backing} with {view:?} is not to be had here");
                continue;
            };
            let packed = PackedEngine::new(Config::new(), packs).expect("an engine");
            let module = packed.compile(returning(6).as_bytes()).expect("compiled");
            assert_eq!(call(&packed, &module), 6, "{backing}");
        }
    }
}

#[test]
fn traps_have_codes_and_backtraces() {
    let _one = one_at_a_time();
    let packed = packed();
    let text = r#"(module
        (memory 1)
        (func $load (export "load") (param i32) (result i32) (i32.load (local.get 0)))
        (func $divides (export "divides") (result i32) (i32.div_u (i32.const 1) (i32.const 0)))
        (func $deep (export "deep") (call $deep)))"#;
    let module = packed.compile(text.as_bytes()).expect("compiled");
    let mut store = Store::new(packed.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).expect("nothing is imported");
    let load = instance.get_typed_func::<i32, i32>(&mut store, "load").expect("exported");
    assert_eq!(load.call(&mut store, 8).expect("inside"), 0);
    let error = load.call(&mut store, -8).expect_err("outside");
    assert_eq!(error.downcast_ref(), Some(&Trap::MemoryOutOfBounds));
    assert!(format!("{error:?}").contains("!load"), "{error:?}");
    let divides = instance.get_typed_func::<(), i32>(&mut store, "divides").expect("exported");
    let error = divides.call(&mut store, ()).expect_err("by zero");
    assert_eq!(error.downcast_ref(), Some(&Trap::IntegerDivisionByZero));
    let deep = instance.get_typed_func::<(), ()>(&mut store, "deep").expect("exported");
    assert_eq!(deep.call(&mut store, ()).expect_err("endless").downcast_ref(), Some(&Trap::StackOverflow));
}

#[test]
fn modules_call_each_other_and_the_host_and_share_memory() {
    let _one = one_at_a_time();
    let packed = packed();
    let mut store = Store::new(packed.engine(), 0_u32);
    let mut linker = Linker::new(packed.engine());
    let memory = Memory::new(&mut store, MemoryType::new(1, None)).expect("memory");
    linker.define(&store, "host", "memory", memory).expect("defined once");
    let count = |mut caller: wasmtime::Caller<'_, u32>, by: u32| *caller.data_mut() += by;
    linker.func_wrap("host", "count", count).expect("defined once");
    let first = packed.compile(
        br#"(module (import "host" "memory" (memory 1)) (data (i32.const 4) "\2a\00\00\00")
            (func (export "get") (result i32) (i32.load (i32.const 4))))"#,
    );
    linker.module(&mut store, "first", &first.expect("compiled")).expect("instantiated");
    let second = packed.compile(
        br#"(module (import "first" "get" (func $get (result i32))) (import "host" "count" (func $count (param i32)))
            (func (export "run") (call $count (call $get)) (call $count (call $get))))"#,
    );
    let second = linker.instantiate(&mut store, &second.expect("compiled")).expect("instantiated");
    second.get_typed_func::<(), ()>(&mut store, "run").expect("exported").call(&mut store, ()).expect("it returns");
    assert_eq!(*store.data(), 84);
    // A host's function without a type known to the compiler has a trampoline of its own.
    let host = Func::new(&mut store, wasmtime::FuncType::new(packed.engine(), [], []), |mut caller, _, _| {
        *caller.data_mut() += 1;
        Ok(())
    });
    host.typed::<(), ()>(&store).expect("its type").call(&mut store, ()).expect("it returns");
    assert_eq!(*store.data(), 85);
}

#[test]
fn modules_of_other_ways_are_refused_with_the_way_out() {
    let _one = one_at_a_time();
    let packed = packed();
    let error = Module::new(packed.engine(), returning(1)).expect_err("not in packs");
    assert!(format!("{error:?}").contains("PackedEngine::compile"), "{error:?}");
    // An image with tables for the unwinder, which would read them after they are gone.
    let plain = Engine::new(Config::new().native_unwind_info(true)).expect("an engine");
    let image = plain.precompile_module(returning(1).as_bytes()).expect("compiled");
    // SAFETY: 1. just compiled.
    let error = unsafe { packed.deserialize(&image) }.expect_err("it has tables");
    assert!(matches!(error.downcast_ref(), Some(LoadError::UnwindTables { len: 1.. })), "{error:?}");
    for wrong in [&b"no image"[..], b""] {
        // SAFETY: 1. bytes that are no image are refused.
        let error = unsafe { packed.deserialize(wrong) }.expect_err("it is no image");
        assert!(matches!(error.downcast_ref(), Some(LoadError::Image { .. })), "{error:?}");
    }
    // An image of an engine with other settings: its code counts fuel.
    let other = Engine::new(Config::new().native_unwind_info(false).consume_fuel(true)).expect("an engine");
    let image = other.precompile_module(returning(1).as_bytes()).expect("compiled");
    // SAFETY: 1. just compiled.
    assert!(unsafe { packed.deserialize(&image) }.is_err());
    assert!(packed.compile(b"(module (func (result i32)))").is_err());
    reclaim(&packed);
    assert_eq!(packed.packs().stats().used_bytes, 0, "what was refused is free again");
    assert_eq!(call(&packed, &packed.compile(returning(3).as_bytes()).expect("compiled")), 3);
}

#[test]
fn modules_without_code_are_loaded_and_dropped_beside_others() {
    let _one = one_at_a_time();
    let packed = packed();
    let other = packed.compile(returning(9).as_bytes()).expect("compiled");
    for text in ["(module)", "(module (memory (export \"m\") 1))", "(module (data \"abc\"))"] {
        // Many beside each other, so that a wrong address would hit another module.
        let modules: Vec<_> = (0..50).map(|_| packed.compile(text.as_bytes()).expect("compiled")).collect();
        assert_eq!(packed.packs().stats().programs, 51, "{text}");
        drop(modules);
        reclaim(&packed);
        assert_eq!(packed.packs().stats().programs, 1, "{text}");
    }
    assert_eq!(call(&packed, &other), 9);
}

#[test]
fn threads_load_run_and_drop_at_once() {
    let _one = one_at_a_time();
    let packs = Packs::builder().reclaim(ReclaimPolicy::Automatic { retired_bytes: 64 << 10 }).open().expect("open");
    let packed = PackedEngine::new(Config::new(), packs).expect("an engine");
    let images: Vec<_> = (0..4)
        .map(|number| packed.engine().precompile_module(returning(number).as_bytes()).expect("compiled"))
        .collect();
    let shared = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (packed, images, shared) = (&packed, &images, &shared);
            scope.spawn(move || {
                for round in 0..100 {
                    let which = (thread + round) % 4;
                    // SAFETY: 1. compiled above.
                    let module = unsafe { packed.deserialize(&images[which]) }.expect("loaded");
                    assert_eq!(call(packed, &module), which as i32);
                    let mut shared = shared.lock().expect("nobody panics");
                    shared.push((which, module));
                    // Takes a module out, mostly another thread's.
                    let (which, module) = if shared.len() > 8 { shared.swap_remove(round % 8) } else { continue };
                    drop(shared);
                    assert_eq!(call(packed, &module), which as i32);
                }
            });
        }
    });
    drop(shared);
    reclaim(&packed);
    assert_eq!(packed.packs().stats().programs, 0);
}

#[test]
fn a_child_runs_what_it_inherits_and_loads_its_own() {
    let _one = one_at_a_time();
    let packed = packed();
    let module = packed.compile(returning(4).as_bytes()).expect("compiled");
    let image = packed.engine().precompile_module(returning(8).as_bytes()).expect("compiled");
    // SAFETY: the child runs what follows alone, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: 1. compiled above.
        let own = unsafe { packed.deserialize(&image) };
        let is_right = own.is_ok_and(|own| call(&packed, &own) == 8) && call(&packed, &module) == 4;
        drop(module);
        // SAFETY: ends the child without the harness's handlers.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "how the child ended");
    assert_eq!(call(&packed, &module), 4, "the child's drop was the child's");
}
