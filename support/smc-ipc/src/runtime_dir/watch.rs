//! Reports of removed names by inotify, without polling.
//!
//! A user has 128 instances of inotify by default, for all programs. So the
//! publications of a process share one. A thread reads its events, which are rare, and starts the
//! timers of those that they concern, so that no other task is woken.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};

use crate::thread::lock;

/// The timer for the next check of a publication.
#[derive(Debug)]
pub(super) struct Timer {
    fd: OwnedFd,
    /// Milliseconds from an event to the check.
    delay: AtomicU64,
}

impl Timer {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            fd: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            delay: AtomicU64::new(0),
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delay.store(delay, Ordering::Relaxed);
    }

    /// Expires after this time at the latest.
    pub(super) fn start(&self, after: Duration) {
        let none = Timespec::default();
        // All zero would stop it.
        let after = Timespec::try_from(after.max(Duration::from_nanos(1))).unwrap_or(none);
        let left = timerfd_gettime(&self.fd).map_or(none, |timer| timer.it_value);
        if left == none || left > after {
            let timer = Itimerspec {
                it_interval: none,
                it_value: after,
            };
            let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &timer);
        }
    }

    #[cfg(test)]
    pub(super) fn is_started(&self) -> bool {
        timerfd_gettime(&self.fd).is_ok_and(|timer| timer.it_value != timer.it_interval)
    }

    /// Whether it has expired since the last call.
    pub(super) fn take_expiration(&self) -> bool {
        rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }

    fn schedule(&self) {
        self.start(Duration::from_millis(self.delay.load(Ordering::Relaxed)));
    }
}

/// An instance of inotify and the timers that its events start.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Its thread is in this process.
    process: u32,
    inotify: OwnedFd,
    /// None when its events could not be read any more: nothing is watched.
    timers: Mutex<Option<Timers>>,
}

#[derive(Debug, Default)]
struct Timers {
    by_watch: HashMap<i32, Vec<Weak<Timer>>>,
    /// Calls that add a watch, and have not recorded its timer yet.
    adding: usize,
    /// The watches with an event since such a call has begun.
    triggered: HashSet<i32>,
    /// Any watch may be one of those: events were lost, or there are too many.
    is_any_triggered: bool,
}

impl Timers {
    /// Removes the timers of a watch that has an event.
    fn take(&mut self, watch: i32) -> Vec<Weak<Timer>> {
        if self.adding > 0 {
            self.is_any_triggered |= self.triggered.len() >= TRIGGERED_MAX;
            if !self.is_any_triggered {
                self.triggered.insert(watch);
            }
        }
        self.by_watch.remove(&watch).unwrap_or_default()
    }

    /// Removes all timers.
    fn take_all(&mut self) -> Vec<Weak<Timer>> {
        self.is_any_triggered |= self.adding > 0;
        let all = std::mem::take(&mut self.by_watch);
        all.into_values().flatten().collect()
    }

    /// Ends a call that adds a watch. Returns whether the watch has had its event already.
    fn end_adding(&mut self, watch: i32) -> bool {
        let is_triggered = self.is_any_triggered || self.triggered.contains(&watch);
        self.adding = self.adding.saturating_sub(1);
        if self.adding == 0 {
            self.is_any_triggered = false;
            self.triggered = HashSet::new();
        }
        is_triggered
    }
}

