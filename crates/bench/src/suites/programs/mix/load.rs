//! A steady load: requests at fixed moments, whether earlier ones are answered or not.
//!
//! One thread sends the requests that are due, another reads the answers, which come in the order of the requests on a
//! connection. A request's latency counts from the moment at which it was due: if the server stands still, or the
//! sender must wait for it, all requests that were due meanwhile are late.

use std::collections::VecDeque;
use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::suites::programs::server::{answer, request, setting};
use crate::suites::programs::{ProgramError, doing};

/// Requests per second.
const RATE: u32 = 4000;

/// The exponent of Zipf's law, as in the benchmark YCSB.
const EXPONENT: f64 = 0.99;

/// The requests.
#[derive(Clone, Copy)]
pub(super) struct Writes {
    /// Percentage of requests that write.
    pub(super) share: u32,
    /// Numbers of keys.
    pub(super) keys: u64,
    /// Bytes of a value.
    pub(super) value: usize,
}

/// What sender and reader share. Relaxed everywhere: flags and a number, which publish nothing; one request more or
/// less at either end of the measured time does not matter.
struct Common {
    /// Whoever ends the load sets this, both read it.
    is_over: AtomicBool,
    /// The measured time, in nanoseconds since the start. The measuring thread sets it, the reader reads it.
    from: AtomicU64,
    until: AtomicU64,
    /// When each unanswered request was due. The sender adds, the reader takes.
    waiting: Mutex<VecDeque<Duration>>,
}

/// A running load.
pub(super) struct Load {
    started: Instant,
    common: Arc<Common>,
    sender: JoinHandle<Result<(), ProgramError>>,
    reader: JoinHandle<Result<Vec<u32>, ProgramError>>,
}

impl Load {
    /// Starts the load.
    pub(super) fn start(stream: UnixStream, writes: Writes) -> Result<Self, ProgramError> {
        let common = Arc::new(Common {
            is_over: AtomicBool::new(false),
            from: AtomicU64::new(u64::MAX),
            until: AtomicU64::new(u64::MAX),
            waiting: Mutex::new(VecDeque::new()),
        });
        let reading = stream.try_clone().map_err(doing("share a socket"))?;
        let zipf = Zipf::new(writes.keys);
        let started = Instant::now();
        let (ours, theirs) = (Arc::clone(&common), Arc::clone(&common));
        let sender = thread::spawn(move || send(stream, &zipf, writes, started, &ours));
        let reader = thread::spawn(move || read(reading, started, &theirs));
        Ok(Self { started, common, sender, reader })
    }

    /// Counts requests that are due from now on.
    pub(super) fn count_from_now(&mut self) {
        self.common.from.store(nanos(self.started.elapsed()), Ordering::Relaxed);
    }

    /// Stops counting requests that are due later.
    pub(super) fn count_until_now(&mut self) {
        self.common.until.store(nanos(self.started.elapsed()), Ordering::Relaxed);
    }

    /// Returns whether the load ended by itself, which is an error.
    pub(super) fn has_ended(&self) -> bool {
        self.sender.is_finished() || self.reader.is_finished()
    }

    /// Ends the load, and returns the latencies.
    pub(super) fn finish(self) -> Result<Answered, ProgramError> {
        self.common.is_over.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut latencies = self.reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        sent?;
        latencies.sort_unstable();
        let [from, until] = [&self.common.from, &self.common.until].map(|moment| moment.load(Ordering::Relaxed));
        Ok(Answered { latencies, time: Duration::from_nanos(until.saturating_sub(from)) })
    }
}

/// The latencies of the measured time, in microseconds, sorted.
pub(super) struct Answered {
    latencies: Vec<u32>,
    time: Duration,
}

impl Answered {
    /// Returns the latency that this share of the requests does not exceed, in microseconds.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        let place = (self.latencies.len() as f64 * share).ceil() as usize;
        self.latencies.get(place.max(1) - 1).copied().map(f64::from)
    }

    /// Returns requests per second.
    pub(super) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn send(
    mut stream: UnixStream,
    zipf: &Zipf,
    writes: Writes,
    started: Instant,
    common: &Common,
) -> Result<(), ProgramError> {
    // The same requests in each run.
    let mut random = SmallRng::seed_from_u64(4711);
    let value = "v".repeat(writes.value);
    let interval = Duration::from_secs(1) / RATE;
    let mut due = Duration::ZERO;
    while !common.is_over.load(Ordering::Relaxed) {
        let now = started.elapsed();
        if due > now {
            thread::sleep(due - now);
            continue;
        }
        let mut text = String::new();
        {
            // Before the request is sent: its answer must not come first.
            let mut waiting = common.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            while due <= now {
                let key = zipf.draw(&mut random);
                if random.random_range(0..100) < writes.share {
                    text += &setting(key, &value);
                } else {
                    text += &request(&["GET", &format!("key:{key}")]);
                }
                waiting.push_back(due);
                due += interval;
            }
        }
        stream.write_all(text.as_bytes()).map_err(doing("write to redis-server"))?;
    }
    Ok(())
}

