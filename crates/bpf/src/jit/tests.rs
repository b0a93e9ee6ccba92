//! Listings: the same bytes on every host. `examples/compile.rs` and a disassembler show what they mean.
//!
//! Mutants that are caught: a loop whose length includes the room behind it, or the long form of jumps out of it; one
//! byte too few before it; a program that does not start with a line.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use super::{Called, Compiled, Metering, Plain, Resolve, Target, Then, Wanted, compile_resolved};
use crate::asm::assemble;
use crate::code::Code;
use crate::insn::Instruction;
use crate::map::ArrayPlace;
use crate::verify::{ContextAccess, Contract, Guard, Leftovers, Region, Side, Trust};

/// Touches most forms: loads, stores, divisions, shifts by a register, atomic operations, byte orders, calls, and jumps
/// both ways.
const PROGRAM: &str = include_str!("golden/program.bpf");

/// Touches what needs a host: maps, helpers with a sixth argument, a tail call, the address of a function, and unproven
/// loads.
const HOSTED: &str = include_str!("golden/hosted.bpf");

/// Look-ups: in two arrays, in a map that is not an array, and in one that may be another at the call.
const INLINE: &str = include_str!("golden/inline.bpf");

/// A host whose addresses belong to nothing.
struct Nowhere;

impl Resolve for Nowhere {
    fn helper(&self, id: i32) -> Option<Called> {
        let then = match id {
            12 => Then::LeaveUnlessZero,
            181 => Then::Calls,
            _ => Then::MayStop,
        };
        Some(Called { function: 0x1122_3344_5566, data: Some(0x7788_99aa_bbcc), then })
    }

    fn map(&self, index: i32) -> Option<u64> {
        Some(0x4d41_5000_0000_0000 | index as u64)
    }

    fn array(&self, map: i32) -> Option<ArrayPlace> {
        match map {
            0 => Some(ArrayPlace { values: 0x7fff_1234_5678, count: 100, stride: 8 }),
            1 => Some(ArrayPlace { values: 0x7000, count: 0x12345, stride: 24 }),
            _ => None,
        }
    }

    fn map_value(&self, _map: i32, offset: u32) -> Option<u64> {
        Some(0x7fff_0000_0000 + u64::from(offset))
    }

    fn values(&self, map: i32) -> Option<Range<u64>> {
        match map {
            0 => Some(0x7fff_0000_0000..0x7fff_0000_0100),
            1 => Some(0x7000..0x1_8000_7000),
            _ => None,
        }
    }
}

/// Stores that are checked: to the context, to two maps, in a function.
const CHECKED: &str = include_str!("golden/checked.bpf");

/// Loops that pay, in the program's own function and in one that does not end.
const FUELLED: &str = include_str!("golden/fuelled.bpf");

/// What is guarded in an untrusted program: sums, stores of addresses, branches of which one way is not followed, and
/// constants.
const HARDENED: &str = include_str!("golden/hardened.bpf");

/// Calls of all kinds, behind which registers are cleared.
const PRINTING: &str = include_str!("golden/printing.bpf");

fn compiled(text: &str, target: Target, resolve: &dyn Resolve) -> (Code, Compiled) {
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    if text == HARDENED {
        let contract = Contract::new().context(16, ContextAccess::Read).trust(Trust::None);
        let verified = contract.verify(code.clone()).expect("it is harmless");
        let wanted = Wanted::of(&verified, 0x0123_4567_89ab_cdef);
        return (code, compile_resolved(&verified.code().clone(), target, resolve, wanted).expect("it compiles"));
    }
    let loads = code.instructions().iter().zip(0..).filter(|(step, _)| matches!(step, Instruction::Load { .. }));
    // With a host, all of them.
    let probes: Vec<u32> = if text == HOSTED { loads.map(|(_, index)| index).collect() } else { Vec::new() };
    let metering = if text == FUELLED { Metering::Fuel } else { Metering::Free };
    let leftovers = if text == PRINTING { Leftovers::Zero } else { Leftovers::Any };
    let checked: &[(u32, Region)] = if text == CHECKED {
        &[(2, Region::Context), (3, Region::Context), (6, Region::Map(0)), (9, Region::Map(1)), (14, Region::Map(0))]
    } else {
        &[]
    };
    let wanted = Wanted { probes: &probes, checked, context_len: 64, metering, leftovers, ..Wanted::default() };
    let compiled = compile_resolved(&code, target, resolve, wanted).expect("everything is there");
    (code, compiled)
}

