use super::*;

/// Returns a machine on which everything works.
fn ideal() -> Capabilities {
    let works = || Ok("works".to_owned());
    Capabilities {
        machine: Machine {
            kernel: "6.12.0".to_owned(),
            architecture: "x86_64",
            page_size: 4096,
            huge_page_size: Some(2 << 20),
            numa_nodes: vec![0, 1],
        },
        proc: works(),
        memory_object: Ok(ExecRung::Exec),
        dual_mapping: works(),
        huge_text: works(),
        huge_pool: works(),
        anonymous_huge: works(),
        proc_mem: works(),
        membarrier: works(),
        core_sync: Ok(SyncPath::Membarrier),
        userfaultfd: works(),
        memory_policy: works(),
        confinement: Confinement {
            seccomp: Some(SeccompMode::Disabled),
            mdwe: Some(false),
            thp_disable: ThpDisable::Off,
            selinux_domain: None,
        },
        limits: Limits {
            address_space: None,
            file_size: None,
            most_file_size: None,
            locked_memory: Some(8 << 20),
            open_files: Some(1024),
        },
        mappings: Ok(MapCount { used: 40, limit: 65530 }),
        descriptors: Some(DescriptorCount { used: 3, limit: 1024 }),
        freeze_calls: Ok(()),
        page_scan: Ok(ScanWay::Ioctl),
        perf_event_paranoid: Ok(2),
        thp_settings: works(),
    }
}

fn lack() -> Lack {
    Lack::new("it is forbidden", "allow it")
}

fn grade(capabilities: &Capabilities) -> Grade {
    let grades = capabilities.features().into_iter().map(|standing| standing.verdict.grade());
    grades.max().expect("there are features")
}

/// Returns the features with this grade.
fn with_grade(capabilities: &Capabilities, grade: Grade) -> Vec<Feature> {
    let standings = capabilities.features().into_iter();
    standings.filter(|standing| standing.verdict.grade() == grade).map(|standing| standing.feature).collect()
}

fn status(capabilities: &Capabilities, subject: Subject) -> Status {
    let mut findings = capabilities.findings().into_iter();
    findings.find(|finding| finding.subject == subject).expect("every subject is reported").status
}

#[test]
fn an_ideal_machine_gets_the_best() {
    let ideal = ideal();
    assert_eq!(grade(&ideal), Grade::Best);
    let choice = ideal.choice();
    assert_eq!(choice.backing, Some(TextBacking::CollapsedMemfd));
    assert_eq!(choice.core_sync_name(), Some("membarrier"));
}

#[test]
fn backings_are_taken_in_order() {
    let mut machine = ideal();
    machine.huge_text = Err(lack());
    assert_eq!(machine.choice().backing, Some(TextBacking::HugetlbMemfd));
    machine.huge_pool = Err(lack());
    assert_eq!(machine.choice().backing, Some(TextBacking::SmallMemfd));
    machine.dual_mapping = Err(lack());
    assert_eq!(machine.choice().backing, Some(TextBacking::ProcMem));
    let small = [Feature::Packs, Feature::Bpf, Feature::Replicas, Feature::LocalText];
    assert_eq!(with_grade(&machine, Grade::Slower), small);
    machine.proc_mem = Err(lack());
    assert_eq!(machine.choice().backing, None);
    assert_eq!(with_grade(&machine, Grade::Fails), [Feature::Packs]);
    let slower = [Feature::Poke, Feature::Keys, Feature::Bpf, Feature::Replicas, Feature::LocalText];
    assert_eq!(with_grade(&machine, Grade::Slower), slower);
    assert!(matches!(status(&machine, Subject::ProcMem), Status::Missing { .. }));
}

#[test]
fn what_no_chosen_backing_uses_is_not_missed() {
    let mut machine = ideal();
    machine.huge_pool = Err(lack());
    machine.anonymous_huge = Err(lack());
    machine.userfaultfd = Err(lack());
    assert_eq!(grade(&machine), Grade::Best);
    assert!(matches!(status(&machine, Subject::HugePool), Status::Unneeded { .. }));
}

#[test]
fn cores_can_be_synchronised_by_signals_or_not_at_all() {
    let mut machine = ideal();
    machine.membarrier = Err(lack());
    machine.core_sync = Ok(SyncPath::Signals);
    assert_eq!(machine.choice().core_sync_name(), Some("signals"));
    assert_eq!(with_grade(&machine, Grade::Slower), [Feature::Poke, Feature::Keys]);
    machine.core_sync = Err(Lack::new("no way", "open one"));
    assert_eq!(machine.choice().core_sync_name(), None);
    assert_eq!(with_grade(&machine, Grade::Fails), [Feature::Poke, Feature::Keys]);
    let fix = "open one".to_owned();
    assert_eq!(status(&machine, Subject::CoreSync), Status::Missing { why: "no way".to_owned(), fix });
}

