//! Programs whose contexts have a type, which is compared once with what they were verified for.

use std::fmt;
use std::marker::PhantomData;

use super::{ContextError, VerifiedError, VerifiedProgram};
use crate::jit::Outcome;
use crate::map::Plain;

/// A program that is entered as a verified one.
pub(crate) trait Verifies {
    /// The verified program: always the same.
    fn verified(&self) -> &VerifiedProgram;
}

impl Verifies for VerifiedProgram {
    #[inline]
    fn verified(&self) -> &VerifiedProgram {
        self
    }
}

impl VerifiedProgram {
    /// Makes it a program whose context is a `T`. That `T` fits what the program was verified for
    /// ([`Contract::of`](crate::verify::Contract::of)) is checked here, and not in each run.
    ///
    /// ```
    /// use palimpsest_bpf::verify::{ContextAccess, Contract};
    /// use palimpsest_bpf::{Code, Packs, VerifiedProgram, asm, layout};
    ///
    /// layout! {
    ///     /// What programs see of a request.
    ///     #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
    ///     #[repr(C)]
    ///     pub struct Request {
    ///         pub bytes: u64,
    ///         pub cost: u64,
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let code = Code::new(&asm::assemble("r0 = *(u64 *)(r1 + 0)\nr0 /= 100\n*(u64 *)(r1 + 8) = r0\nexit")?)?;
    /// let verified = Contract::of::<Request>(ContextAccess::Write).verify(code)?;
    /// let packs = Packs::new()?; // once per process, for all programs
    /// let program = VerifiedProgram::load(&packs, &verified, &())?.typed::<Request>()?;
    /// let mut request = Request { bytes: 1200, cost: 0 };
    /// program.run(&mut request)?;
    /// assert_eq!(request.cost, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ContextError`].
    pub fn typed<T: Plain>(self) -> Result<Typed<Self, T>, ContextError> {
        Typed::new(self)
    }

    /// Does the same for a program that was verified for a read-only context, which others may read meanwhile.
    ///
    /// # Errors
    ///
    /// [`ContextError`].
    pub fn typed_read_only<T: Plain>(self) -> Result<TypedReadOnly<Self, T>, ContextError> {
        TypedReadOnly::new(self)
    }
}

/// Defines programs whose contexts are a `T`.
macro_rules! typed {
    ($(#[$meta:meta])* $name:ident, $check:ident) => {
        $(#[$meta])*
        pub struct $name<P, T> {
            /// # Invariants
            ///
            /// 1. The check of the verified program has accepted the alignment and size of `T`, and it is not changed.
            program: P,
            context: PhantomData<fn(&T)>,
        }

        impl<P: fmt::Debug, T> fmt::Debug for $name<P, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.program).finish()
            }
        }

        impl<P, T> $name<P, T> {
            /// The program.
            #[inline]
            pub const fn program(&self) -> &P {
                &self.program
            }

            /// The program, for contexts of any kind again.
            pub fn into_program(self) -> P {
                self.program
            }
        }

        impl<P, T> $name<P, T> {
            pub(crate) fn new(program: P) -> Result<Self, ContextError>
            where
                P: Verifies,
                T: Plain,
            {
                program.verified().$check(align_of::<T>(), size_of::<T>())?;
                Ok(Self { program, context: PhantomData })
            }
        }
    };
}

typed! {
    /// A program with a context of the type `T`, which was compared once with what the program was verified for.
    Typed, check
}
typed! {
    /// A program with a context of the type `T` that it only reads.
    TypedReadOnly, check_read_only
}

impl<P, T> Typed<P, T> {
    /// Runs it with this much fuel.
    #[inline]
    pub(crate) fn enter(&self, context: &mut T, fuel: i64) -> Outcome
    where
        P: Verifies,
        T: Plain,
    {
        let address = std::ptr::from_mut(context).expose_provenance() as u64;
        let arguments = [address, size_of::<T>() as u64, 0, 0, 0];
        // SAFETY: 1. as in `VerifiedProgram::enter`: `T` is long enough, and aligned as it must be (invariant 1); any
        // bytes are a `T`, which is `Plain`. 2., 3. as there; `self` has the program.
        unsafe { self.program.verified().call.entry.enter(arguments, fuel) }
    }
}

impl<P, T> TypedReadOnly<P, T> {
    /// Does the same.
    #[inline]
    pub(crate) fn enter(&self, context: &T, fuel: i64) -> Outcome
    where
        P: Verifies,
        T: Plain,
    {
        let address = std::ptr::from_ref(context).expose_provenance() as u64;
        let arguments = [address, size_of::<T>() as u64, 0, 0, 0];
        // SAFETY: 1. as above; it was verified that the context is not written (invariant 1). 2., 3. as above.
        unsafe { self.program.verified().call.entry.enter(arguments, fuel) }
    }
}

impl<T: Plain> Typed<VerifiedProgram, T> {
    /// Runs it with `context`, whose address and length are `r1` and `r2`; returns `r0`.
    ///
    /// # Errors
    ///
    /// [`VerifiedError`], except for its `Context`.
    #[inline]
    pub fn run(&self, context: &mut T) -> Result<u64, VerifiedError> {
        self.program.finished(self.enter(context, self.program.fuel()))
    }
}

impl<T: Plain> TypedReadOnly<VerifiedProgram, T> {
    /// Runs it with `context`, whose address and length are `r1` and `r2`; returns `r0`.
    ///
    /// # Errors
    ///
    /// [`VerifiedError`], except for its `Context`.
    #[inline]
    pub fn run(&self, context: &T) -> Result<u64, VerifiedError> {
        self.program.finished(self.enter(context, self.program.fuel()))
    }
}
