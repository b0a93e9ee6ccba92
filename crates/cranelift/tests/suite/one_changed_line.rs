//! Runs the same program with `cranelift_jit` and with packs; only the `use` line differs.

use std::ptr;

use super::common::{add_n, add_n_to, call, call1, call2, declare, define};
use cranelift_codegen::Context;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F64, I64};
use cranelift_codegen::ir::{AbiParam, InstBuilder, MemFlagsData};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{DataDescription, Linkage, Module, ModuleError, ModuleRelocTarget, default_libcall_names};

/// Defines the same tests once per module type.
macro_rules! with_both {
    ($($test:item)+) => {
        mod cranelift_jit {
            use ::cranelift_jit::{JITBuilder, JITModule};
            use super::*;
            $($test)+
        }
        mod packs {
            use palimpsest_cranelift::{PackModuleBuilder as JITBuilder, PackModule as JITModule};
            use super::*;
            $($test)+
        }
    };
}

extern "C" fn host_double(x: i64) -> i64 {
    x * 2
}

extern "C" fn host_ceil(x: f64) -> f64 {
    x.ceil()
}

extern "C" fn host_floor(x: f64) -> f64 {
    x.floor()
}

extern "C" fn host_trunc(x: f64) -> f64 {
    x.trunc()
}

extern "C" fn host_nearest(x: f64) -> f64 {
    x.round_ties_even()
}

/// Returns the word at `address`.
fn read_word(address: *const u8) -> u64 {
    // SAFETY: the tests pass addresses inside finalized data objects that nobody is writing.
    u64::from_ne_bytes(unsafe { address.cast::<[u8; 8]>().read() })
}

/// Describes a data object of 64-bit integers.
fn integers(values: &[u64]) -> DataDescription {
    let mut data = DataDescription::new();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    data.define(bytes.into_boxed_slice());
    data
}

