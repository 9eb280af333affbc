//! Sends data to a server and back.

use std::io::{self, Read, Take};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err::File;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Mode, Stream};
use xxhash_rust::xxh3::Xxh3;

use super::super::end::{Ready, Role, Task};
use super::super::pair::End;
use super::super::plan::{Case, Plan, Workload};
use super::super::report::bar;
use super::super::transport::smc::Carried;
use super::{Args, READ_LEN};
use crate::child;

/// Result of a transfer.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub(super) mode: Mode,
    pub(super) recv_buffer: Option<usize>,
    pub(super) len: u64,
    pub(super) returned: u64,
    pub(super) elapsed: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Transfer {
    /// Whether the stream was SMC and the data came back as it was.
    pub(super) fn is_good(&self) -> bool {
        self.mode.is_smc() && self.is_intact()
    }

    pub(super) fn is_intact(&self) -> bool {
        self.len == self.returned && self.sent == self.received
    }
}

/// Streams the data to a process of its own, which sends it back.
pub(super) fn there_and_back(args: &Args, plan: &Plan) -> Result<Transfer> {
    let dir = child::directory("bench")?;
    let mut cell = plan.cells(0).next().context("no cell")?;
    // Its server sends back what it has read, this much at a time.
    cell.case = Case {
        workload: Workload::Pingpong,
        load: READ_LEN,
        active: None,
    };
    cell.settings.ping = READ_LEN;
    let task = Task {
        cell: cell.clone(),
        dir: dir.path().to_owned(),
        role: Role::Server,
    };
    let server = End::start(&task)?;
    let to = match server.ready()? {
        Ready::At(address) => address,
        Ready::Skip(why) => bail!("{why}"),
    };
    let source = open(args)?;
    let runtime = cell.runtime;
    runtime.block_on(async move {
        let carried = Carried::open(&cell, &task.dir)?;
        let stream = carried.endpoint.connect(to.as_str()).await;
        let stream = stream.with_context(|| format!("connect to {to}"))?;
        let transfer = stream_all(source, stream).await?;
        carried.part().await;
        Ok(transfer)
    })
}

/// Sends and receives at once.
async fn stream_all(mut source: Take<impl Read>, stream: Stream) -> Result<Transfer> {
    let len = source.limit();
    let bar = bar(len, "{bar:40} {bytes}/{total_bytes}  {bytes_per_sec}");
    let (mode, recv_buffer) = (stream.mode().clone(), stream.recv_buffer_size());
    let (mut from, mut to) = stream.into_split();
    let start = Instant::now();
    let sending = async {
        let mut sum = Xxh3::new();
        let mut buf = vec![0; CHUNK_LEN];
        loop {
            let count = source.read(&mut buf).context("cannot read the file")?;
            if count == 0 {
                break;
            }
            sum.update(&buf[..count]);
            to.write_all(&buf[..count]).await?;
        }
        ensure!(
            source.limit() == 0,
            "the file became shorter while it was read"
        );
        to.close().await?;
        anyhow::Ok(sum.digest())
    };
    let receiving = async {
        let mut sum = Xxh3::new();
        let mut buf = vec![0; CHUNK_LEN];
        let mut total = 0_u64;
        while total < len {
            let most = usize::try_from(len - total).unwrap_or(usize::MAX);
            let count = from.read(&mut buf[..most.min(CHUNK_LEN)]).await?;
            if count == 0 {
                break;
            }
            sum.update(&buf[..count]);
            total += count as u64;
            bar.inc(count as u64);
        }
        // Behind the data there is how many bytes the server has sent.
        let mut seen = Vec::new();
        from.read_to_end(&mut seen).await?;
        let is_right = total < len || seen == len.to_be_bytes();
        ensure!(is_right, "more came back than was sent");
        Ok((sum.digest(), total))
    };
    let (sent, (received, returned)) = futures_lite::future::try_zip(sending, receiving).await?;
    bar.finish_and_clear();
    Ok(Transfer {
        mode,
        recv_buffer,
        len,
        returned,
        elapsed: start.elapsed(),
        sent,
        received,
    })
}

/// The data, of which the limit is what is left.
fn open(args: &Args) -> Result<Take<Box<dyn Read + Send>>> {
    let (data, len): (Box<dyn Read + Send>, _) = match &args.file {
        Some(path) => {
            let file = File::open(path)?;
            let len = file.metadata()?.len();
            (Box::new(file), len)
        }
        None => (Box::new(SplitMix64(0x5eed)), args.size),
    };
    Ok(data.take(len))
}

/// State of a generator of pseudo-random words.
struct SplitMix64(u64);

impl Read for SplitMix64 {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        for chunk in buf.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = self.0;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(word ^ (word >> 31)).to_le_bytes()[..chunk.len()]);
        }
        Ok(buf.len())
    }
}

/// Bytes of the file in one write.
const CHUNK_LEN: usize = 256 * 1024;
