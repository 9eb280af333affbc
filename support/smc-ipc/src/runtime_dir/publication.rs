use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::socket::NamedSocket;
use super::watch::{Timer, Watcher};
use super::{Domain, OpenDir, RuntimeDirError};
use crate::passed::{self, NotAccepted, PeerSocket, Reserve};

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
    reserve: Reserve,
    /// What a process of a user who is not allowed is sent.
    refusal: fn(u32) -> Vec<u8>,
    /// Accepted from sockets that have lost their names.
    pending: VecDeque<PeerSocket>,
    /// All sockets and the timer.
    epoll: OwnedFd,
    timer: Arc<Timer>,
    /// `None` where there is no inotify.
    watcher: Option<Arc<Watcher>>,
    /// When a name was last found to be missing, and the delay of the check after it.
    lost: Option<(Instant, Duration)>,
    error: Option<RuntimeDirError>,
    /// The descriptor is not readable for new connections, as they cannot be accepted.
    is_paused: bool,
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
        publication.refresh();
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
        publication.refresh();
        Ok(publication)
    }

    fn unpublished(domain: Domain, name: String) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = Arc::new(Timer::new()?);
        epoll::add(&epoll, timer.as_fd(), TIMER, epoll::EventFlags::IN)?;
        Ok(Self {
            domain,
            name,
            companion: None,
            sockets: Vec::new(),
            reserve: Reserve::new()?,
            refusal: |_| Vec::new(),
            pending: VecDeque::new(),
            epoll,
            timer,
            watcher: Watcher::shared().ok(),
            lost: None,
            error: None,
            is_paused: false,
            left: MAX_BEHIND,
        })
    }

    /// Sets what a process of a user who is not allowed is sent before its connection ends; nothing if
    /// it is empty. Depends on the user.
    pub fn set_refusal(&mut self, refusal: fn(u32) -> Vec<u8>) {
        self.refusal = refusal;
    }

    /// Readable when a connection can be accepted or [`Publication::handle_events`] has work.
    /// Level-triggered.
    #[must_use]
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Makes the descriptor readable after this time at the latest.
    pub fn wake_after(&self, time: Duration) {
        self.timer.start(time);
    }

    /// The directories in which it is published now, the preferred one first.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(|named| named.dir.as_path())
    }

    /// Why it is not published, if it is not.
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
                self.refresh();
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
        if let Some(pending) = self.pending.pop_front() {
            if !self.pending.is_empty() {
                // The descriptor is not readable for these.
                self.timer.start(Duration::ZERO);
            }
            return Ok(pending);
        }
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
        let sockets = self.sockets.iter();
        let allows = |uid| self.domain.allows(uid);
        let mut each =
            sockets.map(|named| self.reserve.accept(&named.socket, allows, self.refusal));
        let next = each.find(|next| match next {
            Ok(_) => true,
            Err(refused) => refused.errno != Errno::AGAIN,
        });
        match next {
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
        for named in &self.sockets {
            let _ = epoll::modify(&self.epoll, &named.socket, SOCKET, flags);
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
        for named in self.sockets.drain(..) {
            named.remove(&self.domain, &self.name);
        }
    }

    /// Publishes the socket where it is not published.
    fn refresh(&mut self) {
        let spare = self.sockets.iter().find(|named| named.is_spare);
        let spare = spare.map(|named| named.dir.clone());
        let found = self.domain.open_to_publish(spare.as_deref());
        let (dirs, mut error) = match found {
            Ok(dirs) => (dirs, None),
            // That does not concern the names.
            Err(error) if error.lack().is_some() && !self.sockets.is_empty() => {
                self.timer.start(INTERVAL);
                return;
            }
            Err(error) => (Vec::new(), Some(error)),
        };
        let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(|named| {
                dirs.iter()
                    .any(|dir| dir.path == named.dir && named.has_name(dir, &self.name))
            });
        let delay = self.next_delay(!lost.is_empty());
        self.sockets = kept;
        for dir in &dirs {
            if self.sockets.iter().any(|named| named.dir == dir.path) {
                continue;
            }
            match self.publish_in(dir) {
                Ok(named) => self.sockets.push(named),
                Err(errno) => {
                    error = Some(RuntimeDirError::os(&dir.path, "publish a socket", errno));
                }
            }
        }
        self.sockets
            .sort_by_key(|named| dirs.iter().position(|dir| dir.path == named.dir));
        // After the new ones are there, so that a client finds one of them.
        lost.into_iter().for_each(|named| self.unpublish(named));

        self.timer.set_delay(delay);
        let watcher = self.watcher.take().filter(|watcher| !watcher.has_ended());
        self.watcher = watcher.or_else(|| Watcher::shared().ok());
        let is_watched = dirs.iter().all(|dir| self.watch(dir).is_ok());
        let is_good = !self.sockets.is_empty() && !self.sockets.iter().any(|named| named.is_spare);
        // No event reports what happened before it was watched.
        let is_lost = self.sockets.iter().any(|named| {
            !self
                .domain
                .open(&named.dir)
                .is_ok_and(|dir| named.has_name(&dir, &self.name))
        });
        if is_lost {
            self.timer.start(delay);
        } else if !is_good || !is_watched {
            self.timer.start(INTERVAL);
        }
        self.error = error.filter(|_| self.sockets.is_empty());
    }

    fn publish_in(&self, dir: &OpenDir) -> Result<NamedSocket, Errno> {
        if let Some((companion, inode)) = self.companion {
            let found = dir.inode(companion)?;
            if found != inode {
                return Err(Errno::STALE);
            }
        }
        let named = NamedSocket::bind(dir, &self.name, self.domain.has_others())?;
        if let Err(errno) = epoll::add(&self.epoll, &named.socket, SOCKET, epoll::EventFlags::IN) {
            named.remove(&self.domain, &self.name);
            return Err(errno);
        }
        Ok(named)
    }

    /// Uses another watcher.
    #[cfg(test)]
    pub(super) fn set_watcher(&mut self, watcher: &Arc<Watcher>) {
        if let Some(other) = self.watcher.replace(Arc::clone(watcher)) {
            other.remove(&self.timer);
        }
        self.refresh();
    }

    #[cfg(test)]
    pub(super) fn is_refresh_scheduled(&self) -> bool {
        self.timer.is_started()
    }

    /// Removes a socket, and keeps the connections in its backlog.
    fn unpublish(&mut self, named: NamedSocket) {
        named.remove(&self.domain, &self.name);
        let allows = |uid| self.domain.allows(uid);
        loop {
            match self.reserve.accept(&named.socket, allows, self.refusal) {
                Ok(pending) => self.pending.push_back(pending),
                Err(refused) if refused.errno == Errno::CONNABORTED => {}
                Err(_) => return,
            }
        }
    }

    /// Asks for an event when the name, the directory or one above it changes.
    fn watch(&self, dir: &OpenDir) -> Result<(), Errno> {
        let watcher = self.watcher.as_ref().ok_or(Errno::NOSYS)?;
        watcher.watch(&dir.path.join(&self.name), &self.timer)?;
        watcher.watch(&dir.path, &self.timer)?;
        for above in dir.path.ancestors().skip(1).take(MAX_ANCESTORS) {
            // One that cannot be read cannot be watched.
            let _ = watcher.watch_ancestor(above, &self.timer);
        }
        Ok(())
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

const TIMER: epoll::EventData = epoll::EventData::new_u64(0);
const SOCKET: epoll::EventData = epoll::EventData::new_u64(1);

/// The timer, and a socket in each of at most three directories.
const EVENTS: usize = 4;

/// Directories above the runtime directory that are watched.
const MAX_ANCESTORS: usize = 16;

/// Interval of checks where no event reports that publishing is possible or necessary.
const INTERVAL: Duration = Duration::from_millis(800);

/// How long no connection is accepted for which there is no descriptor.
const PAUSE_TIME: Duration = Duration::from_millis(100);

/// Connections that are accepted between two pauses while the threads that close them are behind:
/// fewer than these threads can close in that time, unless a peer blocks them.
const MAX_BEHIND: usize = 128;

/// From an event to the check after it.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_millis(500);

/// After this time without loss the delay is short again.
const RECENTLY: Duration = Duration::from_secs(10);
