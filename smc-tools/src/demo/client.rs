//! The client's process: starts the server, does the jobs, takes the time.

use std::io::{BufRead as _, BufReader, IsTerminal as _, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err::File;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use indicatif::{ProgressBar, ProgressStyle};
use smc::{Endpoint, Stream};
use xxhash_rust::xxh3::Xxh3;

use super::carrier::Carried;
use super::job::{self, Job};
use super::net::{self, Addresses, Transport};
use super::report::{Figures, Report, Transfer};
use super::{Args, Carrier, Runtime};

/// Runs the demonstration. Returns whether it was SMC and the data came back as it was.
pub(super) fn run(args: &Args) -> Result<bool> {
    let dir = tempfile::tempdir().context("cannot make a directory for the UNIX socket")?;
    let shared = in_memory().context("cannot make a directory for the fabric")?;
    let mut args = args.clone();
    if args.transport == Carrier::Ism {
        args.fabric
            .get_or_insert_with(|| shared.path().join("fabric"));
    }
    let server = Server::start(&args, &dir.path().join("demo.sock"))?;
    net::block_on(args.runtime, demonstrate(&args, &server.addresses))
}

/// A directory on a file system in memory, if there is one. Its name has the number of this process,
/// so that one that was left behind can be distinguished from one in use.
fn in_memory() -> std::io::Result<tempfile::TempDir> {
    let prefix = format!("smc-demo-{}-", std::process::id());
    let new = |place: &Path| tempfile::TempDir::with_prefix_in(&prefix, place);
    new(Path::new("/dev/shm")).or_else(|_| new(&std::env::temp_dir()))
}

async fn demonstrate(args: &Args, to: &Addresses) -> Result<bool> {
    let carried = Carried::open(args)?;
    let endpoint = carried.endpoint.clone();
    let stream = net::connect_smc(&endpoint, to).await?;
    let mode = stream.mode().clone();
    let recv_buffer = stream.recv_buffer_size();
    let transfer = there_and_back(args, stream).await?;
    let mut report = Report::new(args.runtime, mode, recv_buffer, transfer);
    if report.is_good() {
        let bar = progress(
            u64::from(args.rounds),
            "measuring  {bar:40} {pos}/{len} rounds",
        );
        for _ in 0..args.rounds {
            for transport in Transport::ALL {
                report.add(transport, measure(args, &endpoint, transport, to).await?);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
    }
    drop(endpoint);
    carried.part().await;
    print!("{report}");
    Ok(report.is_good())
}

async fn measure(
    args: &Args,
    endpoint: &Endpoint,
    transport: Transport,
    to: &Addresses,
) -> Result<Figures> {
    let time = args.measuring_time();
    let open = || net::connect(args.runtime, endpoint, transport, to);
    Ok(Figures {
        bulk: job::one_way(open().await?, BULK_LEN, time).await? * BULK_LEN as f64,
        round_trip: job::round_trip(open().await?, time).await?,
        rate: job::one_way(open().await?, MESSAGE_LEN, time).await?,
    })
}

/// Streams the file to the server and back, both ways at once.
async fn there_and_back(args: &Args, stream: Stream) -> Result<Transfer> {
    let mut source = Source::open(args)?;
    let len = source.left;
    let bar = progress(len, "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}");
    let (mut from, mut to) = stream.into_split();
    let start = Instant::now();
    let sending = async {
        to.write_all(&[Job::Echo as u8]).await?;
        let mut sum = Xxh3::new();
        let mut buf = vec![0; CHUNK_LEN];
        loop {
            let count = source.read(&mut buf)?;
            if count == 0 {
                break;
            }
            sum.update(&buf[..count]);
            to.write_all(&buf[..count]).await?;
        }
        to.close().await?;
        Ok::<_, anyhow::Error>(sum.digest())
    };
    let receiving = async {
        let mut sum = Xxh3::new();
        let mut buf = vec![0; CHUNK_LEN];
        let mut total = 0_u64;
        loop {
            let count = from.read(&mut buf).await?;
            if count == 0 {
                break;
            }
            sum.update(&buf[..count]);
            total += count as u64;
            bar.inc(count as u64);
        }
        Ok::<_, anyhow::Error>((sum.digest(), total))
    };
    let (sent, (received, total)) = futures_lite::future::try_zip(sending, receiving).await?;
    bar.finish_and_clear();
    ensure!(
        total <= len,
        "{} bytes more came back than were sent",
        total - len
    );
    Ok(Transfer {
        len,
        returned: total,
        elapsed: start.elapsed(),
        sent,
        received,
    })
}

fn progress(len: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Where the data comes from.
struct Source {
    data: Data,
    left: u64,
}

enum Data {
    File(File),
    /// State of a generator of pseudo-random words.
    Generated(u64),
}

impl Source {
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = &args.file else {
            return Ok(Self {
                data: Data::Generated(0x5eed),
                left: args.size,
            });
        };
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        Ok(Self {
            data: Data::File(file),
            left,
        })
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let len = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let count = match &mut self.data {
            Data::File(file) => file.read(&mut buf[..len]).context("cannot read the file")?,
            Data::Generated(state) => {
                generate(state, &mut buf[..len]);
                len
            }
        };
        ensure!(
            count > 0 || len == 0,
            "the file became shorter while it was read"
        );
        self.left -= count as u64;
        Ok(count)
    }
}

/// Fills `buf` with SplitMix64.
fn generate(state: &mut u64, buf: &mut [u8]) {
    for chunk in buf.chunks_mut(8) {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = *state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
    }
}

/// The server's process, ended when dropped.
struct Server {
    child: Child,
    /// Its end is what ends the server, even if this process is killed.
    stdin: Option<ChildStdin>,
    addresses: Addresses,
}

impl Server {
    fn start(args: &Args, unix: &Path) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find the program itself")?;
        let mut command = Command::new(program);
        command.arg("demo").arg("--serve").arg(unix);
        command.args([
            "--runtime",
            if args.runtime == Runtime::Smol {
                "smol"
            } else {
                "tokio"
            },
        ]);
        if args.copy {
            command.arg("--copy");
        }
        if args.transport == Carrier::Ism {
            command.arg("--transport").arg("ism");
            if let Some(fabric) = &args.fabric {
                command.arg("--fabric").arg(fabric);
            }
        }
        if args.transport == Carrier::Rdma {
            command.arg("--transport").arg("rdma");
        }
        if let Some(device) = &args.device {
            command.arg("--device").arg(device);
        }
        if let Some(len) = args.buffer {
            command.arg("--buffer").arg(len.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .context("cannot start the server's process")?;
        let stdin = child.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let server = |line: &str| {
            let (smc, tcp) = line.trim().split_once(' ')?;
            Some(Addresses {
                smc: smc.parse().ok()?,
                tcp: tcp.parse().ok()?,
                unix: unix.into(),
            })
        };
        let Some(addresses) = server(&line) else {
            drop(stdin);
            let _reaped = child.wait();
            bail!("the server did not start");
        };
        Ok(Self {
            child,
            stdin,
            addresses,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // Most often it has ended by now.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// How long the server may take to end.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of the file in one write.
const CHUNK_LEN: usize = 256 * 1024;

/// Bytes in a write when throughput is measured.
const BULK_LEN: usize = 64_000;

/// Bytes in a message when the rate of messages is measured.
const MESSAGE_LEN: usize = 100;
