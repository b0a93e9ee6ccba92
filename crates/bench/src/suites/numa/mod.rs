//! Suite `numa`: programs from huge pages on one node, alone and shared; reading replicated data; programs with copies.

mod get;
mod life;
mod packs;
mod real;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use palimpsest_sys::Causes;

use self::life::{Mode, Running, Subject};
use self::real::Real;
use super::programs::{ProgramError, Tool, finish};
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Effort, Group, Samples, Suite, failed};
use crate::machine::processor_time_of_ended_children;

/// See the module.
pub(super) struct Numa;

const TEXT: &str = "numa.text";
const COLD: &str = "numa.text.cold";
const START: &str = "numa.text.start";
const BYTES: &str = "numa.text.bytes_per_process";
const NODE: &str = "numa.text.node";

/// Work for a real program that is limited by its text: uses much of the compiler and of the library, a little of each
/// part.
const SCRIPT: &str = "let n=0;for(let i=0;i<4000;i++){n+=new Function('a','return a+'+i+';')(i)\
    +JSON.stringify({i,a:[i]}).length+/(\\d+)x?/.exec('n'+i)[1].length}console.log(n)";

/// Starts of the program in one figure: the first makes the copies, the second finds them.
const STARTS: [(&str, Mode); 6] = [
    ("plain", Mode::Plain),
    ("own", Mode::Own),
    ("private", Mode::Private),
    ("first", Mode::Local),
    ("second", Mode::Local),
    ("anonymous", Mode::Anonymous),
];

fn modes(id: &str, title: &str, unit: Unit, all: &[Mode]) -> Group {
    let named: Vec<(&str, Mode)> = all.iter().map(|&mode| (mode.name(), mode)).collect();
    group(id, title, unit, &named)
}

/// Returns a group of modes under these names; ours are compared with plain, then with what others do.
fn group(id: &str, title: &str, unit: Unit, named: &[(&str, Mode)]) -> Group {
    let own = |name: &str| format!("{id}.{name}");
    let contestant = |&(name, mode): &(&str, Mode)| {
        let contestant = Contestant::new(own(name), unit);
        let contestant = if mode == Mode::Plain { contestant } else { contestant.note(mode.note()) };
        let rivals = named.iter().filter(|(_, rival)| !rival.is_ours()).map(|(rival, _)| own(rival));
        if mode.is_ours() { contestant.against(rivals) } else { contestant }
    };
    Group::new(id, title, named.iter().map(contestant))
}

fn text() -> Group {
    modes(TEXT, "20 000 functions in 33 MB of text, each called once", Unit::Microseconds, &Mode::WITH_POOL)
}

fn cold() -> Group {
    modes(
        COLD,
        "20 000 functions in 83 MB of text, the first instruction of each",
        Unit::Microseconds,
        &Mode::WITH_POOL,
    )
}

fn start() -> Group {
    let title = "processor time of the start of the program with 83 MB: the first and the second process";
    group(START, title, Unit::Milliseconds, &STARTS)
}

fn bytes() -> Group {
    modes(BYTES, "memory of ten processes of that program that have run, for each", Unit::Bytes, &Mode::ALL)
}

fn node() -> Group {
    modes(
        NODE,
        "processor time of node that compiles and runs 4000 small functions, start and end included",
        Unit::Milliseconds,
        &Mode::ALL,
    )
}

