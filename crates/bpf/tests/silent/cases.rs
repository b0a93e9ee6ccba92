//! Programs that call each helper, on maps of each kind, with keys and values that are long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use palimpsest_bpf::host::{Host, HostBuilder};
use palimpsest_bpf::interp::HelperError;
use palimpsest_bpf::kfunc;
use palimpsest_bpf::map::{Definition, Kind, Map, Update, ValueAccess};
use palimpsest_bpf::verify::{Argument, Signature};

/// Bytes of the context.
pub(crate) const LEN: usize = 16;
/// The context.
pub(crate) const CONTEXT: [u8; LEN] = *b"-12 and the rest";

/// A program, and what it returns.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    /// `None` if the program is ended.
    pub(crate) expected: Option<i64>,
    /// What is done before each run.
    pub(crate) prepare: fn(&Host),
}

/// The read-only text: formats and words.
const TEXT: &[u8; 64] = b"-12 and %d %5s|%llx\0-12 and the rest, which is long\0............";

/// An object of the host.
struct Session;

/// How many times the program that runs was to be removed from its map; how many of these it runs in; and how many
/// times it was removed.
static REMOVALS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

/// All maps, in the order in which programs know them.
pub(crate) fn builder() -> HostBuilder {
    let make = |definition| Arc::new(Map::new(definition).expect("good measures"));
    let map = |name: &str, kind, key, value, entries| {
        make(Definition { cpus: Some(3), ..Definition::new(name, kind, key, value, entries) })
    };
    let text = make(Definition { access: ValueAccess::Read, ..Definition::new("text", Kind::Array, 4, 64, 1) });
    text.update(&[0; 4], TEXT, Update::Always).expect("there");
    let timed = |kind| make(Definition { timer: Some(8), ..Definition::new("timed", kind, 4, 32, 2) });
    let locked = |kind| make(Definition { lock: Some(8), ..Definition::new("locked", kind, 4, 200, 2) });
    let inner = Definition::new("inner", Kind::Array, 4, 8, 1);
    let nested = |kind| {
        let nested =
            make(Definition { inner: Some(Box::new(inner.clone())), ..Definition::new("nested", kind, 4, 4, 2) });
        nested.maps().expect("it has maps").set(&[0; 4], Some(make(inner.clone()))).expect("its shape");
        nested
    };
    let shared = Arc::new(Session);
    Host::builder()
        .map(text)
        .map(map("array", Kind::Array, 4, 200, 4))
        .map(map("hash", Kind::Hash, 100, 200, 4))
        .map(map("lru", Kind::LruHash, 100, 200, 2))
        .map(map("cpu_array", Kind::PerCpuArray, 4, 200, 4))
        .map(map("cpu_hash", Kind::PerCpuHash, 100, 200, 4))
        .map(map("cpu_lru", Kind::LruPerCpuHash, 100, 200, 2))
        .map(map("trie", Kind::LpmTrie, 100, 200, 4))
        .map(map("queue", Kind::Queue, 0, 200, 4))
        .map(map("stack", Kind::Stack, 0, 200, 4))
        .map(map("bloom", Kind::BloomFilter, 0, 200, 4))
        .map(map("ring", Kind::RingBuffer, 0, 0, 4096))
        .map(map("user_ring", Kind::UserRingBuffer, 0, 0, 4096))
        .map(map("programs", Kind::Programs, 4, 4, 2))
        .map(nested(Kind::ArrayOfMaps))
        .map(nested(Kind::HashOfMaps))
        .map(timed(Kind::Array))
        .map(timed(Kind::Hash))
        .map(locked(Kind::Array))
        .map(locked(Kind::Hash))
        .helper(70_000, Signature::new([Argument::Number]), |call| match call.number(0) {
            0 => Err(HelperError::Unknown),
            value => Err(HelperError::Exit(value)),
        })
        .helper(70_001, Signature::new([]), |_| {
            // Another thread removes the program that runs, if the case asks for it.
            let [asked, running, done] = &REMOVALS;
            let wanted = asked.load(Ordering::Acquire);
            running.store(wanted, Ordering::Release);
            while done.load(Ordering::Acquire) < wanted {
                std::thread::yield_now();
            }
            Ok(0)
        })
        .kfunc(kfunc!(
            /// Finds a session.
            fn find() -> palimpsest_bpf::host::kfunc::Acquired<Session> {
                palimpsest_bpf::host::kfunc::Acquired::new(Arc::clone(&shared))
            }
        ))
        .kfunc(kfunc!(
            fn give_back(session: palimpsest_bpf::host::kfunc::Released<Session>) {
                drop(session);
            }
        ))
        .kfunc(kfunc!(
            fn sum(bytes: &[u8], room: &mut [u8]) -> u64 {
                room.fill(1);
                bytes.iter().map(|byte| u64::from(*byte)).sum()
            }
        ))
}

