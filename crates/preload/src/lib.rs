//! Lets unmodified programs fork in constant time: an object for `LD_PRELOAD`.
//!
//! Freezing the memory of a process ([`palimpsest_fork`]) changes what a few system calls do to it: discarded memory
//! would show its old bytes instead of zeros, and a mapping could not grow across pieces. So this object defines the C
//! functions for them, which ask [`palimpsest_fork::guard`] first. Everything else is passed on to the next definition.
//!
//! ```text
//! palimpsest run -- program                                                  finds the object and sets the variables
//! PALIMPSEST_FREEZE=fork LD_PRELOAD=/path/libpalimpsest_preload.so program   the same without the command
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `start`, `started` | before `main`: real functions and settings are looked up; what is known then |
//! | `settings`, `names` | the environment variables `PALIMPSEST_…`; what the program is called |
//! | `local_text` | the program's text in huge pages on one node |
//! | `fork`, `moment`, `freezing`, `ended` | `fork`: whether it is time to freeze, freezing once, and why not |
//! | `memory`, `process_madvise`, `protection`, `attach` | `madvise`, `mremap`, `mmap`, `mlock…`, `mprotect`, `shmat` |
//! | `huge`, `earlier` | memory that is in huge pages from the first touch, if it is to be gathered, or soon after |
//! | `waiting`, `waits`, `limit`, `real_waits`, `own_waits` | `epoll_wait`, `poll`, `select`, `nanosleep` …: a freeze in slices goes on |
//! | `dispatch` | these calls through `syscall` |
//! | `library`, `glibc` | whether the next definition is the C library's; what only glibc has |
//! | `next`, `kernel`, `arch`, `errno`, `wrapped` | what is called without this object: the next definition, or the kernel |
//! | `erase` | `explicit_bzero` and its fortified twin, `memset_explicit`, `palimpsest_forget` |
//! | `confine` | `prctl`: the program confines itself |
//! | `confined` | whether it has, or a filter from before its start may end it |
//! | `execute`, `core_filter` | `exec…`, `posix_spawn…`, `system`, `popen`: the next program's core dumps, and this object |
//! | `channel`, `environment`, `allocator` | care for the program: its descriptors, its children, its heap |
//! | `cancelling` | no thread ends in what this object does by itself |
//! | `filters` | the seccomp filters under which the program was started |
//! | `unwinder` | libgcc_s, once this object panics |
//! | `handed_over` | the descriptor through which this object came, if it did |
//!
//! Rules for the defined functions: they may run in a signal handler, inside `malloc`, in the dynamic linker, and
//! before this object has started. Except when a fork or a wait freezes, they take no lock, allocate nothing and use no
//! thread-local storage (which may allocate). They leave `errno` as the system call would. Before the start, they go
//! straight to the kernel.
//!
//! `munmap` is not defined: memory that is noted as frozen and is not costs only a question, whereas forgetting it
//! after the call could forget what another thread has moved there meanwhile.
//!
//! `vfork` and `daemon` are not defined: the C library's calls within itself cannot be seen, and calls that make a
//! child without copying page tables need no help. `posix_spawn`, `system` and `popen` are defined only for what they
//! execute (`execute`).

mod allocator;
mod arch;
mod attach;
mod cancelling;
mod channel;
mod confine;
mod confined;
mod core_filter;
mod dispatch;
mod earlier;
mod ended;
mod environment;
mod erase;
mod errno;
mod execute;
mod filters;
mod fork;
mod freezing;
mod glibc;
mod handed_over;
mod huge;
mod kernel;
mod library;
mod limit;
mod local_text;
mod memory;
mod moment;
mod names;
mod next;
mod own_waits;
mod process_madvise;
mod protection;
mod real_waits;
mod settings;
mod start;
mod started;
mod unwinder;
mod waiting;
mod waits;
#[cfg(not(test))]
mod wrapped;

/// Apart from the program's heap. Tests keep the usual one. In a section with other variables in whole pages, so that
/// they leave no gaps between the rest, which each program touches.
#[cfg(not(test))]
#[unsafe(link_section = "palimpsest_room")]
#[global_allocator]
static HEAP: allocator::OwnHeap = allocator::OwnHeap::new();

pub use attach::shmat;
pub use confine::prctl;
pub use dispatch::syscall;
pub use erase::{__explicit_bzero_chk, explicit_bzero, memset_explicit, palimpsest_forget};
pub use execute::{
    execl, execle, execlp, execv, execve, execveat, execvp, execvpe, fexecve, popen, posix_spawn, posix_spawnp, system,
};
pub use fork::fork;
pub use memory::{madvise, mlock, mlock2, mlockall, mmap, mmap64, mremap};
pub use process_madvise::process_madvise;
pub use protection::{mprotect, pkey_mprotect};
pub use started::palimpsest_serves;
pub use waiting::{clock_nanosleep, epoll_pwait, epoll_wait, nanosleep, poll, ppoll, pselect, select};
