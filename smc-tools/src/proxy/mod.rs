//! `smc proxy`: SMC for programs that know only TCP or UNIX sockets.

mod address;
mod connection;
mod listener;
mod metrics;
mod unix;

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use smc::Endpoint;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::address::Address;
use self::connection::{End, Socket, relay};
use self::listener::Listener;
use self::metrics::{Counted, Exporter, count_end, count_not_connected};
use crate::endpoint::{self, Ending, EndpointArgs, report};
use crate::values;

/// Arguments of `smc proxy`.
///
/// Accepts connections at one address, makes one to the other address for each of them, and copies
/// in both directions. A half close is passed on, and so is a reset. Usually one proxy accepts TCP
/// or UNIX sockets of unmodified clients and connects by SMC, and another one accepts SMC and
/// connects to an unmodified server.
///
/// An address is one of
///   smc:HOST:PORT    an SMC stream, or plain TCP where the other end does not support SMC
///   HOST:PORT        the same
///   tcp:HOST:PORT    a TCP connection, never SMC
///   unix:PATH        a UNIX socket
///   unix:@NAME       a UNIX socket in the abstract namespace
#[derive(Clone, Debug, clap::Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
SIGTERM and SIGINT end it: it accepts no more, waits for connections as long as --grace says, and
resets those that are left. A second signal ends the wait. The exit status is 0 then.

Examples:
  smc proxy --listen tcp:127.0.0.1:5432 --to db.example:15432          # beside the client
  smc proxy --listen 0.0.0.0:15432 --to unix:/run/postgresql/.s.PGSQL.5432   # beside the server"
)]
pub(crate) struct Args {
    /// Where connections are accepted; port 0 is any free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,

    /// Where they are carried to
    #[arg(long, value_name = "ADDRESS")]
    to: Address,

    #[command(flatten)]
    endpoint: EndpointArgs,

    /// Connections at a time; others wait in the backlog of the listening socket
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// How long a connection to --to may take to be made
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    timeout: Duration,

    /// How long connections may last after a signal
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    grace: Duration,

    /// Permissions of the UNIX socket of --listen, in octal: who may connect
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = values::mode)]
    mode: u32,

    /// Serve counters of the proxy and its endpoint for Prometheus at http://ADDRESS/metrics,
    /// without authentication
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,

    /// Report each connection on standard error when it has ended; twice, also when it is made
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Runs `smc proxy`.
pub(crate) fn run(args: Args) -> Result<bool> {
    raise_descriptors(args.max_connections);
    let runtime = Runtime::new().context("cannot start tokio")?;
    let outcome = runtime.block_on(async { tokio::spawn(attempt(args)).await? });
    // A name may still be looked up, for a connection that is not made any more.
    runtime.shutdown_background();
    outcome.map(|()| true)
}

async fn attempt(args: Args) -> Result<()> {
    let needs_endpoint = args.listen.is_smc() || args.to.is_smc();
    let endpoint = needs_endpoint.then(|| args.endpoint.build()).transpose()?;
    let exporter = match &args.metrics {
        Some(at) => Some(Exporter::bind(at, endpoint.clone()).await?),
        None => None,
    };
    // Ends with this function.
    let mut exporting = JoinSet::new();
    let ending = Ending::new().context("cannot wait for signals")?;
    let listener = Listener::bind(&args.listen, endpoint.as_ref(), args.mode).await?;
    report(
        NAME,
        format_args!("listening at {}, for {}", listener.address(), args.to),
    );
    if let Some(exporter) = exporter {
        let at = exporter.address()?;
        report(NAME, format_args!("metrics at http://{at}/metrics"));
        exporting.spawn(exporter.serve());
    }
    let (cut_off, is_cut_off) = watch::channel(false);
    let proxy = Proxy {
        connections: JoinSet::new(),
        route: Route {
            to: args.to,
            endpoint: endpoint.clone(),
            timeout: args.timeout,
            verbose: args.verbose,
            is_cut_off,
        },
        ending,
        full_since: None,
    };
    let max = usize::try_from(args.max_connections).unwrap_or(usize::MAX);
    let outcome = proxy.run(listener, max, args.grace, cut_off).await;
    if let Some(endpoint) = endpoint {
        endpoint::close(endpoint).await;
    }
    outcome
}

/// The connections of a proxy. This is the place that knows their number.
struct Proxy {
    connections: JoinSet<()>,
    route: Route,
    ending: Ending,
    /// When it was last reported that there is no place for another connection.
    full_since: Option<Instant>,
}

impl Proxy {
    async fn run(
        mut self,
        mut listener: Listener,
        max: usize,
        grace: Duration,
        cut_off: watch::Sender<bool>,
    ) -> Result<()> {
        let outcome = self.accept_until_told(&mut listener, max).await;
        if outcome.is_ok() {
            self.accept_connected(&mut listener, max).await;
        }
        // Withdraws the name, and refuses clients.
        drop(listener);
        if let (Ok(()), open @ 1..) = (&outcome, self.connections.len()) {
            let grace = grace.as_secs_f64();
            report(
                NAME,
                format_args!("ending: {open} connections may last {grace} s"),
            );
        }
        let until = Instant::now().checked_add(grace);
        self.wait_for_ends(until.filter(|_| outcome.is_ok())).await;
        let left = self.connections.len();
        if left > 0 {
            report(NAME, format_args!("{left} connections were cut off"));
        }
        let _without_connections = cut_off.send(true);
        while let Some(ended) = self.connections.join_next().await {
            check(ended);
        }
        outcome
    }

