//! The processes of a program: children, when they run, how they end, and what replaces them.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use crate::calls::World;
use crate::program::Turn;
use crate::run::{self, PATH, PROGRAM};

/// This process and its children.
pub(crate) struct Family {
    path: String,
    born: usize,
    waiting: Vec<Child>,
}

struct Child {
    name: String,
    pid: Pid,
    /// A byte into this pipe lets the child go on.
    gate: Option<OwnedFd>,
    /// Operations of the parent until then.
    due: u8,
}

impl Family {
    pub(crate) fn new(path: String) -> Self {
        Self { path, born: 0, waiting: Vec::new() }
    }

    /// The numbers of this process and its ancestors among their siblings.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Forks. Returns whether this is the child, which returns when its turn has come.
    pub(crate) fn fork(&mut self, world: World, turn: Turn) -> bool {
        let (inlet, outlet) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let name = format!("{}.{}", self.path, self.born);
        self.born += 1;
        let Some(pid) = Pid::from_raw(world.fork()) else {
            drop(outlet);
            *self = Self::new(name);
            // If the parent is killed, nobody is left behind.
            set_parent_process_death_signal(Some(Signal::KILL)).expect("a known signal");
            if matches!(turn, Turn::After(_)) {
                let mut byte = [0];
                assert_eq!(rustix::io::read(&inlet, &mut byte), Ok(1), "the parent opens the gate");
            }
            return true;
        };
        match turn {
            Turn::First => self.wait(&Child { name, pid, gate: None, due: 0 }),
            Turn::After(due) => self.waiting.push(Child { name, pid, gate: Some(outlet), due }),
            Turn::Beside => self.waiting.push(Child { name, pid, gate: None, due: u8::MAX }),
        }
        false
    }

    /// Tells the family that an operation was done.
    pub(crate) fn tick(&mut self) {
        for mut child in std::mem::take(&mut self.waiting) {
            match child.due.checked_sub(1) {
                Some(due) => {
                    child.due = due;
                    self.waiting.push(child);
                }
                None => self.wait(&child),
            }
        }
    }

    /// Lets all children end.
    pub(crate) fn gather(&mut self) {
        for child in std::mem::take(&mut self.waiting) {
            self.wait(&child);
        }
    }

    fn wait(&self, child: &Child) {
        if let Some(gate) = &child.gate {
            // A child that was killed has closed its end; how it ended follows.
            let _ = rustix::io::write(gate, b"!");
        }
        let status = waitpid(Some(child.pid), WaitOptions::empty()).expect("a child").map(|(_, status)| status);
        run::say(&format!("@{} {} has ended: {status:?}", self.path, child.name));
    }

    /// Replaces this process by one that runs `program` from empty memory.
    pub(crate) fn exec(&self, world: World, program: &str) -> ! {
        let own = std::env::current_exe().expect("/proc is mounted");
        let c_string = |text: &[u8]| CString::new(text).expect("no zero byte");
        let arguments = [c_string(own.as_os_str().as_bytes())];
        let environment = [(PROGRAM, program), (PATH, &format!("{}!", self.path)), (run::WORLD, &run::name(world))];
        let environment = environment.map(|(name, value)| (name, value.to_owned())).into_iter();
        let environment: Vec<CString> = environment
            .chain(world.environment())
            .map(|(name, value)| c_string(format!("{name}={value}").as_bytes()))
            .collect();
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&arguments), pointers(&environment));
        world.before_exec();
        // SAFETY: both lists end with null and their strings with zero, and all live until the call.
        unsafe { libc::execve(arguments[0], arguments.as_ptr(), environment.as_ptr()) };
        panic!("execve: {}", std::io::Error::last_os_error());
    }
}
