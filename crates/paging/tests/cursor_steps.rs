//! Cursors: compares random steps in scenes with sharing, replicas and large pages with a plain model, and refuses
//! memory at each point.

mod common;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use common::scene;
use common::scene::{RW, count, finish, number, page, run_on};
use palimpsest_paging::format::{AArch64, Sv39, Sv48, X86_64, X86_64La57};
use palimpsest_paging::sim::{Computer, Config, Delivery, Hardware, MapNextSimulated};
use palimpsest_paging::*;

/// The expected state of a page of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Expected {
    content: u64,
    rights: Rights,
    pinned: bool,
}

type Pages = BTreeMap<u64, Expected>;

struct Member<'c, F: Hardware> {
    space: AddressSpace<F, &'c Computer>,
    /// The pages, by number from `BASE` on.
    pages: Pages,
    replicated: bool,
}

struct World<'c, F: Hardware> {
    computer: &'c Computer,
    members: Vec<Member<'c, F>>,
    chance: Cell<u64>,
    steps: Cell<usize>,
    refused: Cell<usize>,
}

/// Two tables of small pages, two large pages, and a table that begins with a gap.
const SMALL: Range<u64> = 0..1024;
const LARGES: Range<u64> = 1024..2048;
const BEHIND: Range<u64> = 2048..2560;

/// The result of a step.
enum Step {
    Done,
    /// Memory was refused at this point, and there may be a later one.
    Refused,
}

impl<'c, F: Hardware> World<'c, F> {
    fn below(&self, limit: u64) -> u64 {
        let mut x = self.chance.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.chance.set(x);
        (x >> 11) % limit
    }

    /// Creates a parent, and children that share its tables, at random.
    fn new(computer: &'c Computer, share: ShareTables, nodes: u8, seed: u64) -> Self {
        let chance = Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut world = Self { computer, members: Vec::new(), chance, steps: Cell::new(0), refused: Cell::new(0) };
        let parent: AddressSpace<F, &Computer> = scene::space(computer, share, nodes);
        let mut pages = Pages::new();
        let mut map = |range: Range<u64>, rights: Rights, align: PageSize| {
            scene::fill(&parent, range.clone(), rights, align);
            pages.extend(range.map(|n| (n, Expected { content: 100 + n, rights, pinned: false })));
        };
        map(SMALL.start..SMALL.start + 12, RW, PageSize::Small);
        map(500..524, RW, PageSize::Small);
        map(700..708, Rights::READ | Rights::EXECUTE, PageSize::Small);
        map(LARGES, RW, PageSize::Large);
        map(BEHIND.start + 7..BEHIND.start + 9, RW, PageSize::Small);
        let replicated = nodes > 1 && world.below(2) == 0;
        if replicated {
            parent.replicate(scene::pages(690..720)).unwrap().1.finish();
        }
        if world.below(3) == 0 {
            parent.pin(page(510), Node(0)).unwrap();
            pages.entry(510).and_modify(|one| one.pinned = true);
        }
        world.members.push(Member { space: parent, pages, replicated });
        for child in 0..world.below(3) {
            let from = &world.members[world.below(world.members.len() as u64) as usize];
            let (space, flush) = from.space.fork(SpaceId(2 + child)).unwrap();
            flush.finish();
            let pages = from.pages.iter().map(|(&n, one)| (n, Expected { pinned: false, ..*one })).collect();
            world.members.push(Member { space, pages, replicated: false });
        }
        world
    }

    fn some_page(&self) -> u64 {
        match self.below(6) {
            0 => self.below(BEHIND.end),
            1 => self.below(14),
            2 => 498 + self.below(28),
            3 => 698 + self.below(12),
            4 => LARGES.start + [0, 1, 510, 511, 512, 513, 1022, 1023][self.below(8) as usize],
            _ => BEHIND.start + self.below(12),
        }
    }

    fn some_rights(&self) -> Rights {
        [RW, Rights::READ, Rights::READ | Rights::EXECUTE, Rights::empty()][self.below(4) as usize]
    }

