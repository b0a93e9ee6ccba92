use palimpsest_sys::capabilities::{Confinement, Lack, Limits, MapCount, ThpDisable};
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
        limits: Limits { address_space: None, file_size: None, locked_memory: Some(65536), open_files: Some(1024) },
        mappings: Ok(MapCount { used: 40, limit: 65530 }),
        perf_event_paranoid: Ok(4),
        thp_settings: Ok("enabled: madvise; shmem_enabled: deny".to_owned()),
    }
}

const CONTAINER: &str = "\
Linux 6.12.9, x86_64, 4 KiB pages, 2 MiB huge pages, 2 NUMA nodes

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
                            fix   allow userfaultfd in the seccomp profile
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

Everything works, 4 of 21 by a fallback.
";

#[test]
fn a_container_is_reported() {
    assert_eq!(render(&container()), CONTAINER);
}

#[test]
fn what_is_missing_is_shouted() {
    let mut machine = container();
    machine.dual_mapping = Err(lack("no second view", "allow it"));
    machine.proc_mem = Err(lack("no /proc", "mount it"));
    let text = render(&machine);
    assert!(text.contains("  MISSING   dual-mapping    no second view\n"), "{text}");
    assert!(text.contains("  backing    none works\n"), "{text}");
    assert!(text.ends_with("Code cannot be loaded here: 4 of 21 needed and missing.\n"), "{text}");
}

#[test]
fn exit_codes_follow_the_grade() {
    assert_eq!([Grade::Best, Grade::Fallbacks, Grade::Missing].map(exit_code), [0, 1, 2]);
}

#[test]
fn json_has_its_shape() {
    let text = render_json(&container()).expect("plain data");
    let json: serde_json::Value = serde_json::from_str(&text).expect("what was written is JSON");
    assert_eq!(json["version"], 1);
    assert_eq!(json["machine"]["page_size"], 4096);
    assert_eq!(json["grade"], "fallbacks");
    assert_eq!(json["choice"]["backing"], "small-memfd");
    assert_eq!(json["choice"]["core_sync"], "signals");
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
        findings[0],
        serde_json::json!({
            "subject": "memory-object",
            "measured": "memfd_create grants MFD_EXEC",
            "status": "best",
        })
    );
}
