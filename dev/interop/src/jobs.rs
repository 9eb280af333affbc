//! Sides of scenarios, and other programs, as processes of their own, so that they can be killed.

use std::collections::HashMap;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::lock;
use crate::protocol::{Event, Job};

/// The processes that run or have run.
pub(crate) struct Jobs {
    sink: Sink,
    running: Mutex<HashMap<u32, Running>>,
}

/// Takes the events of a process.
type Sink = Arc<dyn Fn(u32, Event) + Send + Sync>;

struct Running {
    child: Arc<Mutex<Child>>,
    stdin: ChildStdin,
}

impl Jobs {
    pub(crate) fn new(sink: impl Fn(u32, Event) + Send + Sync + 'static) -> Self {
        Self {
            sink: Arc::new(sink),
            running: Mutex::default(),
        }
    }

    /// A side of a scenario: this program, which takes its job from stdin and emits events.
    pub(crate) fn start(&self, run: u32, job: &Job) -> Result<()> {
        self.start_by(run, Command::new("/proc/self/exe").arg("side"), job)
    }

    /// The same by a command that runs this program as a side, perhaps on another host.
    pub(crate) fn start_by(&self, run: u32, side: &mut Command, job: &Job) -> Result<()> {
        let event = |line: String| serde_json::from_str(&line).unwrap_or(Event::Log(line));
        self.launch(run, side, event)?;
        let mut running = self.lock();
        let side = running.get_mut(&run).context("no such side")?;
        writeln!(side.stdin, "{}", serde_json::to_string(job)?)?;
        Ok(())
    }

    /// Any program.
    pub(crate) fn spawn(
        &self,
        run: u32,
        argv: &[String],
        env: Vec<(String, String)>,
    ) -> Result<()> {
        let (program, args) = argv.split_first().context("no program")?;
        self.launch(run, Command::new(program).args(args).envs(env), Event::Log)
    }

    fn launch(
        &self,
        run: u32,
        command: &mut Command,
        event: impl Fn(String) -> Event + Send + 'static,
    ) -> Result<()> {
        let mut child = command
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let child = Arc::new(Mutex::new(child));
        let words = self.follow(run, stderr, Event::Log);
        let events = self.follow(run, stdout, event);
        let (sink, waited) = (Arc::clone(&self.sink), Arc::clone(&child));
        thread::spawn(move || {
            let _ = (words.join(), events.join());
            sink(run, Event::Ended(wait(&waited)));
        });
        self.lock().insert(run, Running { child, stdin });
        Ok(())
    }

    pub(crate) fn go(&self, run: u32) -> Result<()> {
        let mut running = self.lock();
        let job = running.get_mut(&run).context("no such side")?;
        writeln!(job.stdin).context("side has ended")
    }

    pub(crate) fn kill(&self, run: u32) -> Result<()> {
        let running = self.lock();
        let job = running.get(&run).context("no such side")?;
        job.kill().context("cannot kill")
    }

    pub(crate) fn pid(&self, run: u32) -> Result<u32> {
        let running = self.lock();
        let job = running.get(&run).context("no such side")?;
        Ok(lock(&job.child).id())
    }

    fn follow(
        &self,
        run: u32,
        from: impl Read + Send + 'static,
        event: impl Fn(String) -> Event + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let sink = Arc::clone(&self.sink);
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                sink(run, event(line));
            }
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Running>> {
        lock(&self.running)
    }
}

impl Running {
    fn kill(&self) -> io::Result<()> {
        let mut child = lock(&self.child);
        child.kill()
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for job in self.lock().values() {
            // Most have ended.
            let _ = job.kill();
        }
    }
}

/// The child's output has ended, so it ends soon; between polls it can be killed.
fn wait(child: &Mutex<Child>) -> Option<i32> {
    loop {
        let polled = lock(child).try_wait();
        match polled {
            Ok(Some(status)) => return status.code(),
            Ok(None) => thread::sleep(Duration::from_millis(10)),
            Err(_) => return None,
        }
    }
}
