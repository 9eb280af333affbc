//! Listening sockets under names that are published again when removed.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::inotify::WatchFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::socket::{NameEntry, NamedSocket};
use super::watch::{Timer, Watcher};
use super::{Domain, OpenDir, RuntimeDirError};
use crate::passed::{self, Listener, NotAccepted, PeerSocket, Reserve};
use crate::thread::{self, Answer};

/// A listening `SOCK_SEQPACKET` socket that is published in the runtime directories.
///
/// When its name is removed, or the whole directory, it is published again within a second. inotify
/// reports that, to a thread that all publications of the process share; without inotify, or while
/// no directory can be used, the directories are checked about once a second. A check makes some
/// twenty system calls, and there are ten checks a second at most, whatever is done to the path.
/// Each begins with the checks of [`Domain`]. A name that another process has given to its own
/// socket meanwhile is not changed.
///
/// Dropping it removes the name, if the name is still its own.
#[derive(Debug)]
pub struct Publication {
    domain: Domain,
    name: String,
    /// A file and its inode that have to be in the directory.
    companion: Option<(&'static str, (u64, u64))>,
    sockets: Vec<NamedSocket>,
    /// A check that has not ended in time.
    check: Option<Answer<Check>>,
    reserve: Reserve,
    /// What a process of a user who is not allowed is sent.
    refusal: fn(u32) -> Vec<u8>,
    /// Sockets that have lost their names, the oldest first. They refuse new connections; those
    /// that wait are accepted.
    unnamed: VecDeque<Listener>,
    /// All sockets and the timer.
    epoll: Arc<OwnedFd>,
    timer: Arc<Timer>,
    /// `None` where there is no inotify.
    watcher: Option<Arc<Watcher>>,
    /// When the last check began.
    checked: Option<Instant>,
    /// When a name was last found to be missing, and the delay of the check after it.
    lost: Option<(Instant, Duration)>,
    error: Option<RuntimeDirError>,
    /// The descriptor is not readable for new connections, as they cannot be accepted.
    is_paused: bool,
    admits_root: bool,
    /// How many connections are accepted before the next pause, while the threads that close are
    /// [behind](passed::is_behind).
    left: usize,
}

impl Publication {
    /// Publishes a socket. Other users can connect to it if the domain has others.
    ///
    /// Succeeds also if no directory can be used; [`Publication::error`] is the reason then, and it
    /// is tried again every second.
    ///
    /// # Errors
    ///
    /// When there are no descriptors left.
    pub fn new(domain: Domain, name: String) -> io::Result<Self> {
        let mut publication = Self::unpublished(domain, name)?;
        publication.refresh(FIRST_CHECK_TIMEOUT);
        Ok(publication)
    }

    /// Publishes a socket for the processes of this user, in a directory in which the file
    /// `companion` is now, and as long as the same file is in it: without that file the socket
    /// would be of no use.
    ///
    /// # Errors
    ///
    /// When there is no such directory or file, or there are no descriptors left.
    pub fn with_companion(
        domain: Domain,
        name: String,
        companion: &'static str,
    ) -> io::Result<Self> {
        let dir = domain.open_to_publish(None)?;
        let inode = dir.first().ok_or(Errno::NOENT)?.inode(companion)?;
        let mut publication = Self::unpublished(domain, name)?;
        publication.companion = Some((companion, inode));
        publication.refresh(FIRST_CHECK_TIMEOUT);
        Ok(publication)
    }

    fn unpublished(domain: Domain, name: String) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let timer = Arc::new(Timer::new()?);
        epoll::add(&epoll, timer.as_fd(), TIMER, epoll::EventFlags::IN)?;
        Ok(Self {
            domain,
            name,
            companion: None,
            sockets: Vec::new(),
            check: None,
            reserve: Reserve::new()?,
            refusal: |_| Vec::new(),
            unnamed: VecDeque::new(),
            epoll,
            timer,
            watcher: Watcher::shared().ok(),
            checked: None,
            lost: None,
            error: None,
            is_paused: false,
            admits_root: false,
            left: MAX_BEHIND,
        })
    }

