//! Mappings read without the heap, from text like that of `/proc/self/maps` and `smaps`: no input panics, places and
//! figures are plausible, and if each line is a mapping the other parser finds the same ones.
#![no_main]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::pages::maps;
use palimpsest_sys::pages::vmas::{Detail, Vmas};

/// Text goes through a file, since half of the matter is where reads end.
static PARTS: LazyLock<Mutex<(File, Vmas)>> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("palimpsest-fuzz-vmas-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file of its own");
    std::fs::remove_file(&path).expect("made just now");
    Mutex::new((file, Vmas::with_capacity(1 << 16).expect("memory")))
});

fuzz_target!(|text: &[u8]| {
    let mut parts = PARTS.lock().expect("one thread");
    let (file, vmas) = &mut *parts;
    file.set_len(0).expect("it can be cut");
    file.write_all_at(text, 0).expect("it can be written");
    // As the kernel ends every line.
    file.write_all_at(b"\n", text.len() as u64).expect("it can be written");
    for detail in [Detail::Places, Detail::Figures] {
        let read = vmas.read_from(file.as_fd(), detail);
        assert!(vmas.iter().all(|vma| vma.start < vma.end && !vma.range().is_empty()));
        // The other parser has no longest line.
        if text.len() < 60 << 10
            && let Ok(entries) = maps::parse(text)
        {
            read.expect("the other parser understands it");
            let shown = |start, end, permissions, offset, inode| (start, end, permissions, offset, inode);
            let mine = vmas.iter().map(|vma| shown(vma.start, vma.end, vma.permissions, vma.offset, vma.inode));
            let theirs = entries.iter().map(|one| shown(one.start, one.end, one.permissions, one.offset, one.inode));
            assert!(mine.eq(theirs));
        }
    }
});
