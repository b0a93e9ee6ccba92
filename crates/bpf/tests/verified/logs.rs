//! Logs of random programs: they change nothing, and each tells a way that the program can take.

use palimpsest_bpf::Code;
use palimpsest_bpf::insn::{Callee, Instruction};
use palimpsest_bpf::verify::{ContextAccess, Contract, Detail, Log, LogStep, VerifyError};

use super::{LEN, Random, looping, program, programs, takes};

/// Whether `next` can come behind `step`.
fn follows(code: &Code, step: &LogStep, next: &LogStep) -> bool {
    let place = |slot| (0..code.instructions().len()).position(|index| code.slot(index) == slot).expect("a slot");
    let (at, then) = (place(step.slot), place(next.slot));
    let is_target = |distance: i32| code.target(at, distance) == Some(then);
    let is_same = next.depth == step.depth;
    match step.instruction {
        Instruction::Exit => next.depth + 1 == step.depth,
        Instruction::Jump { offset, .. } => is_same && is_target(offset),
        Instruction::Branch { offset, .. } | Instruction::MayGoto { offset } => {
            is_same && (then == at + 1 || is_target(offset.into()))
        }
        Instruction::Call(Callee::Local(distance)) if !is_same => next.depth == step.depth + 1 && is_target(distance),
        _ => is_same && then == at + 1,
    }
}

/// Verifies with a log. Returns how many steps that tells, if the program is refused.
fn logged(contract: &Contract, code: &Code, detail: Detail, most: usize) -> Option<(usize, Log)> {
    let listing = || code.instructions().iter().map(|step| format!("{step}\n")).collect::<String>();
    let mut log = Log::new(detail).most_steps(most);
    let outcome = contract.verify_logged(code.clone(), &mut log);
    assert_eq!(outcome, contract.verify(code.clone()), "{}", listing());
    let Err(VerifyError { slot, instruction, .. }) = outcome else {
        assert!(log.steps().is_empty());
        return None;
    };
    let last = log.steps().last().map(|step| (step.slot, step.instruction));
    assert_eq!(last, Some((slot, instruction)), "{}", listing());
    assert!(log.steps().len() <= most);
    Some((log.steps().len(), log))
}

#[test]
fn a_log_tells_a_way_and_changes_nothing() {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let (mut longest, mut shorter, mut left_out, mut inside) = (0, 0, 0, 0);
    for number in 0..programs() / 8 {
        let bytes = if number % 2 == 0 { program(&mut random) } else { looping(&mut random) };
        let Ok(code) = Code::new(&bytes) else { continue };
        let function = code.functions().nth(1).map(|first| (code.slot(first), takes(&mut random)));
        let code = code.with_types(function);
        let contract = Contract::new().context(LEN, ContextAccess::Write).budget(500);
        let contract = if number % 3 == 0 { contract.fuel(9) } else { contract };
        let Some((len, log)) = logged(&contract, &code, Detail::All, usize::MAX) else { continue };
        let (steps, text) = (log.steps(), log.to_string());
        let first = &steps[0];
        assert!(first.depth == 0 && code.functions().any(|start| code.slot(start) == first.slot), "{text}");
        assert!(steps.windows(2).all(|pair| follows(&code, &pair[0], &pair[1])), "{text}");
        assert_eq!((log.left_out(), log.passed_over()), (0, 0));
        longest = longest.max(len);
        inside += usize::from(steps.iter().any(|step| step.depth > 0));
        let (matter, way) = logged(&contract, &code, Detail::Way, usize::MAX).expect("the same");
        assert_eq!((way.passed_over() + matter, way.left_out()), (len, 0), "{text}");
        assert!(way.steps().iter().all(|step| steps.contains(step)), "{way}");
        shorter += usize::from(matter < len);
        for detail in [Detail::Way, Detail::All] {
            let (short, log) = logged(&contract, &code, detail, 3).expect("the same");
            assert_eq!(log.left_out() + log.passed_over() + short, len, "{log}");
            left_out += usize::from(log.left_out() > 0);
        }
    }
    let counts = format!("{longest} steps, {shorter} that leave some out, {left_out} too long, {inside} in functions");
    assert!(longest > 100 && shorter > 100 && left_out > 100 && inside > 10, "{counts}: the programs tell nothing");
}
