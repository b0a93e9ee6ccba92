//! System calls and page faults of processes.

use alloc::sync::Arc;

use palimpsest_paging::{Access, Fault, ForkError, PAGE, Resolution, Rights, Sharing, VirtAddr};

use super::handles::Device;
use super::user::{Number, RUNNING};
use super::{Area, CHILD, Found, Process, Thread, Trap, memory, next_id, schedule, user};
use crate::arch;
use crate::bpf::hook::{self, Call};
use crate::counts::{COUNTS, add};
use crate::{cpu, fetches, kernel_space};

/// What a thread does after a system call.
pub(super) enum Next {
    /// It continues.
    Continue,
    /// It lets others run.
    Yield,
    /// It ends.
    Exit(u64),
}

/// Whether a trap is a call that begins or ends the watching of fetches, and so is not watched itself.
pub(super) fn is_about_watching(trap: &Trap) -> bool {
    matches!(trap, Trap::Call { number, .. } if matches!(Number::from(*number), Number::Watch | Number::Unwatch))
}

/// Does a system call of a thread. Wrong arguments are errors of this kernel's own programs, and panic.
pub(super) fn handle(thread: &mut Thread, number: u64, [a, b, c]: [u64; 3]) -> Next {
    add(&COUNTS.system_calls, 1);
    let process = &thread.process;
    if hook::is_on() {
        let cpu = arch::cpu::number() as u64;
        let verdict = hook::ask(Call { number, arguments: [a, b, c], process: process.id, cpu });
        if let Some(verdict) = verdict {
            thread.context.set_result(verdict);
            return Next::Continue;
        }
    }
    let range = VirtAddr(a)..VirtAddr(a.wrapping_add(b.wrapping_mul(PAGE)));
    let mut result = 0;
    match Number::from(number) {
        Number::Exit => return Next::Exit(a),
        Number::Yield => {
            thread.context.set_result(schedule::failures());
            return Next::Yield;
        }
        Number::Fork => match fork(thread, a as usize) {
            Ok(child) => result = child,
            Err(error) => panic!("fork: {error}"),
        },
        Number::Wait => {
            result = match schedule::exits_of(a).first() {
                Some(exit) => exit.code,
                None => RUNNING,
            };
        }
        Number::Protect => match process.space.protect(range, Rights::from_bits_truncate(c as u8)) {
            Ok(flush) => flush.finish(),
            Err(error) => panic!("protect: {error}"),
        },
        Number::Unmap => match process.space.unmap(range) {
            Ok(flush) => flush.finish(),
            Err(error) => panic!("unmap: {error}"),
        },
        Number::Map => {
            let area =
                Area { start: range.start, pages: b, rights: Rights::READ | Rights::WRITE, sharing: Sharing::Private };
            memory::map_new(&process.space, &area, cpu::node_of(arch::cpu::number()));
        }
        Number::Lock => {
            let locked = process.space.pin(range.start, cpu::node_of(arch::cpu::number()));
            locked.unwrap_or_else(|error| panic!("lock: {error}"));
        }
        Number::Unlock => process.space.unpin(range.start).unwrap_or_else(|error| panic!("unlock: {error}")),
        Number::Open => match Device::named(a) {
            Some(device) => result = process.handles.lock().open(device),
            None => panic!("open: no device {a:#x}"),
        },
        Number::Close => match process.handles.lock().close(a) {
            Some(_) => {}
            None => panic!("close: {a} is not open"),
        },
        Number::Signal => result = schedule::signal(a, VirtAddr(b)).into(),
        Number::Watch => fetches::begin(a as usize),
        Number::Unwatch => fetches::end(a as usize, b as usize),
        Number::Thread => {
            let [entry, argument, cpu] = [a, b, c];
            let stack = user::STACKS[cpu as usize];
            schedule::start_thread(Arc::clone(process), VirtAddr(entry), argument, stack, cpu as usize);
        }
        Number::Unknown => panic!("system call {number}"),
    }
    thread.context.set_result(result);
    Next::Continue
}

/// Forks the process; the child's only thread starts on `cpu`.
fn fork(thread: &Thread, cpu: usize) -> Result<u64, ForkError> {
    let (space, flush) = thread.process.space.fork_with(next_id(), CHILD)?;
    flush.finish();
    let id = space.id().0;
    let mut context = thread.context.clone();
    context.set_result(0);
    let handles = thread.process.handles.lock().clone();
    schedule::ready(Thread { process: Arc::new(Process::new(space, handles)), context }, cpu);
    Ok(id)
}

/// The effect of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// Something was copied, or became the space's own.
    Something,
    /// The access was allowed already: this CPU's translation was out of date, or a mark was set.
    Nothing,
}

/// Resolves a page fault. Fails with the code with which the thread ends.
pub(super) fn fault(thread: &Thread, address: VirtAddr, access: Access, found: Found) -> Result<Done, u64> {
    add(&COUNTS.faults, 1);
    if kernel_space::is_half_of(address) {
        return Err(if found == Found::Nothing { user::FAULTED_HIDDEN } else { user::FAULTED_DENIED });
    }
    let node = cpu::node_of(arch::cpu::number());
    match thread.process.space.fault(address, access, node) {
        Ok(Fault::Resolved(how)) => {
            add(&COUNTS.unshared, u64::from(how.unshared));
            add(&COUNTS.broken, u64::from(how.copied));
            add(&COUNTS.reused, u64::from(how.reused));
            Ok(if how == Resolution::default() { Done::Nothing } else { Done::Something })
        }
        Ok(Fault::NotMapped) => Err(user::FAULTED_NOT_MAPPED),
        Ok(Fault::Denied) => Err(user::FAULTED_DENIED),
        Err(error) => panic!("{error}"),
    }
}