impl Suite for Numa {
    fn id(&self) -> &'static str {
        "numa"
    }

    fn description(&self) -> &'static str {
        "text from huge pages on one node, alone and shared; reading replicated data; programs with copies"
    }

    fn groups(&self) -> Vec<Group> {
        let others = [get::group(), get::node_group(), text(), cold(), start(), bytes(), node()];
        others.into_iter().chain(Real::ALL.map(Real::group)).chain(packs::groups()).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let replicated = get::group();
        if context.wants(&replicated) {
            get::measure(context, &replicated)?;
        }
        let current = get::node_group();
        if context.wants(&current) {
            get::measure_node(context, &current)?;
        }
        packs::run(context)?;
        for real in Real::ALL {
            let group = real.group();
            if context.wants(&group) {
                context.begin(&group.id);
                match real::lives(context, real).map_err(failed(&group.id, "a program"))? {
                    Ok(samples) => context.record(&group, samples),
                    Err(missing) => context.skip(&group, &missing),
                }
            }
        }
        let wanted = context.wanted([text(), cold(), start(), bytes(), node()]);
        if wanted.is_empty() {
            return Ok(());
        }
        let (hot, cold) = match ready(context) {
            Ok(built) => built,
            Err(reason) => {
                wanted.iter().for_each(|group| context.skip(group, &reason));
                return Ok(());
            }
        };
        for group in wanted {
            context.begin(&group.id);
            let measured = match group.id.as_str() {
                TEXT => calls(context, TEXT, &hot),
                COLD => calls(context, COLD, &cold),
                START => starts(context, &cold),
                BYTES => memory(context, &hot),
                _ => match (Tool { program: "node", package: "nodejs" }).missing() {
                    Some(missing) => {
                        context.skip(&group, &missing);
                        continue;
                    }
                    None => whole_life(context),
                },
            };
            let samples = measured.map_err(failed(&group.id, "a program"))?;
            context.record(&group, samples);
        }
        Ok(())
    }
}

/// Returns the generated programs if they can be built and started from copies, or why not.
fn ready(context: &Context<'_>) -> Result<(Subject, Subject), String> {
    let compiler = Tool { program: "cc", package: "gcc" };
    compiler.missing().map_or(Ok(()), Err)?;
    context.begin("programs with much text");
    let told = |error: ProgramError| Causes(&error).to_string();
    let hot = Subject::build("hot", &[]).map_err(told)?;
    let cold = Subject::build("cold", &["-DCOLD"]).map_err(told)?;
    let mut command = context.local_text()?;
    finish(command.args(["--quiet", "--", "true"])).map_err(told)?;
    Ok((hot, cold))
}

/// Returns samples of rounds of calls, each of all functions, in processes that take turns.
fn calls(context: &Context<'_>, id: &str, subject: &Subject) -> Result<Samples, ProgramError> {
    let mut samples = Samples::default();
    let folder = subject.fresh(0)?;
    let mut crew = Vec::new();
    let lacking = subject.lacks_pool();
    if let Some(lack) = &lacking {
        samples.refuse(&format!("{id}.{}", Mode::Pool.name()), lack);
    }
    for mode in Mode::WITH_POOL.into_iter().filter(|mode| *mode != Mode::Pool || lacking.is_none()) {
        let mut running = Running::start(context, subject, mode, &folder)?;
        // Mapping pages is not part of the figure.
        running.rounds(1)?;
        let huge = ["ShmemPmdMapped", "FilePmdMapped", "AnonHugePages", "Private_Hugetlb", "Shared_Hugetlb"];
        let huge = huge.iter().map(|figure| running.memory(figure)).sum::<Result<f64, _>>()?;
        let id = format!("{id}.{}", mode.name());
        samples.note(&id, format!("{:.0} MiB in huge pages", huge / f64::from(1 << 20)));
        crew.push((id, running));
    }
    let turns = context.effort.pick(2, 10);
    interleave(&mut crew, context.effort.rounds(5, 60, Duration::from_secs(20)), |(id, running)| {
        let taken = running.rounds(turns)? / turns as f64 / 1e3;
        samples.add(id, taken);
        Ok::<(), ProgramError>(())
    })?;
    Ok(samples)
}

