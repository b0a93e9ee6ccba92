//! The crate's own code.

use loom::sync::Arc;
use loom::thread;
use palimpsest_paging::format::Format;
use palimpsest_paging::*;

use super::machine::{Do, LeafProtect, Ram, TableProtect};

type Space<F> = AddressSpace<F, Ram>;

/// Two pages of the shared table.
const FIRST: VirtAddr = VirtAddr(0);
const SECOND: VirtAddr = VirtAddr(PAGE);
const END: VirtAddr = VirtAddr(2 * PAGE);

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // Threads lose the CPU at most this often: more takes hours. Loads may see any value that is possible.
    model.preemption_bound = Some(std::env::var("LOOM_MAX_PREEMPTIONS").map_or(3, |text| text.parse().unwrap()));
    model.max_branches = 10_000;
    model.check(test);
}

/// Makes a space with two pages, for one test only: each page adds orders of events.
fn with_two_pages<F: Format>(ram: &Ram) -> Arc<Space<F>> {
    let space = with_one_page::<F>(ram);
    let attributes = Attributes::user(Rights::READ | Rights::WRITE);
    // SAFETY: 1, 2. a page of the model's, with its only reference.
    unsafe { space.map(SECOND..END, ram.page(200), attributes, PageSizes::UpTo(PageSize::Small)) }.unwrap();
    space
}

fn with_one_page<F: Format>(ram: &Ram) -> Arc<Space<F>> {
    let options = SpaceOptions::new().accounting(Accounting::Exact);
    let space = AddressSpace::new(ram.clone(), SpaceId(1), &[Node(0)], options).unwrap();
    let attributes = Attributes::user(Rights::READ | Rights::WRITE);
    // SAFETY: 1, 2. a page of the model's, with its only reference.
    unsafe { space.map(FIRST..SECOND, ram.page(100), attributes, PageSizes::UpTo(PageSize::Small)) }.unwrap();
    Arc::new(space)
}

fn fork<F: Format>(space: &Space<F>, id: u64) -> Arc<Space<F>> {
    let (child, flush) = space.fork(SpaceId(id)).unwrap();
    flush.finish();
    Arc::new(child)
}

/// Loads or stores the first page, and resolves all faults; `None` if nothing is mapped.
fn access<F: Format>(ram: &Ram, space: &Space<F>, cpu: usize, what: Do) -> Option<u64> {
    access_at(ram, space, cpu, FIRST, what)
}

fn access_at<F: Format>(ram: &Ram, space: &Space<F>, cpu: usize, address: VirtAddr, what: Do) -> Option<u64> {
    let (root, kind) = (space.root(Node(0)), if what == Do::Load { Access::USER_READ } else { Access::USER_WRITE });
    for _ in 0..4 {
        if let Some(value) = ram.access::<F>(cpu, root, address, what) {
            return Some(value);
        }
        if space.fault(address, kind, Node(0)).unwrap() == Fault::NotMapped {
            return None;
        }
    }
    panic!("the access faults for ever");
}

fn load<F: Format>(ram: &Ram, space: &Space<F>) -> u64 {
    access(ram, space, 0, Do::Load).unwrap()
}

/// Checks that the spaces are right, and that nothing is left of them.
fn finish<F: Format>(ram: &Ram, spaces: Vec<Arc<Space<F>>>) {
    spaces.iter().for_each(|space| assert_eq!(space.verify(), Ok(())));
    drop(spaces);
    assert_eq!(ram.used(), (0, 0));
}

macro_rules! in_both_ways_of_sharing {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn by_tables() {
                super::bodies::$name::<super::TableProtect>();
            }
            #[test]
            fn by_pages() {
                super::bodies::$name::<super::LeafProtect>();
            }
        }
    )*};
}

in_both_ways_of_sharing! {
    both_sharers_store
    one_stores_while_the_other_ends
    one_stores_while_the_other_unmaps
    a_cpu_stores_while_another_forks
    two_cpus_of_one_space_fault
    both_sharers_fork
}

