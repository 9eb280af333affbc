//! `rate` and `pingpong` over iceoryx2: publish and subscribe, in two services, one for each
//! direction. Both ends poll for samples without a pause, which is the fastest way it has.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::super::figure::{Figure, Latencies, Sample};
use super::super::meter::Meter;
use super::super::plan::{Cell, Workload};
use super::super::workload::one_way::Run;

/// The client's part.
pub(in crate::bench) fn drive(cell: &Cell, dir: &Path, meter: Meter) -> Result<Sample> {
    let pipe = Pipe::open(cell, dir, ["there", "back"], Arc::default())?;
    pipe.wait_for_peer()?;
    let mut sample = Sample {
        path: "iceoryx2, publish and subscribe".to_owned(),
        ..Sample::default()
    };
    match cell.case.workload {
        Workload::Rate => rate(cell, &pipe, meter, &mut sample)?,
        Workload::Pingpong => pingpong(cell, &pipe, meter, &mut sample)?,
        other => bail!("no {other} over iceoryx2"),
    }
    Ok(sample)
}

fn rate(cell: &Cell, pipe: &Pipe, meter: Meter, sample: &mut Sample) -> Result<()> {
    let message = vec![0x5a; cell.case.load];
    let send = |messages: u64| {
        let start = Instant::now();
        pipe.send(&messages.to_be_bytes())?;
        for _ in 0..messages {
            pipe.send(&message)?;
        }
        let got = pipe.receive_number()?;
        ensure!(got == messages, "{got} messages arrived of {messages}");
        Ok(start.elapsed())
    };
    let mut run = Run::new(cell.settings.time);
    while !run.is_long {
        run.took(send(run.writes)?);
    }
    let messages = run.writes;
    let cpu = meter.cpu()?;
    let elapsed = send(messages)?;
    let cpu = meter.cpu()? - cpu;
    sample.verified = messages;
    sample.set(Figure::Messages, messages as f64 / elapsed.as_secs_f64());
    sample.set(Figure::Cpu, cpu.as_secs_f64() / messages as f64);
    Ok(())
}

fn pingpong(cell: &Cell, pipe: &Pipe, meter: Meter, sample: &mut Sample) -> Result<()> {
    let mut ping = vec![0x5a; cell.case.load];
    let mut play = |time: Duration| {
        let mut latencies = Latencies::new()?;
        let start = Instant::now();
        let mut before = start;
        while before - start < time {
            pipe.send(&ping)?;
            pipe.receive(&mut ping)?;
            let now = Instant::now();
            latencies.record((now - before).as_nanos());
            before = now;
        }
        anyhow::Ok(latencies)
    };
    sample.verified = play(cell.settings.time / WARM_UP)?.len();
    let cpu = meter.cpu()?;
    let latencies = play(cell.settings.time)?;
    let cpu = meter.cpu()? - cpu;
    sample.set_latencies(&latencies);
    sample.set(Figure::Cpu, cpu.as_secs_f64() / latencies.len() as f64);
    sample.verified += latencies.len();
    Ok(())
}

/// The server's part, on a thread of its own.
pub(in crate::bench) struct Server {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Server {
    pub(in crate::bench) fn start(cell: &Cell, dir: &Path) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (cell, dir, over) = (cell.clone(), dir.to_owned(), Arc::clone(&is_over));
        let (opened, is_open) = mpsc::channel();
        // What a process has open may not leave its thread.
        let thread = thread::spawn(move || {
            let pipe = Pipe::open(&cell, &dir, ["back", "there"], over)?;
            let _ignored = opened.send(());
            pipe.wait_for_peer()?;
            match cell.case.workload {
                Workload::Rate => count(&pipe),
                _ => send_back(&pipe, cell.case.load),
            }
        });
        if is_open.recv().is_err() {
            match thread.join() {
                Ok(Err(error)) => return Err(error),
                _ => bail!("iceoryx2 did not start"),
            }
        }
        Ok(Self { is_over, thread })
    }

    /// Ends in order, so that nothing is left behind.
    pub(in crate::bench) fn stop(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        // It was interrupted, which is no error.
        let _interrupted = self.thread.join();
        Ok(())
    }
}

