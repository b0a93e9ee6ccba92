//! A function that Cranelift compiles into a pack, and that is freed alone.

use cranelift_codegen::ir::{AbiParam, InstBuilder, types::I64};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{Linkage, Module, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut module = PackModule::try_new(PackModuleBuilder::new(default_libcall_names())?)?;
    let mut context = module.make_context();
    context.func.signature.params.push(AbiParam::new(I64));
    context.func.signature.returns.push(AbiParam::new(I64));
    let increment = module.declare_function("increment", Linkage::Export, &context.func.signature)?;

    let mut scratch = FunctionBuilderContext::new();
    let mut code = FunctionBuilder::new(&mut context.func, &mut scratch);
    let block = code.create_block();
    code.append_block_params_for_function_params(block);
    code.switch_to_block(block);
    code.seal_all_blocks();
    let argument = code.block_params(block)[0];
    let sum = code.ins().iadd_imm_s(argument, 1);
    code.ins().return_(&[sum]);
    code.finalize(module.target_config());

    // ANCHOR: free
    module.define_function(increment, &mut context)?;
    module.finalize_definitions()?; // both views are filled now, and the address is known
    let entry = module.get_finalized_function(increment);
    // SAFETY: the code at `entry` has this signature, and is not freed before the call returns.
    let call = unsafe { std::mem::transmute::<*const u8, extern "C" fn(i64) -> i64>(entry) };
    assert_eq!(call(41), 42);

    module.free_function(increment)?; // this one alone; `JITModule` frees all or nothing
    module.packs().reclaim()?;
    // ANCHOR_END: free
    Ok(())
}
