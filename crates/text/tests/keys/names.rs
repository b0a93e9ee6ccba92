//! Keys by name.

use palimpsest_text::key::{Keys, PatternError, SetError, State};
use palimpsest_text::{branch, static_key};

static_key! {
    static IN: "names.net.in" = off;
    static OUT: "names.net.out" = off;
    static SLOW: "names.db.slow" = on;
}

#[test]
fn every_key_is_listed_once() {
    let used = [branch!(unlikely IN), branch!(unlikely OUT), branch!(unlikely SLOW)];
    assert_eq!(used.len(), 3);
    let names: Vec<String> = Keys::iter().map(|key| key.name().to_owned()).collect();
    assert!(names.is_sorted());
    for name in ["names.net.in", "names.net.out", "names.db.slow"] {
        assert_eq!(names.iter().filter(|found| *found == name).count(), 1, "{names:?}");
    }
    let found = Keys::find("names.net.in").unwrap();
    assert!(std::ptr::eq(&*found, &IN));
    assert!(found.object().is_none(), "in this very object");
    assert!(Keys::find("names.none").is_none());
}

#[test]
fn patterns_switch_in_one_batch() {
    let switched = Keys::set("names.net.*", State::On).unwrap();
    assert_eq!((switched.keys, switched.syncs), (2, super::SYNCS));
    assert!(branch!(unlikely IN) && branch!(likely OUT) && SLOW.is_on());
    Keys::set("names.net.??", State::Off).unwrap();
    assert!(!branch!(unlikely IN) && branch!(likely OUT));
    Keys::set("names.net.out", State::Off).unwrap();
    assert!(!branch!(unlikely IN) && !branch!(likely OUT));
}

#[test]
fn patterns_of_nothing_are_errors() {
    let error = Keys::set("names.nothing*", State::On).unwrap_err();
    assert!(matches!(&error, SetError::NoKey { pattern } if pattern == "names.nothing*"), "{error}");
    let error = Keys::set("", State::On).unwrap_err();
    assert!(matches!(error, SetError::Pattern(PatternError::Empty)));
    let error = Keys::set("names net", State::On).unwrap_err();
    assert!(matches!(error, SetError::Pattern(PatternError::Character { character: ' ', .. })));
}
