//! Settings of transparent huge pages below `/sys/kernel/mm/transparent_hugepage`.
//!
//! Source: `Documentation/admin-guide/mm/transhuge.rst`.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use super::{ParseError, ProcError, address, read_with};
use crate::brief_file::BriefFile;

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// When anonymous memory gets huge pages (`enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Anonymous {
    /// Wherever possible.
    Always,
    /// If `MADV_HUGEPAGE` asks for them.
    Madvise,
    /// Only by `MADV_COLLAPSE`.
    Never,
}

impl fmt::Display for Anonymous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        })
    }
}

/// When shared memory (memfd) gets huge pages (`shmem_enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shared {
    /// At every fault.
    Always,
    /// If the huge page lies within the file.
    WithinSize,
    /// If `MADV_HUGEPAGE` asks for them.
    Advise,
    /// Only by `MADV_COLLAPSE`.
    Never,
    /// Not even by `MADV_COLLAPSE`.
    Deny,
    /// Always, for tests of the kernel.
    Force,
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::WithinSize => "within_size",
            Self::Advise => "advise",
            Self::Never => "never",
            Self::Deny => "deny",
            Self::Force => "force",
        })
    }
}

/// Reads when anonymous memory gets huge pages of the length [`hpage_pmd_size`]. Since Linux 6.8 each length has a
/// setting of its own, and the one for all counts only where that says `inherit`.
///
/// # Errors
///
/// `/sys` is not mounted, the kernel has no transparent huge pages, or the value is unknown.
pub fn enabled() -> Result<Anonymous, ProcError> {
    enabled_below(Path::new(DIRECTORY))
}

/// Does the same from a folder that looks like [`DIRECTORY`].
fn enabled_below(folder: &Path) -> Result<Anonymous, ProcError> {
    let known = [Anonymous::Always, Anonymous::Madvise, Anonymous::Never];
    let of_length = |size| {
        read_with(folder.join(format!("hugepages-{}kB/enabled", size / 1024)), |text| match chosen(text) {
            Some(b"inherit") => Ok(None),
            _ => known_choice(text, known).map(Some),
        })
    };
    match huge_page_below(folder).and_then(of_length) {
        Ok(Some(own)) => Ok(own),
        Err(error) if !error.is_absent() => Err(error),
        Ok(None) | Err(_) => choice(&folder.join("enabled"), known),
    }
}

/// Reads when shared memory gets huge pages.
///
/// # Errors
///
/// As [`enabled`].
pub fn shmem_enabled() -> Result<Shared, ProcError> {
    use Shared::{Advise, Always, Deny, Force, Never, WithinSize};
    choice(&Path::new(DIRECTORY).join("shmem_enabled"), [Always, WithinSize, Advise, Never, Deny, Force])
}

/// Reads the length of a transparent huge page, in bytes: 2 MiB with 4 KiB pages.
///
/// # Errors
///
/// As [`enabled`].
pub fn hpage_pmd_size() -> Result<usize, ProcError> {
    huge_page_below(Path::new(DIRECTORY))
}

fn huge_page_below(folder: &Path) -> Result<usize, ProcError> {
    read_with(folder.join("hpage_pmd_size"), |text| {
        let size = address(text.trim_ascii(), 10).filter(|size| size.is_power_of_two());
        size.ok_or_else(|| ParseError::new(1, text, "power of two"))
    })
}

/// The state of `PR_SET_THP_DISABLE` (`PR_GET_THP_DISABLE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThpDisable {
    /// Not set.
    Off,
    /// Huge pages only where `madvise` asks for them (Linux 6.18).
    ExceptAdvised,
    /// No transparent huge pages for this process.
    On,
}

/// Returns how far transparent huge pages are off for this process.
pub fn disabled_here() -> ThpDisable {
    // SAFETY: PR_GET_THP_DISABLE takes no pointer and only reads the process's flags.
    match unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0_usize, 0_usize, 0_usize, 0_usize) } {
        // Linux before 3.15 has no such switch.
        ..=0 => ThpDisable::Off,
        1 => ThpDisable::On,
        // Bit 1 is PR_THP_DISABLE_EXCEPT_ADVISED.
        _ => ThpDisable::ExceptAdvised,
    }
}

fn choice<T: fmt::Display, const N: usize>(file: &Path, known: [T; N]) -> Result<T, ProcError> {
    read_with(file, |text| known_choice(text, known))
}

fn known_choice<T: fmt::Display, const N: usize>(text: &[u8], known: [T; N]) -> Result<T, ParseError> {
    let mut known = known.into_iter();
    let found = chosen(text).and_then(|word| known.find(|choice| choice.to_string().as_bytes() == word));
    found.ok_or_else(|| ParseError::new(1, text, "known choice in brackets"))
}

