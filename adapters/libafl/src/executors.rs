//! The two executors. They differ in the mode that they need their host in, and in what they promise.

use std::time::Duration;

use libafl::Error;
use libafl::executors::{Executor, ExitKind, HasObservers, HasTimeout, SetTimeout};
use libafl::inputs::ToTargetBytesConverter;
use libafl::state::HasExecutions;
use libafl_bolts::tuples::RefIndexable;

use crate::target::Target;
use crate::{Host, Mode};

macro_rules! executor {
    ($(#[$documentation:meta])* $name:ident, $accepts:pat, $wanted:literal) => {
        $(#[$documentation])*
        #[derive(Debug)]
        pub struct $name<OT> {
            target: Target,
            observers: OT,
        }

        impl<OT> $name<OT> {
            /// Creates an executor for the target of `host`; each run may take `timeout`. The observers are LibAFL's:
            /// for edges, take the one of [`map_observer`](crate::map_observer).
            ///
            /// # Errors
            ///
            /// [`Error::IllegalArgument`] if the host was started in a mode of the other executor.
            pub fn new(host: Host, observers: OT, timeout: Duration) -> Result<Self, Error> {
                match host.mode() {
                    $accepts => Ok(Self { target: Target::new(host, timeout), observers }),
                    other => {
                        let wanted = $wanted;
                        let message = format!("the host runs in mode {other:?}; start it with {wanted}");
                        Err(Error::illegal_argument(message))
                    }
                }
            }

            /// Counts a target that exits with `code` as crashed; sanitizers can be told to exit so.
            #[must_use]
            pub fn crash_exit_code(mut self, code: i32) -> Self {
                self.target.crash_exit_code = Some(code);
                self
            }
        }

        impl<EM, I, OT, S, Z> Executor<EM, I, S, Z> for $name<OT>
        where
            S: HasExecutions,
            Z: ToTargetBytesConverter<I, S>,
        {
            fn run_target(&mut self, fuzzer: &mut Z, state: &mut S, _: &mut EM, input: &I) -> Result<ExitKind, Error> {
                *state.executions_mut() += 1;
                let bytes = fuzzer.convert_to_target_bytes(state, input);
                self.target.run(&bytes)
            }
        }

        impl<OT> HasTimeout for $name<OT> {
            fn timeout(&self) -> Duration {
                self.target.timeout
            }
        }

        impl<OT> SetTimeout for $name<OT> {
            fn set_timeout(&mut self, timeout: Duration) {
                self.target.timeout = timeout;
            }
        }

        impl<OT> HasObservers for $name<OT> {
            type Observers = OT;

            fn observers(&self) -> RefIndexable<&OT, OT> {
                RefIndexable::from(&self.observers)
            }

            fn observers_mut(&mut self) -> RefIndexable<&mut OT, OT> {
                RefIndexable::from(&mut self.observers)
            }
        }
    };
}

executor!(
    /// Runs each input in a fork of the server process: a fork of frozen memory ([`Mode::Frozen`]), or a plain one
    /// ([`Mode::Plain`]) for comparison.
    FrozenForkExecutor,
    Mode::Frozen(_) | Mode::Plain,
    "Mode::Frozen"
);

executor!(
    /// Runs every input in one worker process, which puts its memory back after each; after a crash, a new one is
    /// forked ([`Mode::Reset`]).
    ResetExecutor,
    Mode::Reset(_),
    "Mode::Reset"
);
