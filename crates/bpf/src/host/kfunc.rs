//! Functions of the host with types: what programs call by name, written as Rust functions.
//!
//! [`kfunc!`](crate::kfunc) derives the signature from the types of the parameters, and copies what programs pass, so
//! that the body sees values. Only bytes of which there are more than 512 need the allocator for that.
//!
//! | in Rust | in C | the verifier demands |
//! |---|---|---|
//! | integers, `bool` | the same | a number |
//! | `&[u8]` | `const void *bytes, __u64 len` | as many bytes that were written |
//! | `&mut [u8]` | `void *room, __u64 len` | as many bytes to write; the body finds zeros |
//! | [`Ref<T>`], `Option<Ref<T>>` | `struct t *` | an object of this type; for an option also 0 |
//! | [`Released<T>`] | the same | an object that the program holds, and then no longer |
//! | returns an integer, `bool`, `()` | the same | |
//! | returns [`Acquired<T>`], `Option<Acquired<T>>` | `struct t *` | is given back on every way; an option is compared with 0 |
//! | returns `Result<…, HelperError>` | the same | an error ends the program |
//!
//! Objects are the host's: programs know them by numbers, which they neither read nor make up.

#[cfg(feature = "std")]
use alloc::sync::Arc;
use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::any::{Any, TypeId};

use super::call::Call;
use crate::interp::HelperError;
use crate::map::Copied;
#[cfg(feature = "std")]
use crate::verify::Null;
use crate::verify::{Argument, Returns, Signature};

/// A function of the host, made by [`kfunc!`](crate::kfunc).
pub struct Kfunc {
    pub(super) name: &'static str,
    pub(super) signature: Signature,
    pub(super) function: alloc::boxed::Box<super::Closure>,
}

impl core::fmt::Debug for Kfunc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kfunc").field("name", &self.name).field("signature", &self.signature).finish_non_exhaustive()
    }
}

impl Kfunc {
    /// For the macro: `function` handles what `arguments` and the type of its answer say.
    #[doc(hidden)]
    pub fn new<A: Answer>(
        name: &'static str,
        arguments: &[&[Argument]],
        function: impl Fn(&mut Call<'_>) -> Result<u64, HelperError> + Send + Sync + 'static,
        _answer: fn() -> core::marker::PhantomData<A>,
    ) -> Self {
        let signature = Signature::of(&arguments.concat()).returning(A::returns().0);
        Self { name, signature, function: alloc::boxed::Box::new(function) }
    }
}

mod sealed {
    /// What programs pass and get is known here.
    pub trait Sealed {}
}

/// The type of a parameter of a [`kfunc!`](crate::kfunc).
pub trait Parameter<'a>: sealed::Sealed {
    /// What a call keeps for it.
    #[doc(hidden)]
    type Room;
    /// How many arguments of a program it takes.
    #[doc(hidden)]
    const COUNT: usize;

    /// Returns these arguments.
    #[doc(hidden)]
    fn arguments() -> Vec<Argument>;

    /// Takes it out of a call, from the argument with this number on.
    #[doc(hidden)]
    fn load(call: &mut Call<'_>, index: usize) -> Result<Self::Room, HelperError>;

    /// Passes it to the body.
    #[doc(hidden)]
    fn pass(room: &'a mut Self::Room) -> Self;

    /// Gives back what the body has written.
    #[doc(hidden)]
    fn store(_room: Self::Room, _call: &mut Call<'_>, _index: usize) -> Result<(), HelperError> {
        Ok(())
    }
}

/// What the verifier knows of an answer.
#[derive(Debug)]
pub struct Given(Returns);

/// The type that a [`kfunc!`](crate::kfunc) returns.
pub trait Answer: sealed::Sealed {
    /// Returns what the verifier knows of it.
    #[doc(hidden)]
    fn returns() -> Given;

    /// Returns the value for `r0`.
    #[doc(hidden)]
    fn answer(self, call: &mut Call<'_>) -> Result<u64, HelperError>;
}

macro_rules! integers {
    ($($integer:ty),+) => {$(
        impl sealed::Sealed for $integer {}

        impl Parameter<'_> for $integer {
            type Room = $integer;
            const COUNT: usize = 1;

            fn arguments() -> Vec<Argument> {
                Vec::from([Argument::Number])
            }

            fn load(call: &mut Call<'_>, index: usize) -> Result<Self, HelperError> {
                // C leaves the bits above undefined.
                Ok(call.number(index) as $integer)
            }

            fn pass(room: &mut Self) -> Self {
                *room
            }
        }

        impl Answer for $integer {
            fn returns() -> Given {
                Given(Returns::Number)
            }

            fn answer(self, _call: &mut Call<'_>) -> Result<u64, HelperError> {
                Ok(self as u64)
            }
        }
    )+};
}

integers!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

impl sealed::Sealed for bool {}

impl Parameter<'_> for bool {
    type Room = bool;
    const COUNT: usize = 1;

    fn arguments() -> Vec<Argument> {
        Vec::from([Argument::Number])
    }

    fn load(call: &mut Call<'_>, index: usize) -> Result<Self, HelperError> {
        Ok(call.number(index) as u8 != 0)
    }

    fn pass(room: &mut Self) -> Self {
        *room
    }
}

impl Answer for bool {
    fn returns() -> Given {
        Given(Returns::Number)
    }

