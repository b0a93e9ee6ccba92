//! Objects that gcc has made: other references, no lines, and `const` variables that can be written.
//!
//! What Debian's gcc 12.2 and binutils 2.40 made of `gnu.c`, `legacy.c` and `calls.c` lies in `golden`. If there is a
//! gcc for eBPF, it compiles them again.
//!
//! Mutants that are caught: an immediate that counts as clang's, a map that is looked for behind its symbol.

use super::*;

const GNU: [(&str, &[u8]); 3] = [
    ("gnu", include_bytes!("golden/gnu.o")),
    ("legacy", include_bytes!("golden/gnu_legacy.o")),
    ("calls", include_bytes!("golden/gnu_calls.o")),
];

/// Returns the objects of this source: the golden one, and one compiled now.
fn objects(name: &str) -> Vec<Vec<u8>> {
    let (_, golden) = GNU.iter().find(|(source, _)| *source == name).expect("it is listed");
    let mut objects = vec![golden.to_vec()];
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects/c");
    let made = std::env::temp_dir().join(format!("palimpsest-gnu-{name}-{}.o", std::process::id()));
    let source = format!("{name}.c");
    let flags = ["-O2", "-gbtf", "-mcpu=v3", "-c", "-o"];
    match Command::new("bpf-gcc").args(flags).arg(&made).arg(&source).current_dir(&sources).output() {
        Ok(output) if output.status.success() => objects.push(std::fs::read(&made).expect("it was made")),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {name}.c is not compiled: {}", said.lines().next().unwrap_or("no reason given"));
        }
        Err(error) => eprintln!("skipped: {name}.c is not compiled: no bpf-gcc ({error})"),
    }
    let _ = std::fs::remove_file(made);
    objects
}

#[test]
fn variables_maps_and_functions_are_where_gcc_says() {
    for bytes in objects("gnu") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            let run = |name: &str| run(way, &object, &host, name, &mut packet(1));
            assert_eq!(run("numbers"), 7 * 100 + (9 + 7) + 1 + 1000 + 300, "{way:?}");
            assert_eq!(run("maps"), 321, "{way:?}");
            assert_eq!(run("calls"), 4321 * 3 + 6, "{way:?}");
            for (name, number) in [("one", 1), ("two", 20), ("three", 300)] {
                let map = Arc::clone(host.map(name).expect("it is there"));
                assert_eq!(ArrayHandle::<u64>::new(map).expect("its type").get(1), Some(number), "{name}");
            }
        }
    }
}

#[test]
fn old_maps_and_functions_of_the_host_are_found_by_gccs_names() {
    for bytes in objects("legacy") {
        let object = Object::parse(&bytes).expect("an object");
        for way in WAYS {
            let host = object.host().expect("good measures").build();
            assert_eq!(run(way, &object, &host, "legacy", &mut packet(1)), 7, "{way:?}");
            let second = Arc::clone(host.map("second").expect("it is there"));
            assert_eq!(HashHandle::<u32, u32>::new(second).expect("its types").get(&1), Some(7));
        }
    }
    for bytes in objects("calls") {
        let object = Object::parse(&bytes).expect("an object");
        let signature = Signature::new([Argument::Bytes, Argument::Size]);
        let host = object.host().expect("good measures").function("weigh", signature, |call| Ok(call.number(1)));
        let host = host.function("note", Signature::new([Argument::Number]), |_| Ok(0)).build();
        for way in WAYS {
            assert_eq!(run(way, &object, &host, "weighs", &mut packet(1)), 16 + 8 + 8, "{way:?}");
        }
    }
}
