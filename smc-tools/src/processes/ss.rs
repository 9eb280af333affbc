//! `smc ss`: the SMC sockets of running processes, in the manner of `smcss`.

use std::io::IsTerminal as _;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use smc::introspection::Subject;
use smc::record::{ConnectionRecord, CursorsRecord, ProcessRecord, Record};

use super::kernel::{KernelSocket, kernel_sockets};
use super::table::{Table, cut};
use super::{Process, collect, json_line};
use crate::output::{print, print_while_open};
use crate::values;

/// Arguments of `smc ss`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shown are the processes of this user that use this library, and for root those of all users. The mode is \
SMCD, SMCR, or TCP or UNIX with the reason, and behind a slash the diagnosis of the peer if it has declined; \
`smc ss --json` has the reason in words. The columns are those of smcss, with the process in place of \
the user, and the number of the stream in that of the inode.

With --kernel the sockets of the kernel's AF_SMC follow, of all users; that takes no privilege. UID and \
Inode are in their place, and PID, ID and Program at the end. The kernel's sockets have an inode and no \
process; in JSON their `record` is `kernel_socket`.

Examples:
  smc ss -a
  smc ss -a --kernel
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
    /// The sockets of the kernel's AF_SMC as well
    #[arg(long)]
    kernel: bool,
    /// Whole addresses
    #[arg(short = 'W', long)]
    wide: bool,
    /// One JSON object per socket and line
    #[arg(long)]
    json: bool,
    /// Show again and again, each so many seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = values::some_seconds)]
    watch: Option<Duration>,
}

/// Runs the command.
pub(crate) fn run_ss(args: &SsArgs) -> Result<bool> {
    loop {
        let kernel = match args.kernel {
            true => kernel_sockets()?,
            false => Vec::new(),
        };
        let processes = collect(&[Subject::Listeners, Subject::Connections]);
        let text = text(args, &processes, &kernel)?;
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
        sleep(seconds);
    }
}

fn text(args: &SsArgs, processes: &[Process], kernel: &[KernelSocket]) -> Result<String> {
    let mut table = Table::new(&header(args));
    let mut json = String::new();
    for Process {
        process, records, ..
    } in processes
    {
        for record in records {
            let row = match record {
                Record::Listener(listener) if args.shows_listeners() => args.listener_row(
                    Owner::Process(process),
                    &listener.local,
                    listener.unpublished.is_some(),
                ),
                Record::Connection(connection) if args.shows(connection) => {
                    args.connection_row(Owner::Process(process), connection)
                }
                _ => continue,
            };
            match args.json {
                true => json.push_str(&json_line(process, record)?),
                false => table.add(row),
            }
        }
    }
    for socket in kernel {
        let record = &socket.record;
        let row = match socket.is_listener() {
            true if args.shows_listeners() => {
                let local = record.local.as_deref().unwrap_or_default();
                args.listener_row(Owner::Kernel(socket), local, false)
            }
            false if args.shows(record) => args.connection_row(Owner::Kernel(socket), record),
            _ => continue,
        };
        match args.json {
            true => json.push_str(&socket.json_line()?),
            false => table.add(row),
        }
    }
    match args.json {
        true => Ok(json),
        false => Ok(table.text()),
    }
}

fn header(args: &SsArgs) -> Vec<&'static str> {
    let mut header = vec!["State"];
    header.extend(match args.kernel {
        true => ["UID", "Inode"],
        false => ["PID", "ID"],
    });
    header.extend(COLUMNS);
    if args.debug {
        header.extend(DEBUG_COLUMNS);
    }
    if args.smcd {
        header.extend(SMCD_COLUMNS);
    }
    if args.smcr {
        header.extend(SMCR_COLUMNS);
    }
    if args.kernel {
        header.extend(["PID", "ID"]);
    }
    header.push("Program");
    header
}