/// Has another thread remove the program from its map while it runs; the last to keep it is then who runs it.
fn remove_while_it_runs(host: &Host) {
    let map = Arc::clone(host.map("programs").expect("there"));
    let [asked, running, done] = &REMOVALS;
    let number = asked.fetch_add(1, Ordering::AcqRel) + 1;
    std::thread::spawn(move || {
        while running.load(Ordering::Acquire) < number {
            std::thread::yield_now();
        }
        drop(map.programs().expect("its kind").set(0, None).expect("a place"));
        done.store(number, Ordering::Release);
    });
}

fn nothing(_: &Host) {}

fn put_sample(host: &Host) {
    let ring = host.map("user_ring").and_then(|map| map.user_ring()).expect("there");
    ring.take_producer().expect("the only one").put(&[3; 200]).expect("room");
}

fn empty_ring(host: &Host) {
    let ring = host.map("ring").and_then(|map| map.ring()).expect("there");
    ring.take_consumer().expect("the only one").drain(|_| ());
}

/// `r6` is the context. Below `r10 - 400` are 100 bytes of a key, and below `r10 - 200` a value.
fn begin() -> String {
    let mut text = String::from("r6 = r1\n");
    for at in (1..=51).map(|word| 8 * word) {
        text += &format!("*(u64 *)(r10 - {at}) = 0\n");
    }
    // A prefix of all bits, for tries; any key for others.
    text + "*(u32 *)(r10 - 400) = 768\n*(u8 *)(r10 - 200) = 9\n*(u8 *)(r10 - 301) = 7\n"
}

const KEY: &str = "r2 = r10\nr2 += -400\n";
const VALUE: &str = "r3 = r10\nr3 += -200\n";

fn case(name: &'static str, text: String, expected: i64) -> Case {
    Case { name, text, expected: Some(expected), prepare: nothing }
}

/// All operations on a map with keys: put in, looked up, changed, removed.
fn keyed(name: &'static str, map: usize, is_array: bool) -> Vec<Case> {
    let key = if is_array { "r2 = r10\nr2 += -392\n" } else { KEY };
    let begin = begin() + "*(u64 *)(r10 - 392) = 1\n";
    let update = |flags: u32| format!("r1 = map[idx:{map}] ll\n{key}{VALUE}r4 = {flags}\ncall 2\n");
    let looked_up = format!("r1 = map[idx:{map}] ll\n{key}call 1\nif r0 == 0 goto none\nr0 = *(u8 *)(r0 + 0)\n");
    let removed = format!("r1 = map[idx:{map}] ll\n{key}call 3\n");
    let removes = if is_array { "" } else { &removed };
    let put = format!(
        "{begin}{}if r0 != 0 goto none\n{}{looked_up}r7 = r0\n{removes}r0 = r7\nexit\n\
                       none: r0 = -1\nexit",
        update(0),
        update(2)
    );
    // Several keys, more than some maps hold.
    let many: String =
        (0..6).map(|n| format!("*(u8 *)(r10 - 301) = {n}\n*(u8 *)(r10 - 392) = {n}\n{}", update(0))).collect();
    let none_left = format!("{begin}{many}r0 = 0\nexit");
    let each = format!(
        "{begin}{}r1 = map[idx:{map}] ll\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall 164\nif r0 s> 0 goto some\nr0 = 77\n\
         exit\nsome: r0 = 66\nexit\neach: r0 = 0\nexit",
        update(0)
    );
    let mut cases = vec![case(name, put, 9), case(name, none_left, 0)];
    // Linux goes through no tries either.
    cases.extend((name != "trie").then(|| case(name, each, 66)));
    cases
}

