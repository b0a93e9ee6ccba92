//! Modules in forked children. In a program of its own: children hold what other tests count as freed.

#[expect(dead_code, reason = "the tests in `suite` use the rest")]
#[path = "suite/common.rs"]
mod common;

use cranelift_module::{Linkage, default_libcall_names};
use palimpsest_cranelift::{PackModule, PackModuleBuilder};
use palimpsest_text::Packs;

use common::{add_n, add_n_to, call1, declare};

/// Runs `child` in a forked process, and returns its result.
fn in_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `child` and leaves by `_exit`; glibc keeps its allocator usable in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the child without the harness's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

/// Fails on: calls that are planned as if the caller lay in the packs of the parent.
#[test]
fn a_childs_first_call_to_what_it_inherits_reaches_it() {
    // As long as may be, so that what one region reaches, its neighbour does not.
    const REGION: usize = palimpsest_sys::arch::DIRECT_BRANCH_REACH;
    let packs = Packs::builder().region_len(REGION).open().unwrap();
    let builder = || {
        let mut builder = PackModuleBuilder::new(default_libcall_names()).unwrap();
        builder.packs(packs.clone());
        builder
    };
    let mut library = PackModule::new(builder());
    let inherited = ["one", "two", "three"].map(|name| add_n(&mut library, name, 1));
    library.finalize_definitions().unwrap();
    let addresses = inherited.map(|id| library.get_finalized_function(id));
    for address in addresses {
        let code = in_child(|| {
            let mut builder = builder();
            builder.symbol("inherited", address);
            let mut module = PackModule::new(builder);
            // A final linkage makes Cranelift emit a direct call.
            let callee = declare(&mut module, "inherited", Linkage::Local, 1);
            let caller = add_n_to(&mut module, "caller", callee, 1);
            match module.finalize_definitions() {
                Ok(()) => i32::from(call1(module.get_finalized_function(caller), 40) != 42),
                Err(error) => {
                    eprintln!("{error}: {:?}", std::error::Error::source(&error));
                    2
                }
            }
        });
        assert_eq!(code, 0, "to {address:?}");
    }
}
