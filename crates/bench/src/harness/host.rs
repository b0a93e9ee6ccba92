//! What a record says about the machine.

use std::fs;

use super::record::Machine;

const MEMINFO: &str = "/proc/meminfo";

/// Reads the description of this machine. What the kernel does not tell stays empty.
#[must_use]
pub fn describe() -> Machine {
    Machine {
        cpu: cpu_model(&read("/proc/cpuinfo").unwrap_or_default()),
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        architecture: std::env::consts::ARCH.to_owned(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        memory_bytes: kibibytes(&read(MEMINFO).unwrap_or_default(), "MemTotal:").unwrap_or(0) * 1024,
        page_bytes: rustix::param::page_size() as u64,
        huge_page_bytes: read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
            .and_then(|text| text.trim().parse().ok()),
        thp_enabled: read("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| selected(&text)),
        thp_shmem_enabled: read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").and_then(|text| selected(&text)),
        palimpsest: env!("CARGO_PKG_VERSION").to_owned(),
        backing: None,
        refused: Vec::new(),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// x86 names the model; AArch64 gives only numbers of the implementer and the part.
fn cpu_model(cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    field("model name").unwrap_or_else(|| match (field("CPU implementer"), field("CPU part")) {
        (Some(implementer), Some(part)) => format!("implementer {implementer} part {part}"),
        _ => "unknown".to_owned(),
    })
}

/// Returns the memory that programs can have without others losing theirs (`MemAvailable`), in bytes.
pub(crate) fn available_memory() -> usize {
    let kib = kibibytes(&read(MEMINFO).unwrap_or_default(), "MemAvailable:");
    // If the kernel does not tell, there is enough.
    kib.and_then(|kib| usize::try_from(kib).ok()).map_or(usize::MAX / 2, |kib| kib * 1024)
}

/// Returns how many threads want to run, on average over the last minute (`/proc/loadavg`); `None` if the kernel does
/// not tell.
#[must_use]
pub fn load_average() -> Option<f64> {
    read("/proc/loadavg")?.split_whitespace().next()?.parse().ok()
}

/// Reads a field of `/proc/meminfo`, which counts KiB.
fn kibibytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The word in brackets of `always [madvise] never`.
fn selected(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_are_read() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\n"), "AMD EPYC");
        assert_eq!(cpu_model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "implementer 0x41 part 0xd0c");
        assert_eq!(cpu_model(""), "unknown");
        assert_eq!(kibibytes("MemTotal:       1024 kB\nMemAvailable: 9 kB\n", "MemAvailable:"), Some(9));
        assert_eq!(kibibytes("nonsense", "MemTotal:"), None);
        assert_eq!(selected("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(selected("always"), None);
    }

    #[test]
    fn this_machine_has_a_page_size_and_a_kernel() {
        let machine = describe();
        assert!(machine.page_bytes >= 4096);
        assert!(!machine.kernel.is_empty());
    }
}