/// Returns the code of each instruction on a line, behind the instruction.
fn listing(text: &str, target: Target, resolve: &dyn Resolve) -> String {
    let (code, compiled) = compiled(text, target, resolve);
    let ends = compiled.starts()[1..].iter().copied().chain([compiled.code_len() as u32]);
    let lines =
        code.instructions().iter().zip(compiled.starts().iter().zip(ends)).map(|(instruction, (start, end))| {
            let bytes = compiled.bytes()[*start as usize..end as usize].iter().map(|byte| format!("{byte:02x}"));
            format!("{:<48} {}\n", instruction.to_string(), bytes.collect::<String>())
        });
    lines.collect()
}

#[test]
fn listings_are_as_they_were_when_somebody_read_them() {
    let plain = |target| listing(PROGRAM, target, &Plain(&()));
    is_golden("x86_64.txt", &plain(Target::X86_64), include_str!("golden/x86_64.txt"));
    is_golden("aarch64.txt", &plain(Target::Aarch64), include_str!("golden/aarch64.txt"));
    let hosted = |text, target| listing(text, target, &Nowhere);
    is_golden("hosted.x86_64.txt", &hosted(HOSTED, Target::X86_64), include_str!("golden/hosted.x86_64.txt"));
    is_golden("hosted.aarch64.txt", &hosted(HOSTED, Target::Aarch64), include_str!("golden/hosted.aarch64.txt"));
    is_golden("hardened.x86_64.txt", &hosted(HARDENED, Target::X86_64), include_str!("golden/hardened.x86_64.txt"));
    is_golden("hardened.aarch64.txt", &hosted(HARDENED, Target::Aarch64), include_str!("golden/hardened.aarch64.txt"));
    is_golden("fuelled.x86_64.txt", &hosted(FUELLED, Target::X86_64), include_str!("golden/fuelled.x86_64.txt"));
    is_golden("fuelled.aarch64.txt", &hosted(FUELLED, Target::Aarch64), include_str!("golden/fuelled.aarch64.txt"));
    is_golden("printing.x86_64.txt", &hosted(PRINTING, Target::X86_64), include_str!("golden/printing.x86_64.txt"));
    is_golden("printing.aarch64.txt", &hosted(PRINTING, Target::Aarch64), include_str!("golden/printing.aarch64.txt"));
    is_golden("checked.x86_64.txt", &hosted(CHECKED, Target::X86_64), include_str!("golden/checked.x86_64.txt"));
    is_golden("checked.aarch64.txt", &hosted(CHECKED, Target::Aarch64), include_str!("golden/checked.aarch64.txt"));
    is_golden("inline.x86_64.txt", &hosted(INLINE, Target::X86_64), include_str!("golden/inline.x86_64.txt"));
    is_golden("inline.aarch64.txt", &hosted(INLINE, Target::Aarch64), include_str!("golden/inline.aarch64.txt"));
}

/// Checks that a listing is unchanged; with `PALIMPSEST_BPF_GOLDEN` writes it, for somebody to read.
fn is_golden(name: &str, listing: &str, golden: &str) {
    #[cfg(feature = "std")]
    if std::env::var_os("PALIMPSEST_BPF_GOLDEN").is_some() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/jit/golden").join(name);
        std::fs::write(path, listing).expect("the listing can be written");
        return;
    }
    assert_eq!(listing, golden, "{name}");
}

#[test]
fn programs_get_fuel_that_were_verified_for_it() {
    let compiled = |text: &str| {
        let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
        let verified = Contract::new().fuel(7).verify(code.clone()).expect("it is harmless");
        Target::ALL.map(|target| {
            let plain = super::compile(&code, target, &()).expect("it compiles");
            let compiled = super::compile_verified(&verified, target, &(), 0).expect("it compiles");
            assert!(!plain.takes_fuel());
            assert_eq!(compiled.takes_fuel(), compiled.bytes() != plain.bytes());
            compiled.takes_fuel()
        })
    };
    assert_eq!(compiled("r0 = 0\nagain: r0 += 1\ngoto again"), [true; 2]);
    assert_eq!(compiled("r0 = 9\nagain: r0 += -1\nif r0 != 0 goto again\nexit"), [false; 2]);
}

