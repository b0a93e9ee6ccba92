//! The contestants' workers, and asking them in turns.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::WORKER;
use super::question::Question;
use super::who::Who;
use super::worker::{READY, REFUSED};
use crate::harness::{BenchError, Context};

/// A running worker. Ends with the value.
pub(super) struct Worker {
    pub(super) who: Who,
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Milliseconds that its freeze took.
    pub(super) freeze_ms: f64,
}

/// A worker's answer.
pub(super) enum Answer<T> {
    /// What was asked for.
    Given(T),
    /// Why this machine cannot give it.
    Refused(String),
}

impl Worker {
    /// Starts the process and waits until its heap exists.
    pub(super) fn start(context: &Context<'_>, who: Who, bytes: usize) -> Result<Answer<Self>, BenchError> {
        let failed = |reason: String| BenchError::Helper { contestant: who.name().to_owned(), reason };
        let mut process = context
            .helper(WORKER)
            .map_err(failed)?
            .arg(who.name())
            .arg(bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let questions = process.stdin.take();
        let Some(answers) = process.stdout.take().map(BufReader::new) else {
            return Err(failed("it has no standard output".to_owned()));
        };
        let mut worker = Self { who, process, questions, answers, freeze_ms: 0.0 };
        let line = worker.line()?;
        if let Some(reason) = line.strip_prefix(REFUSED) {
            return Ok(Answer::Refused(reason.to_owned()));
        }
        let ready = line.strip_prefix(READY).and_then(|ms| ms.parse().ok());
        worker.freeze_ms = ready.ok_or_else(|| worker.failed(format!("it said `{line}`")))?;
        Ok(Answer::Given(worker))
    }

    /// Asks for one sample.
    pub(super) fn ask(&mut self, question: Question) -> Result<Answer<f64>, BenchError> {
        let asked = match &mut self.questions {
            Some(questions) => writeln!(questions, "{question}").and_then(|()| questions.flush()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        asked.map_err(|error| self.failed(error.to_string()))?;
        let line = self.line()?;
        if let Some(reason) = line.strip_prefix(REFUSED) {
            return Ok(Answer::Refused(reason.to_owned()));
        }
        line.parse().map(Answer::Given).map_err(|_| self.failed(format!("it said `{line}`")))
    }

    fn line(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(self.failed("it ended".to_owned())),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    fn failed(&self, reason: String) -> BenchError {
        BenchError::Helper { contestant: self.who.name().to_owned(), reason }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Without questions it ends by itself; children that it left behind after an error are no longer its business.
        drop(self.questions.take());
        if self.process.wait().is_err() {
            let _ = self.process.kill();
        }
    }
}
