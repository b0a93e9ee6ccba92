//! The linked bytes: near and far calls, address slots, limits, on this machine and on others.

use std::slice;

use super::common::{add_n, add_n_to, call1, declare, define};
use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, TrapCode};
use cranelift_codegen::isa::OwnedTargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use cranelift_module::{
    DataDescription, FuncId, Linkage, Module, ModuleError, ModuleReloc, ModuleRelocTarget, default_libcall_names,
};
use palimpsest_cranelift::{DefineError, LinkError, PackModule, PackModuleBuilder};

/// An address without a pack within 2 GiB: packs lie below 2⁴⁷, and only the zero page lies so low.
const FAR: usize = 0x7ff8;

extern "C" fn host_double(x: i64) -> i64 {
    x * 2
}

fn isa(triple: &str, is_pic: &str) -> OwnedTargetIsa {
    let mut flags = settings::builder();
    flags.set("is_pic", is_pic).unwrap();
    flags.set("use_colocated_libcalls", "true").unwrap();
    cranelift_codegen::isa::lookup_by_name(triple).unwrap().finish(settings::Flags::new(flags)).unwrap()
}

fn host_isa(is_pic: &str) -> OwnedTargetIsa {
    let mut flags = settings::builder();
    flags.set("is_pic", is_pic).unwrap();
    cranelift_native::builder().unwrap().finish(settings::Flags::new(flags)).unwrap()
}

fn module_for(isa: OwnedTargetIsa, symbols: &[(&str, *const u8)]) -> PackModule {
    let mut builder = PackModuleBuilder::with_isa(isa, default_libcall_names());
    builder.symbols(symbols.iter().copied());
    PackModule::new(builder)
}

/// Returns the function's bytes in the pack.
fn bytes(module: &PackModule, id: FuncId) -> Vec<u8> {
    let program = module.program(id).unwrap();
    // SAFETY: a program's bytes are readable, and do not change while the module owns it.
    unsafe { slice::from_raw_parts(program.entry(), program.len()) }.to_vec()
}

fn words(code: &[u8]) -> Vec<u32> {
    let words = code.chunks_exact(4);
    words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn address(module: &PackModule, id: FuncId) -> u64 {
    module.get_finalized_function(id) as u64
}

fn backend<E: std::error::Error + Send + Sync + 'static>(error: ModuleError) -> E {
    match error {
        ModuleError::Backend(error) => error.downcast().unwrap(),
        other => panic!("{other}"),
    }
}

fn far() -> *const u8 {
    std::ptr::without_provenance(FAR)
}

/// A direct call (`call rel32`) to a host function works at any distance.
#[test]
fn direct_calls_to_the_host() {
    let double = host_double as *const u8;
    let labs = libc::labs as *const u8;
    for is_pic in ["false", "true"] {
        let mut module = module_for(host_isa(is_pic), &[("double", double), ("abs", labs)]);
        // Local linkage makes the call direct, although the module never defines them. One of the executable and libc
        // is far from the packs, wherever those are.
        let double = declare(&mut module, "double", Linkage::Local, 1);
        let abs = declare(&mut module, "abs", Linkage::Local, 1);
        let a = add_n_to(&mut module, "a", double, 2);
        let b = add_n_to(&mut module, "b", abs, 2);
        // At the end of many calls to the same callee: they share one veneer.
        let c = declare(&mut module, "c", Linkage::Export, 1);
        define(&mut module, c, |module, code, args| {
            let once = super::common::call(module, code, double, args);
            let twice = super::common::call(module, code, double, &[once]);
            super::common::call(module, code, double, &[twice])
        });
        module.finalize_definitions().unwrap();
        assert_eq!(call1(module.get_finalized_function(a), 20), 42);
        assert_eq!(call1(module.get_finalized_function(b), -40), 42);
        assert_eq!(call1(module.get_finalized_function(c), 5), 40);
        assert!(module.program(c).unwrap().len() <= module.code_len(c).unwrap() + 8 + 16);
    }
}

#[test]
fn position_independent_code() {
    let mut module = module_for(host_isa("true"), &[("double", host_double as *const u8)]);
    let double = declare(&mut module, "double", Linkage::Import, 1);
    let counter = module.declare_data("counter", Linkage::Export, true, false).unwrap();
    let mut five = DataDescription::new();
    five.define(Box::new(5_u64.to_le_bytes()));
    module.define_data(counter, &five).unwrap();
    let id = declare(&mut module, "f", Linkage::Export, 1);
    define(&mut module, id, |module, code, args| {
        let doubled = super::common::call(module, code, double, args);
        let counter = module.declare_data_in_func(counter, code.func);
        let counter = code.ins().symbol_value(I64, counter);
        let flags = cranelift_codegen::ir::MemFlagsData::trusted();
        let count = code.ins().load(I64, flags, counter, 0);
        code.ins().iadd(doubled, count)
    });
    module.finalize_definitions().unwrap();
    assert_eq!(call1(module.get_finalized_function(id), 4), 13);
}

