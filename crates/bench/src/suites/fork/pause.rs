//! How long a freeze, or a repair, stops a process: `fork.pause.{size}.{longest,total}`.
//!
//! | contestant | what stands still |
//! |---|---|
//! | `at_once` | the heap is copied in one go |
//! | `slices` | the heap is copied in slices of 2 ms, one after the other; the look that plans them counts as a stop, too |
//! | `repair` | the heap was frozen in slices and read, and then a page in each 4 MiB was written: each fork until the repair has ended |
//! | `repair_at_once` | the same, frozen and repaired in one go |
//! | `allocation` | an arena handed the heap out: the first fork freezes it; `fill` is what that costs beforehand |
//! | `plain`, `thp` | nothing is frozen: a fork copies the page tables of base pages, or of transparent huge pages |
//! | `empty` | a fork without a heap |
//!
//! A process can be frozen for the first time only once, so each sample is a process of its own. `fill` is the price of
//! having the memory at all, with each page written once: memory of files is not handed out as fast as anonymous
//! memory. The rivals stand still for as long as their first fork.

use std::time::Duration;

use palimpsest_fork::Pages;
use palimpsest_fork::arena::Arena;
use palimpsest_sys::Causes;

use super::SIZES;
use super::crew::Answer;
use super::worker::REFUSED;
use crate::harness::clock::Stopwatch;
use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Effort, Group, Samples};
use crate::machine::{ForkWay, Heap, HeapPages, freeze, freeze_in_slices, spawn};

/// Name of the helper that calls [`work`] with the arguments that follow.
pub(in crate::suites) const PAUSER: &str = "fork-pause";

/// How the memory is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Slices,
    Allocation,
    AtOnce,
    Repair,
    RepairAtOnce,
    /// Not at all: a fork of base pages, of huge pages, or of no heap.
    Plain,
    Thp,
    Empty,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::Slices,
        Self::Allocation,
        Self::Repair,
        Self::AtOnce,
        Self::RepairAtOnce,
        Self::Plain,
        Self::Thp,
        Self::Empty,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Slices => "slices",
            Self::Allocation => "allocation",
            Self::AtOnce => "at_once",
            Self::Repair => "repair",
            Self::RepairAtOnce => "repair_at_once",
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::Empty => "empty",
        }
    }
}

/// The figures, in the order in which the helper prints them.
const FIGURES: [(&str, &str); 3] = [
    ("longest", "the longest stop of a freeze or a repair, or a fork"),
    ("total", "all stops of a freeze or a repair together, or a fork"),
    (FILL, "writing each page once before"),
];

const FILL: &str = "fill";

fn id(size: &str, figure: &str, way: Way) -> String {
    format!("fork.pause.{size}.{figure}.{}", way.name())
}

fn group(size: &str, (figure, title): (&str, &str)) -> Group {
    // There is nothing to fill in an empty process.
    let takes_part = |way: &Way| *way != Way::Empty || figure != FILL;
    let contestant = |way| {
        let contestant = Contestant::new(id(size, figure, way), Unit::Milliseconds);
        let in_one_go = if way == Way::Repair { Way::RepairAtOnce } else { Way::AtOnce };
        let rivals = [in_one_go, Way::Plain, Way::Thp, Way::Empty];
        let rivals = rivals.into_iter().filter(|rival| *rival != way && takes_part(rival));
        match way {
            Way::Slices | Way::Allocation | Way::AtOnce | Way::Repair | Way::RepairAtOnce => {
                contestant.against(rivals.map(|rival| id(size, figure, rival)))
            }
            Way::Plain | Way::Thp | Way::Empty => contestant,
        }
    };
    let title = format!("{title}, heap of {size}");
    let all = Way::ALL.into_iter().filter(takes_part).map(contestant);
    Group::new(format!("fork.pause.{size}.{figure}"), title, all)
}

/// Returns all groups.
pub(super) fn groups() -> Vec<Group> {
    SIZES.iter().flat_map(|(size, _)| FIGURES.map(|figure| group(size, figure))).collect()
}

