//! Small numbers on the stack, and lines with few numbers, as clang makes them.

use super::*;

#[test]
fn loops_count_on_the_stack_where_helpers_look() {
    for bytes in objects("small") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            assert_eq!(run(way, &object, &host, "fill", &mut packet(1)), 8, "{way:?}");
            // The keys 0, 3, 3, 6, 6: each other step is 0.
            let sum = 9 + 9 + 36 + 36;
            assert_eq!(run(way, &object, &host, "sum_up", &mut packet(1)), sum << 16 | 5, "{way:?}");
        }
    }
}

#[test]
fn lines_have_fewer_numbers_than_the_helper_takes() {
    for bytes in objects("small") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            run(way, &object, &host, "fill", &mut packet(1));
            assert_eq!(run(way, &object, &host, "say", &mut packet(1)), "one: 49".len() as u64, "{way:?}");
        }
    }
}
