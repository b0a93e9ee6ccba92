//! The one unsafe module of this crate: mappings of the baselines, the peers' unsafe interfaces, entering
//! compiled code, changing it, signals, forks, memory for page tables, and the CPU's counters.
#![expect(
    unsafe_code,
    reason = "maps memory, writes and calls code; everything outside this module uses its safe interface"
)]

mod area;
mod counters;
mod dies_with;
mod ended;
mod fork_child;
mod fork_heap;
mod fork_uffd;
mod held;
#[cfg(feature = "peers")]
mod peer_async;
#[cfg(feature = "peers")]
mod peer_bpf;
#[cfg(feature = "peers")]
mod peer_key;
#[cfg(palimpsest_ubpf)]
mod peer_ubpf;
#[cfg(feature = "peers")]
mod peers;
mod population;
mod sites;
mod table_host;
#[cfg(feature = "peers")]
mod table_peers;
mod trap_action;

pub(crate) use area::CodeArea;
pub(crate) use counters::{CountError, Counters, Event};
pub(crate) use dies_with::die_with_this_thread;
pub(crate) use ended::processor_time_of_ended_children;
pub(crate) use fork_child::{
    Child, ForkWay, Looping, Reset, ask_child, freeze, freeze_arena, freeze_in_slices, sleep, spawn,
};
pub(crate) use fork_heap::{Heap, HeapPages};
pub(crate) use fork_uffd::{Watch, Watcher};
#[cfg(test)]
pub(crate) use held::COUNTING_TRAPS;
pub(crate) use held::while_held;
#[cfg(feature = "peers")]
pub(crate) use peer_async::{AsyncLoader, AsyncProgram, as_object};
#[cfg(feature = "peers")]
pub(crate) use peer_bpf::{RbpfProgram, SbpfLoader, SbpfProgram};
#[cfg(feature = "peers")]
pub(crate) use peer_key::PeerKey;
#[cfg(palimpsest_ubpf)]
pub(crate) use peer_ubpf::UbpfProgram;
#[cfg(feature = "peers")]
pub(crate) use peers::{Allocated, DualAllocator, OwnedModule};
pub(crate) use population::Population;
pub(crate) use sites::{ReplicatedSites, Sites, Switch, Trapping};
pub(crate) use table_host::{TableHost, map_next, map_pages};
#[cfg(feature = "peers")]
pub(crate) use table_peers::{CrateTable, MultiArch};
pub(crate) use trap_action::with_empty_trap_handler;

/// Makes freshly written code visible to instruction fetch, where the CPU does not do that itself.
fn make_visible(start: std::ptr::NonNull<u8>, len: usize) {
    let start = start.addr().get();
    palimpsest_sys::arch::flush_instruction_cache(start..start + len);
}
