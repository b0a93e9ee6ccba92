//! Removing the preload object from `LD_PRELOAD`: every other entry and variable stays, in its order, and nothing is
//! written beyond the strings.
#![no_main]

#[allow(dead_code, unsafe_code, reason = "a module of the preload object, which must not be linked")]
#[path = "../../crates/preload/src/environment.rs"]
mod environment;

use std::ffi::{CStr, c_char};

use libfuzzer_sys::fuzz_target;

const OBJECT: &[u8] = b"libpalimpsest_preload.so";

fuzz_target!(|bytes: &[u8]| {
    // `@` stands for the object's name and `=` at the start of a line for the variable, so that both are often met.
    let lines: Vec<Vec<u8>> = bytes
        .split(|byte| *byte == b'\n')
        .map(|line| {
            let mut text = Vec::new();
            for (place, &byte) in line.iter().enumerate() {
                match byte {
                    0 => text.push(1),
                    b'@' => text.extend_from_slice(OBJECT),
                    b'=' if place == 0 => text.extend_from_slice(b"LD_PRELOAD="),
                    other => text.push(other),
                }
            }
            text
        })
        .collect();
    let mut owned: Vec<Vec<u8>> = lines.iter().map(|line| [line.as_slice(), &[0]].concat()).collect();
    let mut raw: Vec<*mut c_char> = owned.iter_mut().map(|string| string.as_mut_ptr().cast()).collect();
    raw.push(std::ptr::null_mut());
    #[expect(unsafe_code, reason = "the function works on the environment that the kernel hands over")]
    // SAFETY: the array ends with a null, its strings are writable, and no other thread knows of it.
    unsafe {
        environment::leave_preload(raw.as_mut_ptr());
    }
    let strings = raw.iter().take_while(|string| !string.is_null());
    let read = |string: &*mut c_char| {
        #[expect(unsafe_code, reason = "as above")]
        // SAFETY: each is one of the strings above, which still end with a zero.
        let string = unsafe { CStr::from_ptr(*string) };
        string.to_bytes().to_vec()
    };
    let left: Vec<Vec<u8>> = strings.map(read).collect();
    assert_eq!(left, lines.iter().filter_map(|line| expected(line)).collect::<Vec<_>>());
});

/// Returns what should become of a variable.
fn expected(line: &[u8]) -> Option<Vec<u8>> {
    let Some(value) = line.strip_prefix(b"LD_PRELOAD=") else { return Some(line.to_vec()) };
    let entries: Vec<&[u8]> =
        value.split(|byte| matches!(byte, b':' | b' ')).filter(|entry| !entry.is_empty()).collect();
    let is_ours =
        |entry: &&[u8]| entry.ends_with(OBJECT) && matches!(entry.iter().rev().nth(OBJECT.len()), None | Some(b'/'));
    let others: Vec<&[u8]> = entries.iter().copied().filter(|entry| !is_ours(entry)).collect();
    if others.is_empty() {
        return None;
    }
    let joined = others.join(&b':');
    // Only blanks besides: left as it is.
    Some([b"LD_PRELOAD=".as_slice(), if joined.len() < value.len() { &joined } else { value }].concat())
}
