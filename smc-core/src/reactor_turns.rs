//! Turns of the reactor for tasks that find work whenever they are polled.
//!
//! A task that wakes itself runs again before timers and I/O are checked, many times in a row on
//! some runtimes. A timer is checked with them.

use std::time::{Duration, Instant};

use crate::runtime::{Runtime, Timer};

/// When a task has to wait for the reactor.
#[derive(Debug, Default)]
pub struct ReactorTurns {
    /// `None` if the task has waited since it was last busy.
    busy_until: Option<Instant>,
}

impl ReactorTurns {
    /// The task has waited for something.
    pub fn note_wait(&mut self) {
        self.busy_until = None;
    }

    /// The task is polled: the time counts that it takes from now on.
    pub fn begin(&mut self, runtime: &dyn Runtime) {
        self.busy_until
            .get_or_insert_with(|| runtime.now() + BUSY_MAX);
    }

    /// The timer that the task has to await before it goes on, if it has been busy for too long.
    #[must_use]
    pub fn due(&mut self, runtime: &dyn Runtime) -> Option<Timer> {
        let now = runtime.now();
        if now < *self.busy_until.get_or_insert(now + BUSY_MAX) {
            return None;
        }
        self.note_wait();
        Some(reactor_turn(runtime))
    }
}

/// Completes after a turn of the reactor.
pub fn reactor_turn(runtime: &dyn Runtime) -> Timer {
    runtime.timer(runtime.now() + REACTOR_TURN)
}

/// How long a task goes on before it waits for the reactor. For a listener a few hundred
/// connections, unless a client makes the verdict about each of them long.
const BUSY_MAX: Duration = Duration::from_millis(10);

/// The shortest time that timers of runtimes can measure.
const REACTOR_TURN: Duration = Duration::from_millis(1);
