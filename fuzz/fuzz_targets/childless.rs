//! Whether a program can have children, as its file tells: no file panics, and one that is said to have none is a
//! program in which another reader, if it takes it, finds no function that makes a process, and no unknown library.
#![no_main]

#[allow(dead_code, unreachable_pub, unsafe_code, reason = "a module of the preload object, which must not be linked")]
#[path = "../../crates/preload/src/execute/childless.rs"]
mod childless;

use std::ffi::CString;
use std::os::fd::AsRawFd;

use childless::{Children, Found, MAKERS, MEEK, Process};
use libfuzzer_sys::fuzz_target;
use object::Endianness;
use object::elf::{DT_NEEDED, DT_NULL, DT_STRSZ, DT_STRTAB, Dyn64, FileHeader64, PT_DYNAMIC};
use object::pod::from_bytes;
use object::read::elf::{FileHeader, ProgramHeader};

fuzz_target!(|bytes: &[u8]| {
    // Such a file can be executed by whoever has it.
    let file = palimpsest_sys::memory::hand_over("program", bytes).expect("there is memory");
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero byte");
    if !matches!(childless::look_at(&path, Process::Child), Found::Program(Children::Impossible)) {
        return;
    }
    // This reader also wants versions, which nobody else reads.
    let Ok(header) = FileHeader64::<Endianness>::parse(bytes) else { return };
    let endian = header.endian().expect("it was understood");
    let segments = header.program_headers(endian, bytes).expect("as before");
    let dynamic = segments.iter().find(|segment| segment.p_type(endian) == PT_DYNAMIC).expect("it has a table");
    // Half an entry at the end is none.
    let (entries, _) = dynamic.data(endian, bytes).expect("which was understood").as_chunks::<16>();
    let entries = entries.iter().map(|entry| from_bytes::<Dyn64<Endianness>>(entry).expect("as long as one").0);
    let entries = entries.map(|entry| (entry.d_tag.get(endian), entry.d_val.get(endian)));
    let entries = entries.take_while(|&(tag, _)| tag != DT_NULL);
    let values = |wanted| entries.clone().filter(move |&(tag, _)| tag == wanted).map(|(_, value)| value);
    let [address, len] = [DT_STRTAB, DT_STRSZ].map(|tag| values(tag).last().unwrap_or_default());
    let names = segments.iter().find_map(|segment| {
        let start = address.checked_sub(segment.p_vaddr(endian)).filter(|&start| start < segment.p_filesz(endian))?;
        let from = usize::try_from(segment.p_offset(endian).checked_add(start)?).ok()?;
        bytes.get(from..)?.get(..usize::try_from(len).ok()?)
    });
    let names = names.expect("they are in the file");
    for name in names.split(|&byte| byte == 0) {
        assert!(!MAKERS.iter().any(|maker| name.ends_with(maker)), "{name:?}");
    }
    for library in values(DT_NEEDED) {
        let name = names[usize::try_from(library).expect("it is among them")..].split(|&byte| byte == 0).next();
        assert!(name.is_some_and(|name| MEEK.contains(&name)), "{name:?}");
    }
});
