//! Filters of tcpdump, translated: `golden` has what libpcap's own interpreter said of the same packets.
//!
//! Mutants that are caught: the largest instead of the least number of known bytes where paths meet, an end that is off
//! by one, `<=` taken for `<`, 16 bits left in network order, a shift by 32, and a forgotten jump back.

mod golden;

use palimpsest_bpf::classic::{Ancillary, ClassicError, Filter, Insn, LIMIT, MOST, Packets, contract};
use palimpsest_bpf::interp::{Interpreter, Memory, NoHelpers};
use palimpsest_bpf::jit::Target;
use palimpsest_bpf::{Code, Packs, VerifiedProgram};

use golden::{Packet, filters, packets, random};

/// A translated filter, run in every way available here.
struct Translated {
    code: Code,
    compiled: Option<VerifiedProgram>,
}

impl Translated {
    fn new(packs: Option<&Packs>, filter: &Filter) -> Self {
        let code = Code::new(&filter.translate()).expect("its structure is right");
        let verified = contract().verify(code.clone()).expect("the verifier takes what is translated");
        let compiled = packs.map(|packs| VerifiedProgram::load(packs, &verified, &()).expect("it is compiled"));
        Self { code, compiled }
    }

    fn run(&self, packets: &mut Packets, bytes: &[u8], wire: u32, ancillary: Option<&Ancillary>) -> u64 {
        const PLACE: u64 = 0x10_0000;
        let context = packets.context(bytes, wire, ancillary);
        let mut memory = Memory::new();
        let mut copy = context.to_vec();
        memory.add(PLACE, &mut copy).expect("nothing else is there");
        let arguments = [PLACE, context.len() as u64, 0, 0, 0];
        let interpreter = Interpreter::default();
        let result = interpreter.run(&self.code, arguments, &mut memory, &mut NoHelpers).expect("it is verified");
        if let Some(compiled) = &self.compiled {
            assert_eq!(compiled.run_read_only(context), Ok(result), "interpreted and compiled");
        }
        result
    }
}

fn packs() -> Option<Packs> {
    let packs = Target::NATIVE.map(|_| Packs::new().expect("packs"));
    if packs.is_none() {
        println!("interpreted alone: there is no compiler for this machine");
    }
    packs
}

#[test]
fn every_filter_takes_what_libpcap_takes() {
    let (packs, all, mut buffer) = (packs(), packets(), Packets::new());
    let filters = filters();
    assert!(filters.len() > 130, "{}", filters.len());
    for (name, text, taken) in filters {
        let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let translated = Translated::new(packs.as_ref(), &filter);
        for (number, (Packet { bytes, wire }, taken)) in all.iter().zip(taken).enumerate() {
            let expected = if taken { 262_144 } else { 0 };
            assert_eq!(translated.run(&mut buffer, bytes, *wire, None), expected, "{name}, packet {number}");
        }
    }
}

#[test]
fn random_filters_return_what_libpcap_returns() {
    let (packs, all, mut buffer) = (packs(), packets(), Packets::new());
    let (numbers, filters) = random();
    assert_eq!(filters.len(), 160);
    for (text, results) in filters {
        let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let translated = Translated::new(packs.as_ref(), &filter);
        for (number, expected) in numbers.iter().zip(results) {
            let Packet { bytes, wire } = &all[*number];
            assert_eq!(translated.run(&mut buffer, bytes, *wire, None), expected, "packet {number} of\n{text}");
        }
    }
}

const fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

const RETURN: Insn = insn(0x06, 0, 0, 1);

