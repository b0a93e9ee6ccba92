//! Man pages and completions, from the one definition of the command line; and the object of `run` as a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, complain, exit, run};

/// They could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write man pages and completions to {}; name a folder that can be made", folder.display())]
struct Unwritten {
    folder: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes `palimpsest.1`, a page for each subcommand, the completions of bash, zsh and fish, and the object.
pub(crate) fn write(folder: &Path) -> ExitCode {
    match write_all(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(source) => {
            complain(&Unwritten { folder: folder.into(), source });
            exit::FAILED.into()
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let command = Cli::command();
    clap_mangen::generate_to(command.clone(), folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), "palimpsest", folder)?;
    }
    fs::write(folder.join(run::OBJECT_NAME), run::OBJECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_command_and_a_completion_for_each_shell() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("documents");
        write_all(&inside).expect("it can be made");
        let read = |name: &str| fs::read_to_string(inside.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (page, says) in
            [("palimpsest.1", "Exit codes of doctor"), ("palimpsest-run.1", "freeze"), ("palimpsest-doctor.1", "json")]
        {
            assert!(read(page).contains(says), "{page}");
        }
        for name in ["palimpsest.bash", "_palimpsest", "palimpsest.fish"] {
            assert!(read(name).contains("doctor"), "{name}");
        }
        assert_eq!(fs::read(inside.join(run::OBJECT_NAME)).expect("it was written"), run::OBJECT);
        assert!(!inside.join("palimpsest-documents.1").exists(), "hidden commands have no page");
        assert!(write_all(Path::new("/proc/no")).is_err());
    }
}