mod bodies {
    use super::*;

    pub(super) fn both_sharers_store<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_one_page::<F>(&ram);
            let child = fork(&parent, 2);
            let other = thread::spawn({
                let (ram, child) = (ram.clone(), Arc::clone(&child));
                move || access(&ram, &child, 1, Do::Store(2))
            });
            access(&ram, &parent, 0, Do::Store(1));
            other.join().unwrap();
            assert_eq!((load(&ram, &parent), load(&ram, &child)), (1, 2));
            finish(&ram, vec![parent, child]);
        });
    }

    pub(super) fn one_stores_while_the_other_ends<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_one_page::<F>(&ram);
            let child = fork(&parent, 2);
            let other = thread::spawn(move || drop(child));
            access(&ram, &parent, 0, Do::Store(1));
            other.join().unwrap();
            assert_eq!(load(&ram, &parent), 1);
            finish(&ram, vec![parent]);
        });
    }

    pub(super) fn one_stores_while_the_other_unmaps<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_one_page::<F>(&ram);
            let child = fork(&parent, 2);
            let other = thread::spawn({
                let child = Arc::clone(&child);
                move || child.unmap(FIRST..SECOND).unwrap().finish()
            });
            access(&ram, &parent, 0, Do::Store(1));
            other.join().unwrap();
            assert_eq!((load(&ram, &parent), access(&ram, &child, 0, Do::Load)), (1, None));
            finish(&ram, vec![parent, child]);
        });
    }

    pub(super) fn a_cpu_stores_while_another_forks<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_one_page::<F>(&ram);
            let other = thread::spawn({
                let (ram, parent) = (ram.clone(), Arc::clone(&parent));
                move || access(&ram, &parent, 1, Do::Store(1))
            });
            let child = fork(&parent, 2);
            let seen = load(&ram, &child);
            other.join().unwrap();
            assert!(seen == 100 || seen == 1, "{seen}");
            access(&ram, &parent, 0, Do::Store(3));
            assert_eq!((load(&ram, &child), load(&ram, &parent)), (seen, 3));
            finish(&ram, vec![parent, child]);
        });
    }

    pub(super) fn two_cpus_of_one_space_fault<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_two_pages::<F>(&ram);
            let child = fork(&parent, 2);
            // Accesses come later: loom does not see that an entry publishes what it leads to.
            let fault = |space: &Space<F>, address| space.fault(address, Access::USER_WRITE, Node(0)).unwrap();
            let other = thread::spawn({
                let child = Arc::clone(&child);
                move || fault(&child, SECOND)
            });
            fault(&child, FIRST);
            other.join().unwrap();
            for (address, value) in [(FIRST, 1), (SECOND, 2)] {
                assert_eq!(ram.access::<F>(0, child.root(Node(0)), address, Do::Store(value)), Some(value));
            }
            let both = |space| [FIRST, SECOND].map(|address| access_at(&ram, space, 0, address, Do::Load).unwrap());
            assert_eq!((both(&parent), both(&child)), ([100, 200], [1, 2]));
            finish(&ram, vec![parent, child]);
        });
    }

    pub(super) fn both_sharers_fork<F: Format>() {
        explore(|| {
            let ram = Ram::new();
            let parent = with_one_page::<F>(&ram);
            let child = fork(&parent, 2);
            let other = thread::spawn({
                let (ram, child) = (ram.clone(), Arc::clone(&child));
                move || {
                    access(&ram, &child, 1, Do::Store(1));
                }
            });
            let second = fork(&parent, 3);
            other.join().unwrap();
            let seen = [&parent, &child, &second].map(|space| load(&ram, space));
            assert_eq!(seen, [100, 1, 100]);
            finish(&ram, vec![parent, child, second]);
        });
    }
}