    fn answer(self, _call: &mut Call<'_>) -> Result<u64, HelperError> {
        Ok(self.into())
    }
}

impl sealed::Sealed for () {}

impl Answer for () {
    fn returns() -> Given {
        Given(Returns::Number)
    }

    fn answer(self, _call: &mut Call<'_>) -> Result<u64, HelperError> {
        Ok(0)
    }
}

impl<A: Answer> sealed::Sealed for Result<A, HelperError> {}

impl<A: Answer> Answer for Result<A, HelperError> {
    fn returns() -> Given {
        A::returns()
    }

    fn answer(self, call: &mut Call<'_>) -> Result<u64, HelperError> {
        self?.answer(call)
    }
}

impl sealed::Sealed for &[u8] {}

impl<'a> Parameter<'a> for &'a [u8] {
    type Room = Copied;
    const COUNT: usize = 2;

    fn arguments() -> Vec<Argument> {
        Vec::from([Argument::Bytes, Argument::Size])
    }

    fn load(call: &mut Call<'_>, index: usize) -> Result<Copied, HelperError> {
        let mut room = Copied::zeros(call.len(index)?);
        call.read(index, &mut room)?;
        Ok(room)
    }

    fn pass(room: &'a mut Copied) -> Self {
        room
    }
}

impl sealed::Sealed for &mut [u8] {}

impl<'a> Parameter<'a> for &'a mut [u8] {
    type Room = Copied;
    const COUNT: usize = 2;

    fn arguments() -> Vec<Argument> {
        Vec::from([Argument::BytesOut, Argument::Size])
    }

    fn load(call: &mut Call<'_>, index: usize) -> Result<Copied, HelperError> {
        call.len(index).map(Copied::zeros)
    }

    fn pass(room: &'a mut Copied) -> Self {
        room
    }

    fn store(room: Copied, call: &mut Call<'_>, index: usize) -> Result<(), HelperError> {
        call.write(index, &room).map(drop)
    }
}

/// An object of the host that a program has passed.
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct Ref<T>(Arc<T>);

#[cfg(feature = "std")]
impl<T> core::ops::Deref for Ref<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

/// An object of the host that a program has given back.
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct Released<T>(Arc<T>);

#[cfg(feature = "std")]
impl<T> Released<T> {
    /// Returns the object.
    pub fn into_inner(self) -> Arc<T> {
        self.0
    }
}

/// An object of the host that a program gets, and gives back.
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct Acquired<T>(Arc<T>);

#[cfg(feature = "std")]
impl<T> Acquired<T> {
    /// Has the program hold `object`.
    pub const fn new(object: Arc<T>) -> Self {
        Self(object)
    }
}

#[cfg(feature = "std")]
mod objects {
    use super::*;

    type Object = Arc<dyn Any + Send + Sync>;

    /// Returns the object of this type that the argument stands for.
    fn object<T: Any + Send + Sync>(found: Option<Object>, index: usize) -> Result<Arc<T>, HelperError> {
        let object = found.ok_or(HelperError::NoArgument { index })?;
        object.downcast().map_err(|_| HelperError::NoArgument { index })
    }

    impl<T> sealed::Sealed for Ref<T> {}
    impl<T> sealed::Sealed for Option<Ref<T>> {}
    impl<T> sealed::Sealed for Released<T> {}
    impl<T> sealed::Sealed for Acquired<T> {}
    impl<T> sealed::Sealed for Option<Acquired<T>> {}

