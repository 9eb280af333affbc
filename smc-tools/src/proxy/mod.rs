//! `smc proxy`: SMC for programs that know only TCP or UNIX sockets.

mod address;
mod connection;
mod listener;
mod metrics;
mod unix;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use smc::Endpoint;
use smc_core::quota::LineQuota;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use self::address::Address;
use self::connection::{End, Socket, relay};
use self::listener::Listener;
use self::metrics::{Counted, Exporter, count_end, count_not_connected};
use crate::endpoint::{self, Ending, EndpointArgs, report};
use crate::output::{Usage, bounded};
use crate::serve::{Accept as _, ServeLimit, Server};
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
///   unix:@NAME       a UNIX socket in the abstract namespace: a process of any user in the network
///                    namespace can connect to it
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

    #[command(flatten)]
    limit: ServeLimit,

    /// How long a connection to --to may take to be made
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    timeout: Duration,

    /// How long connections may last after a signal
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::seconds)]
    grace: Duration,

    /// Permissions of the UNIX socket of --listen unix:PATH, in octal: who may connect; 0600 unless
    /// set. A process of any user may connect to unix:@NAME
    #[arg(long, value_name = "MODE", value_parser = values::mode)]
    mode: Option<u32>,

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
    ensure!(
        args.mode.is_none() || !matches!(args.listen, Address::Abstract(_)),
        Usage::new(
            "--mode has no effect on unix:@NAME, to which a process of any user in the network \
             namespace may connect; listen at unix:PATH"
        )
    );
    args.limit.raise_descriptors(NAME);
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
    let mut exporting = JoinSet::new();
    let ending = Ending::new().context("cannot wait for signals")?;
    let listener =
        Listener::bind(&args.listen, endpoint.as_ref(), args.mode.unwrap_or(MODE)).await?;
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
    let route = Route {
        to: args.to,
        endpoint: endpoint.clone(),
        timeout: args.timeout,
        verbose: args.verbose,
        is_cut_off,
        failures: Arc::default(),
    };
    let server = Server::new(NAME, args.limit, ending);
    let carry = move |client| route.clone().carry(client);
    let outcome = server.run(listener, carry, Some(args.grace), cut_off).await;
    // They have the endpoint, too.
    exporting.shutdown().await;
    if let Some(endpoint) = endpoint {
        endpoint::close(endpoint).await;
    }
    outcome
}

/// How a connection is carried.
#[derive(Clone)]
struct Route {
    to: Address,
    endpoint: Option<Endpoint>,
    timeout: Duration,
    verbose: u8,
    is_cut_off: watch::Receiver<bool>,
    failures: Arc<Failures>,
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
                let line = format!("{name}: cannot connect to {to}: {error}");
                for line in self.failures.lines(line, Instant::now().into_std()) {
                    report(NAME, line);
                }
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

/// The lines about clients for which there is no server: each client can cause one.
#[derive(Debug, Default)]
struct Failures(Mutex<LineQuota>);

impl Failures {
    /// What is written in place of this line.
    fn lines(&self, line: String, now: std::time::Instant) -> Vec<String> {
        let mut quota = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bounded(&mut quota, "failures to connect", line, now)
    }
}

const NAME: &str = "smc proxy";
/// Permissions of a UNIX socket with a path.
const MODE: u32 = 0o600;