/// Returns the latencies of the measured time, in microseconds.
fn read(stream: UnixStream, started: Instant, common: &Common) -> Result<Vec<u32>, ProgramError> {
    let mut stream = BufReader::new(stream);
    let mut latencies = Vec::new();
    loop {
        let is_waited_for = !common.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        if !is_waited_for {
            if common.is_over.load(Ordering::Relaxed) {
                return Ok(latencies);
            }
            thread::sleep(Duration::from_micros(50));
            continue;
        }
        answer(&mut stream)?;
        let now = started.elapsed();
        let due = common.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(now);
        let counts = common.from.load(Ordering::Relaxed)..common.until.load(Ordering::Relaxed);
        if counts.contains(&nanos(due)) {
            latencies.push(u32::try_from(now.saturating_sub(due).as_micros()).unwrap_or(u32::MAX));
        }
    }
}

/// Numbers of keys by Zipf's law: the key of rank `r` is drawn in proportion to `1 / r^EXPONENT`.
struct Zipf {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    fn new(keys: u64) -> Self {
        let mut sum = 0.0;
        let add = |rank| {
            sum += (rank as f64).powf(-EXPONENT);
            sum
        };
        Self { sums: (1..=keys).map(add).collect() }
    }

    fn draw(&self, random: &mut SmallRng) -> u64 {
        let all = self.sums.last().copied().unwrap_or_default();
        let drawn = random.random::<f64>() * all;
        let rank = self.sums.partition_point(|&sum| sum <= drawn).min(self.sums.len() - 1);
        scattered(rank as u64, self.sums.len() as u64)
    }
}

/// Returns the number of the key with a rank: neighbouring ranks lie far apart in memory. Every number belongs to one
/// rank if the factor, a prime, does not divide `keys`.
fn scattered(rank: u64, keys: u64) -> u64 {
    const FACTOR: u64 = 2_654_435_761;
    let product = u128::from(rank) * u128::from(FACTOR) % u128::from(keys);
    u64::try_from(product).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;

    use super::*;

    #[test]
    fn keys_follow_zipfs_law_and_are_scattered() {
        let zipf = Zipf::new(1000);
        let mut random = SmallRng::seed_from_u64(1);
        let mut drawn = vec![0_u32; 1000];
        for _ in 0..100_000 {
            drawn[usize::try_from(zipf.draw(&mut random)).expect("small")] += 1;
        }
        let of_rank = |rank| drawn[usize::try_from(scattered(rank, 1000)).expect("small")];
        // Twice the rank, half as often; the sum of all weights is about 7.7.
        let (first, second, tenth) = (of_rank(0), of_rank(1), of_rank(9));
        assert!((11_000..15_000).contains(&first), "{first}");
        assert!((first * 2 / 5..first * 3 / 5).contains(&second), "{first} {second}");
        assert!((first / 12..first / 8).contains(&tenth), "{first} {tenth}");
        let mut numbers: Vec<u64> = (0..1000).map(|rank| scattered(rank, 1000)).collect();
        assert!(numbers[1].abs_diff(numbers[0]) > 100);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
    }

    #[test]
    fn shares_of_latencies() {
        let answered = Answered { latencies: (1..=1000).collect(), time: Duration::from_secs(2) };
        assert_eq!((answered.at(0.99), answered.at(0.999), answered.at(1.0)), (Some(990.0), Some(999.0), Some(1000.0)));
        assert_eq!(answered.rate(), 500.0);
        let nothing = Answered { latencies: Vec::new(), time: Duration::ZERO };
        assert_eq!((nothing.at(0.99), nothing.rate()), (None, 0.0));
    }

    /// A server that stands still until the thousandth request makes all of them late, not only the one during which it
    /// stopped. No clock decides: the thousandth request is not sent before it is due.
    #[test]
    fn requests_that_could_not_be_served_meanwhile_are_late() {
        const STILL: usize = 1000;
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let load = Load::start(ours, Writes { share: 0, keys: 10, value: 1 }).expect("it starts");
        load.common.from.store(0, Ordering::Relaxed);
        let (tell, told) = std::sync::mpsc::channel();
        let served = thread::spawn(move || {
            let mut requests = BufReader::new(theirs.try_clone().expect("a socket"));
            let mut answers = theirs;
            let (mut received, mut answered) = (0, 0);
            // Five lines each.
            while (0..5).all(|_| requests.read_line(&mut String::new()).is_ok_and(|len| len > 0)) {
                received += 1;
                while received >= STILL && answered < received {
                    answered += 1;
                    if answers.write_all(b"$1\r\nv\r\n").is_err() {
                        return;
                    }
                }
                if received == STILL {
                    tell.send(()).expect("the test waits");
                }
            }
        });
        told.recv().expect("all are answered");
        let answered = load.finish().expect("the rest is answered");
        served.join().expect("the server ends");
        let half = f64::from(RATE).recip() * STILL as f64 / 2.0 * 1e6;
        let late = answered.latencies.iter().filter(|&&latency| f64::from(latency) >= half - 1.0).count();
        assert!(late >= STILL / 2, "{late} of {}", answered.latencies.len());
    }
}