    /// Accepts until a signal arrives.
    async fn accept_until_told(&mut self, listener: &mut Listener, max: usize) -> Result<()> {
        loop {
            let is_full = self.connections.len() >= max;
            if is_full {
                self.report_full(max);
            }
            tokio::select! {
                () = self.ending.wait() => return Ok(()),
                Some(ended) = self.connections.join_next() => check(ended),
                accepted = listener.accept(), if !is_full => match accepted {
                    Ok(client) => {
                        self.connections.spawn(self.route.clone().carry(client));
                    }
                    // The endpoint has ended, and with it the listener.
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                        let at = listener.address().to_owned();
                        return Err(error).with_context(|| format!("cannot accept at {at}"));
                    }
                    Err(error) => {
                        let at = listener.address();
                        report(NAME, format_args!("cannot accept at {at}: {error}"));
                        // Descriptors or memory are short, and may be free again later.
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Accepts clients that were connected when the signal arrived: their `connect` has returned,
    /// and they may have sent data.
    async fn accept_connected(&mut self, listener: &mut Listener, max: usize) {
        while self.connections.len() < max {
            let Ok(Ok(client)) = timeout(LAST_ACCEPT, listener.accept()).await else {
                return;
            };
            self.connections.spawn(self.route.clone().carry(client));
        }
    }

    fn report_full(&mut self, max: usize) {
        let now = Instant::now();
        if self
            .full_since
            .is_some_and(|since| now < since + FULL_INTERVAL)
        {
            return;
        }
        self.full_since = Some(now);
        report(
            NAME,
            format_args!(
                "{max} connections, the limit of --max-connections: further clients wait until one \
                 ends"
            ),
        );
    }

    /// Waits until all connections have ended, at most until then; returns at the next signal.
    async fn wait_for_ends(&mut self, until: Option<Instant>) {
        let until = until.unwrap_or_else(Instant::now);
        while !self.connections.is_empty() {
            tokio::select! {
                Some(ended) = self.connections.join_next() => check(ended),
                () = sleep_until(until) => return,
                () = self.ending.wait() => return,
            }
        }
    }
}

fn check(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        report(NAME, format_args!("a connection failed: {error}"));
    }
}

/// How a connection is carried.
#[derive(Clone)]
struct Route {
    to: Address,
    endpoint: Option<Endpoint>,
    timeout: Duration,
    verbose: u8,
    is_cut_off: watch::Receiver<bool>,
}

impl Route {
    /// Carries a connection to its end.
    async fn carry(mut self, mut client: Socket) {
        let (begin, _counted) = (Instant::now(), Counted::new());
        let connecting = timeout(
            self.timeout,
            Socket::connect(&self.to, self.endpoint.as_ref()),
        );
        let connected = tokio::select! {
            connected = connecting => connected,
            _ = self.is_cut_off.wait_for(|is_cut_off| *is_cut_off) => return client.reset(),
        };
        let connected = match connected {
            Ok(connected) => connected,
            Err(_elapsed) => Err(std::io::ErrorKind::TimedOut.into()),
        };
        let mut server = match connected {
            Ok(server) => server,
            Err(error) => {
                let (to, name) = (&self.to, client.name());
                report(
                    NAME,
                    format_args!("{name}: cannot connect to {to}: {error}"),
                );
                count_not_connected();
                return client.reset();
            }
        };
        let names = format!("{} -> {}", client.name(), server.name());
        if self.verbose > 1 {
            report(NAME, format_args!("{names}: connected"));
        }
        let (mut there, mut back) = (0, 0);
        let end = tokio::select! {
            end = relay(&mut client, &mut server, &mut there, &mut back) => end,
            _ = self.is_cut_off.wait_for(|is_cut_off| *is_cut_off) => {
                End::Broken("cut off after a signal".to_owned())
            }
        };
        count_end(&end, there, back);
        if self.verbose > 0 {
            let how = match &end {
                End::Complete => "complete",
                End::Refused(why) | End::Broken(why) => why,
            };
            let seconds = begin.elapsed().as_secs_f64();
            report(
                NAME,
                format_args!("{names}: {there} bytes there, {back} back, {seconds:.3} s, {how}"),
            );
        }
        if let End::Broken(_) = end {
            client.reset();
            server.reset();
        }
    }
}

/// Raises the limit of descriptors as far as it may be.
fn raise_descriptors(connections: u32) {
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
            NAME,
            format_args!(
                "a limit of {limit} descriptors, where --max-connections {connections} may need \
                 {needed}: raise it (ulimit -n, LimitNOFILE=) or lower the other"
            ),
        );
    }
}

const NAME: &str = "smc proxy";
/// Descriptors of a connection: two sockets, and the memory files of an SMC stream at either end.
const DESCRIPTORS: u64 = 4;
/// How long accepting pauses after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the last clients may take to be accepted, each.
const LAST_ACCEPT: Duration = Duration::from_millis(50);
/// How often it is reported that the limit of connections is reached.
const FULL_INTERVAL: Duration = Duration::from_secs(60);
