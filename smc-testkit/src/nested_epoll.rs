//! The lock of the whole system that is taken to add to an epoll set which another set watches.
//!
//! A FUSE file that is added holds the lock until its file system says whether the file is ready.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::event::epoll;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Holds the lock until it is dropped. All processes of the system wait meanwhile.
#[derive(Debug)]
pub struct HeldLock {
    file: PathBuf,
    release: Option<Sender<()>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl HeldLock {
    /// Takes the lock, with a file system that is mounted on a file in this directory.
    ///
    /// # Errors
    ///
    /// Where this process may not mount a FUSE file system.
    ///
    /// # Panics
    ///
    /// When the file system ends before it holds the lock.
    pub fn take(dir: &Path) -> io::Result<Self> {
        let file = dir.join("slow-to-poll");
        let connection = File::options().read(true).write(true).open("/dev/fuse")?;
        fs::write(&file, [])?;
        let fd = connection.as_raw_fd();
        let options = format!("fd={fd},rootmode=100000,user_id=0,group_id=0");
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("smc-test", &file, "fuse", flags, Some(options.as_c_str()))?;
        let (holds, held) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let server = thread::spawn(move || serve(&connection, &holds, &released));
        let path = file.clone();
        let holder = thread::spawn(move || add(&path));
        held.recv().expect("a file that is polled");
        Ok(Self {
            file,
            release: Some(release),
            threads: vec![server, holder],
        })
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.release = None;
        for thread in self.threads.drain(..) {
            // The file system has ended, so the file cannot be added.
            let _ended = thread.join();
        }
        let _gone = unmount(&self.file, UnmountFlags::DETACH);
    }
}

/// Adds the file to a set that another one watches.
fn add(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let [outer, inner] = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC));
    let (outer, inner) = (outer?, inner?);
    let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    epoll::add(&outer, &inner, data, flags)?;
    Ok(epoll::add(&inner, &file, data, flags)?)
}

/// Answers until the file is polled, and then until it is released. Ends the file system.
fn serve(mut connection: &File, holds: &Sender<()>, released: &Receiver<()>) -> io::Result<()> {
    let mut request = vec![0; MAX_REQUEST];
    loop {
        let len = connection.read(&mut request)?;
        let request = &request[..len];
        let opcode = u32::from_ne_bytes(part(request, 4));
        let unique: [u8; 8] = part(request, 8);
        let (error, body) = match opcode {
            INIT => (0, init(request)),
            GETATTR => (0, attributes()),
            OPEN => (0, vec![0; 16]),
            POLL => {
                let _is_taken = holds.send(());
                let _dropped = released.recv();
                return Ok(());
            }
            _ => (NOT_IMPLEMENTED, Vec::new()),
        };
        let mut reply = Vec::new();
        let len = u32::try_from(HEADER_LEN + body.len()).expect("a short reply");
        reply.extend(len.to_ne_bytes());
        reply.extend(error.to_ne_bytes());
        reply.extend(unique);
        reply.extend(body);
        connection.write_all(&reply)?;
    }
}

/// The answer to INIT: the version of the kernel, and nothing that is optional.
fn init(request: &[u8]) -> Vec<u8> {
    let mut body = request[REQUEST_HEADER_LEN..][..8].to_vec();
    body.resize(64, 0);
    // The longest write.
    body[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    body
}

/// The answer to GETATTR: a regular file with one name.
fn attributes() -> Vec<u8> {
    let mut body = vec![0; 104];
    body[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    body[76..80].copy_from_slice(&0o100_644_u32.to_ne_bytes());
    body[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    body
}

fn part<const N: usize>(request: &[u8], at: usize) -> [u8; N] {
    request[at..][..N].try_into().expect("that many bytes")
}

const MAX_REQUEST: usize = 1 << 17;
const REQUEST_HEADER_LEN: usize = 40;
const HEADER_LEN: usize = 16;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;
const POLL: u32 = 40;
/// `-ENOSYS`.
const NOT_IMPLEMENTED: i32 = -38;