#[test]
fn constants_that_are_blinded_stand_nowhere_in_the_code() {
    // The last ones belong to an address and to the bound of a mask.
    let constants = [0x6d17_2a5b_u32, 0x7e3c_91a4, 0x5b4d_2e1f, 0x4c8a_6b39, 0x3f2e_1d0c, 0x2a3b_4c5d, 0x1f2e_3d4c];
    let text = "r0 = 0x6d172a5b\nr0 ^= 0x7e3c91a4\nr1 = 0x5b4d2e1f4c8a6b39 ll\nif r0 != 0x3f2e1d0c goto out\nr0 = 0\n\
                r2 = map[idx:0][0]+0x2a3b4c5d ll\nr2 += r0\nout: exit";
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    for target in Target::ALL {
        let bytes = |blinding| {
            let guards = [(6, Guard::Mask { most: 0x1f2e_3d4b, number: Side::Right })];
            let wanted = Wanted { blinding, guards: &guards, ..Wanted::default() };
            Vec::from(compile_resolved(&code, target, &Nowhere, wanted).expect("it compiles").bytes())
        };
        let has = |bytes: &[u8], constant: u32| match target {
            Target::X86_64 => bytes.windows(4).any(|window| window == constant.to_le_bytes()),
            // By halves, in the field of 16 bits that `movz` and `movk` have.
            Target::Aarch64 => bytes.chunks_exact(4).any(|word| {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                word >> 23 & 0x3f == 0x25 && word >> 5 & 0xffff == constant >> 16
            }),
        };
        for constant in constants {
            assert!(has(&bytes(None), constant), "{target:?}, {constant:#x}");
            for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                assert!(!has(&bytes(Some(seed)), constant), "{target:?}, {constant:#x}, seed {seed:#x}");
            }
        }
        assert_ne!(bytes(Some(1)), bytes(Some(2)), "{target:?}");
    }
}

#[test]
fn what_a_helper_has_written_is_there_before_the_program_goes_on() {
    let code = Code::new(&assemble("call 2\nexit").expect("a program")).expect("its structure is right");
    for (target, barrier) in Target::ALL.into_iter().zip([3, 8]) {
        let len = |guards: &[(u32, Guard)]| {
            let wanted = Wanted { guards, ..Wanted::default() };
            compile_resolved(&code, target, &Nowhere, wanted).expect("it compiles").starts()[1]
        };
        assert_eq!(len(&[(0, Guard::Behind)]), len(&[]) + barrier, "{target:?}");
    }
}

#[test]
fn loads_that_may_fault_go_on_behind_themselves() {
    for target in Target::ALL {
        let (code, compiled) = compiled(HOSTED, target, &Nowhere);
        let loads: Vec<usize> = (0..code.instructions().len())
            .filter(|index| matches!(code.instructions()[*index], Instruction::Load { .. }))
            .collect();
        assert_eq!(compiled.faults().len(), loads.len());
        for (index, (start, landing)) in loads.into_iter().zip(compiled.faults()) {
            assert_eq!(*landing, compiled.starts()[index + 1], "{target:?}, {}", code.instructions()[index]);
            assert!((compiled.starts()[index]..*landing).contains(start));
        }
    }
}

#[test]
fn jumps_to_the_beginning_of_a_function_go_behind_its_prologue() {
    for target in Target::ALL {
        for jump in ["goto start", "if r2 != 0 goto start"] {
            // Both instructions before the jump are the same, so that the first one is longer by the prologue.
            let text = format!("start: r6 = r1\nr6 = r1\n{jump}\nr0 = 0\nexit");
            let (_, compiled) = compiled(&text, target, &Plain(&()));
            let [_, second, third, behind, ..] = *compiled.starts() else { panic!("five instructions") };
            let last = compiled.bytes()[..behind as usize].last_chunk::<4>().expect("some bytes");
            let goes_to = match target {
                // A short jump ends with its distance, counted from its end.
                Target::X86_64 => i64::from(behind) + i64::from(last[3] as i8),
                Target::Aarch64 => {
                    let word = u32::from_le_bytes(*last);
                    let words = if jump == "goto start" { (word << 6) as i32 >> 6 } else { (word << 8) as i32 >> 13 };
                    i64::from(behind) - 4 + i64::from(words) * 4
                }
            };
            assert_eq!(goes_to, i64::from(second - (third - second)), "{target:?}, {jump}");
        }
    }
}

/// Returns the jump in each instruction of x86-64 code: its bytes and its target; `None` for others.
fn jumps(compiled: &Compiled) -> Vec<Option<(usize, i64)>> {
    let starts = compiled.starts().iter().map(|start| *start as usize);
    let ends = starts.clone().skip(1).chain([compiled.code_len()]);
    let jump = |(start, end): (usize, usize)| {
        // Behind what sets the flags.
        let code = &compiled.bytes()[start..end];
        let near = code.len().checked_sub(2).map(|at| &code[at..]);
        let far = |len: usize| code.len().checked_sub(len).map(|at| &code[at..]);
        let distance = match (near, far(5), far(6)) {
            (.., Some(&[0x0f, 0x80..=0x8f, a, b, c, d])) => (6, i32::from_le_bytes([a, b, c, d]).into()),
            (_, Some(&[0xe9, a, b, c, d]), _) => (5, i32::from_le_bytes([a, b, c, d]).into()),
            (Some(&[0xeb | 0x70..=0x7f, distance]), ..) => (2, i64::from(distance as i8)),
            _ => return None,
        };
        Some((distance.0, end as i64 + distance.1))
    };
    starts.zip(ends).map(jump).collect()
}

