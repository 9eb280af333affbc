//! `smc ss`: the SMC sockets of running processes, in the manner of `smcss`.

use std::io::IsTerminal as _;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::{ConnectionRecord, CursorsRecord, ListenerRecord, ProcessRecord, Record};

use super::table::{Table, cut};
use super::{Process, collect, json_line};
use crate::output::{print, print_while_open};

/// Arguments of `smc ss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shown are the processes of this user that use this library, and for root those of all users. The mode is \
SMCD, SMCR, or TCP with the reason, and behind a slash the diagnosis of the peer if it has declined; \
`smc ss --json` has the reason in words. The columns are those of smcss, with the process in place of \
the user, and the number of the stream in that of the inode.

Examples:
  smc ss -a
  smc ss --json | jq 'select(.mode == \"TCP\") | .cause'")]
pub(crate) struct SsArgs {
    /// Listeners as well
    #[arg(short, long)]
    all: bool,
    /// Listeners only
    #[arg(short, long)]
    listening: bool,
    /// Also buffers, cursors and flags
    #[arg(short, long)]
    debug: bool,
    /// SMC-D connections only, with GIDs and tokens
    #[arg(short = 'D', long, conflicts_with_all = ["listening", "smcr"])]
    smcd: bool,
    /// SMC-R connections only, with devices, links and GIDs
    #[arg(short = 'R', long, conflicts_with = "listening")]
    smcr: bool,
    /// Whole addresses
    #[arg(short = 'W', long)]
    wide: bool,
    /// One JSON object per socket and line
    #[arg(long)]
    json: bool,
    /// Show again and again, each so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<u32>,
}

/// Runs the command.
pub(crate) fn run_ss(args: &SsArgs) -> Result<bool> {
    loop {
        let text = text(args, &collect(&[Subject::Listeners, Subject::Connections]))?;
        let Some(seconds) = args.watch else {
            print(&text)?;
            return Ok(true);
        };
        // The terminal is cleared; a file gets one table after the other.
        let clear = if std::io::stdout().is_terminal() && !args.json {
            "\u{1b}[2J\u{1b}[H"
        } else {
            ""
        };
        if !print_while_open(&format!("{clear}{text}"))? {
            return Ok(true);
        }
        sleep(Duration::from_secs(seconds.max(1).into()));
    }
}

fn text(args: &SsArgs, processes: &[Process]) -> Result<String> {
    let mut table = Table::new(&header(args));
    let mut json = String::new();
    for Process {
        process, records, ..
    } in processes
    {
        for record in records {
            let row = match record {
                Record::Listener(listener) if args.shows_listeners() => {
                    args.listener_row(process, listener)
                }
                Record::Connection(connection) if args.shows(connection) => {
                    args.connection_row(process, connection)
                }
                _ => continue,
            };
            match args.json {
                true => json.push_str(&json_line(process, record)?),
                false => table.add(row),
            }
        }
    }
    match args.json {
        true => Ok(json),
        false => Ok(table.text()),
    }
}

fn header(args: &SsArgs) -> Vec<&'static str> {
    let mut header = COLUMNS.to_vec();
    if args.debug {
        header.extend(DEBUG_COLUMNS);
    }
    if args.smcd {
        header.extend(SMCD_COLUMNS);
    }
    if args.smcr {
        header.extend(SMCR_COLUMNS);
    }
    header.push("Program");
    header
}

impl SsArgs {
    fn shows_listeners(&self) -> bool {
        (self.all || self.listening) && !self.smcd && !self.smcr
    }

    fn shows(&self, connection: &ConnectionRecord) -> bool {
        let is_kind = match &*connection.mode {
            "SMCD" => !self.smcr,
            "SMCR" => !self.smcd,
            _ => !self.smcd && !self.smcr,
        };
        is_kind && !self.listening
    }

    fn address(&self, address: &str) -> String {
        match self.wide {
            true => address.to_owned(),
            false => cut(address, ADDRESS_LEN),
        }
    }

    fn listener_row(&self, process: &ProcessRecord, listener: &ListenerRecord) -> Vec<String> {
        let mut row = vec![
            "LISTEN".to_owned(),
            process.pid.to_string(),
            "-".to_owned(),
            self.address(&listener.local),
            "-".to_owned(),
            "-".to_owned(),
            match listener.unpublished {
                Some(_) => "TCP".to_owned(),
                None => "-".to_owned(),
            },
        ];
        row.resize(header(self).len() - 1, "-".to_owned());
        row.push(process.program.clone());
        row
    }

    fn connection_row(&self, process: &ProcessRecord, of: &ConnectionRecord) -> Vec<String> {
        let mut row = vec![
            of.state.clone(),
            process.pid.to_string(),
            of.id.to_string(),
            self.address(of.local.as_deref().unwrap_or("-")),
            self.address(&of.peer),
            or_none(of.device.as_ref()),
            mode(of),
        ];
        if self.debug {
            row.extend(debug_cells(of));
        }
        if self.smcd {
            row.extend([
                or_none(of.gid.as_ref()),
                or_none(of.token.as_ref()),
                or_none(of.peer_gid.as_ref()),
                or_none(of.peer_token.as_ref()),
                or_none(of.group.as_ref()),
            ]);
        }
        if self.smcr {
            row.extend([
                match &*of.role {
                    "client" => "CLNT".to_owned(),
                    _ => "SERV".to_owned(),
                },
                or_none(of.device.as_ref()),
                or_none(of.link.as_ref()),
                or_none(of.gid.as_ref()),
                or_none(of.peer_gid.as_ref()),
            ]);
        }
        row.push(process.program.clone());
        row
    }
}

