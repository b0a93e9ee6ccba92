//! A host in Rust, whose types are wherever the compiler has put their members. It is only compiled, for its debug
//! information and for its statics.
#![no_std]
#![allow(dead_code)]

// ANCHOR: types
pub mod model {
    pub struct Limits {
        pub burst: u32,
        pub rates: [u32; 3],
        pub bytes: u64,
    }

    pub enum Phase {
        New,
        Open = 5,
        Closed = -3,
    }

    pub enum Wide {
        Huge = 0x7f_ffff_ffff,
        Small = 1,
    }

    pub struct Job {
        pub number: u16,
        pub weight: f32,
    }

    pub enum State {
        Idle,
        Busy(Job),
        Waiting { since: u64 },
    }

    pub struct Session {
        pub is_secure: bool,
        pub id: u32,
        pub name: &'static str,
        pub limits: Limits,
        pub phase: Phase,
        pub state: State,
        pub owner: Option<&'static Session>,
        pub r#type: i8,
        pub mark: (char, i16),
        pub nothing: (),
        pub wide: Wide,
    }
}
// ANCHOR_END: types

pub mod other {
    pub struct Session {
        pub stamp: u64,
        pub id: u64,
    }
}

use model::{Job, Limits, Phase, Session, State, Wide};

#[unsafe(no_mangle)]
pub static SESSION: Session = Session {
    is_secure: true,
    id: 42,
    name: "host",
    limits: Limits { burst: 9, rates: [7, 5, 8], bytes: 3 },
    phase: Phase::Open,
    state: State::Busy(Job { number: 77, weight: 0.5 }),
    owner: None,
    r#type: -7,
    mark: ('x', -300),
    nothing: (),
    wide: Wide::Small,
};

#[unsafe(no_mangle)]
pub static OTHER: other::Session = other::Session { stamp: 0, id: 1 };

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
