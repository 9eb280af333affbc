//! A run of a schedule.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use event_listener::Event as Signal;
use futures_lite::AsyncReadExt as _;
use futures_lite::future::or;
use smc::{ConnectOptions, Error, Stream};
use smc_core::runtime::Runtime;

use super::connections::{Connection, Request, Verdict, Violation, WriteOp, early_data, lock};
use super::effects::Effects;
use super::hosts::{Host, Networks, PLAIN_PORT, PORT, SMC_PORT, address};
use super::schedule::{Action, End, Policy, Schedule};

/// Everything of a run.
pub(crate) struct Run {
    pub(crate) networks: Networks,
    pub(crate) schedule: Schedule,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) effects: Vec<Effects>,
    start: Instant,
    /// The present life of each host.
    hosts: Mutex<Vec<Option<Arc<Host>>>>,
    /// All lives of all hosts.
    pub(crate) lives: Mutex<Vec<Arc<Host>>>,
    /// How often each host was closed in order.
    closes: Mutex<Vec<u8>>,
    /// Ends the listener of each host.
    unlisten: Vec<Signal>,
    pub(crate) connections: Mutex<BTreeMap<u8, Arc<Connection>>>,
    /// Server's ends that are used together with the client's.
    /// None when the run ends.
    pub(crate) parked: Mutex<Option<BTreeMap<u8, Stream>>>,
    violation: Mutex<Option<Violation>>,
    /// Events that take time.
    work: AtomicUsize,
    pub(crate) is_failing_over: AtomicBool,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// SMC-D, SMC-R and TCP streams of clients, and connects that failed.
    pub(crate) direct: u64,
    pub(crate) rdma: u64,
    pub(crate) tcp: u64,
    pub(crate) failed: u64,
}

/// Runs a schedule.
pub(crate) fn run(schedule: &Schedule) -> Result<Tally, Violation> {
    let run = Arc::new(Run::new(schedule));
    let runtime = run.networks.runtime();
    let outcome = runtime.try_block_on(run.live());
    let outcome = outcome.unwrap_or_else(|stall| {
        let kind = "no task can run, or tasks run without end";
        Err(Violation::new(kind, format!("{stall}\n{}", run.describe())))
    });
    let outcome = outcome.and_then(|()| run.check_tasks());
    // Tasks own the run.
    runtime.close();
    outcome.map(|()| run.tally())
}

impl Run {
    fn new(schedule: &Schedule) -> Self {
        let networks = Networks::new(&schedule.setting);
        let runtime = networks.runtime().handle();
        let count = schedule.setting.hosts.len();
        Self {
            start: runtime.now(),
            runtime,
            networks,
            effects: Effects::of(schedule),
            schedule: schedule.clone(),
            hosts: Mutex::new(vec![None; count]),
            lives: Mutex::default(),
            closes: Mutex::new(vec![0; count]),
            unlisten: (0..count).map(|_| Signal::new()).collect(),
            connections: Mutex::default(),
            parked: Mutex::new(Some(BTreeMap::new())),
            violation: Mutex::default(),
            work: AtomicUsize::new(0),
            is_failing_over: AtomicBool::new(false),
        }
    }

    /// From the start of the hosts until nothing is left.
    async fn live(self: &Arc<Self>) -> Verdict {
        for host in 0..self.effects.len() {
            self.start(host).await?;
        }
        for event in &self.schedule.events {
            let at = self.start + Duration::from_micros(event.at);
            self.runtime.timer(at).await;
            self.act(&event.action);
        }
        let is_done = || self.work.load(Ordering::Relaxed) == 0;
        self.until("end of an event", LONG, is_done).await?;
        self.repair();
        for connection in lock(&self.connections).values() {
            End::BOTH.iter().for_each(|end| connection.finish(*end));
        }
        let have_ended = || {
            self.running()
                .iter()
                .all(|host| host.ends.load(Ordering::Relaxed) == 0)
        };
        self.until("end of streams", LONG, have_ended).await?;
        // A client may have closed before its server accepts.
        let are_accepted = || {
            let connections = lock(&self.connections);
            connections
                .values()
                .all(|connection| connection.is_accepted())
        };
        self.wait(SETUP, are_accepted).await;
        self.until("end of streams", LONG, have_ended).await?;
        let parked = lock(&self.parked).take();
        drop(parked);
        for connection in lock(&self.connections).values() {
            self.check_setup(connection)?;
        }
        self.check_rest().await
    }

