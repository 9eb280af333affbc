//! Processes of the command, and what their peers are.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use smc_testkit::wait::{TIMEOUT, until};
use tempfile::TempDir;

/// Processes that have a runtime directory in common.
pub(crate) struct World {
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Starts `smc` with these arguments, separated by spaces.
    pub(crate) fn smc(&self, line: &str) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_smc"))
            .args(line.split_whitespace())
            .env("SMC_RUNTIME_DIR", self.dir.path().join("run"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                // Shown where the test fails.
                eprintln!("{line}");
                let _finished = sender.send(line);
            }
        });
        Process {
            input: child.stdin.take(),
            output: child.stdout.take(),
            pieces: None,
            rest: Vec::new(),
            child,
            lines,
        }
    }

    /// Runs `smc` with these arguments, separated by spaces, to its end.
    pub(crate) fn run(&self, line: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_smc"))
            .args(line.split_whitespace())
            .env("SMC_RUNTIME_DIR", self.dir.path().join("run"))
            .output()
            .unwrap()
    }

    /// A proxy, and the address at which it listens.
    pub(crate) fn proxy(&self, line: &str) -> (Process, String) {
        let proxy = self.smc(&format!("proxy {line}"));
        let first = proxy.line_with("listening at ");
        let (_, at) = first.split_once("listening at ").unwrap();
        let at = at.split_once(", for ").unwrap().0.to_owned();
        (proxy, at)
    }
}

/// A process. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: Option<ChildStdout>,
    /// Standard output as a thread reads it.
    pieces: Option<Receiver<Vec<u8>>>,
    /// What was read too much.
    rest: Vec<u8>,
    lines: Receiver<String>,
}

impl Process {
    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line on standard error with this text; those before it are skipped.
    pub(crate) fn line_with(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|why| panic!("no line with '{text}': {why}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The address that `smc cat -l -v` reports.
    pub(crate) fn address(&self) -> String {
        let line = self.line_with("listening at ");
        line.split_once("listening at ").unwrap().1.to_owned()
    }

    /// Writes standard input, up to its end, on a thread.
    pub(crate) fn send(&mut self, data: Vec<u8>) {
        let mut input = self.input.take().unwrap();
        thread::spawn(move || {
            // A process that fails reads no more.
            let _broken = input.write_all(&data);
        });
    }

    /// Reads this much of standard output.
    pub(crate) fn receive(&mut self, len: usize) -> Vec<u8> {
        while self.rest.len() < len {
            let piece = self.next_piece().unwrap();
            self.rest.extend(piece);
        }
        let more = self.rest.split_off(len);
        std::mem::replace(&mut self.rest, more)
    }

    /// Reads standard output up to its end.
    pub(crate) fn receive_all(&mut self) -> Vec<u8> {
        let mut data = std::mem::take(&mut self.rest);
        loop {
            match self.next_piece() {
                Ok(piece) => data.extend(piece),
                Err(RecvTimeoutError::Disconnected) => return data,
                Err(RecvTimeoutError::Timeout) => panic!("no end after {} bytes", data.len()),
            }
        }
    }

    fn next_piece(&mut self) -> Result<Vec<u8>, RecvTimeoutError> {
        let pieces = self.pieces.get_or_insert_with(|| {
            let mut output = self.output.take().unwrap();
            let (sender, pieces) = sync_channel(1);
            thread::spawn(move || {
                let mut buf = vec![0; 1 << 16];
                while let Ok(count @ 1..) = output.read(&mut buf) {
                    if sender.send(buf[..count].to_vec()).is_err() {
                        break;
                    }
                }
            });
            pieces
        });
        pieces.recv_timeout(TIMEOUT)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the end of the process.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        };
        until(ended, || "the process does not end".to_owned());
        status.unwrap()
    }

    /// Waits for the end of the process; returns the other lines on standard error.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let code = self.status().code();
        (code, self.lines.iter().collect::<Vec<_>>().join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Data that is different for each seed and at each position.
pub(crate) fn data(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}

/// A TCP server that serves each connection by a thread. It lasts as long as the test.
pub(crate) fn tcp_server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(limited(stream)));
        }
    });
    address
}

/// A connection of an ordinary TCP client.
pub(crate) fn tcp_client(address: &str) -> TcpStream {
    let address = address.strip_prefix("tcp:").unwrap_or(address);
    limited(TcpStream::connect(address).unwrap())
}

/// A test whose data does not arrive fails.
fn limited(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends back what is received, as it is received.
pub(crate) fn echo(stream: TcpStream) {
    let (mut from, mut to) = (&stream, &stream);
    if std::io::copy(&mut from, &mut to).is_ok() {
        let _ended = stream.shutdown(std::net::Shutdown::Write);
    }
}

/// Sends back what is received, in reverse order: not before the client's half close.
pub(crate) fn reverse(mut stream: TcpStream) {
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    received.reverse();
    stream.write_all(&received).unwrap();
}
