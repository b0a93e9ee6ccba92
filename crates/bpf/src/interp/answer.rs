//! What helpers answer: a number, or that a function of the program must be called first.

use alloc::sync::Arc;

use crate::map::{Element, Map};

/// What a helper answers.
#[derive(Debug)]
pub enum Answer {
    /// The value for `r0`.
    Value(u64),
    /// Calls of a function of the program, before there is a value.
    Iterate(Iteration),
}

/// Repeated calls of a function of the program.
#[derive(Debug)]
pub struct Iteration {
    function: u64,
    context: u64,
    /// Calls made.
    made: u64,
    over: Over,
}

#[derive(Debug)]
enum Over {
    /// This many times.
    Times(u64),
    /// For the elements of a map from this one on, with the values of a CPU; programs know the map by the handle.
    Elements { map: Arc<Map>, from: usize, cpu: u32, handle: u64 },
}

impl Iteration {
    pub(crate) const fn times(function: u64, context: u64, times: u64) -> Self {
        Self { function, context, made: 0, over: Over::Times(times) }
    }

    pub(crate) const fn elements((function, context): (u64, u64), map: Arc<Map>, cpu: u32, handle: u64) -> Self {
        Self { function, context, made: 0, over: Over::Elements { map, from: 0, cpu, handle } }
    }

    /// Returns the function, as the program knows it.
    pub const fn function(&self) -> u64 {
        self.function
    }

    /// Returns the arguments of the next call. `last` is what the previous one returned; a number other than 0 ends the
    /// calls. After the last one, [`made`](Self::made) is the answer.
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

    /// Returns how many calls were made.
    pub const fn made(&self) -> u64 {
        self.made
    }
}
