//! Writes archives in the format of initial RAM disks ("newc").

use std::collections::HashSet;
use std::io::{self, Write as _};
use std::path::Path;

use fs_err as fs;

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: HashSet<String>,
}

impl Archive {
    /// Adds a folder and those above it.
    pub(crate) fn folder(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(path, 0o040_755, (0, 0), &[]);
    }

    /// Adds a file that programs may run.
    pub(crate) fn file(&mut self, path: &str, contents: &[u8]) {
        let path = path.trim_matches('/');
        if let Some((above, _)) = path.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(path, 0o100_755, (0, 0), contents);
    }

    /// Adds a copy of a file of the host.
    pub(crate) fn copy(&mut self, path: &str, from: &Path) -> io::Result<()> {
        let contents = fs::read(from)?;
        self.file(path, &contents);
        Ok(())
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path.trim_matches('/'), 0o020_600, (major, minor), &[]);
    }

    /// The archive. The kernel takes several, one after the other.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.pad(512);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(contents.len()).unwrap_or(u32::MAX),
            0,
            0,
            device.0,
            device.1,
            u32::try_from(path.len() + 1).unwrap_or(u32::MAX),
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            // A vector takes everything.
            let _ = write!(self.bytes, "{field:08x}");
        }
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend(contents);
        self.pad(4);
    }

    fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/c", b"hello");
        archive.file("/a/b/d", b"");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        let names: Vec<_> = text.match_indices("070701").collect();
        assert_eq!(names.len(), 5, "two folders, two files and the trailer");
        assert!(text.find("a/b\0") < text.find("a/b/c\0"));
        assert_eq!(bytes.len() % 512, 0);
    }
}
