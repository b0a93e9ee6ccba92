//! What calls are for, and sets of calls.

use std::fmt;

use super::FreezeCall;

/// What a program goes without if a call would end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Everything: gathering, too.
    Service,
    /// Freezing.
    Freezing,
    /// Holding other threads by a signal.
    Holding,
    /// What is done in the program's waits.
    Waits,
    /// Deputies: the thread itself asks for huge pages.
    Deputies,
    /// Deputies that begin at once: they wait for their turn.
    Promptness,
    /// Huge pages before the first fork for memory that the program is seen to use.
    Early,
    /// Protection keys of memory that is replaced. Memory that has one stays then; a program that must never set them
    /// has none.
    Keys,
    /// Memory with a policy for NUMA nodes, which would be left alone.
    Policies,
    /// Rings of io_uring that hold memory.
    Rings,
    /// Contexts of Linux AIO: each ring that is mapped counts as one.
    Contexts,
}

impl Part {
    /// Returns what becomes of it, as a part of a sentence.
    const fn loss(self) -> &'static str {
        match self {
            Self::Service => "nothing is done",
            Self::Freezing => "nothing is frozen",
            Self::Holding => "no thread is held by a signal",
            Self::Waits => "nothing is done in waits",
            Self::Deputies => "no deputy is sent",
            Self::Promptness => "deputies begin late on a busy machine",
            Self::Early => "less memory is put into huge pages before the first fork",
            Self::Keys => "memory with a protection key is not replaced",
            Self::Policies => "memory with a policy for NUMA nodes is treated like other memory",
            Self::Rings => "only open rings of io_uring are seen, and none is known to be harmless",
            Self::Contexts => "no ring of Linux AIO is known to be harmless",
        }
    }
}

/// A set of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls(u64);

const _: () = assert!(FreezeCall::ALL.len() <= 64, "a call is a bit");

impl Calls {
    /// No call.
    pub const NONE: Self = Self(0);

    /// Returns the set with this call, too.
    #[must_use]
    pub const fn with(self, call: FreezeCall) -> Self {
        Self(self.0 | 1 << call as u64)
    }

    /// Returns whether the call is among them.
    pub const fn contains(self, call: FreezeCall) -> bool {
        self.0 & Self::NONE.with(call).0 != 0
    }

    /// Returns the first of them that one of these parts needs.
    pub fn first_of(self, parts: &[Part]) -> Option<FreezeCall> {
        self.each().find(|call| parts.contains(&call.part()))
    }

    /// Returns the set whose [names](Self::named) these are; `None` if one is none that is known here.
    pub fn from_names(names: &[u8]) -> Option<Self> {
        names.split(|&byte| byte == b',').try_fold(Self::NONE, |all, name| {
            Some(all.with(FreezeCall::ALL.into_iter().find(|call| call.name().as_bytes() == name)?))
        })
    }

    /// Shows the names, with this between them.
    pub fn named(self, between: &'static str) -> impl fmt::Display {
        fmt::from_fn(move |f| joined(f, between, self.each().map(FreezeCall::name)))
    }

    /// Returns a sentence that tells what is not done because these calls would end the program, as far as it is one of
    /// these parts; `None` if all is done.
    pub fn losses(self, parts: &[Part]) -> Option<String> {
        let told = self.each().filter(|call| parts.contains(&call.part())).fold(Self::NONE, Self::with);
        let lost = || parts.iter().filter(|part| told.first_of(&[**part]).is_some()).map(|part| part.loss());
        (told != Self::NONE).then(|| {
            let losses = fmt::from_fn(|f| joined(f, ", ", lost()));
            format!("a seccomp filter would end the program for {}: {losses}", told.named(", "))
        })
    }

    fn each(self) -> impl Iterator<Item = FreezeCall> {
        FreezeCall::ALL.into_iter().filter(move |call| self.contains(*call))
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

fn joined(f: &mut fmt::Formatter<'_>, between: &str, words: impl Iterator<Item = &'static str>) -> fmt::Result {
    words.enumerate().try_for_each(|(index, word)| {
        if index > 0 {
            f.write_str(between)?;
        }
        f.write_str(word)
    })
}