/// Returns the word in brackets of a line such as `always [madvise] never`.
fn chosen(text: &[u8]) -> Option<&[u8]> {
    let words = text.split(u8::is_ascii_whitespace);
    words.filter_map(|word| word.strip_prefix(b"[")?.strip_suffix(b"]")).next()
}

/// Whether the kernel makes huge pages on request (`MADV_COLLAPSE`, Linux 6.1). It checks the advice before the length
/// (`do_madvise` in `mm/madvise.c`).
pub fn can_collapse() -> bool {
    // SAFETY: of no memory at all.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_COLLAPSE) == 0 }
}

/// Whether the kernel may refuse a huge page for memory without a page that is writable in the page tables: before
/// Linux 6.18 (`SCAN_PAGE_RO` in `mm/khugepaged.c`). Allocates nothing, and looks once: not by `uname`, which nobody
/// has tried under a filter.
pub fn needs_writable_page() -> bool {
    /// Relaxed: each thread may look for itself, and finds the same.
    static IS_NEEDED: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    match IS_NEEDED.load(Ordering::Relaxed) {
        UNKNOWN => {
            let mut release = [0; 128];
            let Ok(release) = BriefFile::read_short(c"/proc/sys/kernel/osrelease", &mut release) else { return true };
            let is_needed = is_before(release, (6, 18));
            IS_NEEDED.store(if is_needed { YES } else { NO }, Ordering::Relaxed);
            is_needed
        }
        known => known == YES,
    }
}

/// Whether a release, as `uname -r` prints it, is older. One that cannot be read counts as old.
fn is_before(release: &[u8], wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        digits.parse::<u32>().ok()
    });
    let mut next = || numbers.next().flatten();
    next().zip(next()).is_none_or(|found| found < wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_found() {
        assert_eq!(chosen(b"always [madvise] never\n"), Some(b"madvise".as_slice()));
        assert_eq!(chosen(b"always madvise"), None);
        assert_eq!(chosen(b""), None);
    }

    /// Fails on: what is said of huge pages of this length, and overlooked; another length's; a kernel before 6.8.
    #[test]
    fn what_is_said_of_this_length_comes_before_what_is_said_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("hpage_pmd_size"), "2097152\n").unwrap();
        for (for_all, expected) in
            [("always [madvise] never", Anonymous::Madvise), ("[always] madvise never", Anonymous::Always)]
        {
            std::fs::write(at("enabled"), for_all).unwrap();
            assert_eq!(enabled_below(folder.path()).unwrap(), expected, "there is no other setting");
        }
        for (size, choice) in [(64, "never"), (2048, "inherit")] {
            std::fs::create_dir(at(&format!("hugepages-{size}kB"))).unwrap();
            std::fs::write(at(&format!("hugepages-{size}kB/enabled")), format!("always [{choice}] madvise\n")).unwrap();
            assert_eq!(enabled_below(folder.path()).unwrap(), Anonymous::Always, "{size}");
        }
        for (own, expected) in [
            ("always inherit madvise [never]", Anonymous::Never),
            ("always inherit [madvise] never", Anonymous::Madvise),
            ("[always] inherit madvise never", Anonymous::Always),
        ] {
            std::fs::write(at("hugepages-2048kB/enabled"), own).unwrap();
            assert_eq!(enabled_below(folder.path()).unwrap(), expected);
        }
        std::fs::write(at("hugepages-2048kB/enabled"), "[sometimes]").unwrap();
        assert!(matches!(enabled_below(folder.path()), Err(ProcError::Parse { .. })));
        assert!(enabled_below(&at("none")).unwrap_err().is_absent());
    }

    #[test]
    fn this_machine_is_read_or_lacks_the_files() {
        assert!(enabled().map_or_else(|error| error.is_absent(), |_| true));
        assert!(shmem_enabled().map_or_else(|error| error.is_absent(), |_| true));
        assert!(hpage_pmd_size().map_or_else(|error| error.is_absent(), |size| size >= 4096));
    }

    #[test]
    fn releases_are_older_by_their_first_two_numbers() {
        for (release, is_old) in [
            ("6.17.9-200.fc42.x86_64", true),
            ("5.19.0", true),
            ("6.18.0-rc1", false),
            ("6.18-custom", false),
            ("6.100.0", false),
            ("7.0", false),
            ("", true),
            ("6", true),
            ("next-20260101", true),
        ] {
            assert_eq!(is_before(release.as_bytes(), (6, 18)), is_old, "{release}");
        }
    }
}