#[test]
fn what_is_no_filter_is_refused() {
    let new = |instructions: &[Insn]| Filter::new(instructions).err();
    assert_eq!(new(&[]), Some(ClassicError::Len { len: 0 }));
    assert_eq!(new(&[RETURN; MOST + 1]), Some(ClassicError::Len { len: MOST + 1 }));
    assert_eq!(new(&[insn(0x07, 0, 0, 0)]), Some(ClassicError::End { at: 0 }));
    assert_eq!(new(&[insn(0x15, 1, 0, 0), RETURN]), Some(ClassicError::Jump { at: 0, to: 2, len: 2 }));
    assert_eq!(new(&[insn(0x15, 0, 1, 0), RETURN]), Some(ClassicError::Jump { at: 0, to: 2, len: 2 }));
    assert_eq!(new(&[insn(0x05, 0, 0, 1), RETURN]), Some(ClassicError::Jump { at: 0, to: 2, len: 2 }));
    assert_eq!(new(&[insn(0x05, 0, 0, -2_i32 as u32), RETURN]), Some(ClassicError::Jump { at: 0, to: -1, len: 2 }));
    assert_eq!(new(&[insn(0x34, 0, 0, 0), RETURN]), Some(ClassicError::Division { at: 0 }));
    assert_eq!(new(&[insn(0x94, 0, 0, 0), RETURN]), Some(ClassicError::Division { at: 0 }));
    assert_eq!(new(&[insn(0x64, 0, 0, 32), RETURN]), Some(ClassicError::Shift { at: 0, bits: 32 }));
    for code in [0x60, 0x61, 0x02, 0x03] {
        assert_eq!(new(&[insn(code, 0, 0, 16), RETURN]), Some(ClassicError::Scratch { at: 0, word: 16 }));
    }
    for (k, wants) in [(0xffff_f038, "random"), (0xfff0_0000, "header"), (0xffff_f002, "not known")] {
        let error = new(&[insn(0x20, 0, 0, k), RETURN]).map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(wants), "{error}");
    }
    // All codes of `bpf(4)`, except the jump, with which this filter would leave itself.
    let known = (0..=u16::MAX).filter(|code| Filter::new(&[insn(*code, 0, 0, 1), RETURN]).is_ok()).count();
    assert_eq!(known, 48);
}

#[test]
fn bytes_behind_the_packet_are_not_seen() {
    let (packs, mut buffer) = (packs(), Packets::new());
    let long = vec![0xff; 100];
    // At a constant offset, at X, and of a header's length: the last byte that exists, and the first that does not.
    for (code, at_x) in [(0x20, false), (0x28, false), (0x30, false), (0x40, true), (0x48, true), (0x50, true)] {
        let size = [4, 2, 1][(code as usize & 0x18) >> 3];
        for (end, seen) in [(50, true), (51, false)] {
            let offset = end - size;
            let (x, k) = if at_x { (offset - 7, 7) } else { (0, offset) };
            let filter = [insn(0x01, 0, 0, x), insn(code, 0, 0, k), RETURN];
            let translated = Translated::new(packs.as_ref(), &Filter::new(&filter).expect("a filter"));
            // What was there before it.
            assert_eq!(translated.run(&mut buffer, &long, 100, None), 1);
            assert_eq!(translated.run(&mut buffer, &long[..50], 100, None), seen.into(), "{code:#x} to {end}");
        }
    }
    let header = Filter::new(&[insn(0xb1, 0, 0, 50), RETURN]).expect("a filter");
    let translated = Translated::new(packs.as_ref(), &header);
    assert_eq!(translated.run(&mut buffer, &long[..51], 100, None), 1);
    assert_eq!(translated.run(&mut buffer, &long[..50], 100, None), 0);
}

#[test]
fn what_only_one_way_to_a_step_has_compared_is_compared_again() {
    let (packs, mut buffer) = (packs(), Packets::new());
    // Packets of 50 bytes come to 3 from above; those that jump over that load come to it from below.
    let filter = [
        insn(0x80, 0, 0, 0),
        insn(0x15, 2, 0, 7),
        insn(0x30, 0, 0, 49),
        insn(0x30, 0, 0, 49),
        insn(0x15, 0, 1, 7),
        insn(0x05, 0, 0, -3_i32 as u32),
        insn(0x16, 0, 0, 0),
    ];
    let translated = Translated::new(packs.as_ref(), &Filter::new(&filter).expect("a filter"));
    assert_eq!(translated.run(&mut buffer, &[255; 50], 50, None), 255);
    assert_eq!(translated.run(&mut buffer, &[1; 10], 7, None), 0);
}

