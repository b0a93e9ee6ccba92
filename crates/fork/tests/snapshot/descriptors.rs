//! Descriptors that come back.

use super::*;

#[test]
fn descriptors_come_back() {
    play("descriptors::descriptors_come_back", || {
        use std::io::{Read, Seek};
        use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
        let mut file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut bytes = [0; 100];
        file.read_exact(&mut bytes).unwrap();
        let other = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        let (reader, _writer) = std::io::pipe().unwrap();
        let reader = reader.into_raw_fd();
        let mut snapshot = take(&whole().descriptors(Descriptors::Restore));
        for round in 0..3 {
            file.read_exact(&mut bytes).unwrap();
            let opened = std::fs::File::open("/dev/zero").unwrap().into_raw_fd();
            // SAFETY: the scenario's own descriptors.
            assert_eq!(unsafe { libc::close(other) }, 0);
            if round == 2 {
                // SAFETY: as above.
                assert_eq!(unsafe { libc::close(reader) }, 0);
            }
            let restored = restore(&mut snapshot);
            assert_eq!((restored.closed, restored.reopened), (1, 1), "{restored:?}");
            assert_eq!(restored.lost, usize::from(round == 2));
            assert_eq!(file.stream_position().unwrap(), 100);
            // SAFETY: asks about a number.
            assert_eq!(unsafe { libc::fcntl(opened, libc::F_GETFD) }, -1);
            // SAFETY: put back above; given away again below.
            let null = unsafe { std::fs::File::from_raw_fd(other) };
            assert_ne!(null.as_raw_fd(), file.as_raw_fd());
            assert_eq!((&null).read(&mut bytes).unwrap(), 0, "it is /dev/null again");
            let _ = null.into_raw_fd();
        }
    });
}

#[test]
fn descriptors_come_back_with_their_flag() {
    play("descriptors::descriptors_come_back_with_their_flag", || {
        use std::os::fd::IntoRawFd;
        let [kept, closed] = [(); 2].map(|()| std::fs::File::open("/dev/null").unwrap().into_raw_fd());
        // SAFETY: the scenario's own descriptor.
        assert_eq!(unsafe { libc::fcntl(kept, libc::F_SETFD, 0) }, 0);
        let mut snapshot = take(&whole().descriptors(Descriptors::Restore));
        for number in [kept, closed] {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::close(number) }, 0);
        }
        assert_eq!(restore(&mut snapshot).reopened, 2);
        // SAFETY: asks about numbers.
        let flags = [kept, closed].map(|number| unsafe { libc::fcntl(number, libc::F_GETFD) });
        assert_eq!(flags, [0, libc::FD_CLOEXEC], "the descriptor is handed to programs that the target starts, or not");
    });
}

/// Replaces a descriptor by another open of the same file. Returns what a restore counts as open again, with that and
/// without.
fn another_open_is_replaced() -> [usize; 2] {
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;
    let mut file = std::fs::File::open("/proc/self/exe").unwrap();
    let mut copy = file.try_clone().unwrap();
    let mut bytes = [0; 100];
    file.read_exact(&mut bytes).unwrap();
    let mut snapshot = take(&whole().descriptors(Descriptors::Restore));
    let mut counts = [0; 2];
    for replaced in [true, false, true, false] {
        if replaced {
            let other = std::fs::File::open("/proc/self/exe").unwrap();
            // SAFETY: the scenario's own descriptors.
            assert_ne!(unsafe { libc::dup2(other.as_raw_fd(), file.as_raw_fd()) }, -1);
            drop(other);
        }
        file.read_exact(&mut bytes).unwrap();
        let restored = restore(&mut snapshot);
        counts[usize::from(!replaced)] = restored.reopened;
        assert_eq!((restored.closed, restored.lost), (0, 0));
        assert_eq!(file.stream_position().unwrap(), 100);
        copy.seek(std::io::SeekFrom::Start(5)).unwrap();
        assert_eq!(file.stream_position().unwrap(), 5, "the descriptor and its copy are of one open file");
    }
    counts
}

#[test]
fn another_open_of_the_same_file_is_replaced() {
    play("descriptors::another_open_of_the_same_file_is_replaced", || {
        assert_eq!(another_open_is_replaced(), [1, 0]);
    });
}

#[test]
fn another_open_of_the_same_file_is_replaced_where_the_kernel_does_not_tell() {
    play("descriptors::another_open_of_the_same_file_is_replaced_where_the_kernel_does_not_tell", || {
        match refusing::refuse_call(libc::SYS_kcmp) {
            Ok(()) => assert_eq!(another_open_is_replaced(), [1, 0], "their offsets tell it"),
            Err(error) => println!("skipped: no filters here: {error}"),
        }
    });
}