/// Whose socket it is.
#[derive(Clone, Copy)]
enum Owner<'a> {
    Process(&'a ProcessRecord),
    Kernel(&'a KernelSocket),
}

impl Owner<'_> {
    fn uid(self) -> u32 {
        match self {
            Self::Process(process) => process.uid,
            Self::Kernel(kernel) => kernel.socket.uid,
        }
    }

    fn inode(self) -> String {
        match self {
            Self::Process(_) => none(),
            Self::Kernel(kernel) => format!("{:07}", kernel.socket.inode),
        }
    }

    fn pid(self) -> String {
        match self {
            Self::Process(process) => process.pid.to_string(),
            Self::Kernel(_) => none(),
        }
    }

    fn program(self) -> String {
        match self {
            Self::Process(process) => process.program.clone(),
            Self::Kernel(_) => none(),
        }
    }

    /// The device of a stream; the interface that a socket of the kernel is bound to.
    fn interface(self, of: &ConnectionRecord) -> String {
        match self {
            Self::Process(_) => or_none(of.device.as_ref()),
            Self::Kernel(kernel) => format!("{:04x}", kernel.socket.interface),
        }
    }

    /// A token that the column of debugging has.
    fn token(self, of: &ConnectionRecord) -> String {
        match self {
            Self::Process(_) => or_none(of.token.as_ref()),
            Self::Kernel(kernel) => {
                let connection = kernel.socket.connection;
                connection.map_or_else(none, |connection| format!("{:08x}", connection.token))
            }
        }
    }

    /// Whether the two directions, reading and writing, are shut down.
    fn shutdown(self, of: &ConnectionRecord) -> [bool; 2] {
        let done = |flags: Option<[u8; 2]>| flags.is_some_and(|[_, state]| state & STATE_ENDS != 0);
        match self {
            Self::Process(_) => [done(of.peer_flags), done(of.flags)],
            Self::Kernel(kernel) => {
                let socket = &kernel.socket;
                [socket.is_read_shut_down, socket.is_write_shut_down]
            }
        }
    }

    /// What is prepared, sent and finished. A stream of a process publishes what it writes at once,
    /// and that is finished when the peer has read it.
    fn send_cursors(self, of: &ConnectionRecord) -> [String; 3] {
        let cursors = match self {
            Self::Process(_) => of
                .sent
                .map(|sent| [sent.producer, sent.producer, sent.consumer]),
            Self::Kernel(kernel) => {
                let connection = kernel.socket.connection;
                connection.map(|connection| connection.send_cursors)
            }
        };
        cursors.map_or_else(|| [none(), none(), none()], |all| all.map(cursor_cell))
    }

    fn port(self) -> String {
        let link = match self {
            Self::Process(_) => None,
            Self::Kernel(kernel) => kernel.socket.rdma.as_ref(),
        };
        link.map_or_else(none, |link| format!("{:02x}", link.port))
    }
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

    /// An address as smcss shows it: without brackets, and with its port if it is cut.
    fn address(&self, address: &str) -> String {
        let Some((host, port)) = address.rsplit_once(':') else {
            return address.to_owned();
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let room = ADDRESS_LEN.saturating_sub(port.len()).saturating_sub(1);
        match self.wide {
            true => format!("{host}:{port}"),
            false => format!("{}:{port}", cut(host, room)),
        }
    }

    fn listener_row(&self, owner: Owner<'_>, local: &str, is_tcp: bool) -> Vec<String> {
        let mut row = self.first_cells("LISTEN", owner, &none());
        row.extend([self.address(local), none(), none()]);
        row.push(if is_tcp { "TCP".to_owned() } else { none() });
        let last = self.last_cells(owner, &none());
        row.resize(header(self).len().saturating_sub(last.len()), none());
        row.extend(last);
        row
    }

    fn connection_row(&self, owner: Owner<'_>, of: &ConnectionRecord) -> Vec<String> {
        let mut row = self.first_cells(&of.state, owner, &of.id.to_string());
        row.extend([
            self.address(of.local.as_deref().unwrap_or("-")),
            self.address(&of.peer),
            owner.interface(of),
            mode(of),
        ]);
        if self.debug {
            row.extend(debug_cells(owner, of));
            row.extend(owner.send_cursors(of));
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
            row.push(match &*of.role {
                "client" => "CLNT".to_owned(),
                "server" => "SERV".to_owned(),
                _ => none(),
            });
            row.extend([
                or_none(of.device.as_ref()),
                owner.port(),
                or_none(of.link.as_ref()),
                or_none(of.gid.as_ref()),
                or_none(of.peer_gid.as_ref()),
            ]);
        }
        row.extend(self.last_cells(owner, &of.id.to_string()));
        row
    }

    fn first_cells(&self, state: &str, owner: Owner<'_>, id: &str) -> Vec<String> {
        let [first, second] = match self.kernel {
            true => [format!("{:05}", owner.uid()), owner.inode()],
            false => [owner.pid(), id.to_owned()],
        };
        vec![state.to_owned(), first, second]
    }

    fn last_cells(&self, owner: Owner<'_>, id: &str) -> Vec<String> {
        let mut cells = Vec::new();
        if self.kernel {
            let id = match owner {
                Owner::Process(_) => id.to_owned(),
                Owner::Kernel(_) => none(),
            };
            cells.extend([owner.pid(), id]);
        }
        cells.push(owner.program());
        cells
    }
}

/// `SMCD`, `SMCR`, or `TCP` and `UNIX` with the codes of both sides.
fn mode(of: &ConnectionRecord) -> String {
    match (of.reason, of.peer_reason) {
        (Some(reason), Some(peer)) => format!("{} 0x{reason:08x}/0x{peer:08x}", of.mode),
        (Some(reason), None) => format!("{} 0x{reason:08x}", of.mode),
        (None, _) => of.mode.clone(),
    }
}

fn debug_cells(owner: Owner<'_>, of: &ConnectionRecord) -> Vec<String> {
    let cursor = |cursors: Option<CursorsRecord>, pick: fn(CursorsRecord) -> (u16, u32)| {
        cursors.map_or_else(none, |cursors| cursor_cell(pick(cursors)))
    };
    let flags = |flags: Option<[u8; 2]>| {
        flags.map_or_else(none, |[producer, state]| {
            format!("{producer:02x}:{state:02x}")
        })
    };
    let size = |size: Option<usize>| size.map_or_else(none, |size| format!("{size:08x}"));
    vec![
        shutdown_cell(owner.shutdown(of)),
        owner.token(of),
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

fn cursor_cell((wrap, count): (u16, u32)) -> String {
    format!("{wrap:04x}:{count:08x}")
}

/// Which directions are shut down, as smcss shows it: `<->` none, `R->` reading, `<-W` writing.
fn shutdown_cell(is_shut_down: [bool; 2]) -> String {
    match is_shut_down {
        [false, false] => "<->",
        [true, false] => "R->",
        [false, true] => "<-W",
        [true, true] => "R-W",
    }
    .to_owned()
}

fn or_none(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(none)
}

fn none() -> String {
    "-".to_owned()
}

/// The columns of smcss behind state, owner and number.
const COLUMNS: [&str; 4] = ["Local Address", "Peer Address", "Intf", "Mode"];

const DEBUG_COLUMNS: [&str; 14] = [
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
    "txprep-Cursor",
    "txsent-Cursor",
    "txfin-Cursor",
];

const SMCD_COLUMNS: [&str; 5] = ["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"];

const SMCR_COLUMNS: [&str; 6] = ["Role", "IB-device", "Port", "Linkid", "GID", "Peer-GID"];

/// Width of an address that is not shown whole, as that of smcss.
const ADDRESS_LEN: usize = 23;

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
        let of_processes = header(&args("")).join(" ");
        assert_eq!(
            of_processes,
            "State PID ID Local Address Peer Address Intf Mode Program"
        );
        let with_kernel = header(&args("--kernel")).join(" ");
        assert_eq!(
            with_kernel,
            "State UID Inode Local Address Peer Address Intf Mode PID ID Program"
        );
        let debug = header(&args("-d")).join(" ");
        assert!(debug.contains(
            "Shutd Token Sndbuf Rcvbuf Peerbuf rxprod-Cursor rxcons-Cursor rxFlags txprod-Cursor \
             txcons-Cursor txFlags txprep-Cursor txsent-Cursor txfin-Cursor"
        ));
        assert!(
            header(&args("-D"))
                .join(" ")
                .contains("GID Token Peer-GID Peer-Token Linkid")
        );
        assert!(
            header(&args("-R"))
                .join(" ")
                .contains("Role IB-device Port Linkid GID Peer-GID")
        );
    }

    #[test]
    fn an_address_that_is_cut_keeps_its_port() {
        let cut = args("");
        assert_eq!(cut.address("127.0.0.1:8080"), "127.0.0.1:8080");
        assert_eq!(
            cut.address("[::ffff:10.10.93.111]:46093"),
            "::ffff:10.10.93..:46093"
        );
        assert_eq!(cut.address("-"), "-");
        let whole = args("-W").address("[::ffff:10.10.93.111]:46093");
        assert_eq!(whole, "::ffff:10.10.93.111:46093");
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
