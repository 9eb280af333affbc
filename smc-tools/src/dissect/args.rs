//! Arguments of `smc dissect`.

use std::ffi::OsString;

use super::message::Family;

/// Arguments of `smc dissect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Captures may be pcap or pcapng, with Ethernet, Linux cooked, raw IP or loopback frames.
With --interface and --follow messages are shown as they come, until Ctrl-C.
The exit status is 1 if a capture cannot be read, or a message given with --decode cannot
be decoded.

Examples:
  smc dissect handshake.pcap
  smc dissect --json *.pcapng | jq 'select(.family == \"clc\")'
  tcpdump -U -w - port 5555 | smc dissect --follow -
  smc dissect -i eth0 --timestamps
  smc dissect --decode clc 'e2d4c3d9 04 001c 10 0000000000000000 03030000 00000000 e2d4c3d9'")]
pub(crate) struct Args {
    /// Captures to read (`-` is standard input), or with --decode one message in hex
    #[arg(value_name = "FILE", required_unless_present = "interface")]
    pub(super) inputs: Vec<OsString>,

    /// Capture from this network interface instead, or from all (`any`); takes CAP_NET_RAW
    #[arg(short, long, value_name = "IFACE", conflicts_with_all = ["inputs", "decode", "follow"])]
    pub(super) interface: Option<String>,

    /// Wait for more at the end of the file, as `tail -f` does; a pipe ends with its last writer
    #[arg(long, conflicts_with = "decode")]
    pub(super) follow: bool,

    /// One JSON object per message and line
    #[arg(long)]
    pub(super) json: bool,

    /// Add the bytes of each message
    #[arg(long, visible_alias = "show-hex")]
    pub(super) hex: bool,

    /// All fields of each message, one per line
    #[arg(long, conflicts_with = "json")]
    pub(super) tree: bool,

    /// Begin each line with the time of the frame
    #[arg(long, visible_alias = "show-timestamps")]
    pub(super) timestamps: bool,

    /// Decode one message from the command line instead of reading captures; spaces, line breaks,
    /// colons and 0x are ignored in it
    #[arg(long, value_enum, value_name = "FAMILY")]
    pub(super) decode: Option<Family>,

    /// A CDC block of SMC-D was written by a big-endian machine
    #[arg(long, requires = "decode")]
    pub(super) big_endian: bool,
}
