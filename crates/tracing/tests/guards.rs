//! The guards, tested with a subscriber that counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_text::key::State;
use palimpsest_text::static_key;
use palimpsest_tracing::{debug, error, event_if, follow, key_of, span_if, trace};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::{Layer, Registry, reload};

static EVENTS: AtomicUsize = AtomicUsize::new(0);

struct Count;

impl<S: Subscriber> Layer<S> for Count {
    fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
        EVENTS.fetch_add(1, Ordering::Relaxed);
    }
}

static_key!(static OWN: "guards.own" = off);

/// Returns how many events `f` makes, and how many arguments it evaluates.
fn count(f: impl Fn(&mut usize)) -> (usize, usize) {
    let before = EVENTS.load(Ordering::Relaxed);
    let mut evaluated = 0;
    f(&mut evaluated);
    (EVENTS.load(Ordering::Relaxed) - before, evaluated)
}

fn evaluate(evaluated: &mut usize) -> usize {
    *evaluated += 1;
    *evaluated
}

/// One test: subscribers and levels belong to the process.
#[test]
fn events_pass_if_key_and_subscriber_want_them() {
    let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
    tracing::subscriber::set_global_default(Registry::default().with(filter).with(Count)).unwrap();
    let levels = |evaluated: &mut usize| {
        error!(number = evaluate(evaluated), "one");
        debug!("two {}", evaluate(evaluated));
        trace!(number = evaluate(evaluated));
    };
    assert_eq!(count(levels), (1, 1), "keys are on at first, and the subscriber decides");

    let switched = follow().unwrap();
    assert_eq!(switched.keys, 2);
    assert_eq!(
        [Level::INFO, Level::DEBUG, Level::TRACE].map(|level| key_of(level).state()),
        [State::On, State::Off, State::Off]
    );
    assert_eq!(count(levels), (1, 1));

    handle.reload(LevelFilter::TRACE).unwrap();
    assert_eq!(count(levels), (1, 1), "nobody has followed yet");
    follow().unwrap();
    assert_eq!(count(levels), (3, 3));

    let own = |evaluated: &mut usize| {
        event_if!(OWN, Level::INFO, number = evaluate(evaluated), "own");
        let span = span_if!(OWN, Level::INFO, "span", number = evaluate(evaluated));
        assert_eq!(span.is_none(), !OWN.is_on());
    };
    assert_eq!(count(own), (0, 0));
    OWN.enable().unwrap();
    assert_eq!(count(own), (1, 2));
    handle.reload(LevelFilter::OFF).unwrap();
    follow().unwrap();
    assert_eq!(count(levels), (0, 0));
    OWN.disable().unwrap();
    assert_eq!(count(own), (0, 0));
}
