//! `smc dissect`: the SMC messages in captures, or in hex on the command line.
//!
//! From the bottom up: [`capture`] and [`live`] give frames, [`link`] takes them apart, [`clc`]
//! (over [`stream`]) and [`roce`] find the messages, [`report`] shows them. Messages are
//! decoded in `smc-wire` only. With [`follow`] a capture grows while it is read, and [`watch`]
//! waits for what comes.

mod args;
mod capture;
mod clc;
mod decode;
mod describe;
mod follow;
mod hex;
mod json;
mod link;
mod live;
mod message;
mod report;
mod roce;
mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufReader, BufWriter, Read, Write};

use anyhow::{Context as _, Result, ensure};
use thiserror::Error;

pub(crate) use self::args::Args;
use self::capture::{CaptureError, Frame, Frames, Reader};
use self::clc::Connections;
use self::follow::Follow;
use self::live::{Live, LiveError};
use self::message::{Mark, Message};
use self::roce::QueuePairs;
use self::watch::Watch;
use crate::output::{self, Usage};
use crate::processes::printable;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    ensure!(
        !args.follow || args.inputs.len() == 1,
        Usage::new("--follow takes one FILE")
    );
    let mut out = BufWriter::new(io::stdout().lock());
    let done = match args.decode {
        Some(family) => decode::run(args, family, &mut out),
        None if args.follow || args.interface.is_some() => as_it_comes(args, &mut out),
        None => captures(args, &mut out),
    };
    let done = done.and_then(|is_good| out.flush().map(|()| is_good));
    match done {
        // The reader has closed the output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(true),
        done => done.context("cannot write"),
    }
}

/// Reads all captures; false if one of them could not be read.
fn captures(args: &Args, out: &mut dyn Write) -> io::Result<bool> {
    let mut is_good = true;
    for (index, path) in args.inputs.iter().enumerate() {
        let name = path.to_string_lossy();
        if !args.json && args.inputs.len() > 1 {
            let blank = if index > 0 { "\n" } else { "" };
            writeln!(out, "{blank}==> {} <==", printable(&name))?;
        }
        let show = &mut |message| report::message(args, &name, &message, &mut *out);
        let result = open(path).and_then(|file| read(file, show));
        // What was found stands before what is wrong, also if both go to one terminal.
        out.flush()?;
        match result {
            Ok(()) => {}
            Err(Failure::Write(error)) => return Err(error),
            Err(failure) => {
                warn(&format_args!("{}: {failure}", printable(&name)));
                is_good = false;
            }
        }
    }
    Ok(is_good)
}

fn open(path: &OsStr) -> Result<Box<dyn Read>, Failure> {
    if path == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(Failure::Open)?;
    Ok(Box::new(BufReader::with_capacity(READ_AHEAD, file)))
}

/// Bytes read from a file at a time.
const READ_AHEAD: usize = 256 << 10;

/// Shows the messages of an interface or of a growing capture as they come, until the input ends or
/// the user ends it; false if it could not be read.
fn as_it_comes(args: &Args, out: &mut dyn Write) -> io::Result<bool> {
    let watch = Watch::new()?;
    let path = args.inputs.first();
    let path = path.map_or_else(|| OsStr::new("-"), OsString::as_os_str);
    let name = match &args.interface {
        Some(interface) => interface.into(),
        None => path.to_string_lossy(),
    };
    let shown = printable(&name);
    let mut messages = 0;
    let mut show = |message| {
        messages += 1;
        report::message(args, &name, &message, &mut *out)?;
        out.flush()
    };
    let mut counts = Counts::default();
    let result = match &args.interface {
        Some(interface) => from_interface(interface, &watch, &mut counts, &mut show),
        None => {
            let follow = Follow::open(path, &watch).map_err(Failure::Open);
            follow.and_then(|input| {
                counts.has_begun = true;
                let input = BufReader::with_capacity(READ_AHEAD, input);
                let mut reader = Reader::new(input).map_err(Failure::Read)?;
                dissect(&mut reader, &mut counts, &mut show)
            })
        }
    };
    let result = match result {
        // Where the user ends it, the last frame may be there in part.
        Err(Failure::Read(error)) if watch.is_over() && error.is_early_end() => Ok(()),
        result => result,
    };
    let outcome = match result {
        Ok(()) => Ok(true),
        Err(Failure::Write(error)) => Err(error),
        Err(failure) => {
            warn(&format_args!("{shown}: {failure}"));
            Ok(false)
        }
    };
    if counts.has_begun {
        warn(&format_args!("{shown}: {counts}, messages: {messages}"));
    }
    outcome
}

