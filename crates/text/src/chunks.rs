//! Which chunks of a pack are taken: a bitmap with first fit.
//!
//! `no_std` and without allocation: the words are the caller's. A kernel can keep them beside its pack.

use core::fmt;

const BITS: u32 = u64::BITS;

/// Requests of at most this many chunks have a hint for each length: most programs are short, and a shared hint would
/// search past all shorter free runs again.
const EXACT: u32 = 16;

/// Size classes of the hints: the exact ones, then classes whose shortest request doubles from one to the next, up to a
/// pack.
const CLASSES: usize = EXACT as usize + 11;

/// How many words a release searches for each end of its free run. A hint may be too low, which costs a search, but
/// never too high.
const LOOK: u32 = 2;

/// Returns how many classes have a shortest request of at most `count` chunks.
const fn classes_up_to(count: u32) -> usize {
    let classes = if count <= EXACT { count } else { EXACT + (count / EXACT).ilog2() } as usize;
    if classes < CLASSES { classes } else { CLASSES }
}

/// A map of chunks, free or taken. First fit from the lowest address keeps the upper packs empty, so that they can be
/// given back.
///
/// ```
/// use palimpsest_text::ChunkMap;
///
/// let mut words = [0_u64; 2];
/// let mut map = ChunkMap::new(&mut words[..], 128);
/// assert_eq!(map.allocate(100, 1), Some(0));
/// assert_eq!(map.allocate(32, 1), None);
/// map.release(0, 100);
/// assert_eq!(map.largest_free_run(), 128);
/// ```
pub struct ChunkMap<W> {
    /// One bit per chunk, set if taken. Bits past `chunks` are set.
    words: W,
    chunks: u32,
    used: u32,
    /// For each class, ascending: no free run as long as its shortest request, or longer, begins below this.
    hints: [u32; CLASSES],
}

/// A state of a chunk.
#[derive(Clone, Copy)]
enum Is {
    Free,
    Taken,
}

impl<W: AsRef<[u64]> + AsMut<[u64]>> ChunkMap<W> {
    /// Creates a map of `chunks` free chunks over `words`, whose contents are overwritten.
    ///
    /// # Panics
    ///
    /// If `words` has fewer than `chunks` bits.
    pub fn new(mut words: W, chunks: u32) -> Self {
        let bits = words.as_ref().len() as u64 * u64::from(BITS);
        assert!(u64::from(chunks) <= bits, "{chunks} chunks in a bitmap of {bits} bits");
        words.as_mut().fill(0);
        let mut map = Self { words, chunks, used: 0, hints: [0; CLASSES] };
        let padding = u32::try_from(bits.min(u64::from(u32::MAX))).unwrap_or(u32::MAX);
        map.fill(chunks, padding - chunks, Is::Taken);
        map
    }

    /// Takes the first free run of `count` chunks that begins at a multiple of `align` chunks, and returns its first
    /// chunk.
    ///
    /// # Panics
    ///
    /// If `count` is zero or `align` is no power of two.
    pub fn allocate(&mut self, count: u32, align: u32) -> Option<u32> {
        assert!(count > 0 && align.is_power_of_two(), "{count} chunks at a multiple of {align}");
        let from = self.hints[classes_up_to(count) - 1];
        let first = if align == 1 { self.first_run(from, count)? } else { self.first_aligned(from, count, align)? };
        if align == 1 {
            // Nothing of `count` chunks or more begins below what is taken now: true for every class of such requests.
            for hint in self.hints.iter_mut().skip(classes_up_to(count - 1)) {
                *hint = (*hint).max(first + count);
            }
        }
        self.fill(first, count, Is::Taken);
        self.used += count;
        Some(first)
    }

