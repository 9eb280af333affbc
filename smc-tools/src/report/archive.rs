//! An archive that says of each part why it is not there.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use fs_err::{File, OpenOptions};
use tar::{Builder, Header};

use crate::processes::printable;

/// An archive that is written.
pub(super) struct Archive {
    tar: Builder<GzEncoder<File>>,
    /// The folder of all parts.
    folder: String,
    /// Seconds since 1970.
    time: u64,
    /// A line for each part.
    contents: String,
}

impl Archive {
    /// Makes the file, for this user alone. One that exists is an error, and so is a link.
    pub(super) fn create(path: &Path, folder: String, time: u64) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(path)?;
        Ok(Self {
            tar: Builder::new(GzEncoder::new(file, Compression::default())),
            folder,
            time,
            contents: String::new(),
        })
    }

    /// Adds a part, or the reason why it is missing.
    pub(super) fn add(&mut self, name: &str, part: Result<String>) -> Result<()> {
        // Writing to a string cannot fail.
        let _ = match &part {
            Ok(part) => writeln!(self.contents, "{name:<26} {} bytes", part.len()),
            Err(error) => {
                let why = printable(&format!("{error:#}"));
                writeln!(self.contents, "{name:<26} not there: {why}")
            }
        };
        match part {
            Ok(part) => self.write(name, &part),
            Err(_) => Ok(()),
        }
    }

    /// Adds the list of parts, and ends the archive. Returns the list.
    pub(super) fn finish(&mut self) -> Result<String> {
        let contents = self.contents.clone();
        self.write("contents.txt", &contents)?;
        self.tar.finish().context("cannot write the archive")?;
        let written = self.tar.get_mut().try_finish();
        written.context("cannot write the archive")?;
        Ok(contents)
    }

    fn write(&mut self, name: &str, part: &str) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(part.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let path = format!("{}/{name}", self.folder);
        let written = self.tar.append_data(&mut header, path, part.as_bytes());
        written.context("cannot write the archive")
    }
}
