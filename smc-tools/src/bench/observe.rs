//! Requests for what two processes report, as tools send them, while the two are measured.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use smc::introspection::{Directory, Request, Subject, directories, query};

/// A thread that sends requests to processes.
pub(super) struct Observer {
    stop: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Observer {
    /// Begins to send requests to these processes, once they answer.
    pub(super) fn start(processes: [u32; 2]) -> Self {
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            let mut observed = processes.map(|process| (process, None, false));
            let request = Request::new(&[Subject::Connections, Subject::Stats]);
            loop {
                for (process, socket, has_answered) in &mut observed {
                    if socket.is_none() {
                        *socket = socket_of(*process);
                    }
                    let Some(socket) = socket else {
                        continue;
                    };
                    match query(socket, &request, TIMEOUT, |_| true) {
                        Ok(_) => *has_answered = true,
                        Err(error) => match error.kind() {
                            // Its endpoint was dropped, or is.
                            ErrorKind::NotFound
                            | ErrorKind::ConnectionRefused
                            | ErrorKind::ConnectionReset
                            | ErrorKind::BrokenPipe
                            | ErrorKind::UnexpectedEof => {}
                            _ => return Err(error.into()),
                        },
                    }
                }
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            for (process, _, has_answered) in observed {
                ensure!(has_answered, "process {process} has answered no request");
            }
            Ok(())
        });
        Self { stop, thread }
    }

    /// Ends it. An error if a process could not be asked or has not answered.
    pub(super) fn end(self) -> Result<()> {
        drop(self.stop);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the thread that sends requests has panicked"))?
    }
}

/// The socket of a process, once there is one.
fn socket_of(process: u32) -> Option<PathBuf> {
    let prefix = format!("i-{process}-");
    let is_its = |socket: &PathBuf| {
        let name = socket.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&prefix))
    };
    let own = nix::unistd::geteuid().as_raw();
    let mut dirs = directories().found;
    dirs.retain(|dir| dir.owner == own);
    dirs.iter().flat_map(Directory::sockets).find(is_its)
}

/// Between two requests to a process: 100 in a second.
const INTERVAL: Duration = Duration::from_millis(10);

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
