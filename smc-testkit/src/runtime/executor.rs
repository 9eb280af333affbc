//! Tasks, timers and the virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use smc_core::runtime::Task;

use super::options::Options;
use super::pipe::Pipe;
use crate::Rng;

/// Why a run cannot come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Stall {
    /// No task can run and no timer is set.
    #[error("deadlock after {elapsed:?}: {}", .tasks.join(", "))]
    Deadlock {
        /// Virtual time since the start.
        elapsed: Duration,
        /// The tasks that wait, and the timer or socket of the runtime that each waits for.
        tasks: Vec<String>,
    },
    /// Tasks run on and on: more polls than [`Options::max_steps`].
    #[error("no end after {steps} polls and {elapsed:?}: {}", .tasks.join(", "))]
    Endless {
        /// Polls made.
        steps: u64,
        /// Virtual time since the start.
        elapsed: Duration,
        /// The tasks, and what each waited for last.
        tasks: Vec<String>,
    },
}

/// Runs `main` to its end together with the spawned tasks.
pub(super) fn run<T>(core: &Arc<Core>, main: impl Future<Output = T>) -> Result<T, Stall> {
    let mut main = pin!(main);
    core.begin();
    let mut steps = 0;
    loop {
        let Some(id) = core.next() else {
            return Err(core.deadlock());
        };
        steps += 1;
        if steps > core.options.max_steps {
            return Err(core.endless(steps));
        }
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            core: Arc::downgrade(core),
        }));
        let mut context = Context::from_waker(&waker);
        if id == MAIN {
            if let Poll::Ready(result) = main.as_mut().poll(&mut context) {
                core.state().current = None;
                return Ok(result);
            }
        } else if let Some(mut task) = core.take_task(id) {
            let is_pending = task.as_mut().poll(&mut context).is_pending();
            core.put_back(id, is_pending.then_some(task));
        }
    }
}

/// The task that `run` was called with.
const MAIN: usize = 0;

/// Virtual time that a poll of a task takes.
const STEP: Duration = Duration::from_micros(1);

/// Virtual time that reading the clock takes, so that a loop that waits for a later time ends.
const LOOK: Duration = Duration::from_nanos(50);

/// The shared state of a runtime.
pub(super) struct Core {
    pub(super) options: Options,
    epoch: Instant,
    state: Mutex<ExecutorState>,
}

struct ExecutorState {
    now: Duration,
    rng: Rng,
    tasks: BTreeMap<usize, TaskEntry>,
    next_task: usize,
    next_group: usize,
    /// Tasks to poll, each at most once.
    ready: Vec<usize>,
    /// By time and order of making.
    timers: BTreeMap<(Duration, u64), Alarm>,
    next_timer: u64,
    current: Option<usize>,
    /// Groups that take no more tasks.
    ended: BTreeSet<Group>,
    /// Groups that do not run at present, and their tasks that could.
    paused: BTreeMap<Group, Vec<usize>>,
}

/// Tasks that end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group(usize);

impl Group {
    /// The tasks of the runtime itself.
    pub(super) const ALL: Self = Self(0);
}

struct TaskEntry {
    name: String,
    group: Group,
    /// Not there while it is polled, and never for the main task.
    task: Option<Task>,
    is_ready: bool,
    waits_for: Option<TaskWait>,
}

/// The last wait of a task.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskWait {
    Timer(Duration),
    Read(SocketAddr, SocketAddr),
    Write(SocketAddr, SocketAddr),
    Accept(SocketAddr),
}

/// An event at a time.
pub(super) enum Alarm {
    Wake(Waker),
    Deliver(Arc<Pipe>),
}

