//! Scenarios in child processes, and values whose drops are counted.

use std::env;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SCENARIO: &str = "PALIMPSEST_PUBLISHED_SCENARIO";
const FILTERED: &str = "PALIMPSEST_PUBLISHED_FILTERED";

/// Seconds after which a hanging scenario is ended.
const PATIENCE_SECONDS: u32 = 1200;

/// Whether the kernel has `membarrier`. Without it each read has a seat of its own, which stays with its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Membarrier {
    Granted,
    Refused,
}

/// Plays `scenario` in processes of its own, which must end well: with `membarrier` and without.
pub(crate) fn play(name: &str, scenario: impl FnOnce(Membarrier)) {
    if env::var(SCENARIO).is_ok_and(|playing| playing == name) {
        // SAFETY: takes a number. The default action of SIGALRM ends the process.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        if env::var_os(FILTERED).is_none() {
            return scenario(Membarrier::Granted);
        }
        refuse_membarrier();
        return scenario(Membarrier::Refused);
    }
    let own = env::current_exe().expect("/proc is mounted");
    for filtered in [None, Some("membarrier")] {
        let mut command = Command::new(&own);
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(SCENARIO, name);
        let status = command.envs(filtered.map(|call| (FILTERED, call))).status().expect("this binary starts");
        assert!(status.success(), "{name}, refused: {filtered:?}: {status}");
    }
}

/// Installs a filter for the calling thread, and those that it starts, under which `membarrier` fails.
fn refuse_membarrier() {
    let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_membarrier as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, refusal),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: the filter outlives the call, and the kernel only reads it.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0, "a valid filter");
}

/// How many values of a scenario were dropped.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<AtomicUsize>);

impl Drops {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a value that counts when it is dropped.
    pub(crate) fn value(&self, number: usize) -> Value {
        Value { numbers: [number; 64], drops: self.clone() }
    }
}

/// Many times the same number, until it is dropped.
pub(crate) struct Value {
    numbers: [usize; 64],
    drops: Drops,
}

impl Value {
    /// Returns the number, if it is still the same everywhere.
    pub(crate) fn number(&self) -> usize {
        let number = self.numbers[0];
        assert!(self.numbers.iter().all(|other| *other == number), "a value that was dropped: {:?}", self.numbers);
        number
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.numbers = std::array::from_fn(|index| usize::MAX - index);
        self.drops.0.fetch_add(1, Ordering::Relaxed);
    }
}
