//! Builders of functions for tests.

use cranelift_codegen::ir::{AbiParam, InstBuilder, Signature, Value, types::I64};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{FuncId, Linkage, Module};

/// Returns a signature with `params` 64-bit integers and one as result.
pub(crate) fn signature(module: &dyn Module, params: usize) -> Signature {
    let mut signature = module.make_signature();
    signature.params = vec![AbiParam::new(I64); params];
    signature.returns.push(AbiParam::new(I64));
    signature
}

/// Declares a function with `params` integers.
pub(crate) fn declare(module: &mut dyn Module, name: &str, linkage: Linkage, params: usize) -> FuncId {
    let signature = signature(module, params);
    module.declare_function(name, linkage, &signature).unwrap()
}

/// Defines `id` by a function that returns what `body` makes of the arguments.
pub(crate) fn define<M: Module>(
    module: &mut M,
    id: FuncId,
    body: impl FnOnce(&mut M, &mut FunctionBuilder<'_>, &[Value]) -> Value,
) {
    let mut context = module.make_context();
    context.func.signature = module.declarations().get_function_decl(id).signature.clone();
    let mut scratch = FunctionBuilderContext::new();
    let mut code = FunctionBuilder::new(&mut context.func, &mut scratch);
    let block = code.create_block();
    code.append_block_params_for_function_params(block);
    code.switch_to_block(block);
    let params = code.block_params(block).to_vec();
    let result = body(module, &mut code, &params);
    code.ins().return_(&[result]);
    code.seal_all_blocks();
    code.finalize(module.target_config());
    module.define_function(id, &mut context).unwrap();
}

/// Calls `callee` from the function that is being built.
pub(crate) fn call<M: Module>(module: &mut M, code: &mut FunctionBuilder<'_>, callee: FuncId, args: &[Value]) -> Value {
    let callee = module.declare_func_in_func(callee, code.func);
    let call = code.ins().call(callee, args);
    code.inst_results(call)[0]
}

/// Declares and defines `name(x) = x + n`.
pub(crate) fn add_n<M: Module>(module: &mut M, name: &str, n: i64) -> FuncId {
    let id = declare(module, name, Linkage::Export, 1);
    define(module, id, |_, code, args| code.ins().iadd_imm_u(args[0], n));
    id
}

/// Declares and defines `name(x) = callee(x) + n`.
pub(crate) fn add_n_to<M: Module>(module: &mut M, name: &str, callee: FuncId, n: i64) -> FuncId {
    let id = declare(module, name, Linkage::Export, 1);
    define(module, id, |module, code, args| {
        let called = call(module, code, callee, args);
        code.ins().iadd_imm_u(called, n)
    });
    id
}

/// Returns the function at `entry`.
///
/// # Safety
/// 1. `entry` is the start of finalized code of this signature that is not freed while the result is used.
pub(crate) unsafe fn function1(entry: *const u8) -> extern "C" fn(i64) -> i64 {
    // SAFETY: (1) by the caller.
    unsafe { std::mem::transmute(entry) }
}

/// Calls `entry` with one argument.
pub(crate) fn call1(entry: *const u8, x: i64) -> i64 {
    // SAFETY: (1) the tests pass entries of finalized functions of one integer, and free them only afterwards.
    let function = unsafe { function1(entry) };
    function(x)
}

/// Calls `entry` with two arguments.
pub(crate) fn call2(entry: *const u8, x: i64, y: i64) -> i64 {
    // SAFETY: the tests pass entries of finalized functions of two integers, and free them only afterwards.
    let function = unsafe { std::mem::transmute::<*const u8, extern "C" fn(i64, i64) -> i64>(entry) };
    function(x, y)
}