#[test]
fn far_calls_go_through_a_veneer_on_x86_64() {
    let mut module = module_for(isa("x86_64", "false"), &[("far", far())]);
    let callee = declare(&mut module, "far", Linkage::Local, 1);
    let id = add_n_to(&mut module, "f", callee, 1);
    module.finalize_definitions().unwrap();
    let code = bytes(&module, id);
    let call = code.iter().position(|byte| *byte == 0xe8).unwrap() + 1;
    let distance = i32::from_le_bytes(code[call..call + 4].try_into().unwrap());
    let veneer = (call + 4).checked_add_signed(distance as isize).unwrap();
    assert_eq!(veneer % 8, 0);
    assert_eq!(veneer + 16, code.len());
    assert_eq!(code[veneer..veneer + 6], [0xff, 0x25, 2, 0, 0, 0]);
    assert_eq!(code[veneer + 8..], (FAR as u64).to_le_bytes());
}

/// `lea` of a symbol has the same relocation kind as a call, but needs the symbol's own address, so it cannot use a
/// veneer.
#[test]
fn far_addresses_are_an_error() {
    let mut module = module_for(isa("x86_64", "false"), &[("far", far())]);
    let target = declare(&mut module, "far", Linkage::Local, 1);
    let id = declare(&mut module, "f", Linkage::Export, 0);
    define(&mut module, id, |module, code, _| {
        let target = module.declare_func_in_func(target, code.func);
        code.ins().func_addr(I64, target)
    });
    let error: LinkError = backend(module.finalize_definitions().unwrap_err());
    let text = error.to_string();
    match error {
        LinkError::OutOfRange { symbol, referrer, distance, reach, .. } => {
            assert_eq!((symbol.as_str(), referrer.as_str()), ("far", "f"));
            assert_eq!(reach, i32::MAX as u64);
            assert!(distance < -(1 << 31));
            assert!(text.contains(&distance.to_string()) && text.contains("Linkage::Import"), "{text}");
        }
        other => panic!("{other}"),
    }
    // The way out that the message names.
    let mut module = module_for(isa("x86_64", "false"), &[("far", far())]);
    let target = declare(&mut module, "far", Linkage::Import, 1);
    let id = declare(&mut module, "f", Linkage::Export, 0);
    define(&mut module, id, |module, code, _| {
        let target = module.declare_func_in_func(target, code.func);
        code.ins().func_addr(I64, target)
    });
    module.finalize_definitions().unwrap();
    let code = bytes(&module, id);
    assert!(code.windows(8).any(|window| window == (FAR as u64).to_le_bytes()));
}

/// Returns the target of the `bl` or `b` at index `at`, from the instruction's bits.
fn aarch64_branch(base: u64, code: &[u32], at: usize) -> u64 {
    let offset = i64::from((code[at] << 6).cast_signed() >> 6) * 4;
    (base + at as u64 * 4).wrapping_add_signed(offset)
}

#[test]
fn aarch64_calls() {
    let mut module = module_for(isa("aarch64", "false"), &[("far", far())]);
    let near = add_n(&mut module, "near", 1);
    let far = declare(&mut module, "far", Linkage::Local, 1);
    let near_caller = add_n_to(&mut module, "near_caller", near, 1);
    let far_caller = add_n_to(&mut module, "far_caller", far, 1);
    module.finalize_definitions().unwrap();

    let is_bl = |word: &u32| word >> 26 == 0b10_0101;
    let base = address(&module, near_caller);
    let code = words(&bytes(&module, near_caller));
    let at = code.iter().position(is_bl).unwrap();
    assert_eq!(aarch64_branch(base, &code, at), address(&module, near));

    let base = address(&module, far_caller);
    let code = bytes(&module, far_caller);
    let at = words(&code).iter().position(is_bl).unwrap();
    let veneer = (aarch64_branch(base, &words(&code), at) - base) as usize;
    assert_eq!(veneer % 8, 0);
    // ldr x16, #8; br x16
    assert_eq!(words(&code[veneer..])[..2], [0x5800_0050, 0xd61f_0200]);
    assert_eq!(code[veneer + 8..veneer + 16], (FAR as u64).to_le_bytes());
}

