//! The host's end of the connection to an agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context as _, Result};

use crate::protocol::{FromGuest, Order, Request};

/// A connection to the agent of a guest.
#[derive(Debug)]
pub(crate) struct Agent {
    stream: UnixStream,
}

impl Agent {
    /// Messages of the agent go to the inbox, with the number of the guest.
    pub(crate) fn new(
        stream: UnixStream,
        guest: usize,
        inbox: Sender<(usize, FromGuest)>,
    ) -> Result<Self> {
        let reader = BufReader::new(stream.try_clone()?);
        thread::spawn(move || {
            let lines = reader.lines().map_while(Result::ok);
            for line in lines.filter(|line| !line.is_empty()) {
                match serde_json::from_str(&line) {
                    Ok(message) => {
                        if inbox.send((guest, message)).is_err() {
                            break;
                        }
                    }
                    Err(error) => println!("unreadable word of an agent: {error}: {line}"),
                }
            }
        });
        Ok(Self { stream })
    }

    pub(crate) fn send(&mut self, id: u64, order: Order) -> Result<()> {
        let line = serde_json::to_string(&Request { id, order })?;
        writeln!(self.stream, "{line}").context("connection to an agent")
    }
}