    /// Lets CPUs fill their TLBs; what they see is checked later.
    fn wander(&self) {
        for _ in 0..self.below(4) {
            let _ = self.computer.load(self.below(2) as usize, page(self.some_page()), Access::USER_READ);
        }
    }

    /// Does a few steps with a cursor.
    fn session(&mut self) {
        let index = self.below(self.members.len() as u64) as usize;
        for cpu in 0..2 {
            run_on(&self.members[index].space, cpu);
        }
        let (a, b) = (self.some_page(), self.some_page());
        let range = a.min(b)..a.max(b) + 1 + self.below(3);
        let mut pages = std::mem::take(&mut self.members[index].pages);
        let steps = 1 + self.below(12);
        let (mut at, mut done, mut request) = (range.start, 0, None);
        while done < steps {
            let mut cursor = self.members[index].space.cursor_mut(scene::pages(range.clone())).unwrap();
            cursor.seek(page(at)).unwrap();
            while done < steps {
                self.wander();
                self.steps.set(self.steps.get() + 1);
                let stepped = self.step(&mut cursor, &mut pages, index, &mut request);
                at = number(cursor.address());
                match stepped {
                    Step::Done => done += 1,
                    // Continues with the same cursor, or after a check that nothing has changed.
                    Step::Refused if self.below(2) == 0 => {}
                    Step::Refused => break,
                }
            }
            if self.below(4) > 0 {
                let flushing = cursor.finish().dispatch();
                self.wander();
                flushing.wait();
            } else {
                drop(cursor);
            }
            self.check(index, &pages);
        }
        self.members[index].pages = pages;
        self.store(index);
    }

    fn store(&mut self, index: usize) {
        let value = 1_000_000 + self.below(u64::MAX / 2);
        let from = self.some_page();
        let Member { space, pages, .. } = &mut self.members[index];
        if let Some((&n, one)) = pages.range_mut(from..).find(|(_, one)| one.rights.contains(Rights::WRITE)) {
            scene::store(space, 0, page(n), value);
            one.content = value;
        }
    }

    fn fits(at: u64, size: PageSize, end: u64) -> bool {
        page(at).is_aligned(size) && at + count(size) <= end
    }

    /// Checks that a mapping agrees with the model, from its page `from` on.
    #[track_caller]
    fn expect(&self, mapping: &Mapping, pages: &Pages) {
        let first = number(mapping.address);
        for part in 0..count(mapping.size) {
            let content = self.computer.content(mapping.leaf.frame.offset(part << 12));
            let one = pages.get(&(first + part));
            let seen = (Some(content), Some(mapping.leaf.attributes.rights));
            assert_eq!(seen, (one.map(|one| one.content), one.map(|one| one.rights)), "page {}", first + part);
        }
    }

    fn step(
        &self,
        cursor: &mut CursorMut<'_, F, &'c Computer>,
        pages: &mut Pages,
        index: usize,
        request: &mut Option<(u64, u64)>,
    ) -> Step {
        let (at, end) = (number(cursor.address()), number(cursor.range().end));
        // A step that was refused memory is repeated.
        let what = request.map_or_else(|| self.below(16), |(_, what)| what);
        let next = pages.range(at..end).next().map(|(&n, _)| n);
        let found = matches!(what, 2..=11).then(|| cursor.find()).flatten();
        if matches!(what, 2..=11) {
            assert_eq!(found.map(|found| number(found.address).max(at)), next);
            assert_eq!(cursor.address(), page(next.unwrap_or(end)));
        }
        match what {
            0 => {
                let to = self.below(BEHIND.end);
                let inside = cursor.range().contains(&page(to)) || to == end;
                assert_eq!(cursor.seek(page(to)).is_ok(), inside);
                assert_eq!(cursor.address(), page(if inside { to } else { at }));
                return Step::Done;
            }
            1 => {
                let here = cursor.query();
                assert_eq!(here.is_some(), at < end && pages.contains_key(&at));
                here.iter().for_each(|mapping| self.expect(mapping, pages));
                return Step::Done;
            }
            2 => {
                assert_eq!(cursor.skip_next(), found);
                found.iter().for_each(|mapping| self.expect(mapping, pages));
                let past = found.map_or(end, |found| number(found.address) + count(found.size));
                assert_eq!(cursor.address(), page(past.min(end)));
                return Step::Done;
            }
            _ => {}
        }
        if let (None, 0) = (&request, self.below(2)) {
            *request = Some((0, what));
        }
        if let Some((request, _)) = *request {
            let until = if self.below(2) == 0 { u64::MAX } else { request + 1 };
            self.computer.refuse(request..until);
        }
        let step = match what {
            3..=7 => self.take(cursor, pages, found, self.members[index].replicated),
            8..=11 => self.protect(cursor, pages, found, self.members[index].replicated),
            _ => self.map(cursor, pages),
        };
        self.computer.refuse(0..0);
        match step {
            Step::Refused => {
                self.refused.set(self.refused.get() + 1);
                assert_eq!(cursor.address(), page(if what < 12 { next.unwrap_or(end) } else { at }));
                let (point, what) = request.expect("memory was refused");
                *request = Some((point + 1, what));
            }
            Step::Done => *request = None,
        }
        step
    }