    impl<T: Any + Send + Sync> Parameter<'_> for Ref<T> {
        type Room = Arc<T>;
        const COUNT: usize = 1;

        fn arguments() -> Vec<Argument> {
            Vec::from([Argument::Object(TypeId::of::<T>())])
        }

        fn load(call: &mut Call<'_>, index: usize) -> Result<Arc<T>, HelperError> {
            object(call.object(index)?, index)
        }

        fn pass(room: &mut Arc<T>) -> Self {
            Self(Arc::clone(room))
        }
    }

    impl<T: Any + Send + Sync> Parameter<'_> for Option<Ref<T>> {
        type Room = Option<Arc<T>>;
        const COUNT: usize = 1;

        fn arguments() -> Vec<Argument> {
            Vec::from([Argument::ObjectOrNull(TypeId::of::<T>())])
        }

        fn load(call: &mut Call<'_>, index: usize) -> Result<Self::Room, HelperError> {
            if call.number(index) == 0 { Ok(None) } else { Ref::load(call, index).map(Some) }
        }

        fn pass(room: &mut Self::Room) -> Self {
            room.as_ref().map(|object| Ref(Arc::clone(object)))
        }
    }

    impl<T: Any + Send + Sync> Parameter<'_> for Released<T> {
        type Room = Arc<T>;
        const COUNT: usize = 1;

        fn arguments() -> Vec<Argument> {
            Vec::from([Argument::Release(TypeId::of::<T>())])
        }

        fn load(call: &mut Call<'_>, index: usize) -> Result<Arc<T>, HelperError> {
            object(call.release(index)?, index)
        }

        fn pass(room: &mut Arc<T>) -> Self {
            Self(Arc::clone(room))
        }
    }

    impl<T: Any + Send + Sync> Answer for Acquired<T> {
        fn returns() -> Given {
            Given(Returns::Object(TypeId::of::<T>(), Null::Excluded))
        }

        fn answer(self, call: &mut Call<'_>) -> Result<u64, HelperError> {
            call.acquire(self.0)
        }
    }

    impl<T: Any + Send + Sync> Answer for Option<Acquired<T>> {
        fn returns() -> Given {
            Given(Returns::Object(TypeId::of::<T>(), Null::Possible))
        }

        fn answer(self, call: &mut Call<'_>) -> Result<u64, HelperError> {
            self.map_or(Ok(0), |object| call.acquire(object.0))
        }
    }
}

/// Makes a [`Kfunc`](crate::host::Kfunc) of a Rust function: the host's
/// [builder](crate::host::HostBuilder::kfunc) takes it, and programs call it by its name. The body may use what is
/// around it, as a closure with `move` does. [What types there are](crate::host::kfunc).
///
/// ```
/// use palimpsest_bpf::host::Host;
/// use palimpsest_bpf::kfunc;
///
/// let weight = 3;
/// let host = Host::builder()
///     .kfunc(kfunc!(fn weigh(bytes: &[u8], each: u32) -> u64 { bytes.len() as u64 * u64::from(each) * weight }))
///     .build();
/// assert_eq!(host.functions().collect::<Vec<_>>(), ["weigh"]);
/// ```
#[macro_export]
macro_rules! kfunc {
    ($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $crate::kfunc!($(#[$meta])* fn $name($($argument: $type),*) -> () $body)
    };
    ($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty $body:block) => {
        $crate::host::kfunc::Kfunc::new(
            ::core::stringify!($name),
            &[$(&<$type as $crate::host::kfunc::Parameter<'_>>::arguments()),*],
            move |call: &mut $crate::host::Call<'_>| {
                let body = |$($argument: $type),*| -> $answer { $body };
                let mut _next = 0;
                $(
                    let index = _next;
                    _next += <$type as $crate::host::kfunc::Parameter<'_>>::COUNT;
                    let mut $argument =
                        (<$type as $crate::host::kfunc::Parameter<'_>>::load(call, index)?, index);
                )*
                let answer = body($(<$type as $crate::host::kfunc::Parameter<'_>>::pass(&mut $argument.0)),*);
                $(<$type as $crate::host::kfunc::Parameter<'_>>::store($argument.0, call, $argument.1)?;)*
                $crate::host::kfunc::Answer::answer(answer, call)
            },
            || ::core::marker::PhantomData::<$answer>,
        )
    };
}
