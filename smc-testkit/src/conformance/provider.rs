//! How the conformance suites get devices to test.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use smc_core::device::{Device, RdmaAddress, Route};

/// How the suite gets devices to test.
#[async_trait]
pub trait Provider: Sync {
    /// Makes two devices of one fabric that can reach each other, or one that reaches itself
    /// ([`Pair::alone`]).
    ///
    /// Each check asks for a pair of its own; checks may run at the same time.
    ///
    /// # Errors
    ///
    /// [`Skip`] when this machine lacks what the devices need.
    async fn pair(&self) -> Result<Pair, Skip>;

    /// The same, with devices that hold at most `dmbs` buffers or registrations
    /// (`Limits::max_dmbs`).
    ///
    /// Needed only where the real limit is too high to be reached in a test.
    ///
    /// # Errors
    ///
    /// [`Skip`] where the limit cannot be set, which is the default.
    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        let _ = dmbs;
        Err(Skip::new("the provider cannot limit buffers"))
    }

    /// The same, with SMC-R devices of at most `links` queue pairs.
    ///
    /// # Errors
    ///
    /// [`Skip`] where the limit cannot be set, which is the default.
    async fn pair_with_links(&self, links: usize) -> Result<Pair, Skip> {
        let _ = links;
        Err(Skip::new("the provider cannot limit queue pairs"))
    }

    /// Whether all devices of a fabric trust each other, so that tokens may be guessable.
    fn is_trusting(&self) -> bool {
        false
    }

    /// How hard to try.
    fn effort(&self) -> Effort {
        Effort::default()
    }

    /// Runs the set-up calls of the devices to their end.
    ///
    /// The default needs no runtime: it polls on this thread. A provider whose devices depend on a
    /// runtime enters it here, as in `self.runtime.block_on(task)`.
    fn block_on(&self, task: Pin<&mut (dyn Future<Output = ()> + Send)>) {
        futures_lite::future::block_on(task);
    }
}

/// Two devices that can reach each other, and what else the suite may use.
pub struct Pair {
    pub(super) local: Arc<dyn Device>,
    pub(super) peer: Arc<dyn Device>,
    pub(super) third: Option<Arc<dyn Device>>,
    pub(super) between: Option<Between>,
    pub(super) extras: Extras,
}

/// What the provider gave besides the devices.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) kill: Option<Kill>,
    pub(super) remove: Option<Remove>,
    pub(super) cut: Option<Cut>,
    pub(super) port: Option<SetPort>,
    kept: Vec<Box<dyn Any + Send>>,
}

pub(super) type Kill = Box<dyn FnOnce(Arc<dyn Device>) + Send>;
pub(super) type Remove = Box<dyn FnOnce(&Arc<dyn Device>) + Send>;
pub(super) type Cut = Box<dyn FnOnce() + Send>;
pub(super) type SetPort = Box<dyn FnMut(bool) + Send>;

/// Where SMC-R links begin and end.
#[derive(Clone, Debug)]
pub(super) struct Between {
    pub(super) local: RdmaAddress,
    pub(super) peer: RdmaAddress,
    pub(super) route: Route,
}

impl Pair {
    /// Two devices, equal in rank.
    #[must_use]
    pub fn new(local: Arc<dyn Device>, peer: Arc<dyn Device>) -> Self {
        Self {
            local,
            peer,
            third: None,
            between: None,
            extras: Extras::default(),
        }
    }

    /// One SMC-R device, with links to itself. Checks that need two are skipped.
    #[must_use]
    pub fn alone(device: Arc<dyn Device>) -> Self {
        Self::new(Arc::clone(&device), device)
    }

    /// A third device that can reach both, to be turned away from what is not its own.
    #[must_use]
    pub fn with_third(mut self, third: Arc<dyn Device>) -> Self {
        self.third = Some(third);
        self
    }

    /// How to end the peer's device as if its process had been killed.
    ///
    /// The closure gets the last handle to the second device; its buffers and attachments have
    /// been dropped. Where dropping a device has this effect, `drop` is all it takes.
    #[must_use]
    pub fn with_kill(mut self, kill: impl FnOnce(Arc<dyn Device>) + Send + 'static) -> Self {
        self.extras.kill = Some(Box::new(kill));
        self
    }

    /// How to remove the first device under its user (hot unplug).
    #[must_use]
    pub fn with_removal(mut self, remove: impl FnOnce(&Arc<dyn Device>) + Send + 'static) -> Self {
        self.extras.remove = Some(Box::new(remove));
        self
    }

    /// Between which addresses of two SMC-R devices links are made.
    ///
    /// By default the suite takes the first that go together, IPv4 before others and version 2
    /// before version 1, on the same subnet.
    #[must_use]
    pub fn with_link_between(
        mut self,
        local: RdmaAddress,
        peer: RdmaAddress,
        route: Route,
    ) -> Self {
        self.between = Some(Between { local, peer, route });
        self
    }

    /// How to lose all packets between two SMC-R devices, permanently.
    #[must_use]
    pub fn with_cut(mut self, cut: impl FnOnce() + Send + 'static) -> Self {
        self.extras.cut = Some(Box::new(cut));
        self
    }

    /// How to deactivate (`false`) and activate (`true`) the port of the first SMC-R device that
    /// links are made at.
    #[must_use]
    pub fn with_port_switch(mut self, switch: impl FnMut(bool) + Send + 'static) -> Self {
        self.extras.port = Some(Box::new(switch));
        self
    }

    /// Keeps something alive for as long as the devices are in use, such as a directory.
    #[must_use]
    pub fn keeping(mut self, what: impl Any + Send) -> Self {
        self.extras.kept.push(Box::new(what));
        self
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .field("third", &self.third)
            .finish_non_exhaustive()
    }
}

/// Why there is nothing to test.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Skip(String);

impl Skip {
    /// With what is missing, such as "no ISM device on this machine".
    #[must_use]
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

/// How hard the suite tries to find a race, and how long it waits for what should happen.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Effort {
    /// Rounds of each race; 4000 by default.
    pub rounds: u32,
    /// How long anything may take before it counts as lost; 10 s by default. Only failures take
    /// that long.
    pub timeout: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            rounds: 4000,
            timeout: Duration::from_secs(10),
        }
    }
}

setters! {
    Effort {
        /// Sets the rounds of each race.
        fn with_rounds(rounds: u32);
        /// Sets how long anything may take.
        fn with_timeout(timeout: Duration);
    }
}
