//! What the log of the verifier tells of programs with maps, records, functions and loops.

use palimpsest_bpf::verify::{Detail, Log};

use super::{builder, code, contract};

/// Returns the log of a program that is refused, without what verification took.
fn log(text: &str, detail: Detail) -> String {
    let mut log = Log::new(detail);
    let error = builder().build().verify_logged(contract(), code(text), &mut log).map(drop).expect_err(text);
    assert_eq!(log.steps().last().map(|step| step.slot), Some(error.slot));
    let text = log.to_string();
    text.lines().filter(|line| !line.starts_with("instructions followed: ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn values_are_named_by_their_maps_and_what_does_not_matter_is_passed_over() {
    let text = "*(u64 *)(r10 - 8) = 1\nr2 = r10\nr2 += -8\nr6 = r1\nr1 = map[idx:1] ll\ncall 1\nr7 = 5\n\
                r0 = *(u64 *)(r0 + 0)\nexit";
    let way = "\
the program begins
(steps that do not matter here, and are passed over: 6)
     6: call 1                              r0: value of map `hash`, or 0; r1, r2: no value
     8: r0 = *(u64 *)(r0 + 0)
refused: r0 may be 0 here; compare it with 0 first
";
    assert_eq!(log(text, Detail::Way), way);
    let all = "\
the program begins; r1: context; r2: any number
     0: *(u64 *)(r10 - 8) = 1               r10 - 8: 1
     1: r2 = r10                            r2: r10
     2: r2 += -8                            r2: r10 - 8
     3: r6 = r1                             r6: context
     4: r1 = map[idx:1] ll                  r1: map `hash`
     6: call 1                              r0: value of map `hash`, or 0; r1, r2: no value
     7: r7 = 5                              r7: 5
     8: r0 = *(u64 *)(r0 + 0)
refused: r0 may be 0 here; compare it with 0 first
";
    assert_eq!(log(text, Detail::All), all);
}

#[test]
fn what_is_to_be_given_back_is_told_where_it_was_got() {
    let text = "r1 = map[idx:2] ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto out\nr6 = r0\n*(u64 *)(r6 + 0) = 1\n\
                r0 = 0\nexit\nout: r0 = 1\nexit";
    let way = "\
the program begins
(steps that do not matter here, and are passed over: 5)
     4: call 131                            r0: record of 16 bytes from slot 4, or 0; to give back: from slot 4; \
                                            r1, r2, r3: no value
     5: if r0 == 0 goto +4                  goes on; r0: record of 16 bytes from slot 4
     8: r0 = 0                              r0: 0
     9: exit
refused: the record that was reserved in slot 4 is neither submitted nor discarded on this way, or the object of that \
slot not given back; do that on every way to this place
";
    assert_eq!(log(text, Detail::Way), way);
}

#[test]
fn a_number_is_followed_through_the_stack_and_copies_learn_from_comparisons() {
    let text = "r3 = *(u8 *)(r1 + 0)\nr3 &= 12\n*(u32 *)(r10 - 8) = r3\nr4 = *(u32 *)(r10 - 8)\nr5 = 1\n\
                if r4 > 8 goto big\nr1 += r4\nr0 = *(u64 *)(r1 + 8)\nbig: exit";
    let way = "\
the program begins; r1: context
(steps that do not matter here, and are passed over: 1)
     0: r3 = *(u8 *)(r1 + 0)                r3: 0 to 255
     1: r3 &= 12                            r3: 0 to 12, a multiple of 4
     2: *(u32 *)(r10 - 8) = r3              r10 - 8: u32 at -8: 0 to 12
     3: r4 = *(u32 *)(r10 - 8)              r4: 0 to 12
     5: if r4 > 8 goto +2                   goes on; r3: 0 to 8, a multiple of 4; r4: 0 to 8; \
                                            r10 - 8: u32 at -8: 0 to 8
     6: r1 += r4                            r1: context + (0 to 8)
     7: r0 = *(u64 *)(r1 + 8)
refused: this may reach bytes 8 to 24 of the context, which has 16; compare the offset first
";
    assert_eq!(log(text, Detail::Way), way);
}

#[test]
fn functions_are_indented_and_their_stacks_told_apart() {
    let text = "r1 = 4\nr2 = func[f] ll\nr3 = r10\nr4 = 0\ncall 181\nr0 = 0\nexit\nf: r0 = *(u64 *)(r2 - 8)\nexit";
    let way = "\
the program begins
(steps that do not matter here, and are passed over: 4)
     5: call 181                            calls the function in slot 8; r1: any number; r2: r10 of the caller
     8:   r0 = *(u64 *)(r2 - 8)
refused: some of the 8 bytes at -8 from r10 were not written; write them first
";
    assert_eq!(log(text, Detail::Way), way);
    let text = "r6 = 2\nr1 = r6\ncall local f\nr0 = r7\nexit\nf: if r1 == 2 goto out\nr0 = 0\nout: r0 = r1\nexit";
    let way = "\
the program begins
     0: r6 = 2                              r6: 2
     1: r1 = r6                             r1: 2
     2: call local +2                       enters the function in slot 5; r1: 2; r2: any number
     5:   if r1 == 2 goto +1                certainly jumps to slot 7
     7:   r0 = r1                           r0: 2
     8:   exit                              returns to slot 3; r0: 2
     3: r0 = r7
refused: r7 has no value here; set it on every way to this place (calls take r1 to r5 away)
";
    assert_eq!(log(text, Detail::All).replace("begins; r1: context; r2: any number", "begins"), way);
}

#[test]
fn ways_that_ended_before_are_not_told() {
    // The way to `bad` is followed last: behind what jumps to `out`, and what does not jump.
    let text = "r3 = *(u8 *)(r1 + 0)\nr0 = 0\nif r3 == 1 goto bad\nif r3 == 2 goto out\nr0 = 1\nexit\nout: exit\n\
                bad: r0 = r9\nexit";
    let all = "\
the program begins; r1: context; r2: any number
     0: r3 = *(u8 *)(r1 + 0)                r3: 0 to 255
     1: r0 = 0                              r0: 0
     2: if r3 == 1 goto +4                  jumps to slot 7; r3: 1
     7: r0 = r9
refused: r9 has no value here; set it on every way to this place (calls take r1 to r5 away)
";
    assert_eq!(log(text, Detail::All), all);
}

#[test]
fn what_a_loop_forgets_is_told_at_its_head() {
    let text = "r0 = 0\nagain: may_goto out\nr1 += 1\ngoto again\nout: r0 = *(u8 *)(r1 + 0)\nexit";
    let way = "\
the program begins; r1: context
(steps that do not matter here, and are passed over: 2)
     1: may_goto +2                         goes on
     2: r1 += 1                             r1: context + 1
        differs from round to round, and is forgotten: r1: no value
     1: may_goto +2                         goes on
     2: r1 += 1
refused: r1 has no value here; set it on every way to this place (calls take r1 to r5 away)
";
    assert_eq!(log(text, Detail::Way), way);
}
