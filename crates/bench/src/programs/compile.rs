//! From [`Source`] to machine code by Cranelift, without relocations, so that the same bytes run wherever they are
//! placed.

use std::sync::Arc;
use std::thread;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AbiParam, Function, InstBuilder, Signature, UserFuncName, types};
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::model::{Operation, Source};
use crate::BenchError;

/// A compiled program together with its text.
///
/// # Invariants
///
/// `code` is what Cranelift emitted for a function with the host's C calling convention that takes a `u64` and returns
/// a `u64`, and needs no relocation. The fields are private to this module, which alone makes values of this type.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    code: Arc<[u8]>,
    source: Source,
}

impl Compiled {
    /// Position-independent machine code; the entry is its first byte.
    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }

    /// What the code has to return for `argument`.
    pub(crate) fn evaluate(&self, argument: u64) -> u64 {
        self.source.evaluate(argument)
    }
}

/// Compiles the programs with the numbers `0..count`, on all CPUs.
pub(crate) fn compile_all(count: usize) -> Result<Vec<Compiled>, BenchError> {
    let isa = host_isa()?;
    let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let numbers: Vec<u64> = (0..count as u64).collect();
    let share = count.div_ceil(workers).max(1);
    thread::scope(|scope| {
        let compiling: Vec<_> =
            numbers.chunks(share).map(|numbers| scope.spawn(|| compile_numbers(&*isa, numbers))).collect();
        let mut programs = Vec::with_capacity(count);
        for worker in compiling {
            let compiled = worker
                .join()
                .map_err(|_panic| BenchError::Compile { reason: "a compiling thread panicked".to_owned() })?;
            programs.extend(compiled?);
        }
        Ok(programs)
    })
}

fn host_isa() -> Result<OwnedTargetIsa, BenchError> {
    let refused = |reason: String| BenchError::Compile { reason };
    let mut flags = settings::builder();
    for (name, value) in [("opt_level", "none"), ("enable_verifier", "false"), ("is_pic", "false")] {
        flags.set(name, value).map_err(|error| refused(error.to_string()))?;
    }
    cranelift_native::builder()
        .map_err(|error| refused(error.to_owned()))?
        .finish(settings::Flags::new(flags))
        .map_err(|error| refused(error.to_string()))
}

fn compile_numbers(isa: &dyn TargetIsa, numbers: &[u64]) -> Result<Vec<Compiled>, BenchError> {
    let mut context = Context::new();
    let mut frontend = FunctionBuilderContext::new();
    numbers.iter().map(|&number| compile(isa, &mut context, &mut frontend, Source::generate(number))).collect()
}

fn compile(
    isa: &dyn TargetIsa,
    context: &mut Context,
    frontend: &mut FunctionBuilderContext,
    source: Source,
) -> Result<Compiled, BenchError> {
    context.clear();
    context.func = translate(isa, frontend, &source);
    let compiled = context
        .compile(isa, &mut ControlPlane::default())
        .map_err(|error| BenchError::Compile { reason: format!("{:?}", error.inner) })?;
    let relocations = compiled.buffer.relocs().len();
    if relocations != 0 {
        return Err(BenchError::Compile {
            reason: format!("a program came out with {relocations} relocations, so it could not be moved"),
        });
    }
    Ok(Compiled { code: compiled.code_buffer().into(), source })
}

fn translate(isa: &dyn TargetIsa, frontend: &mut FunctionBuilderContext, source: &Source) -> Function {
    let mut signature = Signature::new(isa.default_call_conv());
    signature.params.push(AbiParam::new(types::I64));
    signature.returns.push(AbiParam::new(types::I64));
    let mut function = Function::with_name_signature(UserFuncName::default(), signature);
    let mut builder = FunctionBuilder::new(&mut function, frontend);
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let argument = builder.block_params(entry)[0];
    let variables = source.initial.map(|constant| {
        let variable = builder.declare_var(types::I64);
        let mixed = builder.ins().bxor_imm_s(argument, i64::from(constant));
        builder.def_var(variable, mixed);
        variable
    });
    let mut landing = None;
    for (place, &operation) in source.operations.iter().enumerate() {
        if let Some((_, block)) = landing.take_if(|&mut (at, _)| at == place) {
            builder.ins().jump(block, &[]);
            builder.switch_to_block(block);
        }
        if let Operation::SkipIfOdd { tested, skipped } = operation {
            let (kept, after) = (builder.create_block(), builder.create_block());
            let tested = builder.use_var(variables[tested]);
            let bit = builder.ins().band_imm_s(tested, 1);
            let odd = builder.ins().icmp_imm_s(IntCC::NotEqual, bit, 0);
            builder.ins().brif(odd, after, &[], kept, &[]);
            builder.switch_to_block(kept);
            landing = Some((place + 1 + skipped, after));
        } else {
            translate_step(&mut builder, &variables, operation);
        }
    }
    let mut sum = builder.use_var(variables[0]);
    for &variable in &variables[1..] {
        let value = builder.use_var(variable);
        sum = builder.ins().bxor(sum, value);
    }
    builder.ins().return_(&[sum]);
    builder.seal_all_blocks();
    builder.finalize(isa.frontend_config());
    function
}

fn translate_step(builder: &mut FunctionBuilder<'_>, variables: &[Variable], operation: Operation) {
    let (to, value) = match operation {
        Operation::Add { to, from } => {
            let (left, right) = (builder.use_var(variables[to]), builder.use_var(variables[from]));
            (to, builder.ins().iadd(left, right))
        }
        Operation::Subtract { to, from } => {
            let (left, right) = (builder.use_var(variables[to]), builder.use_var(variables[from]));
            (to, builder.ins().isub(left, right))
        }
        Operation::Xor { to, from } => {
            let (left, right) = (builder.use_var(variables[to]), builder.use_var(variables[from]));
            (to, builder.ins().bxor(left, right))
        }
        Operation::Or { to, from } => {
            let (left, right) = (builder.use_var(variables[to]), builder.use_var(variables[from]));
            (to, builder.ins().bor(left, right))
        }
        Operation::AddConstant { to, constant } => {
            let left = builder.use_var(variables[to]);
            (to, builder.ins().iadd_imm_s(left, i64::from(constant)))
        }
        Operation::XorConstant { to, constant } => {
            let left = builder.use_var(variables[to]);
            (to, builder.ins().bxor_imm_s(left, i64::from(constant)))
        }
        Operation::RotateLeft { to, bits } => {
            let left = builder.use_var(variables[to]);
            (to, builder.ins().rotl_imm_u(left, i64::from(bits)))
        }
        Operation::ShiftLeft { to, bits } => {
            let left = builder.use_var(variables[to]);
            (to, builder.ins().ishl_imm_u(left, i64::from(bits)))
        }
        // Branches end a block and are translated by the caller.
        Operation::SkipIfOdd { .. } => return,
    };
    builder.def_var(variables[to], value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_about_a_hundred_instructions() {
        let programs = compile_all(100).expect("this host has a Cranelift backend");
        let bytes: usize = programs.iter().map(|program| program.code().len()).sum();
        let mean = bytes / programs.len();
        assert!((350..650).contains(&mean), "mean length {mean} bytes");
    }
}
