//! Cranelift's library calls need neither a symbol from the caller nor a loaded libm.

use super::common::{call1, declare, define};
use cranelift_codegen::ir::types::{F32, F64, I64};
use cranelift_codegen::ir::{AbiParam, InstBuilder, LibCall};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_module::{Linkage, Module, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};

/// Returns a module for the architecture's oldest CPUs, on which rounding is no instruction.
fn module() -> PackModule {
    let isa = cranelift_native::builder_with_options(false).unwrap();
    let mut flags = settings::builder();
    flags.set("is_pic", "false").unwrap();
    let isa = isa.finish(settings::Flags::new(flags)).unwrap();
    PackModule::new(PackModuleBuilder::with_isa(isa, default_libcall_names()))
}

#[test]
fn rounding() {
    let mut module = module();
    let mut signature = module.make_signature();
    signature.params.push(AbiParam::new(F64));
    signature.returns.push(AbiParam::new(F64));
    let id = module.declare_function("all", Linkage::Export, &signature).unwrap();
    // 1000·ceil + 100·floor + 10·trunc + nearest, plus the same in single precision.
    define(&mut module, id, |_, code, args| {
        let single = code.ins().fdemote(F32, args[0]);
        let mut sum = code.ins().f64const(0.0);
        for place in 0..4 {
            let parts = match place {
                0 => (code.ins().ceil(args[0]), code.ins().ceil(single)),
                1 => (code.ins().floor(args[0]), code.ins().floor(single)),
                2 => (code.ins().trunc(args[0]), code.ins().trunc(single)),
                _ => (code.ins().nearest(args[0]), code.ins().nearest(single)),
            };
            let single = code.ins().fpromote(F64, parts.1);
            let both = code.ins().fadd(parts.0, single);
            let ten = code.ins().f64const(10.0);
            let shifted = code.ins().fmul(sum, ten);
            sum = code.ins().fadd(shifted, both);
        }
        sum
    });
    let fma = module.declare_function("fma_of", Linkage::Export, &signature).unwrap();
    define(&mut module, fma, |_, code, args| code.ins().fma(args[0], args[0], args[0]));
    module.finalize_definitions().unwrap();
    let function = |id| {
        let entry = module.get_finalized_function(id);
        // SAFETY: `entry` is finalized code of this signature, and the module outlives the calls.
        unsafe { std::mem::transmute::<*const u8, extern "C" fn(f64) -> f64>(entry) }
    };
    assert_eq!(function(id)(2.5), 2.0 * 3222.0);
    assert_eq!(function(id)(-3.5), -2.0 * (3000.0 + 400.0 + 30.0 + 4.0));
    assert_eq!(function(fma)(3.0), 12.0);
}

#[test]
fn memory() {
    let mut module = module();
    let id = declare(&mut module, "copy", Linkage::Export, 1);
    define(&mut module, id, |module, code, args| {
        let config = module.target_config();
        let source = args[0];
        let target = code.ins().iadd_imm_u(source, 1000);
        let len = code.ins().iconst(I64, 1000);
        code.call_memcpy(config, target, source, len);
        let order = code.call_memcmp(config, target, source, len);
        code.ins().sextend(I64, order)
    });
    module.finalize_definitions().unwrap();
    let mut memory: Vec<u8> = (0..2000).map(|n| (n % 251) as u8).collect();
    let result = call1(module.get_finalized_function(id), memory.as_mut_ptr() as i64);
    assert_eq!(result, 0);
    assert_eq!(memory[..1000], memory[1000..]);
}

/// Cranelift looks up the names that `libcall_names` returns.
#[test]
fn other_names() {
    extern "C" fn three(_: f64) -> f64 {
        3.0
    }
    let isa = cranelift_native::builder_with_options(false).unwrap();
    let isa = isa.finish(settings::Flags::new(settings::builder())).unwrap();
    let names = |call: LibCall| format!("my_{call}");
    let mut builder = PackModuleBuilder::with_isa(isa, Box::new(names));
    builder.symbol("my_CeilF64", three as *const u8);
    let mut module = PackModule::new(builder);
    let mut signature = module.make_signature();
    signature.returns.push(AbiParam::new(F64));
    let id = module.declare_function("up", Linkage::Export, &signature).unwrap();
    define(&mut module, id, |_, code, _| {
        let value = code.ins().f64const(7.5);
        code.ins().ceil(value)
    });
    module.finalize_definitions().unwrap();
    let entry = module.get_finalized_function(id);
    // SAFETY: `entry` is finalized code of this signature, and the module outlives the call.
    let up = unsafe { std::mem::transmute::<*const u8, extern "C" fn() -> f64>(entry) };
    // Processors with SSE 4.1 in their baseline, or AArch64, round without a call.
    assert!([3.0, 8.0].contains(&up()));
}