impl Core {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        let state = ExecutorState {
            now: Duration::ZERO,
            rng: Rng::new(seed),
            tasks: BTreeMap::new(),
            next_task: MAIN + 1,
            next_group: 0,
            ready: Vec::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            current: None,
            ended: BTreeSet::new(),
            paused: BTreeMap::new(),
        };
        Self {
            options,
            epoch: Instant::now(),
            state: Mutex::new(state),
        }
    }

    pub(super) fn now(&self) -> Instant {
        let mut state = self.state();
        state.now += LOOK;
        self.epoch + state.now
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.state().now
    }

    pub(super) fn timer(self: &Arc<Self>, at: Instant) -> VirtualTimer {
        let at = at.saturating_duration_since(self.epoch);
        VirtualTimer {
            core: Arc::clone(self),
            at,
            key: None,
        }
    }

    pub(super) fn fresh_group(&self) -> Group {
        let mut state = self.state();
        state.next_group += 1;
        Group(state.next_group)
    }

    pub(super) fn spawn(&self, name: String, group: Group, task: Task) {
        let mut state = self.state();
        if state.ended.contains(&group) || state.ended.contains(&Group::ALL) {
            // Outside of the lock, since a task may do anything when it is dropped.
            drop(state);
            drop(task);
            return;
        }
        let id = state.next_task;
        state.next_task += 1;
        let name = match name.is_empty() {
            true => format!("task {id}"),
            false => name,
        };
        state.tasks.insert(
            id,
            TaskEntry {
                name,
                group,
                task: Some(task),
                is_ready: true,
                waits_for: None,
            },
        );
        state.ready.push(id);
    }

    /// Drops all tasks and takes no more.
    pub(super) fn close(&self) {
        self.end(Group::ALL);
        let timers = std::mem::take(&mut self.state().timers);
        drop(timers);
    }

    /// Drops all tasks of a group and takes no more.
    pub(super) fn end(&self, group: Group) {
        let is_hit = |entry: &TaskEntry| group == Group::ALL || entry.group == group;
        let mut state = self.state();
        state.ended.insert(group);
        let tasks = std::mem::take(&mut state.tasks);
        let (ended, rest): (BTreeMap<_, _>, _) =
            tasks.into_iter().partition(|(_, entry)| is_hit(entry));
        state.tasks = rest;
        drop(state);
        // Outside of the lock, since a task may do anything when it is dropped.
        drop(ended);
    }

    /// Lets the tasks of a group wait, or run again.
    pub(super) fn set_paused(&self, group: Group, is_paused: bool) {
        let mut state = self.state();
        if is_paused {
            state.paused.entry(group).or_default();
        } else if let Some(held) = state.paused.remove(&group) {
            state.ready.extend(held);
        }
    }

    /// Moves the clock on at once: all timers until then are late.
    pub(super) fn jump(&self, by: Duration) {
        self.state().now += by;
    }

    /// The number of tasks that have not ended.
    pub(super) fn task_count(&self) -> usize {
        let state = self.state();
        state.tasks.keys().filter(|id| **id != MAIN).count()
    }

    pub(super) fn set_alarm(&self, at: Duration, alarm: Alarm) -> (Duration, u64) {
        let mut state = self.state();
        let key = (at, state.next_timer);
        state.next_timer += 1;
        state.timers.insert(key, alarm);
        key
    }

    /// Notes what the running task waits for.
    pub(super) fn waits_for(&self, wait: TaskWait) {
        let mut state = self.state();
        let ExecutorState { current, tasks, .. } = &mut *state;
        if let Some(entry) = current.and_then(|id| tasks.get_mut(&id)) {
            entry.waits_for = Some(wait);
        }
    }

    /// A random number for simulations.
    pub(super) fn below(&self, end: usize) -> usize {
        self.state().rng.below(end)
    }

    fn begin(&self) {
        let mut state = self.state();
        let entry = TaskEntry {
            name: "main".into(),
            group: Group::ALL,
            task: None,
            is_ready: true,
            waits_for: None,
        };
        state.tasks.insert(MAIN, entry);
        state.ready.retain(|id| *id != MAIN);
        state.ready.push(MAIN);
    }

    /// The next task to poll, after time has moved on as far as it must; `None` if that is never.
    fn next(&self) -> Option<usize> {
        loop {
            let mut state = self.state();
            let ExecutorState {
                now,
                rng,
                tasks,
                ready,
                timers,
                current,
                paused,
                ..
            } = &mut *state;
            *now = match ready.is_empty() {
                true => (*now).max(timers.first_key_value()?.0.0),
                false => *now + STEP,
            };
            let mut due = Vec::new();
            while let Some(first) = timers.first_entry().filter(|first| first.key().0 <= *now) {
                due.push(first.remove());
            }
            if due.is_empty() {
                let id = ready.swap_remove(rng.below(ready.len()));
                let group = tasks.get(&id).map(|entry| entry.group);
                if let Some(held) = group.and_then(|group| paused.get_mut(&group)) {
                    held.push(id);
                    continue;
                }
                *current = Some(id);
                if let Some(entry) = tasks.get_mut(&id) {
                    entry.is_ready = false;
                    entry.waits_for = None;
                }
                return Some(id);
            }
            drop(state);
            due.into_iter().for_each(Alarm::go_off);
        }
    }

    fn take_task(&self, id: usize) -> Option<Task> {
        self.state().tasks.get_mut(&id)?.task.take()
    }

    fn put_back(&self, id: usize, task: Option<Task>) {
        let mut state = self.state();
        state.current = None;
        let dropped = match (task, state.tasks.get_mut(&id)) {
            (Some(task), Some(entry)) => entry.task.replace(task),
            (task, _) => {
                state.tasks.remove(&id);
                task
            }
        };
        drop(state);
        drop(dropped);
    }

    fn wake(&self, id: usize) {
        let mut state = self.state();
        let ExecutorState { tasks, ready, .. } = &mut *state;
        let Some(entry) = tasks.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut entry.is_ready, true) {
            ready.push(id);
        }
    }

    fn deadlock(&self) -> Stall {
        let (elapsed, tasks) = self.describe();
        Stall::Deadlock { elapsed, tasks }
    }

    fn endless(&self, steps: u64) -> Stall {
        let (elapsed, tasks) = self.describe();
        Stall::Endless {
            steps,
            elapsed,
            tasks,
        }
    }

    fn describe(&self) -> (Duration, Vec<String>) {
        let state = self.state();
        let tasks = state.tasks.values().map(ToString::to_string);
        (state.now, tasks.collect())
    }

    fn state(&self) -> MutexGuard<'_, ExecutorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for TaskEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match self.waits_for {
            None => Ok(()),
            Some(TaskWait::Timer(at)) => write!(f, " (until {at:?})"),
            Some(TaskWait::Read(local, peer)) => write!(f, " (reads at {local} from {peer})"),
            Some(TaskWait::Write(local, peer)) => write!(f, " (writes at {local} to {peer})"),
            Some(TaskWait::Accept(local)) => write!(f, " (accepts at {local})"),
        }
    }
}

impl Alarm {
    fn go_off(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Deliver(pipe) => pipe.wake_reader(),
        }
    }
}

struct TaskWaker {
    id: usize,
    core: Weak<Core>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(core) = self.core.upgrade() {
            core.wake(self.id);
        }
    }
}

/// Completes at a virtual time.
pub(super) struct VirtualTimer {
    core: Arc<Core>,
    at: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for VirtualTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.disarm();
        if self.core.elapsed() >= self.at {
            return Poll::Ready(());
        }
        self.core.waits_for(TaskWait::Timer(self.at));
        let alarm = Alarm::Wake(context.waker().clone());
        self.key = Some(self.core.set_alarm(self.at, alarm));
        Poll::Pending
    }
}

impl VirtualTimer {
    fn disarm(&mut self) {
        if let Some(key) = self.key.take() {
            let alarm = self.core.state().timers.remove(&key);
            drop(alarm);
        }
    }
}

impl Drop for VirtualTimer {
    fn drop(&mut self) {
        self.disarm();
    }
}
