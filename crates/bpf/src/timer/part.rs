//! The timers of one map, in memory that is allocated with the map, so that whoever makes and arms them allocates
//! nothing.
//!
//! Each element has a place for a timer. Those that are armed are in a heap, by their times: one heap for each clock.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::{Armed, TimerClock};

/// A timer.
pub(super) struct Timer<C> {
    pub(super) clock: TimerClock,
    pub(super) callback: Option<C>,
    /// `Some` while it is armed; then its clock's heap has its place.
    armed: Option<When>,
}

/// When it is due, and the serial of its arming, which orders calls with one deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct When {
    deadline: u64,
    serial: u64,
}

struct Place<C> {
    timer: Option<Timer<C>>,
    /// Where it is in its clock's heap, while its timer is armed.
    in_heap: u32,
}

/// The timers of a map.
pub(crate) struct Part<C> {
    /// Where the first element has its timer.
    start: u64,
    /// Bytes from one to the next.
    stride: u64,
    places: Box<[Place<C>]>,
    /// For each clock, the places of timers that are armed: each is due no earlier than the one at half its index.
    heaps: [Vec<u32>; 3],
}

impl<C> Part<C> {
    /// Bytes for each element.
    pub(crate) const EACH: u64 = (size_of::<Place<C>>() + 3 * size_of::<u32>()) as u64;

    /// Makes room for `count` timers: at `start` and every `stride` bytes.
    pub(crate) fn new(start: u64, stride: u64, count: u32) -> Result<Self, TryReserveError> {
        let mut places = Vec::new();
        places.try_reserve_exact(count as usize)?;
        places.resize_with(count as usize, || Place { timer: None, in_heap: 0 });
        let mut heaps = [const { Vec::new() }; 3];
        heaps.iter_mut().try_for_each(|heap: &mut Vec<u32>| heap.try_reserve_exact(count as usize))?;
        Ok(Self { start, stride, places: places.into_boxed_slice(), heaps })
    }

    /// Where the first element has its timer: no two parts share that.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Whether an element has its timer exactly there. What lies between its timers may be another map's.
    pub(super) fn has(&self, address: u64) -> bool {
        self.index(address).is_some()
    }

    fn index(&self, address: u64) -> Option<usize> {
        let distance = address.checked_sub(self.start)?;
        let index = usize::try_from(distance / self.stride).ok()?;
        (distance.is_multiple_of(self.stride) && index < self.places.len()).then_some(index)
    }

    pub(super) fn timer_mut(&mut self, address: u64) -> Option<&mut Timer<C>> {
        let index = self.index(address)?;
        self.places[index].timer.as_mut()
    }

    /// Makes a timer; false if there is one already.
    pub(super) fn make(&mut self, address: u64, clock: TimerClock) -> bool {
        let place = self.index(address).map(|index| &mut self.places[index].timer);
        let Some(free @ None) = place else { return false };
        *free = Some(Timer { clock, callback: None, armed: None });
        true
    }

    /// Arms the timer at this address, which is not armed.
    pub(super) fn arm(&mut self, address: u64, deadline: u64, serial: u64) {
        let Some(index) = self.index(address) else { return };
        let Some(timer) = &mut self.places[index].timer else { return };
        timer.armed = Some(When { deadline, serial });
        let clock = timer.clock;
        let last = self.heap(clock).len();
        self.heap(clock).push(index as u32);
        self.places[index].in_heap = last as u32;
        self.raise(clock, last);
    }

