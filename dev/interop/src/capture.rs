//! Reads what was recorded between the guests: frames, packets and SMC messages.

use std::iter;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The frames of a capture, as far as they were recorded.
pub(crate) fn frames(capture: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = capture.get(PCAP_HEADER..).unwrap_or_default();
    iter::from_fn(move || {
        let (record, behind) = rest.split_at_checked(RECORD_HEADER)?;
        let len = u32::from_le_bytes(*record.get(8..)?.first_chunk()?);
        let (frame, behind) = behind.split_at_checked(usize::try_from(len).ok()?)?;
        rest = behind;
        Some(frame)
    })
}

/// An IPv4 packet without options.
#[cfg_attr(
    not(feature = "ours"),
    allow(dead_code, reason = "all of it is for TCP segments")
)]
pub(crate) struct Packet<'a> {
    pub(crate) protocol: u8,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// Length of the contents, recorded or not.
    pub(crate) len: usize,
    pub(crate) contents: &'a [u8],
}

impl<'a> Packet<'a> {
    pub(crate) fn of_frame(frame: &'a [u8]) -> Option<Self> {
        let ip = frame.get(12..)?.strip_prefix(&[0x08, 0x00])?;
        let (header, contents) = ip.split_at_checked(20)?;
        let address = |at: usize| Some(<[u8; 4]>::try_from(header.get(at..at + 4)?).ok()?.into());
        let len = usize::from(be16(header, 2)?).checked_sub(20)?;
        (header.first()? == &0x45).then_some(())?;
        Some(Self {
            protocol: *header.get(9)?,
            from: address(12)?,
            to: address(16)?,
            len,
            contents: contents.get(..len).unwrap_or(contents),
        })
    }
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Makes the `smc` command print the messages; builds it if it is not there.
pub(crate) fn dissect(capture: &Path, options: &[&str]) -> Result<String> {
    let mut command = if let Some(program) = built() {
        Command::new(program)
    } else {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["run", "-q", "-p", "smc-tools", "--"]);
        command
    };
    let output = command
        .arg("dissect")
        .args(options)
        .arg(capture)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The `smc` command, if it was built with the same profile.
fn built() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name("smc");
    program.exists().then_some(program)
}

const PCAP_HEADER: usize = 24;

/// Two words of time, the length recorded, the length.
const RECORD_HEADER: usize = 16;