#[test]
fn small_limits_are_told() {
    let mut machine = ideal();
    machine.limits.address_space = Some(1 << 30);
    machine.mappings = Ok(MapCount { used: 65000, limit: 65530 });
    machine.perf_event_paranoid = Ok(4);
    machine.memory_object = Ok(ExecRung::NoexecSeal);
    machine.confinement.thp_disable = ThpDisable::On;
    for subject in
        [Subject::AddressSpace, Subject::Mappings, Subject::PerfEvents, Subject::MemoryObject, Subject::ThpSettings]
    {
        assert!(matches!(status(&machine, subject), Status::Fallback { .. }), "{subject}");
    }
    let Status::Fallback { fix, .. } = status(&machine, Subject::Mappings) else { unreachable!("checked above") };
    assert_eq!(fix, "sysctl -w vm.max_map_count=262120");
}

#[test]
fn this_machine_can_run_code() {
    let capabilities = Capabilities::probe();
    assert!(capabilities.choice().backing.is_some(), "{capabilities:#?}");
    assert_ne!(grade(&capabilities), Grade::Fails, "{:#?}", capabilities.features());
}

const FREEZING: [Feature; 2] = [Feature::Freeze, Feature::Snapshot];

#[test]
fn whatever_freezing_needs_is_told_with_what_brings_it() {
    type Take = fn(&mut Capabilities);
    let takes: [(Take, &str, &[Feature]); 5] = [
        (|machine| machine.proc = Err(lack()), "allow it", &[Feature::Freeze, Feature::Snapshot, Feature::LocalText]),
        (|machine| machine.freeze_calls = Err(lack()), "allow it", &FREEZING),
        (
            |machine| machine.limits.most_file_size = Some(1 << 30),
            "ulimit -f unlimited, by root: the limit is a hard one",
            &FREEZING,
        ),
        (
            |machine| machine.descriptors = Some(DescriptorCount { used: 6, limit: 8 }),
            "ulimit -n 1024",
            &[Feature::Freeze, Feature::Snapshot, Feature::Arena],
        ),
        (
            |machine| machine.mappings = Ok(MapCount { used: 65500, limit: 65530 }),
            "sysctl -w vm.max_map_count=262120",
            &FREEZING,
        ),
    ];
    for (take, expected, features) in takes {
        let mut machine = ideal();
        take(&mut machine);
        assert_eq!(with_grade(&machine, Grade::Fails), features);
        assert_eq!(machine.freeze_lack().expect("something is lacking").fix, expected);
    }
    let mut roomy = ideal();
    roomy.descriptors = Some(DescriptorCount { used: 5, limit: 8 });
    assert_eq!(roomy.freeze_lack(), None);
}

/// Fails on: a freeze that is said to fail by the limit that it lifts, or a snapshot to work that nobody takes.
#[test]
fn a_soft_limit_on_the_size_of_files_forbids_snapshots_alone() {
    for bytes in [4096, 1 << 30, 1 << 62] {
        let mut machine = ideal();
        machine.limits.file_size = Some(bytes);
        assert_eq!((with_grade(&machine, Grade::Fails), machine.freeze_lack()), (vec![Feature::Snapshot], None));
    }
    let mut machine = ideal();
    machine.limits.most_file_size = Some(1 << 46);
    assert_eq!(machine.freeze_lack(), None, "as much as a memory file has");
}

#[test]
fn an_older_kernel_finds_written_pages_slower() {
    let mut machine = ideal();
    machine.page_scan = Ok(ScanWay::Entries);
    assert_eq!(with_grade(&machine, Grade::Slower), [Feature::Snapshot]);
}

#[test]
fn an_error_is_told_with_its_sources() {
    let error = node::parse_list("x").expect_err("no list");
    let error = ProcError::Parse { path: "/sys/x".into(), source: error };
    assert_eq!(
        Causes(&error).to_string(),
        "cannot understand /sys/x: line 1 is \"x\", which has no list such as 0-3,8"
    );
}

#[test]
fn memory_policies_matter_where_there_are_nodes() {
    let mut machine = ideal();
    machine.memory_policy = Err(lack());
    assert!(matches!(status(&machine, Subject::MemoryPolicy), Status::Fallback { .. }));
    assert_eq!(with_grade(&machine, Grade::Slower), [Feature::Replicas, Feature::LocalText]);
    machine.machine.numa_nodes = vec![0];
    assert!(matches!(status(&machine, Subject::MemoryPolicy), Status::Unneeded { .. }));
    assert_eq!(with_grade(&machine, Grade::Slower), []);
}

/// Fails on: text that is said to be shared by whoever does not ask for that.
#[test]
fn local_text_is_said_to_be_shared_only_on_request() {
    let mut machine = ideal();
    for (nodes, says) in [(vec![0], "one node: huge pages of the file"), (vec![0, 1], "on the wanted node")] {
        machine.machine.numa_nodes = nodes;
        let text = machine.features().into_iter().find(|standing| standing.feature == Feature::LocalText);
        let Some(Verdict::Works { how }) = text.map(|standing| standing.verdict) else { panic!("it works") };
        assert!(how.contains(says) && how.contains("--shared"), "{how}");
    }
}