#[test]
fn jumps_are_short_where_that_reaches_and_go_where_they_should() {
    // 4 bytes each, and the prologue has 2.
    let filler = |count: usize| "r0 += 1\n".repeat(count);
    for count in 25..40 {
        let reach = |text: &str| {
            let (code, compiled) = compiled(text, Target::X86_64, &Plain(&()));
            let found = jumps(&compiled);
            for (index, instruction) in code.instructions().iter().enumerate() {
                let distance = match *instruction {
                    Instruction::Jump { offset, .. } => offset,
                    Instruction::Branch { offset, .. } => offset.into(),
                    _ => continue,
                };
                let target = code.target(index, distance).expect("a target");
                let (_, place) = found[index].expect("a jump");
                assert_eq!(place, i64::from(compiled.starts()[target]), "{text}, {instruction}");
            }
            found.into_iter().flatten().map(|(len, _)| len).collect::<Vec<usize>>()
        };
        let ahead = format!("r2 = 0\nif r1 == 0 goto out\n{}out: exit", filler(count));
        assert_eq!(reach(&ahead), [if 4 * count <= 127 { 2 } else { 6 }], "{count} ahead");
        // Back over the loop's body, the comparison (3 bytes) and itself.
        let back = format!("r2 = 0\nagain: {}if r1 != r2 goto again\nexit", filler(count));
        assert_eq!(reach(&back), [if 4 * count + 5 <= 128 { 2 } else { 6 }], "{count} back");
        // The inner jumps are shortened before the outer jump back is measured, and so it reaches. Forward jumps are
        // measured with the long forms of inner ones.
        let inner = "if r1 == 7 goto +1\nr0 += 1\n".repeat(10);
        let nested = format!("r2 = 0\ngoto out\nagain: {inner}{}goto again\nout: goto again\n", filler(count - 24));
        let loops = 10 * (6 + 4) + 4 * (count - 24);
        let (first, last) = (loops + 10 * 4 + 5, loops + 2);
        let [out, inner @ .., again, behind] = &reach(&nested)[..] else { panic!("jumps") };
        assert!(inner.iter().all(|len| *len == 2));
        assert_eq!(*out, if first <= 127 { 2 } else { 5 }, "{count} out");
        assert_eq!(*again, if last <= 128 { 2 } else { 5 }, "{count} again");
        assert_eq!(*behind, if last + again <= 128 { 2 } else { 5 }, "{count} behind");
    }
    // Late in a long program they are just as short.
    let many = format!("r2 = 0\n{}exit", "if r1 == 7 goto +1\nr0 += 1\n".repeat(3000));
    let (_, compiled) = compiled(&many, Target::X86_64, &Plain(&()));
    assert!(jumps(&compiled).into_iter().flatten().all(|(len, _)| len == 2));
}

/// Returns loops before which other instructions come, at most `filler` bytes of x86-64: the text, and the first and
/// the last instruction of each loop that fits into a line.
fn loops(filler: usize) -> (String, Vec<(usize, usize)>) {
    let before = "r2 = 1\n".repeat(filler / 5) + &"w0 += w0\n".repeat(filler % 5);
    let first = filler / 5 + filler % 5;
    // Two nested ones that fit together, one right behind them, one that is left from its middle, and one that is too
    // long.
    let text = format!(
        "{before}outer: r4 = 0\ninner: r0 += r4\nif r0 > 9 goto +1\nr0 += 1\nr4 += 1\nif r4 != 7 goto inner\n\
         r2 -= 1\nif r2 != 0 goto outer\nagain: r4 -= 1\nif r4 != 0 goto again\n\
         left: r4 -= 1\nif r4 == 5 goto +2\nr0 += 2\nif r4 != 0 goto left\n\
         long: {}r4 += 1\nif r4 != 9 goto long\nexit",
        "r0 += 0x12345\n".repeat(10)
    );
    (text, Vec::from([(first, first + 7), (first + 1, first + 5), (first + 8, first + 9), (first + 10, first + 13)]))
}