#[test]
fn aarch64_addresses() {
    let mut module = module_for(isa("aarch64", "false"), &[]);
    let data = module.declare_data("data", Linkage::Local, true, false).unwrap();
    let mut zero = DataDescription::new();
    zero.define_zeroinit(40);
    zero.set_align(8);
    module.define_data(data, &zero).unwrap();
    let id = declare(&mut module, "f", Linkage::Export, 0);
    define(&mut module, id, |module, code, _| {
        let data = module.declare_data_in_func(data, code.func);
        code.ins().symbol_value(I64, data)
    });
    module.finalize_definitions().unwrap();
    let base = address(&module, id);
    let code = words(&bytes(&module, id));
    let at = code.iter().position(|word| word & 0x9f00_0000 == 0x9000_0000);
    let at = at.expect("adrp");
    let (adrp, add) = (code[at], code[at + 1]);
    let pages = ((adrp >> 5) & 0x7_ffff) << 2 | (adrp >> 29) & 3;
    let pages = i64::from((pages << 11).cast_signed() >> 11);
    let page = ((base + at as u64 * 4) & !0xfff).wrapping_add_signed(pages * 4096);
    let target = page + u64::from((add >> 10) & 0xfff);
    assert_eq!(target, module.get_finalized_data(data).0 as u64);
}

#[test]
fn aarch64_slots() {
    let mut module = module_for(isa("aarch64", "true"), &[("far", far())]);
    let far = declare(&mut module, "far", Linkage::Import, 1);
    let id = declare(&mut module, "f", Linkage::Export, 0);
    define(&mut module, id, |module, code, _| {
        let far = module.declare_func_in_func(far, code.func);
        code.ins().func_addr(I64, far)
    });
    module.finalize_definitions().unwrap();
    let base = address(&module, id);
    let code = bytes(&module, id);
    let instructions = words(&code);
    let at = instructions.iter().position(|word| word & 0x9f00_0000 == 0x9000_0000);
    let at = at.expect("adrp");
    let (adrp, ldr) = (instructions[at], instructions[at + 1]);
    let pages = i64::from((((adrp >> 5) & 0x7_ffff) << 13 | ((adrp >> 29) & 3) << 11).cast_signed() >> 11);
    let page = ((base + at as u64 * 4) & !0xfff).wrapping_add_signed(pages * 4096);
    let slot = (page + u64::from((ldr >> 10) & 0xfff) * 8 - base) as usize;
    assert_eq!(code[slot..slot + 8], (FAR as u64).to_le_bytes());
}

#[test]
fn riscv64_code_is_linked() {
    for is_pic in ["false", "true"] {
        let mut module = module_for(isa("riscv64gc", is_pic), &[("far", far())]);
        let near = add_n(&mut module, "near", 1);
        let far = declare(&mut module, "far", Linkage::Local, 1);
        let far_data = declare(&mut module, "far_import", Linkage::Preemptible, 1);
        let near_caller = add_n_to(&mut module, "near_caller", near, 1);
        let far_caller = add_n_to(&mut module, "far_caller", far, 1);
        let data = module.declare_data("data", Linkage::Local, true, false).unwrap();
        let mut zero = DataDescription::new();
        zero.define_zeroinit(40);
        module.define_data(data, &zero).unwrap();
        let id = declare(&mut module, "f", Linkage::Export, 0);
        define(&mut module, id, |module, code, _| {
            let data = module.declare_data_in_func(data, code.func);
            let data = code.ins().symbol_value(I64, data);
            let far = module.declare_func_in_func(far_data, code.func);
            let far = code.ins().func_addr(I64, far);
            code.ins().iadd(data, far)
        });
        module.finalize_definitions().unwrap();
        let code = bytes(&module, far_caller);
        assert_eq!(code[code.len() - 8..], (FAR as u64).to_le_bytes(), "the veneer's address");

        // auipc ra; jalr ra, with possibly compressed instructions around it
        let base = address(&module, near_caller);
        let code = bytes(&module, near_caller);
        let pair = (0..code.len() - 7).step_by(2).find_map(|at| {
            let pair = words(&code[at..at + 8]);
            (pair[0] & 0xfff == 0x097 && pair[1] & 0xf_ffff == 0x080e7).then_some((at, pair))
        });
        let (at, pair) = pair.expect("a call");
        let to = (base + at as u64)
            .wrapping_add_signed(i64::from((pair[0] & 0xffff_f000).cast_signed()))
            .wrapping_add_signed(i64::from(pair[1].cast_signed() >> 20));
        assert_eq!(to, address(&module, near));
    }
}

#[test]
fn thread_local_data_is_refused() {
    let mut module = module_for(host_isa("false"), &[]);
    let error: DefineError = backend(module.declare_data("tls", Linkage::Local, true, true).unwrap_err());
    assert!(matches!(&error, DefineError::ThreadLocal { name } if name == "tls"));
    assert!(module.declare_anonymous_data(true, true).is_err());
    let tls = ModuleReloc { offset: 1, kind: Reloc::ElfX86_64TlsGd, name: ModuleRelocTarget::user(1, 0), addend: -4 };
    let id = declare(&mut module, "f", Linkage::Local, 0);
    let error = module.define_function_bytes(id, 1, &[0; 8], &[tls]).unwrap_err();
    assert!(matches!(backend(error), DefineError::Relocation { kind: Reloc::ElfX86_64TlsGd, offset: 1, .. }));
}