with_both! {
    fn module() -> JITModule {
        JITModule::new(JITBuilder::new(default_libcall_names()).unwrap())
    }

    #[test]
    fn arithmetic() {
        let mut module = module();
        let id = declare(&mut module, "affine", Linkage::Export, 2);
        define(&mut module, id, |_, code, args| {
            let product = code.ins().imul(args[0], args[1]);
            code.ins().iadd_imm_u(product, 7)
        });
        module.finalize_definitions().unwrap();
        let entry = module.get_finalized_function(id);
        assert_eq!(call2(entry, 5, 7), 42);
        assert_eq!(call2(entry, -1, 7), 0);
    }

    #[test]
    fn recursion() {
        let mut module = module();
        let id = declare(&mut module, "sum_to", Linkage::Local, 1);
        define(&mut module, id, |module, code, args| {
            let n = args[0];
            let more = code.create_block();
            let done = code.create_block();
            code.append_block_param(done, I64);
            let zero = code.ins().iconst(I64, 0);
            code.ins().brif(n, more, &[], done, &[zero.into()]);
            code.switch_to_block(more);
            let less = code.ins().iadd_imm_s(n, -1);
            let rest = call(module, code, id, &[less]);
            let sum = code.ins().iadd(rest, n);
            code.ins().jump(done, &[sum.into()]);
            code.switch_to_block(done);
            code.block_params(done)[0]
        });
        module.finalize_definitions().unwrap();
        assert_eq!(call1(module.get_finalized_function(id), 100), 5050);
    }

    /// `even` and `odd` call each other, each defined before or after the other.
    #[test]
    fn mutual_recursion() {
        let mut module = module();
        let even = declare(&mut module, "even", Linkage::Local, 1);
        let odd = declare(&mut module, "odd", Linkage::Local, 1);
        for (id, other, at_zero) in [(even, odd, 1), (odd, even, 0)] {
            define(&mut module, id, |module, code, args| {
                let more = code.create_block();
                let done = code.create_block();
                code.append_block_param(done, I64);
                let answer = code.ins().iconst(I64, at_zero);
                let is_zero = code.ins().icmp_imm_s(IntCC::Equal, args[0], 0);
                code.ins().brif(is_zero, done, &[answer.into()], more, &[]);
                code.switch_to_block(more);
                let less = code.ins().iadd_imm_s(args[0], -1);
                let rest = call(module, code, other, &[less]);
                code.ins().jump(done, &[rest.into()]);
                code.switch_to_block(done);
                code.block_params(done)[0]
            });
        }
        module.finalize_definitions().unwrap();
        let even = module.get_finalized_function(even);
        assert_eq!((call1(even, 10), call1(even, 11)), (1, 0));
    }

    #[test]
    fn later_definitions_call_earlier_ones() {
        let mut module = module();
        let one = add_n(&mut module, "one", 1);
        module.finalize_definitions().unwrap();
        let first = module.get_finalized_function(one);
        let two = add_n_to(&mut module, "two", one, 1);
        module.finalize_definitions().unwrap();
        assert_eq!(module.get_finalized_function(one), first);
        assert_eq!(call1(module.get_finalized_function(two), 40), 42);
    }

    #[test]
    fn host_functions() {
        let mut builder = JITBuilder::new(default_libcall_names()).unwrap();
        builder.symbol("wrong", ptr::null());
        builder.symbols([("double", host_double as *const u8)]);
        builder.symbol_lookup_fn(Box::new(|name| {
            (name == "looked_up").then_some(host_double as *const u8)
        }));
        let mut module = JITModule::new(builder);
        let double = declare(&mut module, "double", Linkage::Import, 1);
        let looked_up = declare(&mut module, "looked_up", Linkage::Import, 1);
        let strlen = declare(&mut module, "strlen", Linkage::Import, 1);
        let labs = declare(&mut module, "labs", Linkage::Import, 1);
        let eight_x = add_n_to(&mut module, "2x+8", double, 8);
        let nine_x = add_n_to(&mut module, "2x+9", looked_up, 9);
        let length = add_n_to(&mut module, "strlen+0", strlen, 0);
        let distance = add_n_to(&mut module, "labs+0", labs, 0);
        module.finalize_definitions().unwrap();
        assert_eq!(call1(module.get_finalized_function(eight_x), 4), 16);
        assert_eq!(call1(module.get_finalized_function(nine_x), 4), 17);
        let text = c"palimpsest".as_ptr() as i64;
        assert_eq!(call1(module.get_finalized_function(length), text), 10);
        assert_eq!(call1(module.get_finalized_function(distance), -42), 42);
        assert_eq!(module.get_address(&ModuleRelocTarget::from(double)), host_double as *const u8);
        assert_eq!(
            module.get_address(&ModuleRelocTarget::from(eight_x)),
            module.get_finalized_function(eight_x)
        );
    }

    /// `ceil` and others without SSE 4.1 are library calls.
    #[test]
    fn library_calls() {
        let isa = cranelift_native::builder_with_options(false).unwrap();
        let mut flags = cranelift_codegen::settings::builder();
        cranelift_codegen::settings::Configurable::set(&mut flags, "is_pic", "false").unwrap();
        let isa = isa.finish(cranelift_codegen::settings::Flags::new(flags)).unwrap();
        let mut builder = JITBuilder::with_isa(isa, default_libcall_names());
        // A test executable need not have libm loaded; packs have their own versions, see `library_calls.rs`.
        builder.symbols([
            ("ceil", host_ceil as *const u8),
            ("floor", host_floor as *const u8),
            ("trunc", host_trunc as *const u8),
            ("nearbyint", host_nearest as *const u8),
        ]);
        let mut module = JITModule::new(builder);
        let mut signature = module.make_signature();
        signature.params.push(AbiParam::new(F64));
        signature.returns.push(AbiParam::new(F64));
        type Unary = fn(&mut FunctionBuilder<'_>, cranelift_codegen::ir::Value) -> cranelift_codegen::ir::Value;
        let operations: [(&str, Unary, f64); 4] = [
            ("up", |code, x| code.ins().ceil(x), 3.0),
            ("down", |code, x| code.ins().floor(x), 2.0),
            ("cut", |code, x| code.ins().trunc(x), 2.0),
            ("even", |code, x| code.ins().nearest(x), 2.0),
        ];
        let ids = operations.map(|(name, operation, _)| {
            let id = module.declare_function(name, Linkage::Export, &signature).unwrap();
            define(&mut module, id, |_, code, args| operation(code, args[0]));
            id
        });
        module.finalize_definitions().unwrap();
        for (id, (name, _, expected)) in ids.into_iter().zip(operations) {
            let entry = module.get_finalized_function(id);
            // SAFETY: `entry` is finalized code of this signature, and the module outlives the call.
            let call = unsafe { std::mem::transmute::<*const u8, extern "C" fn(f64) -> f64>(entry) };
            assert_eq!(call(2.5), expected, "{name}");
        }
    }

    #[test]
    fn data_read_and_written() {
        let mut module = module();
        let table = module.declare_data("table", Linkage::Local, false, false).unwrap();
        module.define_data(table, &integers(&[10, 20, 30])).unwrap();
        let counter = module.declare_data("counter", Linkage::Export, true, false).unwrap();
        let mut zero = DataDescription::new();
        zero.define_zeroinit(8);
        module.define_data(counter, &zero).unwrap();

        let id = declare(&mut module, "next", Linkage::Export, 1);
        define(&mut module, id, |module, code, args| {
            let flags = MemFlagsData::trusted();
            let counter = module.declare_data_in_func(counter, code.func);
            let counter = code.ins().symbol_value(I64, counter);
            let count = code.ins().load(I64, flags, counter, 0);
            let count = code.ins().iadd(count, args[0]);
            code.ins().store(flags, count, counter, 0);
            let table = module.declare_data_in_func(table, code.func);
            let table = code.ins().symbol_value(I64, table);
            let third = code.ins().load(I64, flags, table, 16);
            code.ins().iadd(third, count)
        });
        module.finalize_definitions().unwrap();
        let entry = module.get_finalized_function(id);
        assert_eq!(call1(entry, 1), 31);
        assert_eq!(call1(entry, 1), 32);
        let (address, len) = module.get_finalized_data(counter);
        assert_eq!(len, 8);
        assert_eq!(read_word(address), 2);
    }

    /// A table of function and data addresses, and a function that calls through it.
    #[test]
    fn addresses_in_data() {
        let mut builder = JITBuilder::new(default_libcall_names()).unwrap();
        builder.symbol("double", host_double as *const u8);
        let mut module = JITModule::new(builder);
        let double = declare(&mut module, "double", Linkage::Import, 1);
        let one = add_n(&mut module, "one", 1);
        let pair = module.declare_data("pair", Linkage::Local, false, false).unwrap();
        module.define_data(pair, &integers(&[100, 200])).unwrap();
        let table = module.declare_anonymous_data(true, false).unwrap();
        let mut description = integers(&[0, 0, 0, 7]);
        let one_in_data = module.declare_func_in_data(one, &mut description);
        let double_in_data = module.declare_func_in_data(double, &mut description);
        let pair_in_data = module.declare_data_in_data(pair, &mut description);
        description.write_function_addr(0, one_in_data);
        description.write_function_addr(8, double_in_data);
        description.write_data_addr(16, pair_in_data, 8);
        description.set_align(64);
        module.define_data(table, &description).unwrap();

        let id = declare(&mut module, "through", Linkage::Export, 2);
        define(&mut module, id, |module, code, args| {
            let table = module.declare_data_in_func(table, code.func);
            let table = code.ins().symbol_value(I64, table);
            let offset = code.ins().imul_imm_u(args[0], 8);
            let place = code.ins().iadd(table, offset);
            let callee = code.ins().load(I64, MemFlagsData::trusted(), place, 0);
            let signature = super::super::common::signature(module, 1);
            let signature = code.import_signature(signature);
            let call = code.ins().call_indirect(signature, callee, &[args[1]]);
            code.inst_results(call)[0]
        });
        module.finalize_definitions().unwrap();
        let entry = module.get_finalized_function(id);
        assert_eq!(call2(entry, 0, 41), 42);
        assert_eq!(call2(entry, 1, 21), 42);
        let (address, len) = module.get_finalized_data(table);
        assert_eq!((len, address as usize % 64), (32, 0));
        // The table's third word points to the second word of `pair`.
        let third = read_word(address.wrapping_add(16));
        assert_eq!(read_word(ptr::with_exposed_provenance(third as usize)), 200);
    }

    #[test]
    fn functions_from_bytes() {
        let mut module = module();
        let one = add_n(&mut module, "one", 1);
        let mut context = module.make_context();
        context.func.signature = super::super::common::signature(&module, 1);
        copy_of_call(&mut module, one, &mut context);
        let compiled = context.compile(module.isa(), &mut Default::default()).unwrap().code_buffer().to_vec();
        let code = context.compiled_code().unwrap();
        let id = declare(&mut module, "bytes", Linkage::Export, 1);
        let relocs: Vec<_> = code
            .buffer
            .relocs()
            .iter()
            .map(|reloc| cranelift_module::ModuleReloc::from_mach_reloc(reloc, &context.func, id))
            .collect();
        module.define_function_bytes(id, 64, &compiled, &relocs).unwrap();
        module.finalize_definitions().unwrap();
        let entry = module.get_finalized_function(id);
        assert_eq!(entry as usize % 64, 0);
        assert_eq!(call1(entry, 41), 42);
    }

    #[test]
    fn refused_definitions() {
        let mut module = module();
        let one = add_n(&mut module, "one", 1);
        let mut context = module.make_context();
        context.func.signature = super::super::common::signature(&module, 1);
        copy_of_call(&mut module, one, &mut context);
        assert!(matches!(
            module.define_function(one, &mut context),
            Err(ModuleError::DuplicateDefinition(name)) if name == "one"
        ));
        assert!(matches!(
            module.define_function_bytes(one, 1, &[0xc3], &[]),
            Err(ModuleError::DuplicateDefinition(_))
        ));
        let import = declare(&mut module, "import", Linkage::Import, 1);
        assert!(matches!(
            module.define_function(import, &mut context),
            Err(ModuleError::InvalidImportDefinition(name)) if name == "import"
        ));
        let data = module.declare_data("data", Linkage::Local, false, false).unwrap();
        module.define_data(data, &integers(&[1])).unwrap();
        assert!(matches!(
            module.define_data(data, &integers(&[1])),
            Err(ModuleError::DuplicateDefinition(_))
        ));
        assert!(matches!(
            module.declare_data("one", Linkage::Local, false, false),
            Err(ModuleError::IncompatibleDeclaration(_))
        ));
        let unknown_flag = JITBuilder::with_flags(&[("no_such_flag", "1")], default_libcall_names());
        assert!(matches!(unknown_flag, Err(ModuleError::Flag(_))));
    }

    /// A missing weak symbol is null; calling it is guarded by the program itself.
    #[test]
    fn preemptible_symbols_may_be_missing() {
        let mut module = module();
        let missing = declare(&mut module, "palimpsest_missing", Linkage::Preemptible, 1);
        let id = declare(&mut module, "is_there", Linkage::Export, 1);
        define(&mut module, id, |module, code, _| {
            let missing = module.declare_func_in_func(missing, code.func);
            code.ins().func_addr(I64, missing)
        });
        module.finalize_definitions().unwrap();
        assert_eq!(call1(module.get_finalized_function(id), 0), 0);
    }
}

/// Fills `context` with a function that calls `callee` with its argument.
fn copy_of_call(module: &mut dyn Module, callee: cranelift_module::FuncId, context: &mut Context) {
    let mut scratch = FunctionBuilderContext::new();
    let mut code = FunctionBuilder::new(&mut context.func, &mut scratch);
    let block = code.create_block();
    code.append_block_params_for_function_params(block);
    code.switch_to_block(block);
    let args = code.block_params(block).to_vec();
    let callee = module.declare_func_in_func(callee, code.func);
    let call = code.ins().call(callee, &args);
    let result = code.inst_results(call)[0];
    code.ins().return_(&[result]);
    code.seal_all_blocks();
    code.finalize(module.target_config());
}