/// Gives the messages on an interface to `sink` as they come.
fn from_interface(
    interface: &str,
    watch: &Watch,
    counts: &mut Counts,
    sink: Sink<'_>,
) -> Result<(), Failure> {
    let mut live = Live::open(interface, watch).map_err(Failure::Live)?;
    counts.has_begun = true;
    warn(&format_args!("{interface}: capturing until Ctrl-C"));
    let result = dissect(&mut live, counts, sink);
    counts.lost = live.lost();
    result
}

/// Reads a capture and gives its messages to `sink`, in the order in which they became complete.
fn read(input: impl Read, sink: Sink<'_>) -> Result<(), Failure> {
    let mut reader = Reader::new(input).map_err(Failure::Read)?;
    dissect(&mut reader, &mut Counts::default(), sink)
}

/// Finds the messages in frames and gives them to `sink`, in the order in which they became
/// complete.
fn dissect(frames: &mut impl Frames, counts: &mut Counts, sink: Sink<'_>) -> Result<(), Failure> {
    let mut dissector = Dissector::default();
    let mut strange = BTreeSet::new();
    let mut is_any_readable = false;
    let end = loop {
        match frames.next_frame() {
            Ok(Some(frame)) => {
                counts.frames = frame.number;
                if link::is_supported(frame.link) {
                    is_any_readable = true;
                    dissector.frame(&frame);
                } else {
                    strange.insert(frame.link.0);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(Failure::Read(error)),
        }
        dissector
            .found
            .drain(..)
            .try_for_each(&mut *sink)
            .map_err(Failure::Write)?;
    };
    while dissector.connections.finish_some(&mut dissector.found) {
        dissector
            .found
            .drain(..)
            .try_for_each(&mut *sink)
            .map_err(Failure::Write)?;
    }
    end?;
    match strange.first() {
        Some(link) if !is_any_readable => Err(Failure::LinkType(*link)),
        _ => Ok(()),
    }
}

/// What takes the messages.
type Sink<'a> = &'a mut dyn FnMut(Message) -> io::Result<()>;

/// What became of the frames of a capture. `Display` gives it for a summary.
#[derive(Debug, Default)]
struct Counts {
    /// The input could be opened.
    has_begun: bool,
    frames: u64,
    /// Frames that the kernel had no space for.
    lost: u32,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frames: {}", self.frames)?;
        match self.lost {
            0 => Ok(()),
            lost => write!(f, ", lost: {lost}"),
        }
    }
}

/// Finds messages in frames.
#[derive(Debug, Default)]
struct Dissector {
    connections: Connections,
    queue_pairs: QueuePairs,
    found: Vec<Message>,
}

impl Dissector {
    fn frame(&mut self, frame: &Frame<'_>) {
        let mark = Mark {
            frame: frame.number,
            time: frame.time,
        };
        match link::packet(frame.link, frame.data, frame.missing) {
            Some(link::Packet::Tcp(segment)) => {
                self.connections.segment(mark, &segment, &mut self.found);
            }
            Some(link::Packet::Roce(packet)) => {
                self.queue_pairs.packet(mark, &packet, &mut self.found);
            }
            None => {}
        }
    }
}

/// Takes the entries that were used least recently.
fn take_oldest<K: Copy + Ord + Hash, V, M: Copy + Ord>(
    table: &mut HashMap<K, V>,
    count: usize,
    last_used: impl Fn(&V) -> M,
) -> Vec<V> {
    let mut ages: Vec<_> = table
        .iter()
        .map(|(key, it)| (last_used(it), *key))
        .collect();
    ages.sort_unstable();
    let old = ages.iter().take(count);
    old.filter_map(|(_, key)| table.remove(key)).collect()
}

/// Why a capture was not read to its end.
#[derive(Debug, Error)]
enum Failure {
    #[error("cannot read: {0}")]
    Open(io::Error),
    #[error("cannot read: {0}")]
    Read(CaptureError),
    #[error("cannot write: {0}")]
    Write(io::Error),
    #[error("cannot read: frames of link type {0}")]
    LinkType(u32),
    #[error("{0}")]
    Live(LiveError),
}

/// Reports something on standard error.
fn warn(what: &dyn fmt::Display) {
    output::note("smc dissect", what);
}
