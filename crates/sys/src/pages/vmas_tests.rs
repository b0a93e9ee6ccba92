use super::*;
use crate::memory::area::OnFork;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::pages::maps::Maps;
use crate::pages::query::next_above;

fn read(detail: Detail) -> Vmas {
    let mut vmas = Vmas::with_capacity(10_000).expect("memory");
    vmas.read(detail).expect("/proc is mounted");
    vmas
}

#[test]
fn both_details_show_what_maps_shows() {
    let place = Mapping::new(Source::Anonymous, 1 << 20, Protection::ReadWrite, 4096).expect("memory");
    let expected = Maps::read().expect("/proc is mounted");
    let expected = expected.at(place.address()).expect("mapped");
    for detail in [Detail::Places, Detail::Figures] {
        let vmas = read(detail);
        let found = vmas.iter().find(|vma| vma.range().contains(&place.address())).expect("mapped");
        assert_eq!((found.permissions, found.inode), (expected.permissions, 0), "{detail:?}");
        assert!(vmas.is_sorted_by_key(|vma| vma.start), "{detail:?}");
    }
}

/// Fails on: an error for exactly as many as may be; a list of all of them in spite of it.
#[test]
fn one_more_than_may_be_listed_ends_the_list() {
    let line = |number: usize| format!("{:x}000-{:x}000 rw-p 00000000 00:00 0\n", 16 + number, 17 + number);
    let text = (0..5).map(line).collect::<String>();
    let path = std::env::temp_dir().join(format!("palimpsest-maps-{}", std::process::id()));
    std::fs::write(&path, text).expect("a temporary file");
    let file = std::fs::File::open(&path).expect("just written");
    std::fs::remove_file(&path).expect("just written");
    let mut vmas = Vmas::with_capacity(10).expect("memory");
    for (most, listed) in [(4, 4), (5, 5), (6, 5)] {
        let read = vmas.read_most_from(file.as_fd(), Detail::Places, most);
        assert_eq!((read.is_ok(), vmas.len()), (most >= 5, listed), "{most}: {read:?}");
    }
    assert!(matches!(vmas.read_most(Detail::Places, 1), Err(VmasError::TooMany(Full { capacity: 1 }))));
}

#[test]
fn flags_and_figures_are_read() {
    let page = rustix::param::page_size();
    let place = Mapping::new(Source::Anonymous, 8 * page, Protection::ReadWrite, page).expect("memory");
    place.on_fork(OnFork::Omit).expect("a private mapping");
    for index in 0..3 {
        // SAFETY: inside the mapping, which this test owns.
        unsafe { place.as_ptr().wrapping_add(index * page).write_volatile(1) };
    }
    let vmas = read(Detail::Figures);
    let found = vmas.iter().find(|vma| vma.range() == place.range()).expect("a mapping of its own, by its flag");
    assert!(found.flags.intersects(VmaFlags::DONT_FORK) && !found.flags.intersects(VmaFlags::LOCKED), "{found:?}");
    assert_eq!(found.anonymous, 3 * page);
    assert!(vmas.iter().any(|vma| vma.label == Label::Stack));
}

#[test]
fn the_kernel_and_the_list_agree_on_a_place() {
    let place = Mapping::new(Source::Anonymous, 1 << 20, Protection::Read, 4096).expect("memory");
    let list = std::fs::File::open("/proc/self/maps").expect("/proc is mounted");
    let found = match next_above(list.as_fd(), place.address()) {
        Err(Errno::NOTTY | Errno::INVAL) => return eprintln!("skipped: this kernel has no PROCMAP_QUERY"),
        found => found.expect("mapped"),
    };
    let expected = Maps::read().expect("/proc is mounted");
    let expected = expected.at(place.address()).expect("mapped");
    assert_eq!((found.range(), found.permissions), (expected.range(), expected.permissions));
}

#[test]
fn every_flag_has_its_letters() {
    for (letters, flag) in [
        ("gd", VmaFlags::GROWS_DOWN),
        ("lo", VmaFlags::LOCKED),
        ("dc", VmaFlags::DONT_FORK),
        ("wf", VmaFlags::WIPE_ON_FORK),
        ("dd", VmaFlags::DONT_DUMP),
        ("hg", VmaFlags::HUGE_PAGE),
        ("mg", VmaFlags::MERGEABLE),
        ("uw", VmaFlags::USERFAULT),
        ("ss", VmaFlags::SHADOW_STACK),
        ("sl", VmaFlags::SEALED),
        ("mt", VmaFlags::TAGGED),
        ("gu", VmaFlags::GUARDED),
        ("dp", VmaFlags::DROPPABLE),
        ("rr", VmaFlags::RANDOM),
        ("bt", VmaFlags::BRANCH_TARGETS),
        ("nr", VmaFlags::NO_RESERVE),
    ] {
        let parsed = VmaFlags::parse(format!("rd wr mr {letters} ac").as_bytes());
        assert!(parsed.intersects(flag) && parsed.0.is_power_of_two(), "{letters}");
    }
}

#[test]
fn a_line_is_never_lost_between_two_reads() {
    // More text than the buffer holds at once: mappings with alternating rights do not merge.
    let page = rustix::param::page_size();
    let kept: Vec<_> = (0..2000)
        .map(|index| if index % 2 == 0 { Protection::Read } else { Protection::ReadWrite })
        .map(|rights| Mapping::new(Source::Anonymous, page, rights, page).expect("memory"))
        .collect();
    let vmas = read(Detail::Places);
    for place in &kept {
        assert!(vmas.iter().any(|vma| vma.start <= place.address() && place.address() < vma.end));
    }
}

#[test]
fn extents_are_known_by_their_name() {
    let page = rustix::param::page_size();
    let place = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).expect("memory");
    let extent =
        crate::memory::extent::Extent::create(crate::memory::extent::Use::Frozen).expect("memory files can be made");
    // SAFETY: 1. the test's own mapping, without contents.
    unsafe { extent.map_over(place.range(), 0, crate::pages::maps::Permissions::READ) }.expect("mapped");
    let vmas = read(Detail::Places);
    assert!(vmas.iter().any(|vma| vma.start == place.address() && vma.label == Label::Extent));
    let code = extents_are_known_by_their_name as *const () as usize;
    assert!(vmas.iter().any(|vma| vma.range().contains(&code) && vma.label == Label::File));
}

/// Fails on: flags of the record behind; a record that is not whole yet.
#[test]
fn the_first_record_ends_with_its_flags() {
    let first = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonymous: 4 kB\nProtectionKey: 3\nVmFlags: rd wr dc \n";
    let text = [first, "4000-5000 rw-p 00000000 00:00 0 \nVmFlags: rd wf \n"].concat();
    let vma = Vma::parse_first(text.as_bytes()).expect("it is whole");
    assert_eq!((vma.range(), vma.anonymous, vma.protection_key), (0x1000..0x3000, 4096, 3));
    assert_eq!(vma.flags, VmaFlags::DONT_FORK);
    assert_eq!(Vma::parse_first(first.as_bytes()), Some(vma));
    for end in 0..first.len() {
        assert_eq!(Vma::parse_first(&first.as_bytes()[..end]), None, "{end}");
    }
    // A record without flags is none, whatever is behind it.
    assert_eq!(
        Vma::parse_first(b"1000-3000 rw-p 00000000 00:00 0 \n4000-5000 rw-p 00000000 00:00 0 \nVmFlags: rd \n"),
        None
    );
}