impl Watcher {
    /// The one of this process, which stays as long as it works.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        let mut shared = lock(&SHARED);
        if let Some(watcher) = shared.as_ref().filter(|watcher| !watcher.has_ended()) {
            return Ok(Arc::clone(watcher));
        }
        let watcher = Self::start()?;
        *shared = Some(Arc::clone(&watcher));
        Ok(watcher)
    }

    pub(super) fn start() -> io::Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            process: std::process::id(),
            inotify: inotify::init(CreateFlags::CLOEXEC)?,
            timers: Mutex::new(Some(Timers::default())),
        });
        let dispatching = Arc::clone(&watcher);
        thread::Builder::new()
            .name("smc-watch".into())
            .stack_size(STACK)
            .spawn(move || dispatching.dispatch())?;
        Ok(watcher)
    }

    /// Whether it reports no more events, as that of its parent does in a child process.
    pub(super) fn has_ended(&self) -> bool {
        self.process != std::process::id() || lock(&self.timers).is_none()
    }

    /// Starts the timer when the file or directory is renamed or removed, or at an event of `more`;
    /// once, so that a path that changes without end costs no more than the checks.
    pub(super) fn watch(
        &self,
        path: &Path,
        timer: &Arc<Timer>,
        more: WatchFlags,
    ) -> Result<(), Errno> {
        // A directory may be above another one that is watched: flags are added.
        let flags = more
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONESHOT
            | WatchFlags::MASK_ADD;
        self.watch_by(timer, |inotify| inotify::add_watch(inotify, path, flags))
    }

    /// The same, with what adds the watch. That looks the path up, for which it may wait as long as
    /// another user holds the lock of a directory, so that nothing is locked meanwhile.
    fn watch_by(
        &self,
        timer: &Arc<Timer>,
        add: impl FnOnce(&OwnedFd) -> Result<i32, Errno>,
    ) -> Result<(), Errno> {
        lock(&self.timers).as_mut().ok_or(Errno::BADF)?.adding += 1;
        let watch = add(&self.inotify);
        let mut timers = lock(&self.timers);
        let timers = timers.as_mut().ok_or(Errno::BADF)?;
        if timers.end_adding(watch.unwrap_or(NO_WATCH)) {
            // Its event was dispatched before the timer was known.
            timer.schedule();
        }
        let interested = timers.by_watch.entry(watch?).or_default();
        if !interested.iter().any(|known| is_timer(known, timer)) {
            interested.push(Arc::downgrade(timer));
        }
        Ok(())
    }

    /// Reads events and starts the timers that they concern; all of them when it cannot go on, so
    /// that publications use another watcher from then on, or poll.
    fn dispatch(&self) {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut space);
        loop {
            let event = events.next();
            if let Err(Errno::INTR) = event {
                continue;
            }
            let mut timers = lock(&self.timers);
            let concerned = match (&event, timers.as_mut()) {
                (Ok(event), Some(timers))
                    if !event.events().contains(ReadFlags::QUEUE_OVERFLOW) =>
                {
                    timers.take(event.wd())
                }
                (_, Some(timers)) => timers.take_all(),
                (_, None) => Vec::new(),
            };
            if event.is_err() {
                *timers = None;
            }
            drop(timers);
            let timers = concerned.iter().filter_map(Weak::upgrade);
            timers.for_each(|timer| timer.schedule());
            if event.is_err() {
                return;
            }
        }
    }

    /// Has the reading of events fail when there are none.
    #[cfg(test)]
    pub(super) fn fail(&self) {
        let flags = rustix::fs::fcntl_getfl(&self.inotify).expect("a descriptor has flags");
        let failing = rustix::fs::fcntl_setfl(&self.inotify, flags | rustix::fs::OFlags::NONBLOCK);
        failing.expect("inotify can be read without waiting");
    }

    /// Removes a timer, and the watches that only it has.
    pub(super) fn remove(&self, timer: &Arc<Timer>) {
        let mut timers = lock(&self.timers);
        let Some(timers) = timers.as_mut() else {
            return;
        };
        timers.by_watch.retain(|watch, timers| {
            timers.retain(|known| !is_timer(known, timer));
            if timers.is_empty() {
                let _ = inotify::remove_watch(&self.inotify, *watch);
            }
            !timers.is_empty()
        });
    }
}

fn is_timer(known: &Weak<Timer>, timer: &Arc<Timer>) -> bool {
    std::ptr::eq(known.as_ptr(), Arc::as_ptr(timer))
}

/// For the whole process, as the limit is for the whole user.
static SHARED: Mutex<Option<Arc<Watcher>>> = Mutex::new(None);

/// Events that are remembered while watches are added.
const TRIGGERED_MAX: usize = 1024;

/// inotify counts from 1.
const NO_WATCH: i32 = 0;

/// Of the thread: enough for what it reads, and for a backtrace.
const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_look_up_that_blocks_keeps_no_other_publication_waiting() {
        let watcher = Watcher::start().unwrap();
        let timer = || Arc::new(Timer::new().unwrap());
        let (begun_tx, begun) = channel();
        let (release, released) = channel::<()>();
        let blocked = {
            let (watcher, timer) = (Arc::clone(&watcher), timer());
            thread::spawn(move || {
                watcher.watch_by(&timer, |_| {
                    begun_tx.send(()).unwrap();
                    let _released = released.recv();
                    Err(Errno::NOENT)
                })
            })
        };
        begun.recv().unwrap();
        // Each of these waited for the other call.
        assert!(!watcher.has_ended());
        let (dir, other) = (tempfile::tempdir().unwrap(), timer());
        watcher
            .watch(dir.path(), &other, WatchFlags::empty())
            .unwrap();
        watcher.remove(&other);
        drop(release);
        assert_eq!(blocked.join().unwrap(), Err(Errno::NOENT));
    }

    #[test]
    fn an_event_between_watch_and_timer_starts_the_timer() {
        let watcher = Watcher::start().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watched");
        std::fs::create_dir(&path).unwrap();
        let timer = Arc::new(Timer::new().unwrap());
        timer.set_delay(Duration::from_secs(600));
        let added = watcher.watch_by(&timer, |inotify| {
            let flags = WatchFlags::DELETE_SELF | WatchFlags::ONESHOT;
            let watch = inotify::add_watch(inotify, &path, flags)?;
            std::fs::remove_dir(&path).unwrap();
            let is_dispatched = || {
                lock(&watcher.timers)
                    .as_ref()
                    .unwrap()
                    .triggered
                    .contains(&watch)
            };
            while !is_dispatched() {
                thread::yield_now();
            }
            Ok(watch)
        });
        added.unwrap();
        assert!(timer.is_started());
        // The next call begins without it.
        let timers = lock(&watcher.timers);
        assert!(timers.as_ref().unwrap().triggered.is_empty());
    }
}