    /// Returns what a step at `found` must affect.
    fn part(found: &Mapping, at: u64, end: u64) -> PageSize {
        let sizes = [PageSize::Large, PageSize::Small].into_iter().filter(|&size| size <= found.size);
        sizes.into_iter().find(|&size| Self::fits(at, size, end)).unwrap()
    }

    fn take(
        &self,
        cursor: &mut CursorMut<'_, F, &'c Computer>,
        pages: &mut Pages,
        found: Option<Mapping>,
        replicated: bool,
    ) -> Step {
        let (at, end) = (number(cursor.address()), number(cursor.range().end));
        let is_split = |found: Option<Mapping>| found.is_some_and(|found| Self::part(&found, at, end) != found.size);
        let taken = cursor.take_next();
        let pinned = found.is_some_and(|found| {
            let first = number(found.address);
            pages.range(first..first + count(found.size)).any(|(_, one)| one.pinned)
        });
        match taken {
            Ok(None) => assert_eq!(found, None),
            Ok(Some(taken)) => {
                assert!(!pinned);
                let size = Self::part(&found.unwrap(), at, end);
                assert_eq!((taken.address, taken.size), (page(at), size));
                self.expect(&taken, pages);
                pages.retain(|&n, _| !(at..at + count(size)).contains(&n));
                assert_eq!(cursor.address(), page(at + count(size)));
            }
            Err(ChangeError::NoMemory(_)) => return Step::Refused,
            Err(ChangeError::Pinned { .. }) => assert!(pinned),
            // The table above is replicated, and so cannot get one for the parts.
            Err(ChangeError::Replicated { .. }) => assert!(replicated && is_split(found)),
            Err(other) => panic!("{other:?}"),
        }
        Step::Done
    }

    fn protect(
        &self,
        cursor: &mut CursorMut<'_, F, &'c Computer>,
        pages: &mut Pages,
        found: Option<Mapping>,
        replicated: bool,
    ) -> Step {
        let (at, end) = (number(cursor.address()), number(cursor.range().end));
        let is_split = |found: Option<Mapping>| found.is_some_and(|found| Self::part(&found, at, end) != found.size);
        let rights = self.some_rights();
        match cursor.protect_next(rights) {
            Ok(None) => assert_eq!(found, None),
            Ok(Some(was)) => {
                let size = Self::part(&found.unwrap(), at, end);
                assert_eq!((was.address, was.size), (page(at), size));
                self.expect(&was, pages);
                for (_, one) in pages.range_mut(at..at + count(size)) {
                    one.rights = rights;
                }
                assert_eq!(cursor.address(), page(at + count(size)));
            }
            Err(ChangeError::NoMemory(_)) => return Step::Refused,
            Err(ChangeError::Replicated { .. }) => {
                assert!(replicated && (rights.contains(Rights::WRITE) || is_split(found)));
            }
            Err(other) => panic!("{other:?}"),
        }
        Step::Done
    }

