//! What a freeze may do.

use std::time::Duration;

/// How much memory an extent, which is a sealed file, holds. If any of its memory is written to, everything that it
/// holds costs each fork as much as unfrozen memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ExtentLen {
    /// About a 16th of what is frozen, from 1 GiB on an eighth, from 4 GiB on a quarter, as a power of two of at least
    /// 2 MiB.
    #[default]
    Auto,
    /// This many bytes, rounded up to a power of two of at least 2 MiB.
    Bytes(usize),
}

/// Which pages frozen memory consists of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pages {
    /// Pages of the base size.
    #[default]
    Base,
    /// Huge pages where a piece of 2 MiB is mostly populated (`MADV_COLLAPSE`, Linux 6.1), base pages where the kernel
    /// refuses.
    Collapse,
    /// As [`Base`](Self::Base); but a freeze in slices ([`Pause::Within`]) that must pay within some forks
    /// ([`Pays::Within`]) first puts memory into huge pages where it is, and freezes only what cannot be put there. For
    /// programs that wait between forks and write to most of their memory, as a database under load does: it goes on as
    /// long as somebody asks for slices between forks. If nobody has asked since the last fork, the rest is frozen.
    Gather,
}

/// What to do about other threads, whose writes during the freeze would be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OtherThreads {
    /// Refuse to freeze. Slices that [gather](Pages::Gather) go on, since nobody need be held for them; what cannot be
    /// gathered then stays as it is.
    #[default]
    Refuse,
    /// Interrupt each with a signal, and hold it until the freeze is over.
    Stop,
}

/// A hazard that makes a freeze wrong, unless the caller knows better.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// A runtime manages its memory by system calls of its own, which nothing can interpose (Go, musl, static
    /// programs). The caller knows that it never gives memory back by discarding it.
    RawAllocator,
    /// An io_uring is not known to be harmless. The caller knows that whatever it holds on to (buffers, queues,
    /// requests under way) is outside the memory that will be frozen.
    IoUring,
    /// All future mappings are locked (`mlockall`). The caller accepts that freezing gains nothing and holds memory
    /// twice.
    LockedMemory,
    /// There is a context of Linux AIO. The caller knows that it has no requests under way, or that their buffers are
    /// outside the memory that will be frozen.
    LinuxAio,
}

/// Whether forks are timed before and after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Measure {
    /// Time a few children that exit at once. Nobody notices them: they have no exit signal, and `waitpid(-1, …)` does
    /// not find them.
    #[default]
    Forks,
    /// Measure nothing; the report has no verdict.
    Nothing,
}

/// Which memory is worth freezing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pays {
    /// All that can be frozen: for callers who know that forks will come, or who care about their pauses only.
    #[default]
    Anyway,
    /// Memory whose freeze is expected to cost less than this many forks save. If forks turn out dearer than before,
    /// everything is [thawed](crate::guard::thaw_all) again.
    Within(u32),
}

/// How long a freeze may hold the process up at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pause {
    /// As long as it takes: [`freeze`](crate::freeze) returns when everything is done.
    #[default]
    AtOnce,
    /// About this long, in slices: [`freeze`](crate::freeze) plans, [`fork()`](crate::fork()) takes one slice before
    /// each fork, and [`freeze_slice`](crate::freeze_slice) takes more when there is time. A slice copies at least 128
    /// KiB, however long that takes; if there would be more than some 1000 slices, each takes up to twice as long.
    /// There are none while the process has a userfaultfd.
    Within(Duration),
}

/// Who asks the kernel for huge pages between forks. Such a call copies 2 MiB for each, and may sleep first until all
/// processors have done their part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Errands {
    /// The thread that takes the slice.
    #[default]
    Own,
    /// A process that borrows this one's memory for the call (`clone` with `CLONE_VM`), so that the thread goes on
    /// meanwhile. It has no exit signal: neither a SIGCHLD handler nor `waitpid(-1, …)` sees it. It makes up to eight
    /// huge pages and ends; before this process executes another program, or installs a seccomp filter,
    /// [wait](crate::dismiss_deputy) for it. If none can be made, the thread asks.
    ///
    /// What does see it: `waitpid` with `__WALL` or `__WCLONE`; `/proc/…/children`, `pgrep -f` and `pidof`, since its
    /// command line is the program's; `RLIMIT_NPROC` and `pids.max`, until it was waited for; `RUSAGE_CHILDREN`; and
    /// what the kernel refuses to processes that share memory (`setns` to a time namespace, SELinux `setcon`).
    Deputy,
}

/// Mappings with fewer pages are left alone.
const LEAST_PAGES: usize = 16;

/// How to freeze. The default freezes all that can be frozen, and refuses what is dangerous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    pub(crate) extent: ExtentLen,
    /// [`LEAST_PAGES`] if `None`.
    least: Option<usize>,
    pub(crate) pages: Pages,
    pub(crate) other_threads: OtherThreads,
    pub(crate) measure: Measure,
    pub(crate) pays: Pays,
    pub(crate) pause: Pause,
    pub(crate) errands: Errands,
    /// One bit for each [`Answer`].
    answers: usize,
}

impl Options {
    /// Returns the defaults.
    #[inline]
    pub fn new() -> Self {
        Self {
            extent: ExtentLen::default(),
            least: None,
            pages: Pages::default(),
            other_threads: OtherThreads::default(),
            measure: Measure::default(),
            pays: Pays::default(),
            pause: Pause::default(),
            errands: Errands::default(),
            answers: 0,
        }
    }

    /// Sets how long extents are.
    #[must_use]
    #[inline]
    pub fn extent(mut self, len: ExtentLen) -> Self {
        self.extent = len;
        self
    }

    /// Leaves alone mappings with fewer populated bytes than this; 16 pages by default.
    #[must_use]
    pub fn least(mut self, bytes: usize) -> Self {
        self.least = Some(bytes);
        self
    }

    /// Sets which pages frozen memory consists of.
    #[must_use]
    #[inline]
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Sets what to do about other threads.
    #[must_use]
    #[inline]
    pub fn other_threads(mut self, other_threads: OtherThreads) -> Self {
        self.other_threads = other_threads;
        self
    }

    /// Vouches for something that would otherwise be refused.
    #[must_use]
    pub fn answer_for(mut self, answer: Answer) -> Self {
        self.answers |= 1 << answer as usize;
        self
    }

    /// Sets whether to time forks.
    #[must_use]
    pub fn measure(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// Sets which memory is worth freezing.
    #[must_use]
    #[inline]
    pub fn pays(mut self, pays: Pays) -> Self {
        self.pays = pays;
        self
    }

    /// Sets how long the process may be held up at a time.
    #[must_use]
    #[inline]
    pub fn pause(mut self, pause: Pause) -> Self {
        self.pause = pause;
        self
    }

    /// Sets who asks the kernel for huge pages between forks.
    #[must_use]
    pub fn errands(mut self, errands: Errands) -> Self {
        self.errands = errands;
        self
    }

    /// Returns the least populated bytes of a mapping that is frozen. Options are made before the `main` of each
    /// program with the preload object, where nobody asks how long a page is.
    pub(crate) fn least_bytes(&self) -> usize {
        self.least.unwrap_or_else(|| LEAST_PAGES * rustix::param::page_size())
    }

    pub(crate) const fn answers_for_anything(&self) -> bool {
        self.answers != 0
    }

    pub(crate) fn answers_for(&self, answer: Answer) -> bool {
        self.answers & 1 << answer as usize != 0
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
