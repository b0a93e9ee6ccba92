//! Reads memory at any address, without a fault if nothing is mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::last_errno;

/// Pages of all machines are multiples of this, so that each such part is mapped as a whole or not at all.
const PART: usize = 4096;

/// Copies what this process has mapped at `address`, as far as it may read it. Returns the number of bytes. Stops at
/// holes and at devices.
///
/// Uses `process_vm_readv`, which the kernel allows every process for itself, and `/proc/self/mem` if a filter refuses
/// that call: the file also reads memory without any rights, such as guard pages. Writes of other threads meanwhile may
/// be seen in part.
pub fn read_own(address: usize, bytes: &mut [u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        let Some(at) = address.checked_add(done) else { break };
        let part = (PART - at % PART).min(bytes.len() - done);
        let room = &mut bytes[done..done + part];
        match read_part(at, room).or_else(|refused| read_part_of_file(at, room, refused)) {
            Ok(count) if count == part => done += part,
            _ => break,
        }
    }
    done
}

fn read_part(address: usize, room: &mut [u8]) -> Result<usize, Errno> {
    let local = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: room.len() };
    // The number of the calling process, also in a forked child.
    let process = std::process::id() as i32;
    // SAFETY: the kernel writes at most `room.len()` bytes to `room`, and fails if `address` cannot be read.
    let count = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// Does the same if the call itself was refused.
fn read_part_of_file(address: usize, room: &mut [u8], refused: Errno) -> Result<usize, Errno> {
    if refused == Errno::FAULT {
        return Err(refused);
    }
    let file = File::open("/proc/self/mem").map_err(|_| refused)?;
    file.read_at(room, address as u64).map_err(|_| refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied_and_the_rest_is_not() {
        let source: Vec<u8> = (0..10_000).map(|number| number as u8).collect();
        let mut copy = vec![0; source.len()];
        assert_eq!(read_own(source.as_ptr().addr(), &mut copy), source.len());
        assert_eq!(copy, source);
        for address in [0, 8, usize::MAX - 3, 1 << 60] {
            assert_eq!(read_own(address, &mut [0; 8]), 0, "{address:#x}");
        }
    }

    #[test]
    fn a_file_serves_where_the_call_is_refused() {
        let source = [7_u8; 16];
        let mut copy = [0; 16];
        let read = |address, room: &mut [u8]| read_part_of_file(address, room, Errno::PERM);
        assert_eq!(read(source.as_ptr().addr(), &mut copy), Ok(16));
        assert_eq!(copy, source);
        assert_eq!(read(8, &mut copy), Err(Errno::PERM));
    }
}
