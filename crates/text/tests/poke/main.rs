//! Poking of running code: tests the promises on the machine itself.

#[path = "../common/mod.rs"]
mod common;

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod isa;

mod basics;
mod blob;
mod copies;
mod partly;
mod processes;
mod torture;
mod writing;

use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_text::Program;
use palimpsest_text::poke::Batch;

/// Code with sites: offset, old bytes, new bytes.
pub(crate) struct Generated {
    pub(crate) code: Vec<u8>,
    pub(crate) sites: Vec<(usize, Vec<u8>, Vec<u8>)>,
}

/// The version of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    Old,
    New,
}

impl Version {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }
}

impl Generated {
    /// Returns a site's offset, and the bytes that it has and gets when it becomes `version`.
    pub(crate) fn change(&self, index: usize, version: Version) -> (usize, &[u8], &[u8]) {
        let (offset, old, new) = &self.sites[index];
        match version {
            Version::New => (*offset, old, new),
            Version::Old => (*offset, new, old),
        }
    }

    /// Adds a site of this code, in a program, to a batch.
    pub(crate) fn add<'p>(&self, batch: &mut Batch<'p>, program: &'p Program, index: usize, version: Version) {
        let (offset, from, to) = self.change(index, version);
        // SAFETY: 1. generated as sites; 2. the tests work with both versions.
        unsafe { batch.add(program, offset, from, to) }.unwrap();
    }

    /// Runs the code at `entry`. Returns the version that each site had.
    ///
    /// # Safety
    ///
    /// 1. `entry` is this code, and stays so.
    pub(crate) unsafe fn run(&self, entry: *const u8) -> Vec<Version> {
        let mut seen = vec![0; self.sites.len()];
        // SAFETY: the code is a function of this type (1).
        let function = unsafe { std::mem::transmute::<*const u8, extern "C" fn(*mut u8)>(entry) };
        function(seen.as_mut_ptr());
        let version = |(index, byte): (usize, &u8)| match byte {
            1 => Version::New,
            2 => Version::Old,
            other => panic!("site {index} stored {other}"),
        };
        seen.iter().enumerate().map(version).collect()
    }

    /// Does the same as [`run`](Self::run), of a program.
    pub(crate) fn run_program(&self, program: &Program) -> Vec<Version> {
        // SAFETY: 1. the tests load it so, and it is borrowed.
        unsafe { self.run(program.entry()) }
    }
}

/// Says stop when dropped, also by a panic, so that other threads of a scope end.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