    /// Gives `count` chunks from `first` back.
    ///
    /// # Panics
    ///
    /// If one of them is free or does not exist: the caller's books are wrong, and two programs may share memory.
    pub fn release(&mut self, first: u32, count: u32) {
        let end = first.checked_add(count).filter(|&end| count > 0 && end <= self.chunks);
        let taken = end.is_some_and(|end| self.next(first, end, Is::Free).is_none());
        assert!(taken, "release of chunks {first}..{} that are not all taken", u64::from(first) + u64::from(count));
        self.fill(first, count, Is::Free);
        self.used -= count;
        let run = self.run_start(first);
        // A run whose end was not found counts as long enough for every request.
        let end = first + count;
        let seen = end.saturating_add(LOOK * BITS).min(self.chunks);
        let serves = self.next(end, seen, Is::Taken).map_or(CLASSES, |end| classes_up_to(end - run));
        for hint in &mut self.hints[..serves] {
            *hint = (*hint).min(run);
        }
    }

    /// Returns the number of chunks, free or taken.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the number of chunks taken.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the length of the longest free run, in chunks.
    pub fn largest_free_run(&self) -> u32 {
        let mut longest = 0;
        let mut from = 0;
        while let Some(run) = self.next(from, self.chunks, Is::Free) {
            from = self.next(run, self.chunks, Is::Taken).unwrap_or(self.chunks);
            longest = longest.max(from - run);
        }
        longest
    }

    /// Returns where the lowest free run of `count` chunks begins, at `from` or above. Searches word by word and not
    /// run by run: after much loading and dropping most free runs are too short.
    fn first_run(&self, from: u32, count: u32) -> Option<u32> {
        let mut mask = u64::MAX << (from % BITS);
        // Free chunks directly below the current word.
        let mut below = 0;
        for (index, word) in self.words.as_ref().iter().enumerate().skip((from / BITS) as usize) {
            let free = !word & mask;
            mask = u64::MAX;
            if free == 0 {
                below = 0;
                continue;
            }
            let start = index as u32 * BITS;
            if below + free.trailing_ones() >= count {
                return Some(start - below);
            }
            if count < BITS {
                // A set bit stands for `reach` free chunks from there on, none of them in the next word.
                let (mut runs, mut reach) = (free, 1);
                while reach < count {
                    let step = reach.min(count - reach);
                    runs &= runs >> step;
                    reach += step;
                }
                if runs != 0 {
                    return Some(start + runs.trailing_zeros());
                }
            }
            below = if free == u64::MAX { below + BITS } else { free.leading_ones() };
        }
        None
    }

    /// Does what [`first_run`](Self::first_run) does, for runs that begin at a multiple of `align`.
    fn first_aligned(&self, mut from: u32, count: u32, align: u32) -> Option<u32> {
        loop {
            let first = self.next(from, self.chunks, Is::Free)?.checked_next_multiple_of(align)?;
            let end = first.checked_add(count).filter(|&end| end <= self.chunks)?;
            // Looks no further than asked for: where the free run ends does not matter.
            match self.next(first, end, Is::Taken) {
                None => return Some(first),
                Some(taken) => from = taken,
            }
        }
    }

    /// Returns the first chunk in `from..to` in state `is`. `to` is at most [`chunks`](Self::chunks).
    fn next(&self, from: u32, to: u32, is: Is) -> Option<u32> {
        if from >= to {
            return None;
        }
        let words = self.words.as_ref();
        let flip = match is {
            Is::Taken => 0,
            Is::Free => u64::MAX,
        };
        let last = ((to - 1) / BITS) as usize;
        let mut index = (from / BITS) as usize;
        let mut word = (words[index] ^ flip) & (u64::MAX << (from % BITS));
        while word == 0 {
            if index == last {
                return None;
            }
            index += 1;
            word = words[index] ^ flip;
        }
        let found = index as u32 * BITS + word.trailing_zeros();
        (found < to).then_some(found)
    }

    /// Returns where the free run that holds the free chunk `chunk` begins, or a lower chunk if the run is long.
    fn run_start(&self, chunk: u32) -> u32 {
        let words = self.words.as_ref();
        let last = (chunk / BITS) as usize;
        let mut mask = u64::MAX >> (BITS - 1 - chunk % BITS);
        for index in (last.saturating_sub(LOOK as usize)..=last).rev() {
            let word = words[index] & mask;
            if word != 0 {
                return index as u32 * BITS + (BITS - word.leading_zeros());
            }
            mask = u64::MAX;
        }
        // No free chunk at all lies below.
        self.hints[0].min(chunk)
    }