    /// Hosts that were not killed, closed ones as well.
    pub(crate) fn running(&self) -> Vec<Arc<Host>> {
        let lives = lock(&self.lives);
        let running = lives.iter().filter(|host| !host.has_been_killed());
        running.cloned().collect()
    }

    /// Whether a life of the host has been killed.
    pub(crate) fn has_been_killed(&self, index: usize) -> bool {
        let lives = lock(&self.lives);
        let mut of_host = lives.iter().filter(|host| host.index == index);
        of_host.any(|host| host.has_been_killed())
    }

    /// The present life of a host.
    pub(crate) fn host(&self, index: u8) -> Option<Arc<Host>> {
        lock(&self.hosts).get(usize::from(index)).cloned().flatten()
    }

    fn act(self: &Arc<Self>, action: &Action) {
        match *action {
            Action::Connect {
                conn,
                from,
                to,
                early,
                policy,
                give_up,
                model,
            } => self.connect(Request {
                number: conn,
                from: from.into(),
                to: to.into(),
                early: early.into(),
                policy,
                give_up,
                model,
            }),
            Action::Write { conn, end, len } => {
                self.with(conn, |conn| conn.write(end, WriteOp::Write(len as usize)));
            }
            Action::Read { conn, end, len } => {
                self.with(conn, |conn| conn.read(end, len as usize));
            }
            Action::Shutdown { conn, end } => {
                self.with(conn, |conn| conn.write(end, WriteOp::Shutdown));
            }
            Action::Close { conn, end, resets } => {
                self.with(conn, |conn| conn.write(end, WriteOp::Close(resets)));
            }
            Action::Unlisten { host, time } => self.work(async move |run| {
                let Some(host) = run.host(host) else {
                    return;
                };
                // Another event has done so already.
                if host.is_unlistened.swap(true, Ordering::Relaxed) {
                    return;
                }
                run.unlisten[host.index].notify(usize::MAX);
                run.sleep(time).await;
                let has_ended = || !host.is_listening.load(Ordering::Relaxed);
                run.wait(LISTENER_TIME, has_ended).await;
                let now = run.host(host.index as u8);
                if now.is_some_and(|now| Arc::ptr_eq(&now, &host)) {
                    run.listen(&host).await;
                }
                host.is_unlistened.store(false, Ordering::Relaxed);
            }),
            Action::Restart {
                host,
                is_killed,
                time,
            } => self.work(async move |run| {
                let index = usize::from(host);
                let host = lock(&run.hosts).get_mut(index).and_then(Option::take);
                let Some(host) = host else {
                    return;
                };
                run.unlisten[index].notify(usize::MAX);
                if is_killed {
                    // The tasks of one host own streams of both.
                    let is_free = || {
                        let connections = lock(&run.connections);
                        connections.values().all(|one| !one.occupies(index))
                    };
                    run.wait(LONG, is_free).await;
                    host.kill(&run.networks);
                } else {
                    host.endpoint.close().await;
                    let has_ended = || !host.is_listening.load(Ordering::Relaxed);
                    run.wait(LONG, has_ended).await;
                    host.is_closed.store(true, Ordering::Relaxed);
                    lock(&run.closes)[index] += 1;
                }
                drop(host);
                run.sleep(time).await;
                if let Err(violation) = run.start(index).await {
                    run.violate(violation);
                }
            }),
            Action::Jump { time } => {
                let time = Duration::from_micros(time.into());
                self.networks.runtime().jump(time);
            }
            Action::Pause { host, time } => self.work(async move |run| {
                if let Some(host) = run.host(host) {
                    host.runtime.pause();
                    run.sleep(time).await;
                    if !host.has_been_killed() {
                        host.runtime.resume();
                    }
                }
            }),
            _ => self.fault(action),
        }
    }

    fn with(&self, conn: u8, what: impl FnOnce(&Connection)) {
        let connection = lock(&self.connections).get(&conn).cloned();
        if let Some(connection) = connection {
            what(&connection);
        }
    }