    /// Sets what a process of a user who is not allowed is sent before its connection ends; nothing
    /// if it is empty. Depends on the user.
    pub fn set_refusal(&mut self, refusal: fn(u32) -> Vec<u8>) {
        self.refusal = refusal;
    }

    /// Accepts connections of root as well, who can open any socket.
    pub fn admit_root(&mut self) {
        self.admits_root = true;
    }

    /// Readable when a connection can be accepted or [`Publication::handle_events`] has work.
    /// Level-triggered.
    #[must_use]
    pub fn epoll_fd(&self) -> &Arc<OwnedFd> {
        &self.epoll
    }

    /// Makes the descriptor readable after this time at the latest.
    pub fn wake_after(&self, time: Duration) {
        self.timer.start(time);
    }

    /// The directories in which it is published now, the preferred one first.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(|named| named.entry.dir.as_path())
    }

    /// Why it is not published, if it is not; of the kind `TimedOut` while that is not known yet.
    #[must_use]
    pub fn error(&self) -> Option<&RuntimeDirError> {
        self.error.as_ref()
    }

    /// Publishes removed names again. To be called before [`Publication::accept`] when the
    /// descriptor is readable. Does not wait.
    pub fn handle_events(&mut self) {
        let mut space = [const { MaybeUninit::uninit() }; EVENTS];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&Timespec::default()))
        else {
            return;
        };
        for event in events {
            let data = event.data;
            if data == TIMER && self.timer.take_expiration() {
                self.refresh_if_due();
                if self.is_paused {
                    self.pause(!passed::has_descriptors());
                }
            }
        }
    }

    /// The next connection of a user who is allowed.
    ///
    /// # Errors
    ///
    /// As `accept(2)`; `AGAIN` if there is none. With `CONNABORTED`, `MFILE` and `NFILE` one was
    /// closed, and there may be another one: `CONNABORTED` also for each user who is not allowed.
    ///
    /// While none can be accepted, there are none: too many descriptors that were passed to this
    /// process [wait to be closed](passed::has_descriptors), or there is no descriptor with which a
    /// connection could be [closed](Reserve) either. Some are accepted in each tenth of a second
    /// while the threads that close them are [behind](passed::is_behind).
    pub fn accept(&mut self) -> Result<PeerSocket, Errno> {
        if self.is_paused || !passed::has_descriptors() {
            self.pause(true);
            return Err(Errno::AGAIN);
        }
        if passed::is_behind() {
            let Some(left) = self.left.checked_sub(1) else {
                self.left = MAX_BEHIND;
                self.pause(true);
                return Err(Errno::AGAIN);
            };
            self.left = left;
        }
        let allows = |uid| self.domain.allows(uid) || self.admits_root && uid == 0;
        let mut accept = |socket: &Listener| self.reserve.accept(socket, allows, self.refusal);
        let has_one = |next: &Result<_, NotAccepted>| !matches!(next, Err(none) if none.errno == Errno::AGAIN);
        let mut next = None;
        while let Some(socket) = self.unnamed.pop_front() {
            next = Some(accept(&socket)).filter(has_one);
            if next.is_some() {
                self.unnamed.push_front(socket);
                break;
            }
            end(socket, &self.epoll);
        }
        let mut named = self.sockets.iter().map(|named| accept(&named.socket));
        match next.or_else(|| named.find(has_one)) {
            Some(Ok(socket)) => Ok(socket),
            Some(Err(NotAccepted { errno, is_waiting })) => {
                if is_waiting {
                    self.pause(true);
                }
                Err(errno)
            }
            None => Err(Errno::AGAIN),
        }
    }

    /// Stops, or restarts, polling of the sockets for new connections.
    fn pause(&mut self, on: bool) {
        let flags = match on {
            true => epoll::EventFlags::empty(),
            false => epoll::EventFlags::IN,
        };
        let named = self.sockets.iter().map(|named| &named.socket);
        for socket in self.unnamed.iter().chain(named) {
            let _ = epoll::modify(&self.epoll, socket, SOCKET, flags);
        }
        if on {
            self.timer.start(PAUSE_TIME);
        }
        self.is_paused = on;
    }

    /// Removes the name, if it is still that of this socket, and does not publish it again.
    pub fn close(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.remove(&self.timer);
        }
        let _ = epoll::delete(&self.epoll, self.timer.as_fd());
        self.check = None;
        for socket in self.unnamed.drain(..) {
            end(socket, &self.epoll);
        }
        let entries = self.entries();
        if entries.is_empty() {
            return;
        }
        let (domain, name) = (self.domain.clone(), self.name.clone());
        let remove = move || remove_all(&entries, &domain, &name);
        // Otherwise the name stays, without a process, until another process removes it.
        let _ = thread::run(self.domain.names_lock(), CHECK_TIMEOUT, remove);
        for named in self.sockets.drain(..) {
            end(named.socket, &self.epoll);
        }
    }

    /// The timer has expired, which may be for another reason than a check.
    fn refresh_if_due(&mut self) {
        let since = self.checked.map(|checked| checked.elapsed());
        match since.and_then(|since| MIN_DELAY.checked_sub(since)) {
            Some(left) => self.timer.start(left),
            None => self.refresh(CHECK_TIMEOUT),
        }
    }

    /// Publishes the socket where it is not published. Waits for that no longer than `limit`, and
    /// not at all for a check for which it has waited before.
    fn refresh(&mut self, limit: Duration) {
        self.checked = Some(Instant::now());
        let was_begun = self.check.is_some();
        let check = match self.check.take() {
            Some(check) => Ok((check, Duration::ZERO)),
            None => self.start_check().map(|check| (check, limit)),
        };
        let checked = check.and_then(|(check, limit)| {
            let checked = check.wait(limit);
            if checked
                .as_ref()
                .is_err_and(|errno| *errno == Errno::TIMEDOUT)
            {
                self.check = Some(check);
            }
            checked
        });
        match checked {
            Ok(checked) => {
                self.take_checked(checked);
                if was_begun {
                    // The timer may have expired for what has happened since it was begun.
                    self.timer.start(MIN_DELAY);
                }
            }
            Err(errno) => {
                self.timer.start(INTERVAL);
                let dir = self.domain.dir();
                let error = RuntimeDirError::os(dir, "publish a socket", errno);
                self.error = Some(error).filter(|_| self.sockets.is_empty());
            }
        }
    }

    fn start_check(&mut self) -> Result<Answer<Check>, Errno> {
        let watcher = self.watcher.take().filter(|watcher| !watcher.has_ended());
        self.watcher = watcher.or_else(|| Watcher::shared().ok());
        let check = Check {
            domain: self.domain.clone(),
            name: self.name.clone(),
            companion: self.companion,
            epoll: Arc::clone(&self.epoll),
            watcher: self.watcher.clone(),
            timer: Arc::clone(&self.timer),
            entries: self.entries(),
            dirs: Vec::new(),
            made: Vec::new(),
            is_watched: false,
            is_lost: false,
            error: None,
        };
        thread::spawn(self.domain.names_lock(), move || check.run()).map_err(thread::errno)
    }

    fn take_checked(&mut self, mut checked: Check) {
        let has_name = |named: &NamedSocket| checked.entries.contains(&named.entry);
        let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(has_name);
        let delay = self.next_delay(!lost.is_empty());
        self.sockets = kept;
        self.sockets.append(&mut checked.made);
        let dirs = &checked.dirs;
        self.sockets
            .sort_by_key(|named| dirs.iter().position(|dir| *dir == named.entry.dir));
        lost.into_iter()
            .for_each(|named| self.keep_unnamed(named.socket));

        self.timer.set_delay(delay);
        let mut sockets = self.sockets.iter();
        let is_good = !self.sockets.is_empty() && !sockets.any(|named| named.entry.is_alternate);
        if checked.is_lost {
            self.timer.start(delay);
        } else if !is_good || !checked.is_watched {
            self.timer.start(INTERVAL);
        }
        let error = checked.error.take();
        self.error = error.filter(|_| self.sockets.is_empty());
    }

    fn entries(&self) -> Vec<NameEntry> {
        let entries = self.sockets.iter().map(|named| named.entry.clone());
        entries.collect()
    }

    /// Uses another watcher.
    #[cfg(test)]
    pub(super) fn set_watcher(&mut self, watcher: &Arc<Watcher>) {
        if let Some(other) = self.watcher.replace(Arc::clone(watcher)) {
            other.remove(&self.timer);
        }
        self.refresh(FIRST_CHECK_TIMEOUT);
    }

    #[cfg(test)]
    pub(super) fn last_check(&self) -> Option<Instant> {
        self.checked
    }

    #[cfg(test)]
    pub(super) fn is_refresh_scheduled(&self) -> bool {
        self.timer.is_started()
    }

    /// Keeps a socket without a name until the connections that wait there are accepted.
    fn keep_unnamed(&mut self, socket: Listener) {
        // From here on connections are refused: a process that has opened the name before could
        // connect again and again. Not in both directions: epoll would report the socket also in a
        // pause.
        match shutdown(&socket, Shutdown::Read) {
            Ok(()) => self.unnamed.push_back(socket),
            Err(_) => end(socket, &self.epoll),
        }
        if self.unnamed.len() > MAX_UNNAMED {
            let oldest = self.unnamed.pop_front();
            oldest.into_iter().for_each(|it| end(it, &self.epoll));
        }
    }

    /// The delay after the next event: a short time, in which a removal of the whole directory can
    /// complete, and longer if it is removed again and again.
    pub(super) fn next_delay(&mut self, has_lost: bool) -> Duration {
        let now = Instant::now();
        let recent = self
            .lost
            .filter(|(at, _)| now.saturating_duration_since(*at) < RECENTLY);
        let last = recent.map(|(_, delay)| delay);
        if has_lost {
            let delay = last.map_or(MIN_DELAY * 2, |last| (last * 2).min(MAX_DELAY));
            self.lost = Some((now, delay));
            return delay;
        }
        last.unwrap_or(MIN_DELAY)
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends a socket, which would make the descriptor readable until another thread has closed it.
fn end(socket: Listener, epoll: &OwnedFd) {
    let _ = epoll::delete(epoll, &socket);
    drop(socket);
}

fn remove_all(entries: &[NameEntry], domain: &Domain, name: &str) {
    for entry in entries {
        entry.remove(domain, name);
    }
}

/// Finds out whether sockets still have their names, and makes those that are missing. Dropping it
/// ends the sockets that it has made, and has their names removed.
#[derive(Debug)]
struct Check {
    domain: Domain,
    name: String,
    companion: Option<(&'static str, (u64, u64))>,
    epoll: Arc<OwnedFd>,
    watcher: Option<Arc<Watcher>>,
    timer: Arc<Timer>,
    /// Of the sockets that are published; from the check on, of those that have their names.
    entries: Vec<NameEntry>,
    /// The directories to publish in, the preferred one first.
    dirs: Vec<PathBuf>,
    made: Vec<NamedSocket>,
    /// Whether each loss of a name from now on is reported.
    is_watched: bool,
    /// Whether a name was lost meanwhile.
    is_lost: bool,
    error: Option<RuntimeDirError>,
}

impl Drop for Check {
    fn drop(&mut self) {
        let made = std::mem::take(&mut self.made);
        if made.is_empty() {
            return;
        }
        let entry = |named: NamedSocket| {
            end(named.socket, &self.epoll);
            named.entry
        };
        let entries: Vec<_> = made.into_iter().map(entry).collect();
        let (domain, name) = (self.domain.clone(), std::mem::take(&mut self.name));
        let remove = move || remove_all(&entries, &domain, &name);
        // Otherwise they stay, as in `Publication::close`.
        let _ = thread::start(self.domain.names_lock(), remove);
    }
}

impl Check {
    /// On a thread, as each of these calls can wait for the lock of a directory.
    fn run(mut self) -> Self {
        let alternate = self.entries.iter().find(|entry| entry.is_alternate);
        let alternate = alternate.map(|entry| entry.dir.as_path());
        let dirs = match self.domain.open_to_publish(alternate) {
            Ok(dirs) => dirs,
            // That does not concern the names.
            Err(error) if error.lack().is_some() && !self.entries.is_empty() => return self,
            Err(error) => {
                self.error = Some(error);
                Vec::new()
            }
        };
        let has_name = |entry: &NameEntry| {
            dirs.iter()
                .any(|dir| dir.path == entry.dir && entry.has_name(dir, &self.name))
        };
        let entries = std::mem::take(&mut self.entries);
        let (kept, lost): (Vec<_>, Vec<_>) = entries.into_iter().partition(has_name);
        for dir in &dirs {
            if kept.iter().any(|entry| entry.dir == dir.path) {
                continue;
            }
            match self.publish_in(dir) {
                Ok(named) => self.made.push(named),
                Err(errno) => {
                    let error = RuntimeDirError::os(&dir.path, "publish a socket", errno);
                    self.error = Some(error);
                }
            }
        }
        // After the new ones are there, so that a client finds one of them.
        remove_all(&lost, &self.domain, &self.name);
        self.is_watched = dirs.iter().all(|dir| self.watch(dir).is_ok());
        // No event reports what happened before it was watched.
        let made = self.made.iter().map(|named| &named.entry);
        self.is_lost = kept.iter().chain(made).any(|entry| {
            let dir = self.domain.open(&entry.dir);
            !dir.is_ok_and(|dir| entry.has_name(&dir, &self.name))
        });
        self.entries = kept;
        self.dirs = dirs.into_iter().map(|dir| dir.path).collect();
        self
    }

    fn publish_in(&self, dir: &OpenDir) -> Result<NamedSocket, Errno> {
        if let Some((companion, inode)) = self.companion {
            let found = dir.inode(companion)?;
            if found != inode {
                return Err(Errno::STALE);
            }
        }
        let named = NamedSocket::bind(dir, &self.name, self.domain.has_others())?;
        // Here, as it waits for the lock of `Lock::NestedEpoll` where a set watches this one.
        let added = epoll::add(&self.epoll, &named.socket, SOCKET, epoll::EventFlags::IN);
        added.inspect_err(|_| named.entry.remove(&self.domain, &self.name))?;
        Ok(named)
    }

    /// Asks for an event when the name, the directory or one above it changes.
    fn watch(&self, dir: &OpenDir) -> Result<(), Errno> {
        let watcher = self.watcher.as_ref().ok_or(Errno::NOSYS)?;
        let changes = WatchFlags::ATTRIB;
        watcher.watch(&dir.path.join(&self.name), &self.timer, changes)?;
        watcher.watch(&dir.path, &self.timer, changes)?;
        for above in dir.path.ancestors().skip(1).take(MAX_ANCESTORS) {
            // One that cannot be read cannot be watched. Changes of owner and mode are reported
            // also of what is in it, and other users have files in `/tmp`.
            let _ = watcher.watch(above, &self.timer, WatchFlags::empty());
        }
        Ok(())
    }
}

const TIMER: epoll::EventData = epoll::EventData::new_u64(0);
const SOCKET: epoll::EventData = epoll::EventData::new_u64(1);

/// Sockets without a name whose connections still wait. Those of an older one end.
const MAX_UNNAMED: usize = 4;

/// The timer, a socket in each of at most three directories, and those without a name.
const EVENTS: usize = 4 + MAX_UNNAMED;

/// Directories above the runtime directory that are watched.
const MAX_ANCESTORS: usize = 16;

/// Interval of checks where no event reports that publishing is possible or necessary.
const INTERVAL: Duration = Duration::from_millis(800);

/// How long a task waits for a check, which takes part of a millisecond unless another user holds
/// the lock of a directory. A check that takes longer goes on.
const CHECK_TIMEOUT: Duration = Duration::from_millis(100);

/// The same for the first one, before anything depends on the caller.
const FIRST_CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long no connection is accepted for which there is no descriptor.
const PAUSE_TIME: Duration = Duration::from_millis(100);

/// Connections that are accepted between two pauses while the threads that close them are behind:
/// fewer than these threads can close in that time, unless a peer blocks them.
const MAX_BEHIND: usize = 128;

/// From an event to the check after it.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_millis(500);

/// A name that was removed is there again within a second, whether an event reports that or not.
const _: () = {
    assert!(MAX_DELAY.as_millis() + CHECK_TIMEOUT.as_millis() <= 1000);
    assert!(INTERVAL.as_millis() + CHECK_TIMEOUT.as_millis() <= 1000);
};

/// After this time without loss the delay is short again.
const RECENTLY: Duration = Duration::from_secs(10);
