//! Apache with processes instead of threads: graceful restarts, after which it starts new children.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid, kill_process};

use super::{Place, Spent, Subject};
use crate::suites::programs::{ProgramError, Stopped, Tool, doing};

const PROGRAM: &str = "apache2";

/// Where Debian has the modules.
const MODULES: &str = "/usr/lib/apache2/modules";

/// Modules that it can do without, but that usually run with it.
const USUAL: [&str; 6] = ["authz_core", "mime", "dir", "alias", "deflate", "setenvif"];

/// Children that it starts at once.
pub(super) const CHILDREN: u32 = 48;

/// Returns why it cannot be measured.
pub(super) fn missing() -> Option<String> {
    let program = Tool { program: PROGRAM, package: PROGRAM }.missing();
    program.or_else(|| Tool { program: "/usr/lib/apache2/modules/mod_mpm_prefork.so", package: PROGRAM }.missing())
}

pub(super) fn start(place: &Place<'_>) -> Result<Box<dyn Subject>, ProgramError> {
    // Closed again, since Apache takes no socket that exists. If another program takes the port meanwhile, Apache says
    // so in its log and ends.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let port = port.map_err(doing("find a free port"))?.port();
    let file = place.folder.join("apache.conf");
    fs::write(&file, configuration(place.folder, port)).map_err(doing(format!("write {}", file.display())))?;
    let mut command = place.command(PROGRAM)?;
    command.arg("-f").arg(&file).args(["-D", "FOREGROUND", "-k", "start"]).stdout(Stdio::null());
    let mut server = Stopped::start(&mut command, Signal::TERM)?;
    server.wait_for(PROGRAM, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok())?;
    let mut running = Running { server, port };
    running.serves()?;
    Ok(Box::new(running))
}

/// Returns a configuration of its own, without anything of Debian's.
fn configuration(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    let mut text = format!(
        "ServerRoot \"{folder}\"\nDefaultRuntimeDir \"{folder}\"\nPidFile \"{folder}/pid\"\nErrorLog \"{folder}/log\"\n\
         DocumentRoot \"{folder}\"\nServerName localhost\nListen {}:{port}\n\
         LoadModule mpm_prefork_module {MODULES}/mod_mpm_prefork.so\n\
         StartServers {CHILDREN}\nMinSpareServers {CHILDREN}\nMaxSpareServers {}\nMaxRequestWorkers {}\n",
        Ipv4Addr::LOCALHOST,
        CHILDREN * 2,
        CHILDREN * 2,
    );
    for name in USUAL {
        if Path::new(&format!("{MODULES}/mod_{name}.so")).is_file() {
            text += &format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n");
        }
    }
    text += "TypesConfig /etc/mime.types\n";
    if geteuid().is_root() {
        text += "User www-data\nGroup www-data\n";
    }
    text
}

struct Running {
    server: Stopped,
    port: u16,
}

impl Running {
    /// Requests a page that does not exist.
    fn serves(&mut self) -> Result<(), ProgramError> {
        let asking = || doing("ask Apache for a page");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).map_err(asking())?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(asking())?;
        stream.write_all(b"GET /none HTTP/1.0\r\n\r\n").map_err(asking())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(asking())?;
        if answer.starts_with("HTTP/1.1 404") || answer.starts_with("HTTP/1.1 403") {
            return Ok(());
        }
        Err(ProgramError::Answer { program: PROGRAM, question: "GET /none".to_owned(), answer })
    }

    /// Returns its current children.
    fn children(&self) -> HashSet<String> {
        let pid = self.server.pid().as_raw_nonzero();
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_whitespace().map(str::to_owned).collect()
    }
}

impl Subject for Running {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let before = self.children();
        let started = Instant::now();
        kill_process(self.server.pid(), Signal::USR1).map_err(|errno| doing("signal Apache")(errno.into()))?;
        let mut taken = Duration::ZERO;
        loop {
            let now = self.children();
            if taken.is_zero() && now.difference(&before).count() >= CHILDREN as usize {
                taken = started.elapsed();
            }
            // The old children must end before the next sample begins.
            if !taken.is_zero() && now.is_disjoint(&before) {
                break;
            }
            if started.elapsed() > Duration::from_secs(60) {
                let answer = format!("{} of {CHILDREN} new children", now.difference(&before).count());
                return Err(ProgramError::Answer { program: PROGRAM, question: "a restart".to_owned(), answer });
            }
            thread::sleep(Duration::from_micros(500));
        }
        self.serves()?;
        Ok(taken.as_secs_f64() * 1e6 / f64::from(CHILDREN))
    }

    fn spent(&self) -> Result<Spent, ProgramError> {
        Spent::by(self.server.pid())
    }
}
