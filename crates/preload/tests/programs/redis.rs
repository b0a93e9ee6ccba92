//! Redis as it is installed: snapshots by `BGSAVE` while the server goes on writing. A thread of jemalloc, which gives
//! memory back, blocks all signals.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::proc::thp;
use tempfile::TempDir;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{self, LIMIT, Mode, Running, wait_until};

/// Saves of each server.
const ROUNDS: usize = 3;

/// A connection to a server.
struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

/// A server with an empty or a loaded data set, reached through a socket in its folder.
struct Server {
    running: Running,
    client: Client,
}

impl Client {
    /// Sends a command and returns its answer; an error of Redis begins with its name.
    fn ask(&mut self, command: &[&str]) -> String {
        self.send(command);
        self.answer()
    }

    fn send(&mut self, command: &[&str]) {
        let mut request = format!("*{}\r\n", command.len());
        for word in command {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(request.as_bytes()).expect("redis-server reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("redis-server answers");
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).unwrap_or_else(|| panic!("{} has closed", self.socket.display()));
        if kind != "$" || rest == "-1" {
            return rest.to_owned();
        }
        let len: usize = rest.parse().expect("a length");
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes).expect("redis-server answers");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    /// Sends many commands at once.
    fn ask_all(&mut self, commands: &[[&str; 3]]) {
        for some in commands.chunks(200) {
            for command in some {
                let words = if command[2].is_empty() { &command[..2] } else { &command[..] };
                self.send(words);
            }
            for _ in some {
                let answer = self.answer();
                assert!(!answer.starts_with("ERR"), "{answer}");
            }
        }
    }
}

impl Server {
    fn start(program: &Path, folder: &TempDir, name: &str, mode: Mode) -> Self {
        Self::start_with(program, folder, name, mode, &[])
    }

    /// Starts a server with more variables.
    fn start_with(program: &Path, folder: &TempDir, name: &str, mode: Mode, variables: &[(&str, &str)]) -> Self {
        let socket = folder.path().join(format!("{name}.sock"));
        let mut command = support::command(program, mode, folder, None);
        command.envs(variables.iter().copied());
        command.current_dir(folder).args(["--port", "0", "--save", "", "--enable-debug-command", "yes"]);
        command.arg("--unixsocket").arg(&socket).args([
            "--dbfilename",
            "dump.rdb",
            "--daemonize",
            "no",
            "--logfile",
            &format!("{name}.log"),
        ]);
        let mut running = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let stream = wait_until("redis-server answers", || {
            assert!(running.has_ended().is_none(), "redis-server has ended: {}", read(folder, name));
            UnixStream::connect(&socket).ok()
        });
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        let mut server = Self { running, client: Client { socket, stream: BufReader::new(stream) } };
        // It listens before it has loaded its dump.
        wait_until("redis-server has loaded its dump", || (server.ask(&["PING"]) == "PONG").then_some(()));
        server
    }

    fn ask(&mut self, command: &[&str]) -> String {
        self.client.ask(command)
    }

    fn digest(&mut self) -> String {
        let digest = self.ask(&["DEBUG", "DIGEST"]);
        assert_eq!(digest.len(), 40, "{digest}");
        digest
    }

    fn info(&mut self, field: &str) -> String {
        let info = self.ask(&["INFO"]);
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no {field} in INFO")).to_owned()
    }

    /// Begins a save whose child waits this many microseconds after each key, and stops the child before it ends; tries
    /// again if the child was quicker than this process.
    fn save(&mut self, delay: u32) -> Pid {
        assert_eq!(self.ask(&["CONFIG", "SET", "rdb-key-save-delay", &delay.to_string()]), "OK");
        for _ in 0..50 {
            assert_eq!(self.ask(&["BGSAVE"]), "Background saving started");
            let child = wait_until("the saving child is there, or gone", || {
                let child = support::children(self.running.pid()).into_iter().find(|child| saves(*child));
                let child = child.and_then(Pid::from_raw);
                if child.is_some() || self.info("rdb_bgsave_in_progress") == "0" { Some(child) } else { None }
            });
            if let Some(child) = child {
                // A child that has ended takes no signal, and the server waits for it.
                let _ended = kill_process(child, Signal::STOP);
                // Stopped: `proc_pid_stat(5)`.
                let state = || {
                    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
                    stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
                };
                if wait_until("it stops", || state().is_none_or(|state| "TZX".contains(state)).then(state)) == Some('T')
                {
                    return child;
                }
            }
            self.wait_for_the_save();
        }
        panic!("each save has ended before it was seen");
    }

