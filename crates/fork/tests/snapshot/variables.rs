//! Ranges of the program's variables, among which this library has some of its own.

use std::sync::atomic::Ordering::Relaxed;

use palimpsest_fork::guard;
use palimpsest_sys::pages::maps::{Maps, Permissions};

use crate::child::play;
use crate::memory::{map, page, range, read, write};
use crate::{COUNTER, ranges, restore, take};

/// Fails on: what guards know that comes back with the program's variables, alone: it speaks of other memory, too.
#[test]
fn what_guards_know_does_not_come_back_with_the_programs_variables() {
    play("variables::what_guards_know_does_not_come_back_with_the_programs_variables", || {
        let maps = Maps::read().unwrap();
        let own = std::env::current_exe().unwrap();
        let of_variables = maps.iter().filter(|map| map.permissions.contains(Permissions::READ_WRITE));
        let of_variables = of_variables.filter(|map| map.path.as_deref() == Some(own.as_path()));
        let variables: Vec<_> = of_variables.map(|map| map.range()).collect();
        assert!(!variables.is_empty());
        COUNTER.store(5, Relaxed);
        let mut snapshot = take(&ranges(variables));
        let memory = map(600);
        (0..600).for_each(|index| write(memory.wrapping_add(index * page()), 7));
        let _later = take(&ranges([range(memory, 600)]));
        COUNTER.store(6, Relaxed);
        assert!(guard::touches(range(memory, 600)));
        restore(&mut snapshot);
        assert_eq!(COUNTER.load(Relaxed), 5, "variables do");
        assert!(guard::touches(range(memory, 600)));
        // SAFETY: 1. the scenario's memory, of which nothing is needed any more.
        let told = unsafe { guard::madvise(memory.addr(), 600 * page(), libc::MADV_DONTNEED) };
        assert!(told.is_err() || read(memory) == 0, "a discard that shows old bytes");
    });
}