fn count(pipe: &Pipe) -> Result<()> {
    loop {
        let announced = pipe.receive_number()?;
        let mut got = 0;
        while got < announced {
            pipe.take(|_message| got += 1)?;
        }
        pipe.send(&got.to_be_bytes())?;
    }
}

fn send_back(pipe: &Pipe, len: usize) -> Result<()> {
    let mut ping = vec![0; len];
    loop {
        pipe.receive(&mut ping)?;
        pipe.send(&ping)?;
    }
}

/// A publisher and a subscriber.
struct Pipe {
    out: Publisher<ipc::Service, [u8], ()>,
    input: Subscriber<ipc::Service, [u8], ()>,
    peers: Box<dyn Fn() -> usize>,
    is_over: Arc<AtomicBool>,
    _node: Node<ipc::Service>,
}

impl Pipe {
    fn open(
        cell: &Cell,
        dir: &Path,
        [out, input]: [&str; 2],
        is_over: Arc<AtomicBool>,
    ) -> Result<Self> {
        let len = cell.case.load.max(NUMBER_LEN);
        let mut config = Config::default();
        let dir = dir.to_str().context("the directory's name is not UTF-8")?;
        let root = iceoryx2::prelude::Path::new(dir.as_bytes()).map_err(failed)?;
        config.global.set_root_path(&root);
        let node = NodeBuilder::new()
            .config(&config)
            .create::<ipc::Service>()
            .map_err(failed)?;
        let service = |name: &str| {
            node.service_builder(&name.try_into().map_err(failed)?)
                .publish_subscribe::<[u8]>()
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(SAMPLES)
                .max_publishers(1)
                .max_subscribers(1)
                .open_or_create()
                .map_err(failed)
        };
        let (to, from) = (service(out)?, service(input)?);
        Ok(Self {
            out: to
                .publisher_builder()
                .initial_max_slice_len(len)
                .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
                .create()
                .map_err(failed)?,
            input: from.subscriber_builder().create().map_err(failed)?,
            peers: Box::new(move || {
                let received = to.dynamic_config().number_of_subscribers();
                received.min(from.dynamic_config().number_of_publishers())
            }),
            is_over,
            _node: node,
        })
    }

    /// Samples that are sent before the other end is there are lost.
    fn wait_for_peer(&self) -> Result<()> {
        while (self.peers)() == 0 {
            ensure!(!self.is_over.load(Ordering::Relaxed), "no peer connected");
            thread::sleep(Duration::from_millis(1));
        }
        // The other end has to have seen this one, too.
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn send(&self, data: &[u8]) -> Result<()> {
        let sample = self.out.loan_slice_uninit(data.len()).map_err(failed)?;
        sample.write_from_slice(data).send().map_err(failed)?;
        Ok(())
    }

    /// Waits for a sample and shows it.
    fn take<T>(&self, show: impl FnOnce(&[u8]) -> T) -> Result<T> {
        loop {
            // Not each time, because it reads memory of others.
            for _ in 0..LOOKS {
                if let Some(sample) = self.input.receive().map_err(failed)? {
                    return Ok(show(sample.payload()));
                }
                std::hint::spin_loop();
            }
            ensure!(!self.is_over.load(Ordering::Relaxed), "interrupted");
        }
    }

    fn receive(&self, to: &mut [u8]) -> Result<()> {
        let is_whole = self.take(|data| {
            let is_whole = data.len() == to.len();
            if is_whole {
                to.copy_from_slice(data);
            }
            is_whole
        })?;
        ensure!(is_whole, "a sample of another length");
        Ok(())
    }

    fn receive_number(&self) -> Result<u64> {
        let mut number = [0; NUMBER_LEN];
        self.receive(&mut number)?;
        Ok(u64::from_be_bytes(number))
    }
}

/// Its errors in words; not all of them are errors by trait.
fn failed(error: impl std::fmt::Debug) -> anyhow::Error {
    anyhow!("iceoryx2: {error:?}")
}

const NUMBER_LEN: usize = 8;

/// Samples under way.
const SAMPLES: usize = 1024;

/// Looks for a sample between two for the end.
const LOOKS: u32 = 1000;

/// Part of the time that is the warm-up.
const WARM_UP: u32 = 4;
