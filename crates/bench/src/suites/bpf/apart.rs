//! What takes samples: an engine in this process, or one in a process of its own, because it changes the process that
//! it is in.
//!
//! A process apart gets ready, says so in a line, and then answers each line with a sample. So such an engine takes
//! turns with the others, too.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::engine::{Contest, Refusal, Who};
use crate::harness::{BenchError, Context, Samples, failed};

/// Name of the helper that takes samples of the group and the engine whose names follow.
pub(in crate::suites) const SAMPLER: &str = "bpf-sampler";

/// Takes one sample.
pub(super) type Sampler = Box<dyn FnMut() -> Result<f64, BenchError>>;

/// Returns what samples the figure `id` of `group` for `who`: what `here` makes of its engine, or the same in a process
/// apart. Notes why if there is no such engine.
pub(super) fn sampler(
    context: &Context<'_>,
    samples: &mut Samples,
    (group, id): (&str, &str),
    who: Who,
    here: impl FnOnce(Box<dyn Contest>) -> Result<Sampler, BenchError>,
) -> Result<Option<Sampler>, BenchError> {
    let refusal = if who.lives_apart() {
        match start(context, group, who) {
            Ok(mut process) => {
                let id = id.to_owned();
                return Ok(Some(Box::new(move || process.sample().map_err(failed(&id, who.name())))));
            }
            Err(refusal) => refusal,
        }
    } else {
        match who.open() {
            Ok(engine) => return here(engine).map(Some),
            Err(refusal) => refusal,
        }
    };
    samples.refuse(id, refusal.to_string());
    Ok(None)
}

/// Starts a process that takes samples of `group` for `who`.
fn start(context: &Context<'_>, group: &str, who: Who) -> Result<Apart, Refusal> {
    who.check_built()?;
    let mut helper = context.helper(SAMPLER)?;
    helper.args([group, who.name()]);
    let mut child = helper.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (requests, answers) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
    let mut process = Apart { child, requests, answers };
    process.answer()?;
    Ok(process)
}

/// A process that takes samples. It ends when nobody can ask it any more.
struct Apart {
    child: Child,
    requests: Option<ChildStdin>,
    answers: Option<BufReader<ChildStdout>>,
}

impl Apart {
    fn sample(&mut self) -> Result<f64, Refusal> {
        let requests = self.requests.as_mut().ok_or("the process has no input")?;
        requests.write_all(b"sample\n")?;
        Ok(self.answer()?.trim().parse()?)
    }

    /// Reads a line, or what the process has said at its end.
    fn answer(&mut self) -> Result<String, Refusal> {
        let mut line = String::new();
        let answers = self.answers.as_mut().ok_or("the process has no output")?;
        if answers.read_line(&mut line)? > 0 {
            return Ok(line);
        }
        let mut said = String::new();
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut said)?;
        }
        Err(format!("{}: {}", self.child.wait()?, said.trim()).into())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.requests.take());
        // Its samples are there, however it ends.
        let _ = self.child.wait();
    }
}