    fn wait_for_the_save(&mut self) {
        wait_until("the save ends", || (self.info("rdb_bgsave_in_progress") == "0").then_some(()));
    }

    /// Changes, adds and deletes keys, and gives memory back.
    fn churn(&mut self, round: usize) {
        let value = |number: usize| format!("{round}-{number}").repeat(1 + number % 60);
        let mut commands = Vec::new();
        for number in 0..4000 {
            let key = number * 37 % 10_000;
            commands.push(match number % 4 {
                0 => ["SET".to_owned(), format!("key:{key}"), value(number)],
                1 => ["DEL".to_owned(), format!("key:{}", (key + round) % 10_000), String::new()],
                2 => ["SET".to_owned(), format!("new:{round}:{number}"), value(number)],
                _ => ["APPEND".to_owned(), format!("large:{}", number % 40), value(number).repeat(20)],
            });
        }
        let commands: Vec<[&str; 3]> = commands.iter().map(|[a, b, c]| [a.as_str(), b.as_str(), c.as_str()]).collect();
        self.client.ask_all(&commands);
        assert_eq!(self.ask(&["MEMORY", "PURGE"]), "OK");
    }
}

/// Whether a child of the server's has named itself as one that saves. Deputies of the object are children, too; one
/// that is stopped is given up, and gone.
fn saves(child: i32) -> bool {
    let title = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
    title.starts_with(b"redis-rdb-bgsave")
}

fn read(folder: &TempDir, name: &str) -> String {
    std::fs::read_to_string(folder.path().join(format!("{name}.log"))).unwrap_or_default()
}

/// Saves several times while the server goes on; each dump must be what the server held when the save began. Returns
/// the page tables of a saving child in kB.
fn save_and_compare(program: &Path, mode: Mode) -> (u64, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(program, &folder, "first", mode);
    assert_eq!(server.ask(&["DEBUG", "POPULATE", "10000", "key", "4000"]), "OK");
    assert_eq!(server.ask(&["DEBUG", "POPULATE", "40", "large", "300000"]), "OK");
    // A child that saves a few keys a second has read next to nothing when it is looked at, however late. Then it is
    // let go.
    let child = server.save(20_000);
    let tables = support::status_kb(child.as_raw_nonzero().get(), "VmPTE").expect("it is stopped");
    kill_process(child, Signal::KILL).expect("it is there");
    server.wait_for_the_save();
    for round in 0..ROUNDS {
        let at_the_snapshot = server.digest();
        let child = server.save(100);
        server.churn(round);
        assert_eq!(server.info("rdb_bgsave_in_progress"), "1");
        assert_ne!(server.digest(), at_the_snapshot);
        kill_process(child, Signal::CONT).expect("it is there");
        server.wait_for_the_save();
        assert_eq!(server.info("rdb_last_bgsave_status"), "ok", "{}", read(&folder, "first"));
        let mut second = Server::start(program, &folder, "second", Mode::Plain);
        assert_eq!(second.digest(), at_the_snapshot, "round {round}: the dump is not the data of the snapshot");
    }
    // Large tables come from calloc: a hash table of pointers that are not null would end the server here.
    assert_eq!(server.ask(&["FLUSHALL"]), "OK");
    assert_eq!(server.ask(&["MEMORY", "PURGE"]), "OK");
    assert_eq!(server.ask(&["DEBUG", "POPULATE", "300000", "again", "100"]), "OK");
    server.digest();
    assert_eq!(server.ask(&["DBSIZE"]), "300000");
    if mode == Mode::Default {
        // A busy machine leaves slices little time.
        support::wait_for_report(&mut server.running, &folder);
    }
    (tables, support::report(&folder))
}

#[test]
fn dumps_are_the_data_of_the_moment() {
    let program = support::need!("redis-server", "redis-server");
    let (plain, _) = save_and_compare(&program, Mode::Plain);
    let (frozen, report) = save_and_compare(&program, Mode::Frozen("stop"));
    support::assert_few_tables(plain, frozen, &report);
    let (_, report) = save_and_compare(&program, Mode::Default);
    println!("by default: {report}");
    assert!(is_served_by_default(&report), "{report}");
}

/// Whether a report of a server with threads, which none may hold, says what it should.
fn is_served_by_default(report: &str) -> bool {
    // Redis gets no huge pages where they come by themselves: it switches them off.
    let has_pages = matches!(thp::enabled(), Ok(thp::Anonymous::Madvise));
    let is_gathered = report.contains("gathered memory of process");
    if has_pages && thp::can_collapse() {
        is_gathered
    } else {
        report.contains("it was not frozen: the process has") || is_gathered
    }
}

/// Fails on: a save with what was written after it began, or with half of what was written before; a write that a slice
/// loses; a request that nobody answers.
#[test]
fn saves_under_load_are_whole_while_the_server_freezes_or_gathers() {
    let program = support::need!("redis-server", "redis-server");
    let checker = support::need!("redis-tools", "redis-check-rdb");
    let frozen = Mode::Frozen("stop");
    let holding = &[("PALIMPSEST_THREADS", "stop")][..];
    for (mode, variables) in
        [(frozen, &[("PALIMPSEST_PAUSE", "100us")][..]), (Mode::Default, holding), (Mode::Default, &[])]
    {
        let report = save_under_load(&program, &checker, mode, variables);
        let is_served = report.contains("froze process") || report.contains("gathered memory of process");
        let is_default = variables.is_empty() && is_served_by_default(&report);
        assert!(is_served || is_default, "{mode:?} {variables:?}: {report}");
    }
}

/// Clients that write all the time, and saves meanwhile.
const CLIENTS: usize = 3;
const SAVES: usize = 5;

/// Saves while clients write and read; the checker reads each dump. Returns the server's report.
fn save_under_load(program: &Path, checker: &Path, mode: Mode, variables: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Server::start_with(program, &folder, "loaded", mode, variables);
    assert_eq!(server.ask(&["DEBUG", "POPULATE", "10000", "key", "4000"]), "OK");
    // Microseconds after each key, so that a save lasts while clients write.
    assert_eq!(server.ask(&["CONFIG", "SET", "rdb-key-save-delay", "20"]), "OK");
    let is_over = AtomicBool::new(false);
    let rounds: Vec<usize> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = Client::of(&server.client.socket);
                let is_over = &is_over;
                scope.spawn(move || client.write_until(number, is_over))
            })
            .collect();
        for _ in 0..SAVES {
            assert_eq!(server.ask(&["BGSAVE"]), "Background saving started");
            server.wait_for_the_save();
            assert_eq!(server.info("rdb_last_bgsave_status"), "ok", "{}", read(&folder, "loaded"));
            let checked = support::output(Command::new(checker).arg(folder.path().join("dump.rdb")));
            assert!(checked.contains("RDB looks OK"), "{checked}");
        }
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("it has read what it has written")).collect()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 0), "{rounds:?}");
    // What is at rest is saved as it is.
    let at_the_end = server.digest();
    assert_eq!(server.ask(&["BGSAVE"]), "Background saving started");
    server.wait_for_the_save();
    let mut second = Server::start(program, &folder, "second", Mode::Plain);
    assert_eq!(second.digest(), at_the_end, "{variables:?}");
    support::wait_for_report(&mut server.running, &folder);
    // It ends as ever.
    server.client.send(&["SHUTDOWN", "NOSAVE"]);
    let status = server.running.ends();
    assert!(status.success(), "{status}");
    support::report(&folder)
}

impl Client {
    fn of(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("redis-server listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        Self { socket: socket.to_owned(), stream: BufReader::new(stream) }
    }

    /// Writes keys that nobody else writes, and reads what it has written before. Returns how often it wrote each.
    fn write_until(mut self, number: usize, is_over: &AtomicBool) -> usize {
        let value = |key: usize, round: usize| format!("{round}-{key}-").repeat(1 + key % 200);
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) || round == 0 {
            for key in 0..300 {
                let name = format!("of:{number}:{key}");
                if round > 0 {
                    assert_eq!(self.ask(&["GET", &name]), value(key, round - 1), "{name}");
                }
                assert_eq!(self.ask(&["SET", &name, &value(key, round)]), "OK");
            }
            round += 1;
        }
        round
    }
}
