//! What observers of the packs are told about a module's functions.

use std::backtrace::Backtrace;
use std::sync::{Arc, Mutex};

use cranelift_codegen::gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use cranelift_module::{Linkage, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};
use palimpsest_text::observe::UnwindRegistry;
use palimpsest_text::{CodeAddress, Loaded, ObserveError, Observer, Packs};

use super::common::{add_n, add_n_to, call1, declare};

/// One call of an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Loaded { name: String, address: usize, len: usize, eh_frame: Option<Vec<u8>> },
    Unloaded { address: usize, len: usize },
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Event>>>);

impl Observer for Log {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        self.0.lock().unwrap().push(Event::Loaded {
            name: loaded.name.to_owned(),
            address: loaded.address.get(),
            len: loaded.code.len(),
            eh_frame: loaded.eh_frame.map(<[u8]>::to_vec),
        });
        Ok(())
    }

    fn unloaded(&self, address: CodeAddress, len: usize) -> Result<(), ObserveError> {
        self.0.lock().unwrap().push(Event::Unloaded { address: address.get(), len });
        Ok(())
    }
}

fn module_observed_by(observer: impl Observer + 'static, symbols: &[(&str, *const u8)]) -> PackModule {
    let packs = Packs::builder().observer(observer).open().unwrap();
    let mut builder = PackModuleBuilder::new(default_libcall_names()).unwrap();
    builder.packs(packs).symbols(symbols.iter().copied());
    PackModule::new(builder)
}

/// Returns start and length of the functions that an `.eh_frame` section describes.
fn described(eh_frame: &[u8]) -> Vec<(u64, u64)> {
    let section = EhFrame::new(eh_frame, LittleEndian);
    let bases = BaseAddresses::default();
    let mut entries = section.entries(&bases);
    let mut ranges = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        if let CieOrFde::Fde(fde) = entry {
            let fde = fde.parse(EhFrame::cie_from_offset).unwrap();
            ranges.push((fde.initial_address(), fde.len()));
        }
    }
    ranges
}

#[test]
fn names_and_addresses() {
    let log = Log::default();
    let mut module = module_observed_by(log.clone(), &[]);
    let id = add_n(&mut module, "my_function", 1);
    module.finalize_definitions().unwrap();
    let address = module.get_finalized_function(id) as usize;
    let len = module.program(id).unwrap().len();
    let events = log.0.lock().unwrap().clone();
    let [Event::Loaded { name, address: told, len: told_len, eh_frame }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((name.as_str(), *told, *told_len), ("my_function", address, len));
    let eh_frame = eh_frame.as_ref().expect("the feature `unwind` is on by default");
    assert_eq!(described(eh_frame), [(address as u64, module.code_len(id).unwrap() as u64)]);

    module.free_function(id).unwrap();
    module.packs().reclaim().unwrap();
    let events = log.0.lock().unwrap().clone();
    assert!(
        matches!(&events[1..], [Event::Unloaded { address: a, len: l }] if *a == address && *l >= len),
        "{events:?}"
    );
}

/// Is a host function that returns whether it can see the test below through the compiled code that called it.
extern "C" fn sees_the_test(_: i64) -> i64 {
    let trace = Backtrace::force_capture().to_string();
    i64::from(trace.contains("unwinding_through_compiled_code"))
}

/// Returns the result of the outermost of two compiled functions above `sees_the_test`.
fn unwound_in_packs_observed_by(observer: impl Observer + 'static) -> i64 {
    let mut module = module_observed_by(observer, &[("see", sees_the_test as *const u8)]);
    let see = declare(&mut module, "see", Linkage::Import, 1);
    let inner = add_n_to(&mut module, "inner", see, 10);
    let outer = add_n_to(&mut module, "outer", inner, 100);
    module.finalize_definitions().unwrap();
    let seen = call1(module.get_finalized_function(outer), 0);
    assert_eq!(module.packs().stats().observer_errors, 0);
    seen
}

#[test]
fn unwinding_through_compiled_code() {
    // SAFETY: 1. the tables are Cranelift's.
    let registry = unsafe { UnwindRegistry::new() };
    assert_eq!(unwound_in_packs_observed_by(registry), 111);
    // Proves that the unwinder has used the tables.
    assert_eq!(unwound_in_packs_observed_by(Log::default()), 110);
}
