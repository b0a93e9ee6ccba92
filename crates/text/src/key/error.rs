//! Errors of keys and static calls.

use super::directive::DirectiveError;
use super::key::MOST_ENABLED;
use super::pattern::PatternError;
use crate::poke::{AddError, PokeError};

/// Why keys were not switched. All keys are as before unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// There is no `enable` to take back.
    #[error("the key {name} is not enabled, so that it cannot be disabled; to turn its switch, use Key::set")]
    NotEnabled {
        /// The key's name.
        name: String,
    },
    /// It was enabled too often.
    #[error("the key {name} is enabled {} times, which is the most; is a disable missing?", MOST_ENABLED)]
    EnabledTooOften {
        /// The key's name.
        name: String,
    },
    /// The calling thread is in the middle of switching it: a log of patches or a signal handler has called back.
    #[error(
        "the key {name} is being switched by this very thread; do not switch keys from a patch log or a signal handler"
    )]
    Reentered {
        /// The key's name.
        name: String,
    },
    /// The object that does the patching could be unloaded, and take its signal handler away with it.
    #[error("the library that would patch its own branches cannot be kept loaded")]
    Unloadable(#[from] palimpsest_sys::NotLoaded),
    /// A branch cannot be patched.
    #[error("a branch on {name} cannot be patched")]
    Site {
        /// The key's name.
        name: String,
        /// The reason.
        #[source]
        source: AddError,
    },
    /// The branches could not be rewritten. After [`PokeError::Unsynced`] and [`PokeError::Stuck`] with a source the
    /// keys are switched all the same, and counts have changed: do not repeat the call. After [`PokeError::Partial`]
    /// some branches are switched, until the next switch of the key puts them right: repeat the call.
    #[error("{sites} branches on {keys} keys could not be rewritten")]
    Poke {
        /// Keys that were to change.
        keys: usize,
        /// Branches that were to change.
        sites: usize,
        /// The reason.
        #[source]
        source: PokeError,
    },
}

/// Why a static call was not changed. It leads where it did.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The calling thread is in the middle of changing it.
    #[error(
        "the static call is being changed by this very thread; do not change it from a patch log or a signal handler"
    )]
    Reentered,
    /// The object that does the patching could be unloaded.
    #[error("the library that would patch its own calls cannot be kept loaded")]
    Unloadable(#[from] palimpsest_sys::NotLoaded),
    /// A jump does not reach that far.
    #[error(
        "the function at {target:#x} is out of the reach of a jump at {site:#x}; \
         call it through a function of the same library"
    )]
    TooFar {
        /// Address of the jump.
        site: usize,
        /// Address of the function.
        target: usize,
    },
    /// The jump cannot be patched.
    #[error("the jump of the static call cannot be patched")]
    Site(#[from] AddError),
    /// The jump could not be rewritten.
    #[error("the jump of the static call could not be rewritten")]
    Poke(#[from] PokeError),
}

/// Why [`Keys::set`](super::Keys::set) switched nothing.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// It is no pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// No key has such a name.
    #[error("no key is named {pattern}; Keys::iter lists those that there are")]
    NoKey {
        /// The pattern.
        pattern: String,
    },
    /// The keys could not be switched.
    #[error(transparent)]
    Switch(#[from] SwitchError),
}

/// An error in the environment variable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The value is not text.
    #[error("it is not valid UTF-8: {text}")]
    NotText {
        /// The value, as far as it is text.
        text: String,
    },
    /// A clause is rejected. The others are followed.
    #[error(transparent)]
    Directive(#[from] DirectiveError),
    /// No key of the program has such a name. Libraries that are loaded later may have it.
    #[error("no key of the program is named {pattern}")]
    NoKey {
        /// The pattern.
        pattern: String,
    },
    /// The keys could not be switched. None was.
    #[error(transparent)]
    Switch(#[from] SwitchError),
}