#[test]
fn bad_input_is_an_error_and_the_module_stays_usable() {
    let mut module = module_for(host_isa("false"), &[("far", far())]);
    let id = declare(&mut module, "f", Linkage::Local, 0);
    let target = declare(&mut module, "far", Linkage::Import, 0);
    let reloc = |offset, kind| ModuleReloc { offset, kind, name: ModuleRelocTarget::from(target), addend: 0 };
    let error = module.define_function_bytes(id, 1, &[], &[]).unwrap_err();
    assert!(matches!(backend(error), DefineError::Empty { .. }));
    let error = module.define_function_bytes(id, 48, &[0xc3], &[]).unwrap_err();
    assert!(matches!(backend(error), DefineError::Alignment { align: 48, .. }));

    for (offset, len) in [(5, 12), (13, 12), (u32::MAX, 12), (0, 1)] {
        let relocs = [reloc(offset, Reloc::Abs8)];
        module.define_function_bytes(id, 1, &vec![0xc3; len], &relocs).unwrap();
        let error: LinkError = backend(module.finalize_definitions().unwrap_err());
        assert!(matches!(&error, LinkError::OutsideDefinition { len: l, needed: 8, .. } if *l == len), "{error}");
        module.free_function(id).unwrap();
    }

    let text = declare(&mut module, "wide", Linkage::Local, 0);
    module.define_function_bytes(text, 1, &[0xc3], &[]).unwrap();
    let mut narrow = reloc(0, Reloc::Abs4);
    narrow.name = ModuleRelocTarget::from(text);
    module.define_function_bytes(id, 1, &[0; 4], &[narrow]).unwrap();
    let error: LinkError = backend(module.finalize_definitions().unwrap_err());
    assert!(matches!(error, LinkError::Absolute32 { .. }), "{error}");
    module.free_function(id).unwrap();
    module.finalize_definitions().unwrap();
    assert_eq!(bytes(&module, text), [0xc3]);

    let data = module.declare_data("data", Linkage::Local, false, false).unwrap();
    let error = module.define_data(data, &DataDescription::new()).unwrap_err();
    assert!(matches!(backend(error), DefineError::Uninitialized { .. }));
    let mut short = DataDescription::new();
    short.define(Box::new([0; 8]));
    let in_data = module.declare_func_in_data(text, &mut short);
    short.write_function_addr(1, in_data);
    module.define_data(data, &short).unwrap();
    let error: LinkError = backend(module.finalize_definitions().unwrap_err());
    assert!(matches!(error, LinkError::OutsideDefinition { offset: 1, len: 8, .. }), "{error}");
}

/// More than the packs can ever hold is an allocation error, as in `cranelift_jit`.
#[test]
fn too_much_data_is_an_allocation_error() {
    let mut module = module_for(host_isa("false"), &[]);
    let data = module.declare_data("huge", Linkage::Local, true, false).unwrap();
    let mut huge = DataDescription::new();
    huge.define_zeroinit(1 << 45);
    module.define_data(data, &huge).unwrap();
    let error = module.finalize_definitions().unwrap_err();
    assert!(matches!(&error, ModuleError::Allocation { err } if err.to_string().contains("huge")), "{error}");
    module.free_data(data).unwrap();
    let id = add_n(&mut module, "f", 2);
    module.finalize_definitions().unwrap();
    assert_eq!(call1(module.get_finalized_function(id), 40), 42);
}

#[test]
fn empty_data_has_an_address_of_its_own() {
    let mut module = module_for(host_isa("false"), &[]);
    let ids = ["a", "b"].map(|name| {
        let id = module.declare_data(name, Linkage::Local, false, false).unwrap();
        let mut empty = DataDescription::new();
        empty.define(Box::new([]));
        module.define_data(id, &empty).unwrap();
        id
    });
    module.finalize_definitions().unwrap();
    let [a, b] = ids.map(|id| module.get_finalized_data(id));
    assert_eq!((a.1, b.1), (0, 0));
    assert_ne!(a.0, b.0);
}

#[test]
fn traps_are_known_by_offset() {
    let mut module = module_for(host_isa("false"), &[]);
    let id = declare(&mut module, "divide", Linkage::Export, 2);
    define(&mut module, id, |_, code, args| code.ins().udiv(args[0], args[1]));
    let pending = module.traps(id).to_vec();
    module.finalize_definitions().unwrap();
    assert_eq!(module.traps(id), pending);
    assert!(pending.iter().any(|trap| trap.code == TrapCode::INTEGER_DIVISION_BY_ZERO), "{pending:?}");
    assert!(pending.iter().all(|trap| (trap.offset as usize) < module.code_len(id).unwrap()));
}