#[test]
fn shifts_by_all_bits_give_0() {
    let (packs, mut buffer) = (packs(), Packets::new());
    for code in [0x6c, 0x7c] {
        for (bits, is_left) in [(31, true), (32, false), (33, false), (u32::MAX, false)] {
            let filter = [insn(0x00, 0, 0, u32::MAX), insn(0x01, 0, 0, bits), insn(code, 0, 0, 0), insn(0x16, 0, 0, 0)];
            let translated = Translated::new(packs.as_ref(), &Filter::new(&filter).expect("a filter"));
            let result = translated.run(&mut buffer, &[], 0, None);
            assert_eq!(result != 0, is_left, "{code:#x} by {bits}");
        }
    }
}

#[test]
fn packets_are_seen_up_to_the_limit() {
    let (packs, mut buffer) = (packs(), Packets::new());
    let long = vec![7; LIMIT as usize + 8];
    for (offset, expected) in [(LIMIT - 1, 7), (LIMIT, 0), (u32::MAX >> 1, 0)] {
        for filter in [
            [insn(0x30, 0, 0, offset), insn(0x16, 0, 0, 0), RETURN],
            [insn(0x01, 0, 0, offset), insn(0x50, 0, 0, 0), insn(0x16, 0, 0, 0)],
        ] {
            let translated = Translated::new(packs.as_ref(), &Filter::new(&filter[..]).expect("a filter"));
            assert_eq!(translated.run(&mut buffer, &long, 9, None), expected, "{offset}");
        }
    }
}

#[test]
fn what_linux_has_beside_a_packet_is_loaded() {
    let (packs, mut buffer) = (packs(), Packets::new());
    let ancillary = Ancillary {
        protocol: 1,
        packet_type: 2,
        interface: 3,
        mark: 4,
        queue: 5,
        hardware: 6,
        hash: 7,
        cpu: 8,
        vlan_tag: 9,
        vlan_present: 10,
        vlan_protocol: 11,
    };
    for (offset, expected) in
        [(0, 1), (4, 2), (8, 3), (20, 4), (24, 5), (28, 6), (32, 7), (36, 8), (44, 9), (48, 10), (60, 11)]
    {
        let filter = Filter::new(&[insn(0x28, 0, 0, 0xffff_f000 + offset), insn(0x16, 0, 0, 0)]).expect("a filter");
        let translated = Translated::new(packs.as_ref(), &filter);
        assert_eq!(translated.run(&mut buffer, &[], 0, Some(&ancillary)), expected, "{offset}");
        assert_eq!(translated.run(&mut buffer, &[], 0, None), 0);
    }
    let xor = [insn(0x01, 0, 0, 6), insn(0x00, 0, 0, 5), insn(0x20, 0, 0, 0xffff_f028), insn(0x16, 0, 0, 0)];
    let translated = Translated::new(packs.as_ref(), &Filter::new(&xor).expect("a filter"));
    assert_eq!(translated.run(&mut buffer, &[], 0, None), 3);
}

#[test]
fn the_longest_filter_refuses_from_everywhere() {
    let (packs, mut buffer) = (packs(), Packets::new());
    // Each load at X takes the most slots.
    let mut filter = vec![insn(0x48, 0, 0, 4); MOST - 2];
    filter.push(insn(0x48, 0, 0, 9));
    filter.push(RETURN);
    let filter = Filter::new(&filter).expect("a filter");
    assert!(filter.translate().len() / 8 > 6 * (MOST - 2));
    let translated = Translated::new(packs.as_ref(), &filter);
    for (len, expected) in [(0, 0), (5, 0), (6, 0), (10, 0), (11, 1)] {
        assert_eq!(translated.run(&mut buffer, &[1; 11][..len], 11, None), expected, "{len}");
    }
}

#[test]
fn filters_that_go_back_for_ever_refuse() {
    let (packs, mut buffer) = (packs(), Packets::new());
    let filter = Filter::new(&[insn(0x04, 0, 0, 1), insn(0x05, 0, 0, -2_i32 as u32), RETURN]).expect("a filter");
    assert_eq!(Translated::new(packs.as_ref(), &filter).run(&mut buffer, &[], 0, None), 0);
}
