//! Frees functions and data one by one, and checks what the packs get back.

use super::common::{add_n, add_n_to, call1, declare, define};
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData};
use cranelift_module::{DataDescription, FuncOrDataId, Linkage, Module, default_libcall_names};
use palimpsest_cranelift::{FreeError, LinkError, PackModule, PackModuleBuilder};
use palimpsest_text::Packs;

fn module_in(packs: &Packs) -> PackModule {
    let mut builder = PackModuleBuilder::new(default_libcall_names()).unwrap();
    builder.packs(packs.clone());
    PackModule::new(builder)
}

fn own_module() -> PackModule {
    module_in(&Packs::new().unwrap())
}

#[test]
fn one_by_one() {
    let packs = Packs::new().unwrap();
    let before = packs.stats();
    let mut module = module_in(&packs);
    let ids: Vec<_> = (0..100).map(|n| add_n(&mut module, &format!("add{n}"), n)).collect();
    module.finalize_definitions().unwrap();
    assert_eq!(packs.stats().programs, before.programs + 100);
    for (n, id) in ids.iter().enumerate() {
        if n % 2 == 0 {
            module.free_function(*id).unwrap();
        }
    }
    packs.reclaim().unwrap();
    assert_eq!(packs.stats().programs, before.programs + 50);
    for (n, id) in ids.iter().enumerate().filter(|(n, _)| n % 2 == 1) {
        assert_eq!(call1(module.get_finalized_function(*id), 1), n as i64 + 1);
    }
    assert!(module.program(ids[0]).is_none());
    drop(module);
    packs.reclaim().unwrap();
    let after = packs.stats();
    assert_eq!((after.programs, after.used_bytes), (before.programs, before.used_bytes));
    assert_eq!(after.retired_bytes, 0);
}

#[test]
fn referenced_functions_stay() {
    let mut module = own_module();
    let callee = add_n(&mut module, "callee", 1);
    let first = add_n_to(&mut module, "first", callee, 1);
    let second = add_n_to(&mut module, "second", callee, 2);
    module.finalize_definitions().unwrap();
    let refused = module.free_function(callee).unwrap_err();
    assert_eq!(refused, FreeError::Referenced { name: "callee".to_owned(), referrer: "first".to_owned(), others: 1 });
    assert!(refused.to_string().contains("take_program"), "{refused}");
    assert_eq!(call1(module.get_finalized_function(first), 40), 42);
    module.free_function(first).unwrap();
    assert!(matches!(
        module.free_function(callee),
        Err(FreeError::Referenced { referrer, others: 0, .. }) if referrer == "second"
    ));
    module.free_function(second).unwrap();
    module.free_function(callee).unwrap();
    assert_eq!(module.free_function(callee), Err(FreeError::NotDefined { name: "callee".to_owned() }));
}

#[test]
fn pending_definitions_count_as_references() {
    let mut module = own_module();
    let callee = add_n(&mut module, "callee", 1);
    module.finalize_definitions().unwrap();
    let caller = add_n_to(&mut module, "caller", callee, 1);
    assert!(matches!(module.free_function(callee), Err(FreeError::Referenced { .. })));
    assert_eq!(module.take_program(caller).err(), Some(FreeError::NotFinalized { name: "caller".to_owned() }));
    module.free_function(caller).unwrap();
    module.free_function(callee).unwrap();
    module.finalize_definitions().unwrap();
    assert!(module.program(caller).is_none());
}

#[test]
fn cycles_are_freed_together() {
    let mut module = own_module();
    let ping = declare(&mut module, "ping", Linkage::Local, 1);
    let pong = add_n_to(&mut module, "pong", ping, 1);
    define(&mut module, ping, |module, code, args| {
        let yes = code.create_block();
        let no = code.create_block();
        code.append_block_param(no, I64);
        code.ins().brif(args[0], yes, &[], no, &[args[0].into()]);
        code.switch_to_block(yes);
        let less = code.ins().iadd_imm_s(args[0], -1);
        let rest = super::common::call(module, code, pong, &[less]);
        code.ins().jump(no, &[rest.into()]);
        code.switch_to_block(no);
        code.block_params(no)[0]
    });
    module.finalize_definitions().unwrap();
    assert_eq!(call1(module.get_finalized_function(pong), 9), 10);
    assert!(module.free_function(ping).is_err());
    assert!(module.free_function(pong).is_err());
    module.free_together(&[FuncOrDataId::Func(ping), FuncOrDataId::Func(pong)]).unwrap();
    assert!(module.program(ping).is_none() && module.program(pong).is_none());
}

#[test]
fn freed_functions_are_defined_again() {
    let mut module = own_module();
    let id = add_n(&mut module, "f", 1);
    module.finalize_definitions().unwrap();
    for n in 2..50 {
        module.free_function(id).unwrap();
        module.packs().reclaim().unwrap();
        define(&mut module, id, |_, code, args| code.ins().iadd_imm_u(args[0], n));
        module.finalize_definitions().unwrap();
        assert_eq!(call1(module.get_finalized_function(id), 100), 100 + n);
    }
    assert_eq!(module.packs().stats().programs, 1);
}

