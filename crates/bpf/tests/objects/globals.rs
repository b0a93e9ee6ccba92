//! Global functions, which the verifier follows alone.

use palimpsest_bpf::Code;

use super::*;

#[test]
fn functions_are_verified_one_by_one() {
    for bytes in objects("global") {
        let object = Object::parse(&bytes).expect("an object");
        let host = object.host().expect("good measures").build();
        let program = object.program("tree").expect("it is there");
        let code = program.code().expect("its structure is right");
        let contract = || contract().budget(20_000);
        let verified = host.verify(contract(), code.clone()).map(|linked| linked.verified().followed());
        let followed = verified.unwrap_or_else(|error| panic!("{}", program.explain(error)));
        assert!(followed < 10 * code.len(), "{followed} instructions were followed, of {}", code.len());
        // The same without types.
        let plain = Code::new(program.bytes()).expect("its structure is right");
        let Err(error) = host.verify(contract(), plain) else { panic!("eight times eight times eight…") };
        assert!(matches!(error.fault, Fault::Budget { .. }), "{error}");
        for way in WAYS {
            // The packet begins with 2; leaves add from 2 on, three each in a row.
            let twenty = run(way, &object, &host, "tree", &mut packet(20));
            assert_eq!(twenty, [2, 3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8, 9, 10, 4, 5, 6, 7].iter().sum(), "{way:?}");
        }
    }
}

#[test]
fn what_only_following_a_call_tells_is_still_known() {
    for bytes in objects("global") {
        let object = Object::parse(&bytes).expect("an object");
        let host = object.host().expect("good measures").build();
        for (way, sum) in WAYS.into_iter().zip([3, 6]) {
            assert_eq!(run(way, &object, &host, "bounded", &mut packet(0)), sum, "{way:?}");
        }
    }
}
