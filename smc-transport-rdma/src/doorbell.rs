//! One descriptor that becomes readable when the device has an event of any kind.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, inotify};

/// An epoll set over all that can ring.
#[derive(Debug)]
pub(crate) struct EventSet {
    set: OwnedFd,
    /// Rung by this process, for events without a descriptor.
    own: OwnedFd,
    /// Reports that device nodes were removed.
    nodes: Option<OwnedFd>,
}

/// The descriptors that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadySources {
    /// There are completion events.
    pub(crate) completion: bool,
    /// There are asynchronous events.
    pub(crate) asynchronous: bool,
    /// Device nodes were removed, perhaps that of this device.
    pub(crate) nodes: bool,
}

impl EventSet {
    /// An epoll set for two descriptors, which no longer block from now on.
    pub(crate) fn new(
        completion: BorrowedFd<'_>,
        asynchronous: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for (fd, tag) in [(completion, COMPLETION), (asynchronous, ASYNCHRONOUS)] {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
            add(&set, fd, tag)?;
        }
        add(&set, own.as_fd(), OWN)?;
        let nodes = watch_nodes();
        if let Some(nodes) = &nodes {
            add(&set, nodes.as_fd(), NODES)?;
        }
        Ok(Self { set, own, nodes })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Makes it readable.
    pub(crate) fn ring(&self) {
        // Full means that it has been rung often enough.
        let _rung = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// What rings now. Takes back the own rings; the others stop when their events are taken.
    pub(crate) fn poll(&self) -> io::Result<ReadySources> {
        let mut found = [const { MaybeUninit::<epoll::Event>::uninit() }; SOURCES];
        let none = Timespec::default();
        let (found, _) = match epoll::wait(&self.set, &mut found, Some(&none)) {
            Ok(found) => found,
            Err(rustix::io::Errno::INTR) => return Ok(ReadySources::default()),
            Err(error) => return Err(error.into()),
        };
        let mut ready = ReadySources::default();
        for event in found {
            match event.data.u64() {
                COMPLETION => ready.completion = true,
                ASYNCHRONOUS => ready.asynchronous = true,
                NODES => {
                    ready.nodes = true;
                    self.drain_nodes();
                }
                _ => {
                    let mut count = [0; 8];
                    // Without data, another thread has read it.
                    let _count = rustix::io::read(&self.own, &mut count);
                }
            }
        }
        Ok(ready)
    }

    /// The reader checks which node it was, so the contents of the events are discarded.
    fn drain_nodes(&self) {
        let Some(nodes) = &self.nodes else { return };
        let mut events = [0; 4096];
        // A bound, since others make these events: what is left rings again.
        for _ in 0..16 {
            if !matches!(rustix::io::read(nodes, &mut events), Ok(read) if read > 0) {
                break;
            }
        }
    }
}

/// The device node of a device that is open. Its name is the last part of the path.
pub(crate) fn node_of(device: &str) -> Option<std::path::PathBuf> {
    let dir = Path::new("/sys/class/infiniband_verbs");
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let name = std::fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
        if name.trim_end() == device {
            let node = Path::new(NODES_DIR).join(entry.file_name());
            return node.exists().then_some(node);
        }
    }
    None
}

fn add(set: &OwnedFd, fd: BorrowedFd<'_>, tag: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(tag);
    epoll::add(set, fd, data, epoll::EventFlags::IN)?;
    Ok(())
}

/// A watch for removed device nodes; without, removal is noticed by what fails then.
fn watch_nodes() -> Option<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).ok()?;
    inotify::add_watch(&watch, NODES_DIR, inotify::WatchFlags::DELETE).ok()?;
    Some(watch)
}

const NODES_DIR: &str = "/dev/infiniband";

const COMPLETION: u64 = 1;
const ASYNCHRONOUS: u64 = 2;
const OWN: u64 = 3;
const NODES: u64 = 4;
const SOURCES: usize = 4;
