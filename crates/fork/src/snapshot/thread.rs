//! The calling thread: where its frames end, and which of its words the kernel writes.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use palimpsest_sys::arch::thread_pointer;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::stack_room;
use palimpsest_sys::pages::vmas::{Label, Vma};
use palimpsest_sys::threads::own::control_block;
use palimpsest_sys::threads::rseq;

use super::arch;

/// What the C library knows of the calling thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Thread {
    stack: Option<Range<usize>>,
    /// Where thread-local storage starts, if it is on the stack.
    storage: usize,
    rseq: Range<usize>,
}

/// Memory of the running thread that a restore does not treat like other memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Running {
    /// Whole pages that hold the running stack.
    pub(super) stack: Span,
    /// Where its frames end: `stack.end`, or inside the last page, where thread-local storage follows.
    pub(super) frames_end: usize,
    /// The area of restartable sequences, to which the kernel writes the core's number whenever it preempts the
    /// thread.
    pub(super) rseq: Range<usize>,
}

impl Running {
    /// Returns the pages that hold those words.
    pub(super) fn rseq_pages(&self, page: usize) -> Span {
        Span { start: self.rseq.start & !(page - 1), end: self.rseq.end.next_multiple_of(page) }
    }
}

impl Thread {
    /// Asks the C library, unless this runs on a stack that the kernel names in `vmas`: the C library would read
    /// `/proc/self/maps` with buffers in the program's heap, whose later blocks would then lie elsewhere than without a
    /// snapshot. (If another thread forked, the child's main thread runs on a stack without a name.)
    pub(super) fn look(vmas: &[Vma]) -> Self {
        let pointer = arch::stack_pointer();
        let has_name = vmas.iter().any(|vma| vma.label == Label::Stack && vma.range().contains(&pointer));
        let stack = if has_name { None } else { thread_stack() };
        let storage = stack.as_ref().map_or(0, thread_storage_start);
        Self { stack, storage, rseq: rseq::area() }
    }

    /// Finds the running stack among `vmas`; `None` if this does not run on the thread's own stack.
    pub(super) fn running(&self, vmas: &[Vma]) -> Option<Running> {
        let pointer = arch::stack_pointer();
        let page = rustix::param::page_size();
        let at = vmas.iter().position(|vma| vma.range().contains(&pointer))?;
        let rseq = self.rseq.clone();
        if vmas[at].label == Label::Stack {
            // Room to grow belongs to it, down to what is mapped below, but no further: where the kernel maps from the
            // bottom up, as without a limit on stacks, new mappings of the program may follow there.
            let below = at.checked_sub(1).map_or(0, |below| vmas[below].end);
            let start = below.max(vmas[at].line.start.saturating_sub(stack_room()));
            let end = vmas[at].end;
            return Some(Running { stack: Span { start, end }, frames_end: end, rseq });
        }
        let stack = self.stack.as_ref().filter(|stack| stack.contains(&pointer))?;
        let span = Span { start: stack.start & !(page - 1), end: self.storage.next_multiple_of(page) };
        Some(Running { stack: span, frames_end: self.storage, rseq })
    }
}

/// Returns the calling thread's stack, as the C library made it; `None` if it does not know.
fn thread_stack() -> Option<Range<usize>> {
    // SAFETY: an attributes object is plain memory until it is initialised by the call below.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: gives the calling thread's handle.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread lives; the call fills `attributes`.
    if unsafe { libc::pthread_getattr_np(this, &raw mut attributes) } != 0 {
        return None;
    }
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: initialised above; the results are written to locals.
    let known = unsafe { libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut len) } == 0;
    // SAFETY: initialised above and used no more.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    known.then(|| start.expose_provenance()..start.addr() + len)
}

/// Returns where frames end in the memory of a thread's stack: at the lowest of what the C library puts above them.
/// That is the thread's own descriptor, to which its handle points in glibc and musl; the word at the thread pointer;
/// and the thread-local variables of loaded objects.
fn thread_storage_start(stack: &Range<usize>) -> usize {
    struct Lowest<'a> {
        stack: &'a Range<usize>,
        address: usize,
    }
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, len: usize, lowest: *mut c_void) -> c_int {
        if len < size_of::<libc::dl_phdr_info>() {
            return 0;
        }
        // SAFETY: the dynamic linker passes an object of at least that length, valid during this call.
        let data = unsafe { (*object).dlpi_tls_data }.addr();
        // SAFETY: the value that was passed to dl_iterate_phdr below, borrowed by nobody else.
        let lowest = unsafe { &mut *lowest.cast::<Lowest<'_>>() };
        if lowest.stack.contains(&data) {
            lowest.address = lowest.address.min(data);
        }
        0
    }
    let known = [control_block(), thread_pointer()].into_iter();
    let address = known.filter(|address| stack.contains(address)).fold(stack.end, usize::min);
    let mut lowest = Lowest { stack, address };
    // SAFETY: `look` is made for this argument, which lives longer than the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut lowest).cast()) };
    lowest.address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_below_thread_local_variables() {
        thread_local! {
            static VARIABLE: std::cell::Cell<u64> = const { std::cell::Cell::new(1) };
        }
        let stack = thread_stack().expect("the C library knows this thread's stack");
        let mut vmas = palimpsest_sys::pages::vmas::Vmas::with_capacity(1 << 16).unwrap();
        vmas.read(palimpsest_sys::pages::vmas::Detail::Places).unwrap();
        let running = Thread::look(&vmas).running(&vmas).expect("this runs on the thread's own stack");
        let local = 0_u8;
        assert!(running.stack.contains((&raw const local).addr()), "{running:x?}");
        let variable = VARIABLE.with(|variable| std::ptr::from_ref(variable).addr());
        if stack.contains(&variable) {
            assert!(running.frames_end <= variable, "{running:x?} holds a variable at {variable:#x}");
        }
        assert!(running.frames_end > (&raw const local).addr());
    }

    /// Fails on: a stack that reaches down to the mapping below it, however far that is: what the program maps in
    /// between is never unmapped.
    #[test]
    fn between_the_stack_and_what_is_mapped_below_there_may_be_room_for_more() {
        let mut vmas = palimpsest_sys::pages::vmas::Vmas::with_capacity(1 << 16).unwrap();
        vmas.read(palimpsest_sys::pages::vmas::Detail::Places).unwrap();
        let pointer = arch::stack_pointer();
        let mut stack = *vmas.iter().find(|vma| vma.range().contains(&pointer)).expect("this runs on a stack");
        stack.label = Label::Stack;
        let thread = Thread { stack: None, storage: 0, rseq: 0..0 };
        let found = |below: usize| {
            let mut other = stack;
            (other.line.start, other.line.end, other.label) = (below - (1 << 20), below, Label::None);
            thread.running(&[other, stack]).expect("on the stack").stack.start
        };
        let near = stack.line.start - (1 << 20);
        assert_eq!(found(near), near);
        assert_eq!(found(1 << 32), stack.line.start - stack_room());
    }
}