    fn fill(&mut self, first: u32, count: u32, is: Is) {
        let words = self.words.as_mut();
        let mut at = first;
        let end = first + count;
        while at < end {
            let bit = at % BITS;
            let run = (BITS - bit).min(end - at);
            let mask = (u64::MAX >> (BITS - run)) << bit;
            let word = &mut words[(at / BITS) as usize];
            *word = match is {
                Is::Taken => *word | mask,
                Is::Free => *word & !mask,
            };
            at += run;
        }
    }
}

impl<W: AsRef<[u64]> + AsMut<[u64]>> fmt::Debug for ChunkMap<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkMap({} of {} chunks taken)", self.used, self.chunks)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNKS: u32 = 300;

    fn new_map() -> ChunkMap<Vec<u64>> {
        ChunkMap::new(vec![u64::MAX; 5], CHUNKS)
    }

    /// First fit, written plainly.
    fn first_fit(taken: &[bool], count: u32, align: u32) -> Option<u32> {
        (0..=CHUNKS.checked_sub(count)?)
            .step_by(align as usize)
            .find(|&first| taken[first as usize..(first + count) as usize].iter().all(|taken| !taken))
    }

    fn longest_run(taken: &[bool]) -> usize {
        taken.split(|taken| *taken).map(<[bool]>::len).max().unwrap_or(0)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { count: u32, align: u32 },
        Release { victim: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let count = prop_oneof![6 => 1_u32..12, 2 => 12_u32..80, 1 => 80_u32..320];
        let step = prop_oneof![
            3 => (count, 0_u32..4).prop_map(|(count, shift)| {
                Step::Allocate { count, align: 1 << shift.saturating_sub(1) }
            }),
            2 => any::<usize>().prop_map(|victim| Step::Release { victim }),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn it_is_first_fit_on_a_plain_array(steps in steps()) {
            let mut map = new_map();
            let mut model = vec![false; CHUNKS as usize];
            let mut live: Vec<(u32, u32)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate { count, align } => {
                        let expected = first_fit(&model, count, align);
                        prop_assert_eq!(map.allocate(count, align), expected);
                        if let Some(first) = expected {
                            model[first as usize..(first + count) as usize].fill(true);
                            live.push((first, count));
                        }
                    }
                    Step::Release { victim } if !live.is_empty() => {
                        let (first, count) = live.swap_remove(victim % live.len());
                        map.release(first, count);
                        model[first as usize..(first + count) as usize].fill(false);
                    }
                    Step::Release { .. } => {}
                }
                prop_assert_eq!(map.used() as usize, model.iter().filter(|taken| **taken).count());
                prop_assert_eq!(map.largest_free_run() as usize, longest_run(&model));
            }
        }
    }

    #[test]
    fn a_full_map_says_so_and_recovers() {
        let mut map = new_map();
        assert_eq!(map.allocate(CHUNKS, 1), Some(0));
        assert_eq!(map.allocate(1, 1), None);
        map.release(17, 1);
        assert_eq!(map.allocate(2, 1), None);
        assert_eq!(map.allocate(1, 1), Some(17));
    }

    /// A full word lies between two runs.
    #[test]
    fn runs_of_words_that_are_apart_are_not_joined() {
        let mut map = new_map();
        map.allocate(CHUNKS, 1);
        map.release(60, 4);
        map.release(128, 4);
        assert_eq!(map.allocate(6, 1), None);
        map.release(64, 64);
        assert_eq!(map.allocate(70, 1), Some(60));
    }

    #[test]
    #[should_panic(expected = "release of chunks 3..5")]
    fn a_double_release_is_caught() {
        let mut map = new_map();
        map.allocate(10, 1);
        map.release(4, 1);
        map.release(3, 2);
    }

    #[test]
    #[should_panic(expected = "release of chunks 299..301")]
    fn a_release_out_of_bounds_is_caught() {
        let mut map = new_map();
        map.allocate(CHUNKS, 1);
        map.release(CHUNKS - 1, 2);
    }
}