    fn map(&self, cursor: &mut CursorMut<'_, F, &'c Computer>, pages: &mut Pages) -> Step {
        let (at, end) = (number(cursor.address()), number(cursor.range().end));
        let size = if self.below(3) == 0 { PageSize::Large } else { PageSize::Small };
        // Never refused: it is not the cursor's request.
        let frame = self.computer.allocate(Node(0), size.bytes(), size).unwrap();
        for part in 0..count(size) {
            self.computer.set_content(frame.offset(part << 12), 5000 + at + part);
        }
        let rights = self.some_rights();
        let mapped = cursor.map_simulated(frame, size, Attributes::user(rights));
        let first = pages.range(at..at + count(size)).next().map(|(&n, _)| page(n));
        let is_wrong = match &mapped {
            Ok(()) => !Self::fits(at, size, end) || first.is_some(),
            Err(CursorMapError::Map(MapError::Size { .. })) => page(at).is_aligned(size),
            Err(CursorMapError::Seek(SeekError::Outside { .. })) => Self::fits(at, size, end),
            Err(CursorMapError::Map(MapError::Mapped { address, .. })) => Some(*address) != first,
            Err(CursorMapError::Map(MapError::NoMemory(_))) => false,
            Err(_) => true,
        };
        assert!(!is_wrong, "{mapped:?} at {at} of {size:?}, {first:?} is mapped");
        match mapped {
            Ok(()) => {
                let new = |part| (at + part, Expected { content: 5000 + at + part, rights, pinned: false });
                pages.extend((0..count(size)).map(new));
                assert_eq!(cursor.address(), page(at + count(size)));
            }
            Err(_) => self.computer.give_back(frame, size.bytes()),
        }
        if let Err(CursorMapError::Map(MapError::NoMemory(_))) = mapped { Step::Refused } else { Step::Done }
    }

    /// Checks that all spaces translate as the model says, and that nothing else is wrong.
    #[track_caller]
    fn check(&self, changed: usize, pages: &Pages) {
        for (index, member) in self.members.iter().enumerate() {
            let pages = if index == changed { pages } else { &member.pages };
            let mut seen = 0;
            let visit = |mapping: Mapping| {
                self.expect(&mapping, pages);
                seen += count(mapping.size) as usize;
                ControlFlow::Continue(())
            };
            member.space.walk(VirtAddr(0)..VirtAddr(1 << 37), visit).unwrap();
            assert_eq!(seen, pages.len());
            assert_eq!(member.space.verify(), Ok(()));
            self.computer.expect_coherent(member.space.id());
            assert_eq!(self.computer.charged(member.space.id()).pages, pages.len() as i64);
        }
        assert_eq!(self.computer.take_failures(), []);
    }

    fn end(self) {
        for member in &self.members {
            for (&n, _) in member.pages.iter().filter(|(_, one)| one.pinned) {
                member.space.unpin(page(n)).unwrap();
            }
        }
        finish(self.computer, self.members.into_iter().map(|member| member.space).collect());
    }
}

fn random_steps<F: Hardware>() {
    let shares =
        [ShareTables::None, ShareTables::Last, ShareTables::UpTo(Level::new(2)), ShareTables::UpTo(Level::new(3))];
    let (mut steps, mut refused) = (0, 0);
    for seed in 0..64_u64 {
        let nodes = 1 + (seed / 4 % 2) as u8;
        let delivery = [Delivery::Late, Delivery::Random, Delivery::AtOnce][(seed % 3) as usize];
        let config = Config::default().nodes(nodes.into()).cpus(2).delivery(delivery).seed(seed);
        let computer = Computer::new::<F>(config);
        let mut world = World::<F>::new(&computer, shares[(seed % 4) as usize], nodes, seed + 1);
        for _ in 0..12 {
            world.session();
        }
        steps += world.steps.get();
        refused += world.refused.get();
        world.end();
    }
    println!("{}: {steps} steps, {refused} of them without memory", F::NAME);
    assert!(refused > 60);
}

#[test]
fn x86_64() {
    random_steps::<X86_64>();
}

#[test]
fn x86_64_la57() {
    random_steps::<X86_64La57>();
}

#[test]
fn aarch64() {
    random_steps::<AArch64>();
}

#[test]
fn sv39() {
    random_steps::<Sv39>();
}

#[test]
fn sv48() {
    random_steps::<Sv48>();
}
