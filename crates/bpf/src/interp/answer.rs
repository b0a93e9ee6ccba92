//! What helpers answer: a number, or that a function of the program is to be called first.

use alloc::sync::Arc;

use crate::map::{Element, Map};

/// What a helper answers.
#[derive(Debug)]
pub enum Answer {
    /// What goes to `r0`.
    Value(u64),
    /// A function of the program is called before that.
    Iterate(Iteration),
}

/// Calls of a function of the program.
#[derive(Debug)]
pub struct Iteration {
    function: u64,
    context: u64,
    /// Calls that were made.
    made: u64,
    over: Over,
}

#[derive(Debug)]
enum Over {
    /// So many times.
    Times(u64),
    /// For the elements of a map from this one on, with the values of a CPU; what programs know the map by.
    Elements { map: Arc<Map>, from: usize, cpu: u32, handle: u64 },
}

impl Iteration {
    pub(crate) const fn times(function: u64, context: u64, times: u64) -> Self {
        Self { function, context, made: 0, over: Over::Times(times) }
    }

    pub(crate) const fn elements((function, context): (u64, u64), map: Arc<Map>, cpu: u32, handle: u64) -> Self {
        Self { function, context, made: 0, over: Over::Elements { map, from: 0, cpu, handle } }
    }

    /// The function, as the program knows it.
    pub const fn function(&self) -> u64 {
        self.function
    }

    /// The arguments of the next call; `last` is what the one before has returned, and another number than 0 ends it.
    /// If there is none, [`made`](Self::made) is the answer.
    pub fn next(&mut self, last: Option<u64>) -> Option<[u64; 5]> {
        if last.is_some_and(|last| last != 0) {
            return None;
        }
        let arguments = match &mut self.over {
            Over::Times(times) if self.made == *times => return None,
            Over::Times(_) => [self.made, self.context, 0, 0, 0],
            Over::Elements { map, from, cpu, handle } => {
                let Element { index, key, value } = map.element_of(*from, *cpu)?;
                *from = index + 1;
                [*handle, key, value, self.context, 0]
            }
        };
        self.made += 1;
        Some(arguments)
    }

    /// Calls that were made.
    pub const fn made(&self) -> u64 {
        self.made
    }
}
