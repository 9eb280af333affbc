//! The control connection of QEMU.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// A control connection that takes commands.
#[derive(Debug)]
pub(crate) struct Qmp {
    writer: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Qmp {
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        let reader = BufReader::new(stream.try_clone()?);
        let mut qmp = Self {
            writer: stream,
            reader,
        };
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and waits until it was carried out.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.writer, "{request}")?;
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                bail!("QEMU has closed its control connection");
            }
            let answer: Value = serde_json::from_str(&line).context("answer of QEMU")?;
            // The handshake and events come in between.
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {command}: {error}");
            }
        }
    }
}