fn queued(name: &'static str, map: usize) -> Vec<Case> {
    let text = format!(
        "{}r1 = map[idx:{map}] ll\nr2 = r10\nr2 += -200\nr3 = 0\ncall 87\nif r0 != 0 goto none\n\
         r1 = map[idx:{map}] ll\nr2 = r10\nr2 += -400\ncall 89\nr7 = *(u8 *)(r10 - 400)\n\
         r1 = map[idx:{map}] ll\nr2 = r10\nr2 += -400\ncall 88\nr8 = *(u8 *)(r10 - 400)\nr7 += r8\n\
         r1 = map[idx:{map}] ll\nr2 = r10\nr2 += -400\ncall 88\nr7 -= r0\nr0 = r7\nexit\nnone: r0 = -1\nexit",
        begin()
    );
    // The value twice, and Linux's `ENOENT` for none.
    vec![case(name, text, 9 + 9 + 2)]
}

/// Helpers that take nothing.
fn plain(id: u32) -> Case {
    case("plain", format!("call {id}\nr0 = 3\nexit"), 3)
}

/// Helpers that read at an unproven address.
fn probing(id: u32) -> Vec<Case> {
    let into = |from: &str, expected: i64| {
        let text = format!("{}r1 = r10\nr1 += -400\nr2 = 200\n{from}\ncall {id}\nexit", begin());
        case("probing", text, expected)
    };
    let is_text = matches!(id, 45 | 114 | 115);
    let there = if is_text { 20 } else { 0 };
    vec![into("r3 = map[idx:0][0]+0 ll\nr4 = 0", there), into("r3 = 8", -14)]
}

/// Finds a value with something in it: a timer, a lock.
fn found(map: usize, body: &str) -> String {
    format!(
        "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto none\nr7 = r0\n\
         {body}\nnone: r0 = -1\nexit\n"
    )
}

fn timers(name: &'static str, map: usize) -> Case {
    let timer = "r1 = r7\nr1 += 8\n";
    let body = format!(
        "{timer}r2 = map[idx:{map}] ll\nr3 = 1\ncall 169\n{timer}r2 = func[tick] ll\ncall 170\nr8 = r0\n\
         {timer}r2 = 1 ll\nr2 <<= 50\nr3 = 0\ncall 171\nr8 |= r0\n{timer}r2 = func[tick] ll\ncall 170\nr8 |= r0\n\
         {timer}call 172\nr8 += r0\nr0 = r8\nexit"
    );
    // The element is made anew, which ends its timer.
    let value = "*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 24) = 0\n*(u64 *)(r10 - 32) = 0\n*(u64 *)(r10 - 40) = 0\n";
    let renew = format!(
        "{value}*(u32 *)(r10 - 4) = 1\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -40\nr4 = 0\n\
         call 2\n"
    );
    case(name, format!("{renew}{}tick: r0 = 0\nexit", found(map, &body)), 1)
}

fn locks(name: &'static str, map: usize) -> Case {
    // The lock's bytes are the value's ninth to twelfth.
    let put = |flags: u32| {
        format!("r1 = map[idx:{map}] ll\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -208\nr4 = {flags}\ncall 2\n")
    };
    let body =
        "r1 = r7\nr1 += 8\ncall 93\n*(u64 *)(r7 + 0) = 5\nr1 = r7\nr1 += 8\ncall 94\nr0 = *(u64 *)(r7 + 16)\nexit";
    let value: String = (1..=26).map(|word| format!("*(u64 *)(r10 - {}) = {word}\n", 8 * word)).collect();
    let text = format!("{value}*(u32 *)(r10 - 4) = 1\n{}{}{}", put(0), put(4), found(map, body));
    case(name, text, 24)
}

pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, map) in [("array", 1), ("cpu_array", 4)] {
        cases.extend(keyed(name, map, true));
    }
    for (name, map) in [("hash", 2), ("lru", 3), ("cpu_hash", 5), ("cpu_lru", 6), ("trie", 7)] {
        cases.extend(keyed(name, map, false));
    }
    cases.extend([("queue", 8), ("stack", 9)].into_iter().flat_map(|(name, map)| queued(name, map)));
    cases.extend([5, 7, 8, 14, 15, 42, 125, 160, 208].map(plain));
    cases.extend([4, 45, 112, 113, 114, 115, 148].into_iter().flat_map(probing));
    cases.extend([timers("timed array", 16), timers("timed hash", 17), locks("locked", 18), locks("locked hash", 19)]);
    cases.extend(memory());
    cases.extend(printing());
    cases.extend(control());
    cases
}

/// Rings, dynptrs, bloom filters, maps in maps.
fn memory() -> Vec<Case> {
    let begin = begin();
    let bloom = format!(
        "{begin}r1 = map[idx:10] ll\nr2 = r10\nr2 += -200\nr3 = 0\ncall 87\nr1 = map[idx:10] ll\nr2 = r10\nr2 += -200\n\
         call 89\nexit"
    );
    let output = format!("{begin}r1 = map[idx:11] ll\nr2 = r10\nr2 += -400\nr3 = 400\nr4 = 0\ncall 130\nexit");
    let record = |give_back: u32| {
        format!(
            "r1 = map[idx:11] ll\nr2 = 200\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr1 = r0\nr2 = 0\ncall {give_back}\n\
             r1 = map[idx:11] ll\nr2 = 1\ncall 134\nexit\nnone: r0 = -1\nexit"
        )
    };
    // Copies there and back, and looks at the last byte.
    let dynptr = |give_back: u32| {
        format!(
            "{begin}r1 = map[idx:11] ll\nr2 = 200\nr3 = 0\nr4 = r10\nr4 += -480\ncall 198\n\
             r1 = r10\nr1 += -480\nr2 = 0\nr3 = r10\nr3 += -200\nr4 = 200\nr5 = 0\ncall 202\n\
             r1 = r10\nr1 += -400\nr2 = 200\nr3 = r10\nr3 += -480\nr4 = 0\nr5 = 0\ncall 201\nr7 = *(u8 *)(r10 - 400)\n\
             r1 = r10\nr1 += -480\nr2 = 0\nr3 = 8\ncall 203\nif r0 == 0 goto none\nr8 = *(u8 *)(r0 + 0)\nr7 += r8\n\
             none: r1 = r10\nr1 += -480\nr2 = 0\ncall {give_back}\nr0 = r7\nexit"
        )
    };
    let of_value = found(
        1,
        "r1 = r7\nr2 = 200\nr3 = 0\nr4 = r10\nr4 += -32\ncall 197\nr1 = r10\nr1 += -32\nr2 = 100\nr3 = r7\nr4 = 100\n\
         r5 = 0\ncall 202\nexit",
    );
    let drain = "r1 = map[idx:12] ll\nr2 = func[each] ll\nr3 = 0\nr4 = 0\ncall 209\nexit\n\
                 each: r3 = r1\nr1 = r10\nr1 += -200\nr2 = 200\nr4 = 0\nr5 = 0\ncall 201\nr0 = 0\nexit";
    let nested = |map: usize| {
        format!(
            "*(u64 *)(r10 - 8) = 0\nr1 = map[idx:{map}] ll\nr2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\nr1 = r0\n\
             r2 = r10\nr2 += -8\ncall 1\nif r0 == 0 goto none\nr0 = *(u64 *)(r0 + 0)\nexit\nnone: r0 = -1\nexit"
        )
    };
    let of_cpu = "*(u32 *)(r10 - 4) = 1\nr1 = map[idx:4] ll\nr2 = r10\nr2 += -4\nr3 = 2\ncall 195\n\
                  if r0 == 0 goto none\nr0 = 4\nexit\nnone: r0 = -1\nexit";
    let emptied = |name, text, expected| Case { prepare: empty_ring, ..case(name, text, expected) };
    vec![
        case("bloom", bloom, 0),
        emptied("output", output, 0),
        emptied("submit", record(132), 4096),
        emptied("discard", record(133), 4096),
        emptied("dynptr", dynptr(199), 18),
        emptied("dynptr", dynptr(200), 18),
        case("dynptr of a value", of_value, 0),
        Case { prepare: put_sample, ..case("drain", drain.into(), 1) },
        case("array of maps", nested(14), 0),
        case("hash of maps", nested(15), 0),
        case("value of a CPU", of_cpu.into(), 4),
    ]
}

