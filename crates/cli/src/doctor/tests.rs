use palimpsest_sys::capabilities::{Confinement, DescriptorCount, Lack, Limits, MapCount, ThpDisable, Verdict};
use palimpsest_sys::pages::pagemap::ScanWay;
use palimpsest_sys::proc::status::SeccompMode;
use palimpsest_sys::{ExecRung, SyncPath};

use super::*;

fn lack(why: &str, fix: &str) -> Lack {
    Lack { why: why.to_owned(), fix: fix.to_owned() }
}

/// A container: huge pages and membarrier forbidden, counters left to root.
fn container() -> Capabilities {
    Capabilities {
        machine: Machine {
            kernel: "6.12.9".to_owned(),
            architecture: "x86_64",
            page_size: 4096,
            huge_page_size: Some(2 << 20),
            numa_nodes: vec![0, 1],
        },
        proc: Ok("mounted".to_owned()),
        memory_object: Ok(ExecRung::Exec),
        dual_mapping: Ok("two views agree".to_owned()),
        huge_text: Err(lack("shmem_enabled is \"deny\"", "echo never > shmem_enabled")),
        huge_pool: Err(lack("the pool is empty", "sysctl -w vm.nr_hugepages=64")),
        anonymous_huge: Ok("collapsed".to_owned()),
        proc_mem: Ok("a read-execute page was written".to_owned()),
        membarrier: Err(lack("membarrier fails", "allow membarrier in the seccomp profile")),
        core_sync: Ok(SyncPath::Signals),
        userfaultfd: Err(lack("userfaultfd fails", "allow userfaultfd in the seccomp profile")),
        memory_policy: Ok("answered".to_owned()),
        confinement: Confinement {
            seccomp: Some(SeccompMode::Filter),
            mdwe: Some(true),
            thp_disable: ThpDisable::Off,
            selinux_domain: None,
        },
        limits: Limits {
            address_space: None,
            file_size: None,
            most_file_size: None,
            locked_memory: Some(65536),
            open_files: Some(1024),
        },
        mappings: Ok(MapCount { used: 40, limit: 65530 }),
        descriptors: Some(DescriptorCount { used: 3, limit: 1024 }),
        freeze_calls: Ok(()),
        page_scan: Ok(ScanWay::Entries),
        perf_event_paranoid: Ok(4),
        thp_settings: Ok("enabled: madvise; shmem_enabled: deny".to_owned()),
    }
}

fn beside() -> Vec<Standing> {
    vec![
        Standing { feature: Feature::Run, verdict: Verdict::Works { how: "a shell was frozen".to_owned() } },
        Standing {
            feature: Feature::PagingGuests,
            verdict: Verdict::Fails { why: "no QEMU".to_owned(), fix: "install it".to_owned() },
        },
    ]
}

fn report(capabilities: Capabilities) -> Report {
    Report::of(capabilities, beside())
}

const CONTAINER: &str = "\
Linux 6.12.9, x86_64, 4 KiB pages, 2 MiB huge pages, 2 NUMA nodes

  works     freeze          sealed memory files
  slower    snapshot        this kernel has no PAGEMAP_SCAN: the entry of every page is read
                            fix   use Linux 6.7 or later
  works     arena           shared memory files until it is frozen
  slower    packs           small-memfd, more iTLB misses: shmem_enabled is \"deny\"
                            fix   echo never > shmem_enabled
  slower    poke            a signal to every thread: membarrier fails
                            fix   allow membarrier in the seccomp profile
  slower    keys            a signal to every thread: membarrier fails
                            fix   allow membarrier in the seccomp profile
  slower    bpf             small-memfd, more iTLB misses: shmem_enabled is \"deny\"
                            fix   echo never > shmem_enabled
  slower    replicas        copies in small pages: shmem_enabled is \"deny\"
                            fix   echo never > shmem_enabled
  slower    local-text      copies in small pages: shmem_enabled is \"deny\"
                            fix   echo never > shmem_enabled
  works     run             a shell was frozen
  FAILS     paging-guests   no QEMU
                            fix   install it