/// `SMCD`, `SMCR`, or `TCP` with the codes of both sides.
fn mode(of: &ConnectionRecord) -> String {
    match (of.reason, of.peer_reason) {
        (Some(reason), Some(peer)) => format!("TCP 0x{reason:08x}/0x{peer:08x}"),
        (Some(reason), None) => format!("TCP 0x{reason:08x}"),
        (None, _) => of.mode.clone(),
    }
}

fn debug_cells(of: &ConnectionRecord) -> Vec<String> {
    let cursor = |cursors: Option<CursorsRecord>, pick: fn(CursorsRecord) -> (u16, u32)| {
        cursors.map_or_else(none, |cursors| {
            let (wrap, count) = pick(cursors);
            format!("{wrap:04x}:{count:08x}")
        })
    };
    let flags = |flags: Option<[u8; 2]>| {
        flags.map_or_else(none, |[producer, state]| {
            format!("{producer:02x}:{state:02x}")
        })
    };
    let size = |size: Option<usize>| size.map_or_else(none, |size| format!("{size:08x}"));
    vec![
        shutdown(of),
        or_none(of.token.as_ref()),
        size(of.send_buffer),
        size(of.recv_buffer),
        size(of.peer_buffer),
        cursor(of.received, |cursors| cursors.producer),
        cursor(of.received, |cursors| cursors.consumer),
        flags(of.peer_flags),
        cursor(of.sent, |cursors| cursors.producer),
        cursor(of.sent, |cursors| cursors.consumer),
        flags(of.flags),
    ]
}

/// Which directions are shut down, as smcss shows it: `<->` none, `R->` reading, `<-W` writing.
fn shutdown(of: &ConnectionRecord) -> String {
    let done = |flags: Option<[u8; 2]>| flags.is_some_and(|[_, state]| state & STATE_ENDS != 0);
    match (done(of.peer_flags), done(of.flags)) {
        (false, false) => "<->",
        (true, false) => "R->",
        (false, true) => "<-W",
        (true, true) => "R-W",
    }
    .to_owned()
}

fn or_none(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(none)
}

fn none() -> String {
    "-".to_owned()
}

/// Those of smcss. `UID` and `Inode` are here process and number of the stream.
const COLUMNS: [&str; 7] = [
    "State",
    "PID",
    "ID",
    "Local Address",
    "Peer Address",
    "Intf",
    "Mode",
];

const DEBUG_COLUMNS: [&str; 11] = [
    "Shutd",
    "Token",
    "Sndbuf",
    "Rcvbuf",
    "Peerbuf",
    "rxprod-Cursor",
    "rxcons-Cursor",
    "rxFlags",
    "txprod-Cursor",
    "txcons-Cursor",
    "txFlags",
];

const SMCD_COLUMNS: [&str; 5] = ["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"];

const SMCR_COLUMNS: [&str; 5] = ["Role", "IB-device", "Linkid", "GID", "Peer-GID"];

/// Width of an address that is not shown whole: that of an IPv4 address with its port.
const ADDRESS_LEN: usize = 21;

/// The flags of a state in which a side writes no more: sending done, connection closed, abnormal
/// close, as in a CDC message.
const STATE_ENDS: u8 = 0xe0;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: SsArgs,
    }

    fn args(options: &str) -> SsArgs {
        let words = ["ss"].into_iter().chain(options.split_whitespace());
        Cli::try_parse_from(words).unwrap().args
    }

    #[test]
    fn the_columns_are_those_of_smcss() {
        // State UID Inode Local Peer Intf Mode
        assert_eq!(header(&args(""))[..7], COLUMNS);
        let debug = header(&args("-d")).join(" ");
        assert!(debug.contains(
            "Shutd Token Sndbuf Rcvbuf Peerbuf rxprod-Cursor rxcons-Cursor rxFlags txprod-Cursor \
             txcons-Cursor txFlags"
        ));
        assert!(
            header(&args("-D"))
                .join(" ")
                .contains("GID Token Peer-GID Peer-Token Linkid")
        );
        assert!(
            header(&args("-R"))
                .join(" ")
                .contains("Role IB-device Linkid GID Peer-GID")
        );
    }

    #[test]
    fn a_fallback_shows_the_codes_of_both_sides() {
        let mut record: ConnectionRecord = serde_json::from_str(
            r#"{"endpoint": 0, "id": 1, "role": "client", "mode": "TCP", "state": "ACTIVE",
                "peer": "10.0.0.2:80", "reason": 84082688}"#,
        )
        .unwrap();
        assert_eq!(mode(&record), "TCP 0x05030000");
        record.peer_reason = Some(0x0303_0000);
        assert_eq!(mode(&record), "TCP 0x05030000/0x03030000");
    }
}
