//! Damaged files, the same each time.

/// Random numbers: xorshift by Marsaglia.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % count
    }

    /// Returns `good` with at most `most` bytes changed; the file of each tenth `round` is cut off as well.
    pub(crate) fn damaged(&mut self, good: &[u8], round: usize, most: usize) -> Vec<u8> {
        let mut bytes = good.to_vec();
        if round.is_multiple_of(10) {
            bytes.truncate(self.below(good.len()));
        }
        for _ in 0..1 + self.below(most) {
            if !bytes.is_empty() {
                let place = self.below(bytes.len());
                bytes[place] = [0, 1, 0x7f, 0x80, 0xff, self.below(256) as u8][self.below(6)];
            }
        }
        bytes
    }
}