What was tried
  best      memory-object   memfd_create grants MFD_EXEC
  best      dual-mapping    two views agree
  fallback  huge-text       shmem_enabled is \"deny\"
                            uses  small-memfd (base pages: more iTLB misses)
                            fix   echo never > shmem_enabled
  fallback  huge-pool       the pool is empty
                            uses  small-memfd (base pages: more iTLB misses)
                            fix   sysctl -w vm.nr_hugepages=64
  best      proc-mem        a read-execute page was written
  best      anonymous-huge  collapsed
  best      thp-settings    enabled: madvise; shmem_enabled: deny
  fallback  core-sync       membarrier fails
                            uses  a signal to every thread, slower
                            fix   allow membarrier in the seccomp profile
  best      proc            mounted
  unneeded  userfaultfd     userfaultfd fails
  best      numa            2 nodes
  best      memory-policy   answered
  best      mdwe            set; packs never need memory that is writable and executable
  best      seccomp         filtered; each call above was first tried in a child
  best      selinux         not enforcing
  best      address-space   unlimited
  best      file-size       unlimited
  best      locked-memory   65536 bytes
  best      open-files      1024 descriptors
  best      mappings        40 of 65530
  fallback  perf-events     kernel.perf_event_paranoid is 4, which leaves counters to privileged users
                            uses  times alone; no cache and TLB misses in the bench
                            fix   sysctl -w kernel.perf_event_paranoid=2

Palimpsest will use
  backing    small-memfd
  core sync  signals

All 10 work, some slower: snapshot, packs, poke, keys, bpf, replicas, local-text.
";

#[test]
fn a_container_is_reported() {
    assert_eq!(text::render(&report(container()), Paint::Plain), CONTAINER);
}

#[test]
fn colours_are_beside_the_words_and_change_nothing_else() {
    let coloured = text::render(&report(container()), Paint::Coloured);
    let mut plain = coloured.clone();
    for code in ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"] {
        assert!(coloured.contains(code), "{code:?}");
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, CONTAINER);
}

#[test]
fn what_fails_is_named_and_shouted() {
    let mut machine = container();
    machine.dual_mapping = Err(lack("no second view", "allow it"));
    machine.proc_mem = Err(lack("no /proc", "mount it"));
    machine.freeze_calls = Err(lack("a seccomp filter kills memfd_create", "allow it"));
    let text = text::render(&report(machine), Paint::Plain);
    assert!(text.contains("  FAILS     packs           no second view\n"), "{text}");
    assert!(text.contains("  FAILS     freeze          a seccomp filter kills memfd_create\n"), "{text}");
    assert!(text.contains("  MISSING   dual-mapping    no second view\n"), "{text}");
    assert!(text.contains("  backing    none works\n"), "{text}");
    assert!(text.ends_with("Does not work here: freeze, snapshot, packs.\n"), "{text}");
}

#[test]
fn exit_codes_follow_the_grade_and_no_other_uses_their_numbers() {
    let code = |grade| Report { grade, ..report(container()) }.exit_code();
    assert_eq!([Grade::Best, Grade::Slower, Grade::Fails].map(code), [0, 1, 3]);
    let mut other = vec![exit::USAGE, exit::UNWRITTEN];
    other.extend([Grade::Best, Grade::Slower, Grade::Fails].map(code));
    other.sort_unstable();
    other.dedup();
    assert_eq!(other.len(), 5);
}

#[test]
fn json_has_its_shape() {
    let text = serde_json::to_string_pretty(&report(container())).expect("plain data");
    let json: serde_json::Value = serde_json::from_str(&text).expect("what was written is JSON");
    assert_eq!(json["version"], 2);
    assert_eq!(json["palimpsest"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["machine"]["page_size"], 4096);
    assert_eq!(json["grade"], "slower");
    assert_eq!(json["choice"]["backing"], "small-memfd");
    assert_eq!(json["choice"]["core_sync"], "signals");
    assert_eq!(
        json["features"][0],
        serde_json::json!({ "feature": "freeze", "verdict": "works", "how": "sealed memory files" })
    );
    assert_eq!(json["features"][10]["feature"], "paging-guests");
    let findings = json["findings"].as_array().expect("a list");
    assert_eq!(findings.len(), 21);
    assert_eq!(
        findings[2],
        serde_json::json!({
            "subject": "huge-text",
            "measured": "not to be had",
            "status": "fallback",
            "uses": "small-memfd (base pages: more iTLB misses)",
            "why": "shmem_enabled is \"deny\"",
            "fix": "echo never > shmem_enabled",
        })
    );
    assert_eq!(
        findings[9],
        serde_json::json!({
            "subject": "userfaultfd",
            "measured": "not to be had",
            "status": "unneeded",
            "why": "userfaultfd fails",
        })
    );
}