/// A taken function lives on for code that was linked to it, while the module defines its successor.
#[test]
fn taken_programs_live_on() {
    let mut module = own_module();
    let callee = add_n(&mut module, "callee", 1);
    let old_caller = add_n_to(&mut module, "old_caller", callee, 0);
    module.finalize_definitions().unwrap();
    let taken = module.take_program(callee).unwrap();
    assert_eq!(taken.name(), "callee");
    assert!(module.program(callee).is_none());
    assert_eq!(call1(module.get_finalized_function(old_caller), 1), 2);

    define(&mut module, callee, |_, code, args| code.ins().iadd_imm_u(args[0], 10));
    let new_caller = add_n_to(&mut module, "new_caller", callee, 0);
    module.finalize_definitions().unwrap();
    assert_eq!(call1(module.get_finalized_function(old_caller), 1), 2);
    assert_eq!(call1(module.get_finalized_function(new_caller), 1), 11);

    // The old caller refers to the taken program, not to the new definition.
    assert!(matches!(
        module.free_function(callee),
        Err(FreeError::Referenced { referrer, others: 0, .. }) if referrer == "new_caller"
    ));
    module.free_function(new_caller).unwrap();
    module.free_function(callee).unwrap();
    assert_eq!(call1(module.get_finalized_function(old_caller), 1), 2);
    drop(module);
    assert_eq!(call1(taken.entry(), 1), 2);
}

#[test]
fn data_is_freed_with_what_refers_to_it() {
    let packs = Packs::new().unwrap();
    let before = packs.stats().used_bytes;
    let mut module = module_in(&packs);
    let one = add_n(&mut module, "one", 1);
    let table = module.declare_data("table", Linkage::Local, false, false).unwrap();
    let mut description = DataDescription::new();
    description.define_zeroinit(16);
    let one_in_data = module.declare_func_in_data(one, &mut description);
    description.write_function_addr(8, one_in_data);
    module.define_data(table, &description).unwrap();
    let reader = declare(&mut module, "reader", Linkage::Export, 0);
    define(&mut module, reader, |module, code, _| {
        let table = module.declare_data_in_func(table, code.func);
        let table = code.ins().symbol_value(I64, table);
        code.ins().load(I64, MemFlagsData::trusted(), table, 8)
    });
    module.finalize_definitions().unwrap();
    let entry = module.get_finalized_function(reader);
    assert_eq!(call1(entry, 0) as usize, module.get_finalized_function(one) as usize);

    assert!(matches!(
        module.free_function(one),
        Err(FreeError::Referenced { referrer, .. }) if referrer == "table"
    ));
    assert!(matches!(
        module.free_data(table),
        Err(FreeError::Referenced { referrer, .. }) if referrer == "reader"
    ));
    module.free_function(reader).unwrap();
    module.free_data(table).unwrap();
    module.free_function(one).unwrap();
    packs.reclaim().unwrap();
    assert_eq!(packs.stats().used_bytes, before);
    assert!(module.data(table).is_none());

    module.define_data(table, &description).unwrap();
    assert!(module.finalize_definitions().is_err(), "`one` is gone");
    module.free_data(table).unwrap();
    let mut plain = DataDescription::new();
    plain.define(Box::new([7]));
    module.define_data(table, &plain).unwrap();
    module.finalize_definitions().unwrap();
    let taken = module.take_data(table).unwrap();
    drop(module);
    // SAFETY: one readable byte, which `taken` keeps alive.
    assert_eq!(unsafe { taken.as_ptr().read() }, 7);
}

/// After an error nothing was placed and nothing was lost, and the next attempt finds what was missing.
#[test]
fn failed_finalization_keeps_everything() {
    let packs = Packs::new().unwrap();
    let before = packs.stats().used_bytes;
    let mut module = module_in(&packs);
    let missing = declare(&mut module, "palimpsest_missing", Linkage::Local, 1);
    let caller = add_n_to(&mut module, "caller", missing, 1);
    let bystander = add_n(&mut module, "bystander", 5);
    let error = module.finalize_definitions().unwrap_err();
    let cranelift_module::ModuleError::Backend(error) = error else {
        panic!("{error}");
    };
    match error.downcast_ref::<LinkError>() {
        Some(LinkError::Undefined { symbol, referrer }) => {
            assert_eq!((symbol.as_str(), referrer.as_str()), ("palimpsest_missing", "caller"));
        }
        other => panic!("{other:?}"),
    }
    assert!(module.program(bystander).is_none());
    packs.reclaim().unwrap();
    assert_eq!(packs.stats().used_bytes, before);
    define(&mut module, missing, |_, code, args| code.ins().iadd_imm_u(args[0], 40));
    module.finalize_definitions().unwrap();
    assert_eq!(call1(module.get_finalized_function(caller), 1), 42);
    assert_eq!(call1(module.get_finalized_function(bystander), 1), 6);
}

#[test]
fn leaked_modules_leave_their_code() {
    let mut module = own_module();
    let id = add_n(&mut module, "f", 2);
    module.finalize_definitions().unwrap();
    let entry = module.get_finalized_function(id);
    module.leak();
    assert_eq!(call1(entry, 40), 42);
}

#[test]
fn free_memory_frees() {
    let packs = Packs::new().unwrap();
    let mut module = module_in(&packs);
    add_n(&mut module, "f", 2);
    add_n(&mut module, "g", 3);
    module.finalize_definitions().unwrap();
    assert_eq!(packs.stats().programs, 2);
    module.free_memory();
    packs.reclaim().unwrap();
    assert_eq!(packs.stats().programs, 0);
}
