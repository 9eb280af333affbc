//! Commands that serve many clients at a time, until a signal.

use std::fmt::Display;
use std::io;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use smc_core::quota::LineQuota;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::endpoint::{Ending, report};
use crate::output::bounded;

/// How many clients are served.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ServeLimit {
    /// Connections at a time; others wait in the backlog of the listening socket
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
}

impl ServeLimit {
    /// Raises the limit of descriptors as far as it may be.
    pub(crate) fn raise_descriptors(self, command: &str) {
        let connections = self.max_connections;
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return;
        };
        let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
            Ok(()) => hard,
            Err(_) => soft,
        };
        let needed = u64::from(connections) * DESCRIPTORS;
        if limit < needed {
            report(
                command,
                format_args!(
                    "a limit of {limit} descriptors, where --max-connections {connections} may need \
                     {needed}: raise it (ulimit -n, LimitNOFILE=) or lower the other"
                ),
            );
        }
    }
}

/// What a server accepts clients from.
pub(crate) trait Accept {
    /// A client.
    type Client;

    /// Its address, as it is reported.
    fn address(&self) -> &str;

    /// The next client. Cancel safe.
    async fn accept(&mut self) -> io::Result<Self::Client>;
}

/// The connections of a server. This is the place that knows their number.
pub(crate) struct Server {
    command: &'static str,
    limit: ServeLimit,
    connections: JoinSet<()>,
    ending: Ending,
    /// When it was last reported that there is no place for another connection.
    full_since: Option<Instant>,
    /// Failures to accept, which clients cause while they have all descriptors.
    failures: LineQuota,
}

impl Server {
    pub(crate) fn new(command: &'static str, limit: ServeLimit, ending: Ending) -> Self {
        Self {
            command,
            limit,
            connections: JoinSet::new(),
            ending,
            full_since: None,
            failures: LineQuota::default(),
        }
    }

    /// Has each client served by a task, until a signal arrives. Connections may last for `grace`
    /// afterwards, or until the next signal. Then `cut_off` is set, at which tasks have to stop.
    /// Without a `grace` it is set at once, and they end in order.
    pub(crate) async fn run<L: Accept, F: Future<Output = ()> + Send + 'static>(
        mut self,
        mut listener: L,
        serve: impl Fn(L::Client) -> F,
        grace: Option<Duration>,
        cut_off: watch::Sender<bool>,
    ) -> Result<()> {
        let outcome = self.accept_until_told(&mut listener, &serve).await;
        let is_waiting = outcome.is_ok() && self.accept_connected(&mut listener, &serve).await;
        // Withdraws the name, and refuses clients.
        drop(listener);
        if let (true, Some(grace), open @ 1..) = (is_waiting, grace, self.connections.len()) {
            self.report(format_args!(
                "ending: {open} connections may last {} s",
                grace.as_secs_f64()
            ));
            self.wait_for_ends(Instant::now().checked_add(grace)).await;
        }
        if let (Some(_), left @ 1..) = (grace, self.connections.len()) {
            self.report(format_args!("{left} connections were cut off"));
        }
        let _without_connections = cut_off.send(true);
        while let Some(ended) = self.connections.join_next().await {
            self.check(ended);
        }
        outcome
    }

    /// Accepts until a signal arrives.
    async fn accept_until_told<L: Accept, F: Future<Output = ()> + Send + 'static>(
        &mut self,
        listener: &mut L,
        serve: &impl Fn(L::Client) -> F,
    ) -> Result<()> {
        loop {
            let is_full = self.is_full();
            if is_full {
                self.report_full();
            }
            tokio::select! {
                () = self.ending.wait() => return Ok(()),
                Some(ended) = self.connections.join_next() => self.check(ended),
                accepted = listener.accept(), if !is_full => match accepted {
                    Ok(client) => {
                        self.connections.spawn(serve(client));
                    }
                    // The endpoint has ended, and with it the listener.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        let at = listener.address().to_owned();
                        return Err(error).with_context(|| format!("cannot accept at {at}"));
                    }
                    Err(error) => {
                        let line = format!("cannot accept at {}: {error}", listener.address());
                        let now = Instant::now().into_std();
                        for line in bounded(&mut self.failures, "failures to accept", line, now) {
                            self.report(line);
                        }
                        // Descriptors or memory are short, and may be free again later.
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Accepts clients that were connected when the signal arrived: their `connect` has returned,
    /// and they may have sent data. Further ones may connect meanwhile, without end, so the time is
    /// limited. Returns false at the next signal.
    async fn accept_connected<L: Accept, F: Future<Output = ()> + Send + 'static>(
        &mut self,
        listener: &mut L,
        serve: &impl Fn(L::Client) -> F,
    ) -> bool {
        let mut until = pin!(sleep(LAST_ACCEPTS));
        while !self.is_full() {
            tokio::select! {
                () = self.ending.wait() => return false,
                () = &mut until => return true,
                accepted = timeout(LAST_ACCEPT, listener.accept()) => match accepted {
                    Ok(Ok(client)) => {
                        self.connections.spawn(serve(client));
                    }
                    _ => return true,
                },
            }
        }
        true
    }

    fn is_full(&self) -> bool {
        let max = usize::try_from(self.limit.max_connections).unwrap_or(usize::MAX);
        self.connections.len() >= max
    }

    fn report_full(&mut self) {
        let now = Instant::now();
        if self
            .full_since
            .is_some_and(|since| now < since + FULL_INTERVAL)
        {
            return;
        }
        self.full_since = Some(now);
        let max = self.limit.max_connections;
        self.report(format_args!(
            "{max} connections, the limit of --max-connections: further clients wait until one ends"
        ));
    }

    /// Waits until all connections have ended, at most until then; returns at the next signal.
    async fn wait_for_ends(&mut self, until: Option<Instant>) {
        let until = until.unwrap_or_else(Instant::now);
        while !self.connections.is_empty() {
            tokio::select! {
                Some(ended) = self.connections.join_next() => self.check(ended),
                () = sleep_until(until) => return,
                () = self.ending.wait() => return,
            }
        }
    }

    fn check(&self, ended: Result<(), JoinError>) {
        if let Err(error) = ended {
            self.report(format_args!("a connection failed: {error}"));
        }
    }

    fn report(&self, line: impl Display) {
        report(self.command, line);
    }
}

/// Descriptors of a connection: two sockets, and the memory files of an SMC stream at either end.
const DESCRIPTORS: u64 = 4;
/// How long accepting pauses after an error.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the last clients may take to be accepted, each.
const LAST_ACCEPT: Duration = Duration::from_millis(50);
/// How long they may take together.
const LAST_ACCEPTS: Duration = Duration::from_secs(1);
/// How often it is reported that the limit of connections is reached.
const FULL_INTERVAL: Duration = Duration::from_secs(60);