/// Measures the wanted ones.
pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for (size, bytes) in SIZES {
        let wanted = context.wanted(FIGURES.map(|figure| group(size, figure)));
        if wanted.is_empty() {
            continue;
        }
        let available = available_memory();
        let reason = if context.effort != Effort::Full && bytes > super::QUICK {
            Some("left out of quick runs".to_owned())
        } else if available < bytes + bytes / 4 {
            Some(format!("{} MiB of memory are available, which is too little", available >> 20))
        } else {
            None
        };
        if let Some(reason) = reason {
            wanted.iter().for_each(|group| context.skip(group, &reason));
            continue;
        }
        context.begin(&format!("fork.pause.{size}"));
        let mut samples = Samples::default();
        let rounds = context.effort.rounds(3, 12, Duration::from_secs(10));
        interleave(&mut Way::ALL.to_vec(), rounds, |&mut way| {
            tell(size, way, ask(context, way, bytes)?, &mut samples);
            Ok::<(), BenchError>(())
        })?;
        for group in wanted {
            let own = samples.take(&group);
            context.record(&group, own);
        }
    }
    Ok(())
}

/// Notes what a process has answered.
fn tell(size: &str, way: Way, answer: Answer<[f64; 3]>, samples: &mut Samples) {
    match answer {
        Answer::Given(told) => {
            FIGURES.iter().zip(told).for_each(|((figure, _), told)| samples.add(&id(size, figure, way), told));
        }
        Answer::Refused(reason) => {
            FIGURES.iter().for_each(|(figure, _)| samples.refuse(&id(size, figure, way), reason.as_str()));
        }
    }
}