/// Text: numbers, comparison, formats.
fn printing() -> Vec<Case> {
    let begin = begin();
    let number = |id: u32, from: &str| {
        format!("r1 = {from}\nr2 = 16\nr3 = 0\nr4 = r10\nr4 += -8\ncall {id}\nr0 = *(u64 *)(r10 - 8)\nexit")
    };
    let compare = format!("{begin}r1 = map[idx:0][0]+20 ll\nr2 = 16\nr3 = map[idx:0][0]+20 ll\ncall 182\nexit");
    let print =
        |text_at: &str| format!("r1 = map[idx:0][0]+0 ll\nr2 = 20\nr3 = 42\nr4 = {text_at}\nr5 = 255\ncall 6\nexit");
    let many = "*(u64 *)(r10 - 24) = 42\n*(u64 *)(r10 - 16) = 8\n*(u64 *)(r10 - 8) = 255\nr1 = map[idx:0][0]+0 ll\n\
                r2 = 20\nr3 = r10\nr3 += -24\nr4 = 24\ncall 177\nexit";
    let format = format!(
        "{begin}*(u64 *)(r10 - 24) = 42\n*(u64 *)(r10 - 16) = 8\n*(u64 *)(r10 - 8) = 255\nr1 = r10\nr1 += -400\n\
         r2 = 200\nr3 = map[idx:0][0]+0 ll\nr4 = r10\nr4 += -24\nr5 = 24\ncall 165\nexit"
    );
    vec![
        case("name", format!("{begin}r1 = r10\nr1 += -400\nr2 = 200\ncall 16\nexit"), 0),
        case("signed", number(105, "r6").replacen("r1 =", "r6 = r1\nr1 =", 1), -12),
        case("unsigned", number(106, "map[idx:0][0]+1 ll"), 12),
        case("comparison", compare, 0),
        case("line", print("8"), i64::from("-12 and 42      |ff".len() as u32)),
        case(
            "line with text",
            print("map[idx:0][0]+20 ll"),
            i64::from("-12 and 42 -12 and the rest, which is long|ff".len() as u32),
        ),
        case("line of many", many.into(), i64::from("-12 and 42      |ff".len() as u32)),
        case("format", format, i64::from("-12 and 42      |ff".len() as u32 + 1)),
    ]
}

/// Calls, loops and ends.
fn control() -> Vec<Case> {
    let tail = "r2 = map[idx:13] ll\nr3 = 0\ncall 12\nr0 = 1\nexit";
    let rounds = "r1 = 100\nr2 = func[f] ll\nr3 = 0\nr4 = 0\ncall 181\nexit\nf: r0 = 0\nexit";
    let object = "call kernel 0\nr1 = r0\ncall kernel 1\nr0 = 2\nexit";
    let bytes =
        format!("{}r1 = r10\nr1 += -400\nr2 = 400\nr3 = r10\nr3 += -508\nr4 = 100\ncall kernel 2\nexit", begin());
    // Ended with a record, an object and a lock in hand.
    let held = "r1 = map[idx:11] ll\nr2 = 8\nr3 = 0\ncall 131\nif r0 == 0 goto none\nr6 = r0\ncall kernel 0\nr7 = r0\n\
                r1 = 0\ncall 70000\nr1 = r6\nr2 = 0\ncall 133\nr1 = r7\ncall kernel 1\nnone: r0 = -1\nexit";
    let endless = "on: r0 = 1\ngoto on";
    vec![
        case("tail call", tail.into(), 5),
        Case { prepare: remove_while_it_runs, ..case("tail call of what is removed", tail.into(), 5) },
        case("loop", rounds.into(), 100),
        case("object", object.into(), 2),
        case("bytes", bytes, 3 + 9 + 7),
        case("exit", "r1 = 6\ncall 70000\nr0 = 1\nexit".into(), 6),
        Case { expected: None, ..case("ended", held.into(), 0) },
        Case { expected: None, ..case("out of fuel", endless.into(), 0) },
    ]
}