#[test]
fn short_loops_lie_in_one_line_and_only_what_that_needs_lies_before_them() {
    let mut kept = Vec::new();
    for filler in 1..130 {
        let (text, short) = loops(filler);
        let (code, compiled) = compiled(&text, Target::X86_64, &Plain(&()));
        assert_eq!(compiled.alignment(), 64);
        let start = |index: usize| compiled.starts()[index] as usize;
        let ends: Vec<usize> = (1..code.instructions().len()).map(start).chain([compiled.code_len()]).collect();
        // Bytes behind an instruction that do nothing, and where it jumps.
        let mut idle = alloc::vec![0; ends.len()];
        for (index, end) in ends.iter().enumerate() {
            let code_of_it = &compiled.bytes()[start(index)..*end];
            for native in iced_x86::Decoder::with_ip(64, code_of_it, start(index) as u64, 0) {
                if native.mnemonic() == iced_x86::Mnemonic::Nop {
                    idle[index] += native.len();
                } else if native.op0_kind() == iced_x86::OpKind::NearBranch64
                    && let Instruction::Branch { offset, .. } = code.instructions()[index]
                {
                    let target = code.target(index, offset.into()).expect("a target");
                    assert_eq!(native.near_branch_target(), start(target) as u64, "{filler} before, {index}");
                }
            }
        }
        for (first, last) in short {
            let begin = start(first);
            let len = ends[last] - idle[last] - begin;
            assert_eq!(begin / 64, (begin + len - 1) / 64, "{filler} before, {len} at {begin}");
            // It would not have fit into what was left of the line.
            let before = idle[first - 1];
            assert!(before == 0 || begin % 64 == 0 && before < len, "{filler} before, {before} idle at {begin}");
            kept.push(before);
        }
        // A loop that is too long has none.
        let [.., long] = code.jumps_back().map(|(first, _)| first).collect::<Vec<usize>>()[..] else { panic!("loops") };
        assert_eq!(idle[long - 1], 0);
    }
    // They lay in many ways before.
    let lengths: alloc::collections::BTreeSet<usize> = kept.into_iter().collect();
    assert!(lengths.len() > 30, "{lengths:?}");
}

#[test]
fn room_is_left_before_loops_only_where_lines_are_known() {
    let text = "r0 = 9\nagain: r0 += -1\nif r0 != 0 goto again\nexit";
    let code = Code::new(&assemble(text).expect("a program")).expect("its structure is right");
    let alignment = |target, blinding| {
        let wanted = Wanted { blinding, ..Wanted::default() };
        compile_resolved(&code, target, &Plain(&()), wanted).expect("it compiles").alignment()
    };
    assert_eq!(alignment(Target::X86_64, None), 64);
    assert_eq!(alignment(Target::X86_64, Some(1)), 8, "it starts at a random place");
    assert_eq!(alignment(Target::Aarch64, None), 8);
    let (_, straight) = compiled("r0 = 9\nexit", Target::X86_64, &Plain(&()));
    assert_eq!(straight.alignment(), 8);
}

#[test]
fn jumps_of_long_code_go_over_a_far_one_on_aarch64() {
    // A jump with a distance of 19 bits in words reaches 1 MiB. One of eBPF reaches 32767 slots, so that the code of
    // each slot must be long, as with blinded constants.
    let program = |count: usize| format!("if r1 == 0 goto out\n{}out: exit", "r0 ^= 0x12345678\n".repeat(count));
    for (count, is_far) in [(1000, false), (20_000, false), (32_760, true)] {
        let code = Code::new(&assemble(&program(count)).expect("a program")).expect("its structure is right");
        let wanted = Wanted { blinding: Some(1), ..Wanted::default() };
        let compiled = compile_resolved(&code, Target::Aarch64, &Nowhere, wanted).expect("it compiles");
        assert_eq!(compiled.code_len() > 1 << 20, is_far, "{} bytes", compiled.code_len());
        let word = |at: u32| {
            let bytes = compiled.bytes()[at as usize..].first_chunk().expect("a word");
            u32::from_le_bytes(*bytes)
        };
        let (end, out) = (compiled.starts()[1], compiled.starts()[code.instructions().len() - 1]);
        let last = word(end - 4);
        let words = if is_far {
            assert_eq!(word(end - 8) & 0xff00_0010, 0x5400_0000, "a conditional jump over");
            assert_eq!(last >> 26, 0x14 >> 2, "a jump");
            (last << 6) as i32 >> 6
        } else {
            assert_eq!(last & 0xff00_0010, 0x5400_0000, "a conditional jump");
            (last << 8) as i32 >> 13
        };
        assert_eq!(i64::from(end) - 4 + 4 * i64::from(words), i64::from(out), "{count}");
    }
}
