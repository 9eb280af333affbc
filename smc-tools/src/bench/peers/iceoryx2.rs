//! iceoryx2: publish and subscribe, in two services, one for each direction. Both ends poll for
//! samples without a pause, which is the fastest way it has.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use super::super::figure::Sample;
use super::super::meter::Meter;
use super::super::plan::Cell;
use super::{Messages, NUMBER_LEN};

/// The client's part.
pub(in crate::bench) fn drive(cell: &Cell, dir: &Path, meter: Meter) -> Result<Sample> {
    let pipe = Pipe::open(cell, dir, ["there", "back"], Arc::default())?;
    pipe.wait_for_peer()?;
    super::drive(cell, &pipe, "iceoryx2, publish and subscribe", meter)
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
            super::serve(&cell, &pipe)
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
}

impl Messages for Pipe {
    fn send(&self, data: &[u8]) -> Result<()> {
        let sample = self.out.loan_slice_uninit(data.len()).map_err(failed)?;
        sample.write_from_slice(data).send().map_err(failed)?;
        Ok(())
    }

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
}

/// Its errors in words; not all of them are errors by trait.
fn failed(error: impl std::fmt::Debug) -> anyhow::Error {
    anyhow!("iceoryx2: {error:?}")
}

/// Samples under way.
const SAMPLES: usize = 1024;

/// Looks for a sample between two for the end.
const LOOKS: u32 = 1000;
