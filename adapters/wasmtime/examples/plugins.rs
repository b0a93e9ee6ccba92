//! A host of many plugins. Each is a module of its own; all share packs, and are loaded and dropped one by one.

use palimpsest_text::Packs;
use palimpsest_wasmtime::PackedEngine;
use wasmtime::{Config, Instance, Module, Store};

/// A plugin as its author would send it: here, one that scales numbers.
fn plugin(factor: u32) -> String {
    format!(
        r#"(module
            (func (export "run") (param i64) (result i64)
                (i64.mul (local.get 0) (i64.const {factor}))))"#
    )
}

// ANCHOR: host
/// A running plugin. Its memory goes back to the packs when its module, store and functions are all dropped.
struct Plugin {
    store: Store<()>,
    run: wasmtime::TypedFunc<i64, i64>,
}

fn start(packed: &PackedEngine, module: &Module) -> wasmtime::Result<Plugin> {
    let mut store = Store::new(packed.engine(), ());
    let instance = Instance::new(&mut store, module, &[])?;
    let run = instance.get_typed_func(&mut store, "run")?;
    Ok(Plugin { store, run })
}

fn main() -> wasmtime::Result<()> {
    // The only difference to plain Wasmtime: an engine with packs makes the modules.
    let packed = PackedEngine::new(Config::new(), Packs::new()?)?;
    let mut plugins = Vec::new();
    for factor in 0..200 {
        let module = packed.compile(plugin(factor).as_bytes())?;
        plugins.push(start(&packed, &module)?);
    }
    for (factor, plugin) in plugins.iter_mut().enumerate() {
        assert_eq!(plugin.run.call(&mut plugin.store, 21)?, 21 * factor as i64);
    }
    let stats = packed.packs().stats();
    println!("{} modules in {} packs of {}", stats.programs, stats.packs, stats.backing);
    // ANCHOR_END: host

    plugins.truncate(50);
    packed.packs().reclaim()?;
    assert_eq!(packed.packs().stats().programs, 50);
    Ok(())
}
