//! Writes the "newc" archive in which Linux takes an initramfs
//! (kernel, `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// Bits of a mode that say what kind of entry it is (`stat(2)`).
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
/// The entry that ends an archive.
const END: &str = "TRAILER!!!";

/// An archive that is being written. Folders come before their contents.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// The part of an entry's header that varies.
struct Entry<'a> {
    path: &'a str,
    mode: u32,
    /// Major and minor number of a device.
    device: (u32, u32),
    content: &'a [u8],
}

impl Archive {
    /// Adds a folder; `path` has no leading slash.
    pub(super) fn folder(&mut self, path: &str) {
        self.entry(&Entry { path, mode: FOLDER | 0o755, device: (0, 0), content: &[] });
    }

    /// Adds a file that can be run.
    ///
    /// # Panics
    /// If `content` is 4 GiB or longer, which the format cannot express.
    pub(super) fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(&Entry { path, mode: FILE | 0o755, device: (0, 0), content });
    }

    /// Adds a character device.
    pub(super) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(&Entry { path, mode: CHARACTER_DEVICE | 0o600, device: (major, minor), content: &[] });
    }

    /// Returns the finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(&Entry { path: END, mode: 0, device: (0, 0), content: &[] });
        self.bytes
    }

    fn entry(&mut self, entry: &Entry<'_>) {
        self.entries += 1;
        let length = u32::try_from(entry.content.len()).expect("a file of less than 4 GiB");
        let name_length = u32::try_from(entry.path.len() + 1).expect("a path of less than 4 GiB");
        let (links, owner, group, time, file_device, checksum) = (1, 0, 0, 0, (0, 0), 0);
        let fields = [
            self.entries,
            entry.mode,
            owner,
            group,
            links,
            time,
            length,
            file_device.0,
            file_device.1,
            entry.device.0,
            entry.device.1,
            name_length,
            checksum,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(entry.path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(entry.content);
        self.pad();
    }

    /// Pads to a multiple of four bytes, as names and contents must be.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_laid_out_as_newc() {
        let mut archive = Archive::default();
        archive.program("init", b"hello");
        let bytes = archive.finish();
        let header = "070701\
            00000001000081ed000000000000000000000001000000000000000500000000000000000000000000000000000000050000\
            0000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..116], b"init\0\0", "the name is padded from 110 + 5 to 116");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[234..245], b"TRAILER!!!\0");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_device_carries_its_numbers() {
        let mut archive = Archive::default();
        archive.character_device("dev/console", 5, 1);
        let bytes = archive.finish();
        assert_eq!(&bytes[14..22], b"00002180");
        assert_eq!(&bytes[78..94], b"0000000500000001");
    }
}
