//! A subscriber of `tracing` that needs no memory: it counts the letters of events.

use std::fmt::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Letters that were printed.
pub(crate) static LETTERS: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Write for Counting {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        LETTERS.fetch_add(text.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Visit for Counting {
    fn record_debug(&mut self, _field: &Field, value: &dyn fmt::Debug) {
        write!(self, "{value:?}").expect("it only counts");
    }
}

impl Subscriber for Counting {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "bpf"
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Counting);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Has it count from now on, in all threads.
pub(crate) fn subscribe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Counting).expect("the only one"));
}