    /// Starts a task for which the end of the schedule waits.
    pub(crate) fn work<F>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.work.fetch_add(1, Ordering::Relaxed);
        let (task, run) = (task(Arc::clone(self)), Arc::clone(self));
        self.runtime.spawn(Box::pin(async move {
            task.await;
            run.work.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    // ---- Hosts ---------------------------------------------------------------------------------

    async fn start(self: &Arc<Self>, index: usize) -> Verdict {
        let life = lock(&self.closes)[index];
        let host = Host::new(&self.networks, &self.schedule.setting, index, life);
        lock(&self.lives).push(Arc::clone(&host));
        lock(&self.hosts)[index] = Some(Arc::clone(&host));
        self.listen(&host).await;
        Ok(())
    }

    async fn listen(self: &Arc<Self>, host: &Arc<Host>) {
        let listener = match host.listen().await {
            Ok(listener) => listener,
            Err(_) if host.is_closed.load(Ordering::Relaxed) || host.has_been_killed() => return,
            Err(error) => {
                let kind = "listener cannot be bound";
                return self.violate(Violation::new(kind, error.to_string()));
            }
        };
        let stop = self.unlisten[host.index].listen();
        host.is_listening.store(true, Ordering::Relaxed);
        let (run, host) = (Arc::clone(self), Arc::clone(host));
        let runtime = Arc::clone(&host.runtime);
        runtime.spawn(Box::pin(async move {
            let accepting = async {
                while let Ok((stream, client)) = listener.accept().await {
                    run.accepted(&host, stream, client);
                }
            };
            or(stop, accepting).await;
            drop(listener);
            host.is_listening.store(false, Ordering::Relaxed);
        }));
    }

    fn accepted(self: &Arc<Self>, host: &Arc<Host>, stream: Stream, client: SocketAddr) {
        let number = [SMC_PORT, PLAIN_PORT]
            .iter()
            .find_map(|first| u8::try_from(client.port().checked_sub(*first)?).ok());
        let connection = number.and_then(|number| lock(&self.connections).get(&number).cloned());
        let run = Arc::clone(self);
        let Some(connection) = connection else {
            return host.use_end(async move { run.expect_no_data(stream).await });
        };
        match connection.opened(End::Server, stream.mode()) {
            Ok(true) => {}
            Ok(false) => {
                return host.use_end(async move { run.read_second(&connection, stream).await });
            }
            Err(violation) => return self.violate(violation),
        }
        if connection.request.model != 0 {
            if let Some(parked) = &mut *lock(&self.parked) {
                parked.insert(connection.request.number, stream);
            }
            return;
        }
        host.use_end(async move { run.use_stream(&connection, End::Server, stream).await });
    }

    /// A PROPOSAL that arrives again makes no stream with data.
    async fn expect_no_data(&self, mut stream: Stream) {
        if let Ok(1..) = stream.read(&mut [0; 8]).await {
            let what = stream.mode().to_string();
            self.violate(Violation::new(
                "data of a PROPOSAL that was sent again",
                what,
            ));
        }
    }

    /// Another stream of the server for a connection.
    async fn read_second(&self, connection: &Connection, mut stream: Stream) {
        if let Ok(1..) = stream.read(&mut [0; 8]).await {
            if let Err(violation) = connection.second_has_data(stream.mode()) {
                self.violate(violation);
            }
        }
    }

    // ---- Connections ---------------------------------------------------------------------------

    fn connect(self: &Arc<Self>, request: Request) {
        let (from, to) = (request.from, request.to);
        let Some(host) = u8::try_from(from).ok().and_then(|from| self.host(from)) else {
            return;
        };
        let mut connections = lock(&self.connections);
        if from == to || to >= self.effects.len() || connections.contains_key(&request.number) {
            return;
        }
        let effects = self.effects[from].with(self.effects[to]);
        let connection = Arc::new(Connection::new(request, effects));
        connections.insert(request.number, Arc::clone(&connection));
        let (run, client) = (Arc::clone(self), Arc::clone(&host));
        host.use_end(async move {
            if let Some(stream) = run.client(&client, &connection).await {
                match connection.request.model {
                    0 => run.use_stream(&connection, End::Client, stream).await,
                    seed => run.use_both(&client, &connection, seed, stream).await,
                }
            }
        });
    }

    /// The client's stream.
    async fn client(&self, host: &Host, connection: &Connection) -> Option<Stream> {
        let request = connection.request;
        let (policy, first) = match request.policy {
            Policy::Prefer => (smc::Policy::Prefer, SMC_PORT),
            Policy::Require => (smc::Policy::Require, SMC_PORT),
            Policy::Never => (smc::Policy::Never, PLAIN_PORT),
        };
        let port = first + u16::from(request.number);
        let options = ConnectOptions::new()
            .local((address(request.from), port).into())
            .policy(policy)
            .early_data(early_data(request.number, request.early));
        connection.offer_early();
        let begin = self.runtime.now();
        let to = SocketAddr::new(address(request.to), PORT);
        let connecting = async { Some(host.endpoint.connect_with(to, &options).await) };
        let connected = match request.give_up {
            0 => connecting.await,
            time => {
                let given_up = async {
                    self.sleep(time).await;
                    None
                };
                or(connecting, given_up).await
            }
        };
        let took = self.runtime.now() - begin;
        let most = match connection.effects.may_fail() {
            true => LONG,
            false => SETUP,
        };
        if took > most {
            let what = format!("{took:?}: {}", connection.description());
            self.violate(Violation::new("set-up takes too long", what));
        }
        match connected {
            Some(Ok(stream)) => {
                if let Err(violation) = connection.opened(End::Client, stream.mode()) {
                    self.violate(violation);
                }
                Some(stream)
            }
            Some(Err(Error::Declined(reason))) => {
                connection.failed("declined".into(), Some(reason));
                None
            }
            Some(Err(error)) => {
                connection.failed(error.to_string(), None);
                if !connection.may_fail() {
                    let what = connection.description();
                    self.violate(Violation::new("connect fails without cause", what));
                }
                None
            }
            None => {
                connection.failed("given up".into(), None);
                None
            }
        }
    }

    // ---- Time ----------------------------------------------------------------------------------

    pub(crate) async fn sleep(&self, micros: u32) {
        let time = Duration::from_micros(micros.into());
        self.runtime.timer(self.runtime.now() + time).await;
    }

    /// Waits until something holds; states whether it did in time.
    pub(crate) async fn wait(&self, time: Duration, is_so: impl Fn() -> bool) -> bool {
        let end = self.runtime.now() + time;
        let mut pause = 100;
        while !is_so() {
            if self.runtime.now() > end {
                return false;
            }
            self.sleep(pause).await;
            pause = (pause * 2).min(1_000_000);
        }
        true
    }

    /// The same, where it is a violation if it does not hold in time.
    pub(crate) async fn until(
        &self,
        what: &str,
        time: Duration,
        is_so: impl Fn() -> bool,
    ) -> Verdict {
        let is_broken = || lock(&self.violation).is_some();
        let held = self.wait(time, || is_broken() || is_so()).await;
        if let Some(violation) = lock(&self.violation).take() {
            return Err(violation);
        }
        match held {
            true => Ok(()),
            false => Err(Violation::new(format!("no {what}"), self.describe())),
        }
    }

    /// Keeps the first violation.
    pub(crate) fn violate(&self, violation: Violation) {
        lock(&self.violation).get_or_insert(violation);
    }

    /// Lets go of everything that an endpoint could be kept by.
    pub(crate) fn drop_hosts(&self) {
        drop(std::mem::take(&mut *lock(&self.hosts)));
        drop(std::mem::take(&mut *lock(&self.lives)));
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for connection in lock(&self.connections).values() {
            let [client, _] = connection.ends();
            *match client.mode {
                Some(smc::Mode::SmcD { .. }) => &mut tally.direct,
                Some(smc::Mode::SmcR { .. }) => &mut tally.rdma,
                Some(_) => &mut tally.tcp,
                None => &mut tally.failed,
            } += 1;
        }
        tally
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("after {:?}\n", self.networks.runtime().elapsed());
        for connection in lock(&self.connections).values() {
            text += &format!("{}\n", connection.description());
        }
        for host in self.running() {
            text += &host.describe();
        }
        text
    }
}

/// Far more than all that may have to be waited for.
pub(crate) const LONG: Duration = Duration::from_secs(400);

/// For which a set-up takes at most.
const SETUP: Duration = Duration::from_millis(4500);

/// For which the end of a listener may take, whose host may be stopped.
pub(crate) const LISTENER_TIME: Duration = Duration::from_secs(200);
