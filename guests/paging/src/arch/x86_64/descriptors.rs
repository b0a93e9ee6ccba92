//! Segments, the task state and the interrupt table: SDM volume 3, 3.4.5, 8.7 and 7.14.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::size_of;

use crate::cpu::CPUS;

pub(super) const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
pub(super) const USER_DATA: u16 = 0x18 | 3;
pub(super) const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;
/// Bytes of a stub in `trap.s`.
const STUB: u64 = 16;
const DOUBLE_FAULT: usize = 8;
/// The only vector that user mode may raise by itself.
pub(super) const SYSTEM_CALL: usize = 0x80;

/// A CPU's entry area, which GS points to in the kernel. Both roots map it; `trap.s` knows the first five fields.
#[repr(C, align(4096))]
struct PerCpu {
    number: u64,
    /// The root to load when user mode is left.
    kernel_root: u64,
    /// The root to load when user mode is entered.
    user_root: u64,
    /// Where the registers of the thread in user mode are saved.
    context: u64,
    entry_stack_end: u64,
    task: Task,
    segments: [u64; 7],
    /// The stack where the CPU saves state at traps from user mode.
    entry_stack: EntryStack,
    double_fault_stack: [u64; 512],
}

#[repr(C, align(16))]
struct EntryStack([u64; 64]);

#[repr(C, packed(4))]
struct Task {
    reserved: u32,
    stacks: [u64; 3],
    reserved_1: u64,
    interrupt_stacks: [u64; 7],
    reserved_2: u64,
    reserved_3: u16,
    port_map: u16,
}

#[repr(transparent)]
struct Slot(UnsafeCell<PerCpu>);

// SAFETY: each CPU touches only its own.
unsafe impl Sync for Slot {}

#[expect(clippy::declare_interior_mutable_const, reason = "copied into each slot of the array below")]
const EMPTY: Slot = Slot(UnsafeCell::new(PerCpu {
    number: 0,
    kernel_root: 0,
    user_root: 0,
    context: 0,
    entry_stack_end: 0,
    task: Task {
        reserved: 0,
        stacks: [0; 3],
        reserved_1: 0,
        interrupt_stacks: [0; 7],
        reserved_2: 0,
        reserved_3: 0,
        port_map: 0,
    },
    segments: [0; 7],
    entry_stack: EntryStack([0; 64]),
    double_fault_stack: [0; 512],
}));

#[unsafe(link_section = ".entry_data")]
static PER_CPU: [Slot; CPUS] = [EMPTY; CPUS];

struct Table(UnsafeCell<[[u64; 2]; 256]>);

// SAFETY: written by the first CPU before others start.
unsafe impl Sync for Table {}

#[unsafe(link_section = ".entry_data")]
static INTERRUPTS: Table = Table(UnsafeCell::new([[0; 2]; 256]));

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

unsafe extern "C" {
    static trap_stubs: [u8; 0];
}

/// Loads this CPU's segments, task state and interrupt table.
pub(super) fn init(cpu: usize) {
    let per_cpu = PER_CPU[cpu].0.get();
    let task = per_cpu.wrapping_byte_add(core::mem::offset_of!(PerCpu, task)) as u64;
    let stack_end = per_cpu.wrapping_byte_add(core::mem::offset_of!(PerCpu, double_fault_stack)) as u64 + 4096;
    let entry_stack = per_cpu.wrapping_byte_add(core::mem::offset_of!(PerCpu, entry_stack)) as u64;
    let entry_stack_end = entry_stack + size_of::<EntryStack>() as u64;
    let limit = size_of::<Task>() as u64 - 1;
    let system_segment = limit | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56;
    let segments = [
        0,
        0x00af_9a00_0000_ffff,
        0x00cf_9200_0000_ffff,
        0x00cf_f200_0000_ffff,
        0x00af_fa00_0000_ffff,
        system_segment,
        task >> 32,
    ];
    // SAFETY: this CPU's own, and nothing refers to it yet.
    let state = unsafe { &mut *per_cpu };
    state.number = cpu as u64;
    state.segments = segments;
    state.entry_stack_end = entry_stack_end;
    state.task.stacks[0] = entry_stack_end;
    state.task.interrupt_stacks[0] = stack_end & !15;
    state.task.port_map = size_of::<Task>() as u16;
    if cpu == 0 {
        fill_table();
    }
    let pointer = Pointer { limit: size_of::<[u64; 7]>() as u16 - 1, base: state.segments.as_ptr() as u64 };
    // SAFETY: the table lives for ever and has the segments that are loaded from it.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2: mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "mov fs, {data:e}",
            "mov gs, {data:e}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = in(reg) u64::from(KERNEL_CODE),
            data = in(reg) u64::from(KERNEL_DATA),
            task = in(reg) u64::from(TASK),
            scratch = out(reg) _,
        );
    }
    let pointer = Pointer { limit: size_of::<[[u64; 2]; 256]>() as u16 - 1, base: INTERRUPTS.0.get() as u64 };
    // SAFETY: the table lives for ever, and its stubs handle every vector.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, readonly)) };
    super::cpu::set_per_cpu(per_cpu as u64);
}

fn fill_table() {
    // SAFETY: the first CPU alone runs.
    let table = unsafe { &mut *INTERRUPTS.0.get() };
    let stubs = (&raw const trap_stubs) as u64;
    for (vector, gate) in table.iter_mut().enumerate() {
        let stub = stubs + vector as u64 * STUB;
        let stack = u64::from(vector == DOUBLE_FAULT);
        let privilege = if vector == SYSTEM_CALL { 3 } else { 0 };
        // A gate of type 14 clears the interrupt flag.
        let kind = 0x8e | privilege << 5;
        *gate = [
            stub & 0xffff | u64::from(KERNEL_CODE) << 16 | stack << 32 | kind << 40 | (stub >> 16 & 0xffff) << 48,
            stub >> 32,
        ];
    }
}

/// Sets the roots between which this CPU switches.
pub(super) fn set_roots(cpu: usize, kernel_root: u64, user_root: u64) {
    let per_cpu = PER_CPU[cpu].0.get();
    let kernel = per_cpu.wrapping_byte_add(core::mem::offset_of!(PerCpu, kernel_root)).cast::<u64>();
    let user = per_cpu.wrapping_byte_add(core::mem::offset_of!(PerCpu, user_root)).cast::<u64>();
    // SAFETY: this CPU's own, which only `trap.s` reads, on the way to user mode and back.
    unsafe { kernel.write(kernel_root) };
    // SAFETY: as above.
    unsafe { user.write(user_root) };
}
