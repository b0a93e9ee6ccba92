//! Uprobes belong to files: what becomes of them in exchanged text. These tests need one node.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::FromRawFd;

use palimpsest_numa::{Pages, ProgramText, TextOptions};
use palimpsest_sys::pages::maps::Maps;

use crate::big_text::{address_of, all_work, call, first_word};
use crate::machine::apart;

/// `struct perf_event_attr` of `include/uapi/linux/perf_event.h`, as far as version 5 of it goes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sample: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    /// `uprobe_path`
    config1: u64,
    /// `probe_offset`
    config2: u64,
    rest: [u64; 5],
}

/// A counter of how often this process executes one instruction of its file.
struct Counter(File);

/// Returns where the file has a function of the big text, in bytes; asked before anything is exchanged.
fn offset_of(number: usize) -> u64 {
    let address = address_of(number);
    let maps = Maps::read().expect("mounted");
    let map = maps.at(address).expect("mapped");
    map.offset + (address - map.start) as u64
}

impl Counter {
    /// Sets a uprobe there; fails where the kernel has none, or allows none.
    fn at(offset: u64) -> Result<Self, String> {
        let kind =
            fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").map_err(|error| error.to_string())?;
        let mut path = std::env::current_exe().expect("known").into_os_string().into_encoded_bytes();
        path.push(0);
        let attributes = Attributes {
            kind: kind.trim().parse().expect("a number"),
            size: u32::try_from(size_of::<Attributes>()).expect("small"),
            config1: path.as_ptr().expose_provenance() as u64,
            config2: offset,
            ..Attributes::default()
        };
        // SAFETY: a structure of the size that it tells, with the address of a path that ends with a zero.
        let answer = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0) };
        let descriptor = i32::try_from(answer).expect("a descriptor");
        if descriptor < 0 {
            return Err(format!("no uprobe: {}", std::io::Error::last_os_error()));
        }
        // SAFETY: new, and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(descriptor) }))
    }

    fn count(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).expect("one number");
        u64::from_ne_bytes(bytes)
    }
}

#[test]
fn probes_that_are_set_before_the_exchange_stay() {
    apart("uprobes::set_before_and_behind", &[]);
}

#[test]
#[ignore = "runs in a process of its own, as part of another test"]
fn set_before_and_behind() {
    // In different huge pages.
    const BEFORE: usize = 1000;
    const BEHIND: usize = 1600;
    const CALLS: usize = 100;
    let (place, behind) = (offset_of(BEFORE), offset_of(BEHIND));
    let mut before = match Counter::at(place) {
        Ok(before) => before,
        Err(why) => return println!("skipped: {why}"),
    };
    assert_eq!((call(BEFORE), before.count()), (BEFORE, 1));
    let with_probe = first_word(BEFORE);
    assert_ne!(with_probe, first_word(BEHIND));
    let text = ProgramText::localize(&TextOptions::new().pages(Pages::Copied)).expect("nothing is in the way");
    let is_copy = |number| {
        let maps = Maps::read().expect("mounted");
        let path = maps.at(address_of(number)).expect("mapped").path.clone();
        path.is_some_and(|path| path.starts_with("/memfd:palimpsest-constant (deleted)"))
    };
    assert_eq!((is_copy(BEFORE), is_copy(BEHIND)), (false, true), "{:?}", text.parts());
    assert_eq!(first_word(BEFORE), with_probe, "its page was written, and stays");
    let counted = (1..=CALLS).find(|_| call(BEFORE) == BEFORE && before.count() > 1);
    println!("counted at call {counted:?} after the exchange");
    // An emulated kernel sometimes counts no more once the thread has come to another CPU, as if it did not notice: it
    // switches that on by code that it replaces, and QEMU may go on with the old (`TAKING_TURNS` in xtask). A counter
    // that is set now begins on this CPU; the kernel knows the probe if that counts.
    let mut later = (1..=CALLS).map(|_| Counter::at(place).expect("as the first"));
    let known = counted.is_some() || later.any(|mut counter| (call(BEFORE), counter.count()) == (BEFORE, 1));
    assert!(known, "the kernel knows the probe no more");
    // What is executed now is not that file's.
    let mut late = Counter::at(behind).expect("as the first");
    assert_eq!((call(BEHIND), late.count()), (BEHIND, 0));
    all_work();
}
