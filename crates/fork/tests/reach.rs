//! What children can reach that are confined in other ways than in `authority.rs`, and what is left where the kernel
//! refuses what a repair would do.

mod common;

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};

use common::{Memory, freeze, in_child, page, play, skip};
use palimpsest_fork::{ExtentLen, FreezeError, Measure, Options, guard};
use palimpsest_sys::pages::maps::Maps;
use rustix::io::Errno;

const MIB: usize = 1 << 20;

fn options() -> Options {
    Options::new().extent(ExtentLen::Bytes(4 * MIB)).measure(Measure::Nothing)
}

fn frozen(len: usize) -> Memory {
    let memory = Memory::apart(len);
    memory.fill(0..len, 1);
    freeze(&options());
    memory
}

fn discard(memory: &Memory, offset: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the scenario's own memory, of which it needs nothing back.
    unsafe { guard::madvise(memory.at(offset).addr(), len, libc::MADV_DONTNEED) }
}

/// Returns the open numbers below 1024. Needs no file system.
fn descriptors() -> BTreeSet<i32> {
    // SAFETY: only asks.
    (0..1024).filter(|number| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0).collect()
}

/// Returns ways out of the root directory, through this process's descriptors and by paths alone.
fn ways_out() -> Vec<String> {
    let mut ways = Vec::new();
    for path in [c"/etc/hostname", c"/proc/self/maps", c"/proc/1/root/etc/hostname"] {
        // SAFETY: a C string that lives for ever.
        if unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) } >= 0 {
            ways.push(format!("{path:?}"));
        }
    }
    let names: [&CStr; 4] = [c"../etc/hostname", c"../../etc/hostname", c"self/maps", c"etc/hostname"];
    for number in descriptors() {
        for name in names {
            // SAFETY: as above; what is no directory is an error.
            if unsafe { libc::openat(number, name.as_ptr(), libc::O_RDONLY) } >= 0 {
                ways.push(format!("{number}: {name:?}"));
            }
        }
        // SAFETY: takes a number.
        if unsafe { libc::fchdir(number) } == 0 {
            ways.push(format!("{number} is a directory"));
        }
    }
    ways
}

/// Fails on: a round that leaves a descriptor of `/proc` open (`mem::forget(File::open("/proc"))` in `freeze`), and
/// guards that open a file.
#[test]
fn a_child_in_an_empty_root_as_nobody_gets_out_by_nothing_of_ours() {
    play("a_child_in_an_empty_root_as_nobody_gets_out_by_nothing_of_ours", || {
        const NOBODY: u32 = 65534;
        let folder = std::env::temp_dir().join(format!("palimpsest-root-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let memory = frozen(16 * MIB);
        memory.fill(MIB..2 * MIB, 2);
        freeze(&options());
        let before = descriptors();
        let child = in_child(|| {
            if rustix::process::chroot(&folder).is_err() {
                return 77;
            }
            std::env::set_current_dir("/").expect("the empty folder");
            // SAFETY: takes numbers; this child's alone.
            assert_eq!(unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) }, 0);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
            assert_eq!(descriptors(), before);
            assert_eq!(ways_out(), <[String; 0]>::default());
            // The memory behaves, even without any file system.
            assert_eq!(discard(&memory, 4 * MIB, MIB), Ok(()));
            assert!(memory.is_zero(4 * MIB..5 * MIB) && memory.holds(5 * MIB..memory.len, 1));
            // A raw `setuid` past every handler changes none of that. SAFETY: without CLONE_VM it is a fork.
            let grandchild = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if grandchild == 0 {
                let free = descriptors() != before || !ways_out().is_empty();
                // SAFETY: ends the grandchild.
                unsafe { libc::_exit(i32::from(free)) };
            }
            common::wait(grandchild as i32)
        });
        std::fs::remove_dir(&folder).expect("it is empty");
        if child == 77 {
            skip("only root may change the root directory");
        }
        assert_eq!(child, 0);
        assert!(memory.holds(0..MIB, 1) && memory.holds(MIB..2 * MIB, 2) && memory.holds(4 * MIB..memory.len, 1));
    });
}

/// What a child that shares this memory does, and what it saw.
struct Errand<'a> {
    memory: &'a Memory,
    before: &'a BTreeSet<i32>,
}

