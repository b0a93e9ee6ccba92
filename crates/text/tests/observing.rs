//! Observers of the user's own: what they are told, and what they can do.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use common::{call, identity, one_at_a_time};
use palimpsest_text::{CodeAddress, DataAccess, Loaded, ObserveError, Observer, Packs, ReclaimPolicy};

/// Everything that observers were told, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Diary {
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError> {
        // SAFETY: the program has just been put there, and nobody drops it before this returns.
        let there = unsafe { std::slice::from_raw_parts(loaded.address.as_ptr(), loaded.code.len()) };
        assert_eq!(there, loaded.code, "told before the code is in place");
        self.note(format!("+{}", loaded.name));
        Ok(())
    }

    fn unloaded(&self, address: CodeAddress, len: usize) -> Result<(), ObserveError> {
        // SAFETY: not refilled before this returns, which the assertion below checks.
        let there = unsafe { std::slice::from_raw_parts(address.as_ptr(), len) };
        assert_eq!(there, identity(1, len), "told after the traps");
        self.note(format!("-{len}"));
        Ok(())
    }
}

#[test]
fn observers_are_told_of_each_program_once_and_of_no_data() {
    let _one = one_at_a_time();
    let diary = Diary::default();
    let packs = Packs::builder().observer(diary.clone()).reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load_named("one", &identity(1, 64), 16).unwrap();
    let data = packs.stage_data(DataAccess::ReadWrite, 10, 1).unwrap().finalize().unwrap();
    drop((program, data));
    assert_eq!(diary.take(), ["+one"]);
    packs.reclaim().unwrap();
    packs.reclaim().unwrap();
    assert_eq!(diary.take(), ["-64"]);
    let last = packs.load_named("two", &identity(1, 128), 16).unwrap();
    drop((last, packs));
    assert_eq!(diary.take(), ["+two", "-128"], "the end of the packs is the end of their programs");
}

/// Fails in every call.
struct Sulker;

impl Observer for Sulker {
    fn loaded(&self, _: &Loaded<'_>) -> Result<(), ObserveError> {
        Err(ObserveError::new("sulker", "no"))
    }

    fn unloaded(&self, _: CodeAddress, _: usize) -> Result<(), ObserveError> {
        Err(ObserveError::new("sulker", "no"))
    }
}

#[test]
fn an_observer_that_fails_is_counted_and_harms_nobody() {
    let _one = one_at_a_time();
    let packs = Packs::builder().observer(Sulker).reclaim(ReclaimPolicy::Manual).open().unwrap();
    let program = packs.load(&identity(1, 64), 16).unwrap();
    assert_eq!(call(&program), 1);
    drop(program);
    assert_eq!(packs.reclaim().unwrap().programs, 1);
    assert_eq!(packs.stats().observer_errors, 2);
}

/// Uses the packs whenever it is told something.
#[derive(Clone, Default)]
struct Meddler(Arc<OnceLock<Packs>>, Arc<AtomicBool>);

impl Observer for Meddler {
    fn loaded(&self, _: &Loaded<'_>) -> Result<(), ObserveError> {
        Ok(())
    }

    fn unloaded(&self, _: CodeAddress, _: usize) -> Result<(), ObserveError> {
        if let Some(packs) = self.0.get()
            && !self.1.swap(true, Ordering::Relaxed)
        {
            packs.reclaim().unwrap();
            drop(packs.load(&identity(5, 3 << 20), 16).unwrap());
            packs.stats();
        }
        Ok(())
    }
}

#[test]
fn an_observer_may_use_the_packs() {
    let _one = one_at_a_time();
    let meddler = Meddler::default();
    let packs = Packs::builder().observer(meddler.clone()).open().unwrap();
    meddler.0.set(packs.clone()).unwrap();
    drop(packs.load(&identity(1, 64), 16).unwrap());
    assert!(packs.reclaim().unwrap().programs >= 1);
    assert!(meddler.1.load(Ordering::Relaxed));
}

/// Panics once.
#[derive(Clone, Default)]
struct Hothead(Arc<AtomicBool>);

impl Observer for Hothead {
    fn loaded(&self, _: &Loaded<'_>) -> Result<(), ObserveError> {
        Ok(())
    }

    fn unloaded(&self, _: CodeAddress, _: usize) -> Result<(), ObserveError> {
        assert!(self.0.swap(true, Ordering::Relaxed), "for the first time");
        Ok(())
    }
}

#[test]
fn an_observer_that_panics_leaks_nothing() {
    let _one = one_at_a_time();
    let packs = Packs::builder().observer(Hothead::default()).reclaim(ReclaimPolicy::Manual).open().unwrap();
    for _ in 0..10 {
        drop(packs.load(&identity(1, 64), 16).unwrap());
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| packs.reclaim())).unwrap_err();
    assert_eq!(packs.reclaim().unwrap().programs, 10);
    assert_eq!(packs.stats().used_bytes, 0);
}
