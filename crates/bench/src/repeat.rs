//! A block of code 56 times over: the kernel's own benchmark of batched patching has that many places on one key.

/// Expands to 56 copies of `$block`.
macro_rules! times_56 {
    ($block:block) => {
        $crate::repeat::times_7!({
            $crate::repeat::times_8!($block);
        })
    };
}

macro_rules! times_7 {
    ($block:block) => {
        $block $block $block $block $block $block $block
    };
}

macro_rules! times_8 {
    ($block:block) => {
        $block $block $block $block $block $block $block $block
    };
}

pub(crate) use {times_7, times_8, times_56};
