//! Every source of `lddw` (RFC 9669, section 5.4): maps by descriptors that the host has given, and all others.
//!
//! Mutants that are caught: a second half that is read as an instruction, a value without its offset.

use palimpsest_bpf::StructureError;
use palimpsest_bpf::insn::{Instruction, Wide};

use super::*;

/// A host with two arrays of 4 numbers at the descriptors 7 and -1, behind other maps.
fn with_descriptors() -> HostBuilder {
    let array = || Arc::new(Map::new(Definition::new("numbers", Kind::Array, 4, 8, 4)).expect("good measures"));
    builder().map_at(7, array()).map_at(-1, array())
}

/// Runs a program of the host both ways.
fn bound(text: &str) -> u64 {
    let bytes = asm::assemble(text).expect("a program");
    let results = [false, true].map(|is_compiled| {
        let host = with_descriptors().build();
        for (index, number) in [(8, 0x1_0000_0002_u64), (9, 0x3_0000_0004)] {
            host.maps()[index].update(&[0; 4], &number.to_ne_bytes(), Update::Always).expect("it is there");
        }
        let linked = host.verify(contract(), host.code(&bytes).expect("its maps are there")).expect(text);
        match packs().filter(|_| is_compiled) {
            Some(packs) => HostedProgram::load(&packs, &linked).expect("room").run(&mut [0; LEN]).expect("it ends"),
            None => linked.interpret(&Interpreter::default(), &mut [0; LEN]).expect("it ends"),
        }
    });
    assert_eq!(results[0], results[1], "{text}");
    results[0]
}

#[test]
fn every_source_of_a_wide_load_runs_or_is_refused_by_name() {
    // 0: itself, also where its halves look like an instruction and a descriptor.
    assert_eq!(bound("r0 = 0x700001018 ll\nexit"), 0x7_0000_1018);
    // 1: a map, by descriptor; as the public suite has it, with a key that is there.
    let look_up = "r2 = 1\nr1 = map[fd:MAP] ll\n*(u32 *)(r10 - 4) = r2\nr2 = r10\nr2 += -4\ncall 1\n\
                   if r0 == 0 goto end\nr0 = 1\nend: exit";
    for map in ["fd:7", "fd:-1", "idx:8"] {
        assert_eq!(bound(&look_up.replace("fd:MAP", map)), 1, "{map}");
    }
    // 2: the value of a map, by descriptor.
    assert_eq!(
        bound(
            "r1 = map[fd:7][0]+4 ll\nr0 = *(u32 *)(r1 + 0)\nr1 = map[fd:-1][0]+0 ll\nr1 = *(u32 *)(r1 + 0)\n\
                      r0 <<= 8\nr0 |= r1\nexit"
        ),
        0x104
    );
    // 4: a function.
    assert_eq!(bound("r1 = 3\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall 181\nexit\neach: r0 = 0\nexit"), 3);
    // 5 and 6: by index, with the same result as by descriptor.
    assert_eq!(bound("r1 = map[idx:8][0]+4 ll\nr0 = *(u32 *)(r1 + 0)\nexit"), 1);
    // 3: a variable of the platform; there are none. And descriptors of no map, or without a host.
    let wide = |text: &str, host: &Host| match host.code(&asm::assemble(text).expect("a program")) {
        Err(StructureError::Unresolved { slot: 1, instruction: Instruction::LoadWide { value, .. } }) => Some(value),
        other => panic!("{other:?}"),
    };
    let (host, other) = (with_descriptors().build(), builder().build());
    assert_eq!(wide("r0 = 0\nr1 = var[7] ll\nexit", &host), Some(Wide::Variable(7)));
    assert_eq!(wide("r0 = 0\nr1 = map[fd:8] ll\nexit", &host), Some(Wide::MapByDescriptor(8)));
    assert_eq!(wide("r0 = 0\nr1 = map[fd:7] ll\nexit", &other), Some(Wide::MapByDescriptor(7)));
    let value = Wide::MapValueByDescriptor { map: 8, offset: 4 };
    assert_eq!(wide("r0 = 0\nr1 = map[fd:8][0]+4 ll\nexit", &host), Some(value));
}

#[test]
fn what_is_no_program_is_refused_behind_a_descriptor() {
    let host = with_descriptors().build();
    let mut bytes = asm::assemble("r1 = map[fd:7] ll\nr0 = 0\nexit").expect("a program");
    assert_eq!(host.code(&bytes).map(|code| code.len()), Ok(4));
    bytes.truncate(8);
    assert!(matches!(host.code(&bytes), Err(StructureError::Decode(_))));
    assert_eq!(host.code(&[]), Err(StructureError::Empty));
    // A second half whose first bytes are not zero.
    let mut bytes = asm::assemble("r1 = map[fd:7] ll\nexit").expect("a program");
    bytes[8] = 1;
    assert!(matches!(host.code(&bytes), Err(StructureError::Decode(_))));
}