    /// Returns whether it was armed.
    pub(super) fn disarm(&mut self, address: u64) -> bool {
        let Some(index) = self.index(address) else { return false };
        let place = &mut self.places[index];
        let Some(timer) = &mut place.timer else { return false };
        if timer.armed.take().is_none() {
            return false;
        }
        let (clock, at) = (timer.clock, place.in_heap as usize);
        self.heap(clock).swap_remove(at);
        if let Some(moved) = self.heap(clock).get(at).copied() {
            self.places[moved as usize].in_heap = at as u32;
            self.lower(clock, at);
            self.raise(clock, at);
        }
        true
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<Timer<C>> {
        self.disarm(address);
        let index = self.index(address)?;
        self.places[index].timer.take()
    }

    /// Takes the callbacks that are over, and disarms and removes their timers.
    pub(super) fn take_callbacks(&mut self, is_over: impl Fn(&C) -> bool) -> Vec<C> {
        let mut taken = Vec::new();
        for index in 0..self.places.len() {
            let callback = self.places[index].timer.as_ref().and_then(|timer| timer.callback.as_ref());
            if callback.is_some_and(&is_over) {
                let removed = self.remove(self.start + index as u64 * self.stride);
                taken.extend(removed.and_then(|timer| timer.callback));
            }
        }
        taken
    }

    /// The timer of a clock that is due first.
    pub(super) fn earliest(&self, clock: TimerClock) -> Option<Armed> {
        self.armed(clock).next()
    }

    /// All timers of a clock that are armed; first the one that is due first.
    pub(super) fn armed(&self, clock: TimerClock) -> impl Iterator<Item = Armed> + '_ {
        self.heaps[clock.index()].iter().filter_map(move |index| {
            let When { deadline, serial } = self.when(*index)?;
            Some(Armed { clock, deadline, serial, address: self.start + u64::from(*index) * self.stride })
        })
    }

    fn heap(&mut self, clock: TimerClock) -> &mut Vec<u32> {
        &mut self.heaps[clock.index()]
    }

    fn when(&self, place: u32) -> Option<When> {
        self.places[place as usize].timer.as_ref()?.armed
    }

    /// Whether what is at one index of a heap is due before what is at another.
    fn is_before(&self, clock: TimerClock, one: usize, other: usize) -> bool {
        let heap = &self.heaps[clock.index()];
        self.when(heap[one]) < self.when(heap[other])
    }

    fn swap(&mut self, clock: TimerClock, one: usize, other: usize) {
        self.heap(clock).swap(one, other);
        for at in [one, other] {
            let place = self.heaps[clock.index()][at];
            self.places[place as usize].in_heap = at as u32;
        }
    }

    /// Moves what is at this index of a heap towards its beginning, as far as it is due before others.
    fn raise(&mut self, clock: TimerClock, mut at: usize) {
        while at > 0 && self.is_before(clock, at, (at - 1) / 2) {
            self.swap(clock, at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Moves what is at this index of a heap towards its end, as far as others are due before it.
    fn lower(&mut self, clock: TimerClock, mut at: usize) {
        let len = self.heaps[clock.index()].len();
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(len);
            let first = children.reduce(|one, other| if self.is_before(clock, other, one) { other } else { one });
            let Some(child) = first.filter(|child| self.is_before(clock, *child, at)) else { return };
            self.swap(clock, at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    /// Mutants that it catches: a child that is not compared, what is moved into a gap but not up, a place that is not
    /// noted.
    #[test]
    fn what_is_due_first_is_first_whatever_is_disarmed() {
        let mut part = Part::<()>::new(0x1000, 24, 50).expect("room");
        let (mut known, mut random) = (BTreeSet::new(), 7_u64);
        for serial in 0..4000 {
            // Knuth's generator (MMIX).
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let address = 0x1000 + (random >> 33) % 50 * 24;
            let is_new = part.make(address, TimerClock::Boot);
            let was_armed = part.disarm(address);
            assert!(!is_new || !was_armed);
            let before = known.len();
            known.retain(|(_, _, other)| *other != address);
            assert_eq!(was_armed, known.len() < before);
            if random >> 60 < 12 {
                let deadline = random >> 40 & 0xff;
                part.arm(address, deadline, serial);
                known.insert((deadline, serial, address));
            } else if random >> 60 < 13 {
                assert!(part.remove(address).is_some());
            }
            let first = part.earliest(TimerClock::Boot).map(|armed| (armed.deadline, armed.serial, armed.address));
            assert_eq!(first, known.first().copied());
            let all: BTreeSet<_> = part.armed(TimerClock::Boot).map(|armed| (armed.deadline, armed.serial)).collect();
            assert_eq!(all.len(), known.len());
        }
        assert!(part.earliest(TimerClock::Real).is_none() && !part.make(0x1001, TimerClock::Boot));
        assert!(part.timer_mut(0x1000 + 50 * 24).is_none() && part.timer_mut(0xfff).is_none());
    }
}
