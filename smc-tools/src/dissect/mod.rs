//! `smc dissect`: the SMC messages in captures, or in hex on the command line.
//!
//! From the bottom up: [`capture`] gives frames, [`link`] takes them apart, [`clc`] (over
//! [`stream`]) and [`roce`] find the messages, [`report`] shows them. Messages are
//! decoded in `smc-wire` only.

mod args;
mod capture;
mod clc;
mod decode;
mod describe;
mod hex;
mod json;
mod link;
mod message;
mod report;
mod roce;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufReader, BufWriter, Read, Write};

use anyhow::{Context as _, Result};
use thiserror::Error;

pub(crate) use self::args::Args;
use self::capture::{CaptureError, Frame, Reader};
use self::clc::Connections;
use self::message::{Mark, Message};
use self::roce::QueuePairs;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut out = BufWriter::new(io::stdout().lock());
    let done = match args.decode {
        Some(family) => decode::run(args, family, &mut out),
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
            writeln!(out, "{blank}==> {name} <==")?;
        }
        let show = &mut |message| report::message(args, &name, &message, &mut *out);
        let result = open(path).and_then(|file| read(file, show));
        // What was found stands before what is wrong, also if both go to one terminal.
        out.flush()?;
        match result {
            Ok(()) => {}
            Err(Failure::Write(error)) => return Err(error),
            Err(failure) => {
                complain(&format_args!("{name}: {failure}"));
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

/// Reads a capture and gives its messages to `sink`, in the order in which they became complete.
fn read(input: impl Read, sink: &mut dyn FnMut(Message) -> io::Result<()>) -> Result<(), Failure> {
    let mut reader = Reader::new(input).map_err(Failure::Read)?;
    let mut dissector = Dissector::default();
    let mut strange = BTreeSet::new();
    let mut is_any_readable = false;
    let end = loop {
        match reader.next_frame() {
            Ok(Some(frame)) if link::is_supported(frame.link) => {
                is_any_readable = true;
                dissector.frame(&frame);
            }
            Ok(Some(frame)) => {
                strange.insert(frame.link.0);
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
    dissector
        .finish()
        .into_iter()
        .try_for_each(sink)
        .map_err(Failure::Write)?;
    end?;
    match strange.first() {
        Some(link) if !is_any_readable => Err(Failure::LinkType(*link)),
        _ => Ok(()),
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

    /// The messages that the end of the capture leaves incomplete.
    fn finish(mut self) -> Vec<Message> {
        self.connections.finish(&mut self.found);
        self.found
    }
}

/// Makes room for another entry where there are too many: gives those that were used least
/// recently.
fn make_room<K: Copy + Ord + Hash, V, M: Copy + Ord>(
    table: &mut HashMap<K, V>,
    most: usize,
    last_used: impl Fn(&V) -> M,
) -> Vec<V> {
    if table.len() < most {
        return Vec::new();
    }
    let mut ages: Vec<_> = table
        .iter()
        .map(|(key, it)| (last_used(it), *key))
        .collect();
    ages.sort_unstable();
    let old = ages.iter().take(most / 4);
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
}

/// Reports an error on standard error. An error of that write is ignored.
fn complain(what: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "smc dissect: {what}");
}
