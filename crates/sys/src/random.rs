//! Random numbers from the kernel, many at a time.

use std::cell::RefCell;

use rustix::rand::GetRandomFlags;

/// Bytes fetched at once.
const STOCK: usize = 256;

/// Returns a random number below `bound`, which is 1 to 256. Zero if the kernel provides none (`getrandom(2)` filtered,
/// or not yet seeded).
///
/// Hard to guess from earlier numbers. A forked child continues with the stock of its parent's thread.
pub fn random_below(bound: usize) -> usize {
    thread_local! {
        /// Bytes, and the number of those left.
        static STOCKED: RefCell<([u8; STOCK], usize)> = const { RefCell::new(([0; STOCK], 0)) };
    }
    debug_assert!((1..=256).contains(&bound));
    STOCKED.with_borrow_mut(|(bytes, left)| {
        if *left == 0 {
            match rustix::rand::getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
                Ok(got @ 1..) => *left = got,
                _ => return 0,
            }
        }
        *left -= 1;
        // Used once, so that a later reader of this memory learns nothing of past numbers.
        usize::from(std::mem::take(&mut bytes[*left])) * bound / 256
    })
}

/// Returns random numbers that this process shares with no child; `None` if the kernel provides none. Signal handlers
/// may ask.
pub fn random_words() -> Option<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    // Up to 256 bytes come at once or not at all (random(7)).
    let got = rustix::rand::getrandom(bytes.as_flattened_mut(), GetRandomFlags::NONBLOCK).ok()?;
    (got == size_of_val(&bytes)).then(|| bytes.map(u64::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_words_are_others_each_time() {
        let [first, second] = [(); 2].map(|()| random_words().expect("every kernel that tests run on has some"));
        assert_ne!(first, second);
    }

    #[test]
    fn every_number_below_the_bound_comes() {
        for bound in [1, 2, 3, 16, 256] {
            let mut seen = vec![0; bound];
            for _ in 0..100 * bound {
                seen[random_below(bound)] += 1;
            }
            // The chance that one of 256 numbers is missing is 256 * (1 - 1/256)^25600, about 10^-41.
            assert!(seen.iter().all(|&times| times > 0), "{bound}: {seen:?}");
        }
    }
}