/// Makes a process of its own freeze this many bytes. It answers milliseconds in the order of [`FIGURES`].
fn ask(context: &Context<'_>, way: Way, bytes: usize) -> Result<Answer<[f64; 3]>, BenchError> {
    let failed = |reason: String| BenchError::Helper { contestant: way.name().to_owned(), reason };
    let mut command = context.helper(PAUSER).map_err(failed)?;
    let output = command.arg(way.name()).arg(bytes.to_string()).output().map_err(|error| failed(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    read(&said)
        .ok_or_else(|| failed(format!("it said `{}{}`", said.trim(), String::from_utf8_lossy(&output.stderr).trim())))
}

/// Reads what [`work`] prints.
fn read(said: &str) -> Option<Answer<[f64; 3]>> {
    if let Some(reason) = said.strip_prefix(REFUSED) {
        return Some(Answer::Refused(reason.trim().to_owned()));
    }
    let mut numbers = said.split_whitespace().map(str::parse::<f64>);
    match [0; 3].map(|_| numbers.next()) {
        [Some(Ok(longest)), Some(Ok(total)), Some(Ok(fill))] => Some(Answer::Given([longest, total, fill])),
        _ => None,
    }
}

/// What a slice may take, as by default for programs that `run` starts.
const BUDGET: Duration = Duration::from_millis(2);

/// A repair that has not ended after so many forks is not waited for.
const MOST_FORKS: usize = 100_000;

static ARENA: Arena = Arena::new();

/// Freezes `bytes` as `way` says, and prints the milliseconds, or what the machine refuses.
///
/// # Errors
///
/// Unknown ways, numbers that are not numbers, and lost contents.
pub(in crate::suites) fn work(way: &str, bytes: &str) -> Result<(), BenchError> {
    let failed = |reason: String| BenchError::Helper { contestant: way.to_owned(), reason };
    let len: usize = bytes.parse().map_err(|_| failed(format!("`{bytes}` is no number of bytes")))?;
    let known = Way::ALL.into_iter().find(|known| known.name() == way);
    let way = known.ok_or_else(|| failed("there is no such way".to_owned()))?;
    let done = match freeze_as(way, len) {
        Ok(done) => done,
        Err(reason) => {
            println!("{REFUSED}{reason}");
            return Ok(());
        }
    };
    let heap = &done.heap;
    if let Some(page) = (0..heap.pages()).find(|&page| heap.read(page) != page as u64 + 1) {
        return Err(failed(format!("page {page} lost its contents")));
    }
    let (longest, total) = (done.stops.iter().max().copied().unwrap_or_default(), done.stops.iter().sum());
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{} {} {}", milliseconds(longest), milliseconds(total), milliseconds(done.filled));
    Ok(())
}

/// What [`freeze_as`] has done.
struct Done {
    heap: Heap,
    filled: Duration,
    stops: Vec<Duration>,
}

/// Fills a heap of `len` bytes and freezes it, or forks; or returns what the machine refuses.
fn freeze_as(way: Way, len: usize) -> Result<Done, String> {
    let told = |error: &dyn std::error::Error| Causes(error).to_string();
    let filling = Stopwatch::start();
    let heap = match way {
        Way::AtOnce | Way::Slices | Way::Repair | Way::RepairAtOnce | Way::Plain => Heap::map(len, HeapPages::Base),
        Way::Thp => Heap::map(len, HeapPages::Huge),
        Way::Empty => Heap::map(1, HeapPages::Base),
        Way::Allocation => Heap::allocate(len, &ARENA),
    }
    .map_err(|error| told(&error))?;
    (0..heap.pages()).for_each(|page| heap.write(page, page as u64 + 1));
    let filled = filling.elapsed();
    let stops = match way {
        Way::AtOnce => vec![freeze(Pages::Base).map_err(|error| told(&error))?],
        Way::Slices => freeze_in_slices(BUDGET)?,
        Way::Repair => {
            freeze_in_slices(BUDGET)?;
            repair(&heap)?
        }
        Way::RepairAtOnce => {
            freeze(Pages::Base).map_err(|error| told(&error))?;
            repair(&heap)?
        }
        Way::Allocation | Way::Plain | Way::Thp | Way::Empty => {
            let (child, taken) = spawn(ForkWay::Plain, || 0).map_err(|error| told(&error))?;
            child.wait().map_err(|error| told(&error))?;
            vec![taken]
        }
    };
    Ok(Done { heap, filled, stops })
}

/// Reads all of a frozen heap, writes a page in each 4 MiB, and forks until that is repaired. Returns how long each
/// fork took.
fn repair(heap: &Heap) -> Result<Vec<Duration>, String> {
    let is_read = (0..heap.pages()).all(|page| heap.read(page) == page as u64 + 1);
    let forks = || spawn(ForkWay::Repairing, || 0).and_then(|(child, taken)| child.wait().map(|_| taken));
    let fork = || forks().map_err(|error| Causes(&error).to_string());
    // They tell what a clean fork takes.
    for _ in 0..4 {
        fork()?;
    }
    let before = palimpsest_fork::status().repairs;
    (0..heap.pages()).step_by(1024).filter(|_| is_read).for_each(|page| heap.write(page, page as u64 + 1));
    let mut stops = Vec::new();
    while palimpsest_fork::status().repairs == before && stops.len() < MOST_FORKS {
        stops.push(fork()?);
    }
    Ok(stops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_refuses_is_an_answer_that_leaves_out_only_that_way() {
        // More than any address space has.
        let refused = work("plain", &(1_usize << 60).to_string());
        assert!(refused.is_ok(), "{refused:?}");
        assert!(work("nosuch", "4096").is_err());
        let mut samples = Samples::default();
        let answer = read("refused madvise: Invalid argument (os error 22)\n").expect("a refusal");
        tell("64m", Way::Thp, answer, &mut samples);
        tell("64m", Way::Plain, read("1.5 2.5 3.5\n").expect("numbers"), &mut samples);
        let reason = samples.refused("fork.pause.64m.longest.thp");
        assert_eq!(reason, Some("madvise: Invalid argument (os error 22)"));
        assert_eq!(samples.median("fork.pause.64m.total.plain"), Some(2.5));
        assert!(read("1.5").is_none() && read("").is_none());
    }

    #[test]
    fn each_size_has_three_figures_and_the_pause_is_compared_with_one_at_once_and_with_forks() {
        let groups = groups();
        assert_eq!(groups.len(), 9);
        let ids: Vec<&str> = groups[0].ids().collect();
        let expected = ["slices", "allocation", "repair", "at_once", "repair_at_once", "plain", "thp", "empty"]
            .map(|way| format!("fork.pause.64m.longest.{way}"));
        assert_eq!(ids, expected);
        for (place, rival) in [(0, 3), (1, 3), (2, 4)] {
            let rivals = [ids[rival], ids[5], ids[6], ids[7]];
            let ours = Contestant::new(ids[place], Unit::Milliseconds).against(rivals);
            assert_eq!(groups[0].contestants[place], ours);
        }
        assert_eq!(
            groups[0].contestants[5],
            Contestant::new(ids[5], Unit::Milliseconds),
            "rivals are compared with none"
        );
        assert!(groups[2].ids().all(|id| !id.ends_with(".empty")), "an empty process fills nothing");
    }
}
