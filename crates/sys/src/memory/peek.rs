//! Reading whatever is at an address, without a fault where nothing is.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::last_errno;

/// Pages of all machines begin at multiples of this, so that a part up to the next one is there as a whole or not.
const PART: usize = 4096;

/// Copies what this process has mapped at `address`, as far as it may read it; how many bytes. Where nothing is, and
/// where a device is, it stops.
///
/// By `process_vm_readv`, which the kernel lets every process call for itself; through `/proc/self/mem` where a filter
/// refuses that call: that file also gives what no access is allowed to, such as guard pages. What other threads write
/// meanwhile may be seen in part.
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
    // The number of the process that calls, in a forked child too.
    let process = std::process::id() as i32;
    // SAFETY: the kernel writes `room.len()` bytes at most to `room`, and fails where `address` cannot be read.
    let count = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| last_errno())
}

/// The same where the call itself was refused.
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