/// Returns samples of starts, each round with another folder: the first start finds nothing there, the second what the
/// first has made.
fn starts(context: &Context<'_>, subject: &Subject) -> Result<Samples, ProgramError> {
    let (mut samples, mut round) = (Samples::default(), 1);
    interleave(&mut [()], context.effort.rounds(3, 20, Duration::from_secs(20)), |()| {
        let folder = subject.fresh(round)?;
        round += 1;
        let mut alive = Vec::new();
        for (name, mode) in STARTS {
            let running = Running::start(context, subject, mode, &folder)?;
            samples.add(&format!("{START}.{name}"), running.start.as_secs_f64() * 1e3);
            alive.push(running);
        }
        Ok::<(), ProgramError>(())
    })?;
    Ok(samples)
}

/// Returns samples of the memory of many processes at a time, with shared memory counted in parts.
fn memory(context: &Context<'_>, hot: &Subject) -> Result<Samples, ProgramError> {
    let mut samples = Samples::default();
    let processes = if context.effort == Effort::Check { 2 } else { 10 };
    let folder = hot.fresh(0)?;
    for mode in Mode::ALL {
        let mut crew = Vec::new();
        for _ in 0..processes {
            let mut running = Running::start(context, hot, mode, &folder)?;
            running.rounds(1)?;
            crew.push(running);
        }
        let sum = crew.iter().map(|running| running.memory("Pss")).sum::<Result<f64, _>>()?;
        samples.add(&format!("{BYTES}.{}", mode.name()), sum / f64::from(processes));
    }
    Ok(samples)
}

/// Returns samples of whole lives of a real program.
fn whole_life(context: &Context<'_>) -> Result<Samples, ProgramError> {
    let mut samples = Samples::default();
    let node = Subject::copy("node", &located("node").unwrap_or_else(|| PathBuf::from("node")))?;
    let folder = node.fresh(0)?;
    // The holder keeps the copies for the others.
    let _holder = Holder::start(node.command(context, Mode::Local, &folder)?)?;
    for mode in Mode::ALL {
        let Some(flags) = mode.flags() else { continue };
        let mut command = context.local_text().map_err(ProgramError::Unfrozen)?;
        command.args(flags).args(["--report", "--"]).arg(node.program(mode)).args(["-e", "0"]);
        let told = finish(command.env("XDG_RUNTIME_DIR", &folder))?;
        samples.note(&format!("{NODE}.{}", mode.name()), real::amount(&String::from_utf8_lossy(&told.stderr)));
    }
    interleave(&mut Mode::ALL.to_vec(), context.effort.rounds(3, 20, Duration::from_secs(30)), |mode| {
        // Nobody else waits for children meanwhile.
        let before = processor_time_of_ended_children();
        finish(node.command(context, *mode, &folder)?.args(["-e", SCRIPT]))?;
        let taken = processor_time_of_ended_children().saturating_sub(before);
        samples.add(&format!("{NODE}.{}", mode.name()), taken.as_secs_f64() * 1e3);
        Ok::<(), ProgramError>(())
    })?;
    Ok(samples)
}

fn located(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// A process that runs as long as this lives.
struct Holder {
    _process: super::programs::Ended,
}

impl Holder {
    fn start(mut command: Command) -> Result<Self, ProgramError> {
        command.args(["-e", "console.log('up');setInterval(()=>{},1e6)"]).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().map_err(super::programs::doing("start node"))?;
        let said = child.stdout.take();
        let process = super::programs::Ended(child);
        if let Some(mut said) = said {
            let mut up = [0; 2];
            std::io::Read::read_exact(&mut said, &mut up).map_err(super::programs::doing("read from node"))?;
        }
        Ok(Self { _process: process })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_text_is_compared_with_plain_and_with_what_others_do() {
        let ids: Vec<String> = text().ids().map(str::to_owned).collect();
        let names = ["plain", "own", "private", "local", "anonymous", "pool"];
        assert_eq!(ids, names.map(|name| format!("numa.text.{name}")));
        let ours = Contestant::new("numa.text.own", Unit::Microseconds);
        let ours = ours.note(Mode::Own.note()).against(["numa.text.plain", "numa.text.anonymous", "numa.text.pool"]);
        assert_eq!(text().contestants[1], ours);
        assert_eq!(start().ids().count(), 6);
    }
}
