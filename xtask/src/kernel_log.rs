//! What the kernel says meanwhile, such as where a program was that a signal has ended.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Most lines that are told.
const MOST: usize = 5;

/// The kernel's log from one moment on.
pub(crate) struct KernelLog(Option<std::fs::File>);

impl KernelLog {
    /// Begins to listen. Without the right to read the log nothing is heard.
    pub(crate) fn listen() -> Self {
        let flags = rustix::fs::OFlags::NONBLOCK.bits();
        let file = std::fs::OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open("/dev/kmsg");
        Self(file.ok().filter(|file| (&*file).seek(SeekFrom::End(0)).is_ok()))
    }

    /// Returns the last lines since then, those of the audit left out, which name each call that a filter refuses.
    pub(crate) fn heard(self) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(mut file) = self.0 else { return lines };
        // A record comes at a time (`Documentation/ABI/testing/dev-kmsg`).
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => break,
                Ok(len) => lines.extend(text_of(&String::from_utf8_lossy(&record[..len]))),
                // What was overwritten meanwhile is skipped.
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(_) => break,
            }
        }
        lines.drain(..lines.len().saturating_sub(MOST));
        lines
    }
}

/// Returns the text of a record: between the semicolon and the end of the line.
fn text_of(record: &str) -> Option<String> {
    let text = record.split_once(';')?.1.lines().next()?;
    (!text.starts_with("audit: ")).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_its_text() {
        let told = text_of("4,17,1000,-;traps: a[7] trap invalid opcode ip:1 sp:2 error:0 in a[1,2+3]\n SUBSYSTEM=x\n");
        assert_eq!(told.as_deref(), Some("traps: a[7] trap invalid opcode ip:1 sp:2 error:0 in a[1,2+3]"));
        assert_eq!(text_of("5,18,1000,-;audit: type=1326"), None);
        assert_eq!(text_of("no record"), None);
    }

    /// Fails on: lines from before, and an endless wait for one.
    #[test]
    fn what_came_before_is_not_heard() {
        assert!(KernelLog::listen().heard().len() <= MOST);
    }
}