extern "C" fn errand(given: *mut c_void) -> i32 {
    // SAFETY: the errand of the test, which waits for this child.
    let Errand { memory, before } = unsafe { &*given.cast::<Errand<'_>>() };
    if !guard::is_borrowed() {
        return 2;
    }
    if descriptors() != **before {
        return 3;
    }
    // It must not do for its parent what it takes for its own: it sees itself as the only thread. SAFETY: refused.
    if !matches!(unsafe { palimpsest_fork::freeze(&options()) }, Err(FreezeError::BorrowedMemory { .. })) {
        return 4;
    }
    // Nor may it copy what its parent's other threads write to, which it knows nothing of.
    if guard::thaw(memory.range()) != Err(Errno::BUSY) || guard::thaw_all() != Err(Errno::BUSY) {
        return 6;
    }
    // What it discards is discarded for both, as with anonymous memory.
    if discard(memory, 8 * MIB, MIB) != Ok(()) || !memory.is_zero(8 * MIB..9 * MIB) {
        return 5;
    }
    0
}

/// Fails on: `hazards::check` that does not ask whose memory it is.
#[test]
fn a_child_of_vfork_has_nothing_more_and_freezes_nothing() {
    play("a_child_of_vfork_has_nothing_more_and_freezes_nothing", || {
        // The first who asks decides whose memory it is.
        assert!(!guard::is_borrowed());
        let memory = frozen(16 * MIB);
        memory.fill(0..MIB, 2);
        let before = descriptors();
        let mut stack = vec![0_u8; MIB];
        let top = stack.as_mut_ptr().wrapping_add(MIB - 64);
        let mut asked = Errand { memory: &memory, before: &before };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: a stack of its own; the parent waits, as after `vfork`, until the child has ended.
        let child = unsafe { libc::clone(errand, top.cast(), flags, (&raw mut asked).cast()) };
        assert!(child > 0);
        assert_eq!(common::wait(child), 0, "see `errand`");
        assert_eq!(descriptors(), before);
        assert!(memory.holds(0..MIB, 2) && memory.holds(MIB..8 * MIB, 1) && memory.is_zero(8 * MIB..9 * MIB));
        // The parent goes on as if nothing had happened.
        freeze(&options());
        assert!(memory.holds(0..MIB, 2) && memory.is_zero(8 * MIB..9 * MIB) && guard::touches(memory.range()));
        assert_eq!(in_child(|| i32::from(descriptors() != before || !memory.holds(9 * MIB..memory.len, 1))), 0);
    });
}

/// Makes the kernel answer EPERM to `mremap` with these flags.
fn refuse_mremap(flags: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value, jf| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, jf, value);
    let end = |value| statement(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // `struct seccomp_data`: the number at 0, the fourth argument at 40, little-endian.
    let mut program = [
        load(0),
        equal(libc::SYS_mremap as u32, 3),
        load(40),
        equal(flags.cast_unsigned(), 1),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

/// Returns how many mappings show the files of `memory` elsewhere.
fn beside(memory: &Memory) -> usize {
    let maps = Maps::read().expect("/proc");
    let is_there = |start| memory.range().contains(&start);
    let inodes: Vec<u64> = maps.iter().filter(|map| is_there(map.start)).map(|map| map.inode).collect();
    maps.iter().filter(|map| map.inode != 0 && !is_there(map.start) && inodes.contains(&map.inode)).count()
}

/// Writes and freezes again and again while the kernel refuses `mremap` with these flags.
fn repaired_without_mremap(flags: i32) {
    let memory = frozen(16 * MIB);
    let before = descriptors();
    refuse_mremap(flags);
    for salt in 2..8 {
        // A page here and there, and a whole piece.
        memory.fill(6 * MIB..8 * MIB, salt);
        for offset in (0..4 * MIB).step_by(MIB) {
            memory.fill(offset..offset + page(), salt);
        }
        // SAFETY: the scenario is alone in its process.
        let report = unsafe { palimpsest_fork::freeze(&options()) }.expect("what was refused is told in the report");
        println!("{report}");
        let holds = || {
            let pages = (0..4 * MIB).step_by(MIB).all(|offset| {
                memory.holds(offset..offset + page(), salt) && memory.holds(offset + page()..offset + MIB, 1)
            });
            pages
                && memory.holds(4 * MIB..6 * MIB, 1)
                && memory.holds(6 * MIB..8 * MIB, salt)
                && memory.holds(8 * MIB..memory.len, 1)
        };
        assert!(holds(), "after round {salt}");
        assert_eq!(in_child(|| i32::from(!holds() || descriptors() != before)), 0, "a child of round {salt}");
    }
    assert_eq!(descriptors(), before);
    assert_eq!(beside(&memory), 0, "mappings that nobody asked for");
    assert_eq!(discard(&memory, 8 * MIB, 2 * MIB), Ok(()));
    assert!(memory.is_zero(8 * MIB..10 * MIB) && memory.holds(10 * MIB..memory.len, 1));
}

/// Fails on: a renewal that takes a refusal for an address.
#[test]
fn where_a_mapping_cannot_be_renewed_nothing_is_lost_or_left() {
    const DONT_UNMAP: i32 = 4;
    play("where_a_mapping_cannot_be_renewed_nothing_is_lost_or_left", || {
        repaired_without_mremap(libc::MREMAP_MAYMOVE | DONT_UNMAP);
    });
}
