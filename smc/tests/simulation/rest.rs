//! What has to hold when all streams have ended: each set-up came to what it had to, and nothing is
//! left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smc::FallbackReason;
use smc::Mode;
use smc::info::Role;
use smc_core::wire::types::{DeclineCode, Features};
use smc_testkit::world::are_kept;

use super::connections::{Connection, Verdict, Violation, lock};
use super::effects::{Effects, Expected};
use super::hosts::{CLOSE_TIMEOUT, Host};
use super::run::Run;
use super::schedule::{Action, Policy};

impl Run {
    /// What a set-up came to.
    pub(crate) fn check_setup(&self, connection: &Connection) -> Verdict {
        let (request, effects) = (connection.request, connection.effects);
        let fail = |kind: &str| Err(Violation::new(kind, connection.description()));
        let [client, server] = connection.ends();
        if request.give_up > 0 {
            return Ok(());
        }
        let hosts = &self.schedule.setting.hosts;
        let expected = match request.policy {
            Policy::Never => Expected::Plain,
            _ => Expected::of(&hosts[request.from], &hosts[request.to]),
        };
        let reason = client.mode.as_ref().and_then(Mode::fallback_reason);
        let reason = reason.or_else(|| client.declined.clone());
        let peer_reason = server.mode.as_ref().and_then(Mode::fallback_reason);
        for (reason, is_client) in [(&reason, true), (&peer_reason, false)] {
            let Some(reason) = reason else {
                continue;
            };
            let code = reason.peer.unwrap_or(reason.local);
            let is_due = expected.is_for(reason, is_client);
            if !is_due && !effects.explain(code) {
                return fail(&format!("code {:#010x} without cause", code.0));
            }
        }
        let has_failed = client.mode.is_none() && connection.may_fail();
        if has_failed || effects.may_fail() {
            return Ok(());
        }
        if !connection.is_accepted() {
            return fail("no listener accepts a stream");
        }
        let is_direct = |mode: &Mode| matches!(mode, Mode::SmcD { .. });
        let is_rdma = |mode: &Mode| matches!(mode, Mode::SmcR { .. });
        if let (Some(one), Some(other)) = (&client.mode, &server.mode) {
            let is_one_mode = is_direct(one) == is_direct(other) && is_rdma(one) == is_rdma(other);
            // A client whose last message about the first link is lost has the link, and the server
            // declines: both streams end with an error.
            if !is_one_mode && !effects.on_modes {
                return fail("ends in different modes");
            }
        }
        let is_due = match (expected, &client.mode) {
            (Expected::Direct, Some(mode)) => is_direct(mode),
            (Expected::Rdma, Some(mode)) => is_rdma(mode),
            (_, Some(mode)) => !mode.is_smc(),
            (Expected::Direct | Expected::Rdma, None) => false,
            (_, None) => client.declined.is_some(),
        };
        if !is_due && !effects.on_modes {
            return fail("another mode than both hosts have");
        }
        Ok(())
    }

    /// After everything was closed: no connections, and all hosts know of the same buffers; then,
    /// without endpoints, nothing.
    pub(crate) async fn check_rest(&self) -> Verdict {
        let hosts = self.running();
        let has_none = |host: &Arc<Host>| host.endpoint.connections().is_empty();
        self.until("end of connections", CLOSE_TIMEOUT * 3, || {
            hosts.iter().all(has_none)
        })
        .await?;
        let has_no_members = |host: &Arc<Host>| {
            let (groups, members) = (host.endpoint.rdma_groups(), host.endpoint.link_groups());
            groups.iter().all(|group| group.connections == 0)
                && members.iter().all(|group| group.connections == 0)
        };
        self.until("end of set-ups", SETUPS_TIME, || {
            hosts.iter().all(has_no_members)
        })
        .await?;
        let is_strict = self.is_strict();
        let are_keys_kept = || {
            let groups: Vec<_> = hosts
                .iter()
                .flat_map(|host| host.endpoint.rdma_groups())
                .collect();
            are_kept(&groups, self.keeps_rkeys())
        };
        let are_known_to_both = || {
            let count = |role| {
                let groups = hosts.iter().flat_map(|host| host.endpoint.rdma_groups());
                groups.filter(|group| group.role == role).count()
            };
            count(Role::Client) == count(Role::Server)
        };
        if is_strict {
            self.until("end of keys", KEYS_TIME, are_keys_kept).await?;
        }
        for host in &hosts {
            if is_strict {
                self.until("common link groups", CLOSE_TIME, are_known_to_both)
                    .await?;
            }
            host.endpoint.close().await;
        }
        let has_no_groups = |host: &Arc<Host>| {
            host.endpoint.rdma_groups().is_empty() && host.endpoint.link_groups().is_empty()
        };
        self.until("end of link groups", CLOSE_TIME, || {
            hosts.iter().all(has_no_groups)
        })
        .await?;
        let has_no_objects =
            |host: &Arc<Host>| host.device_objects().iter().all(|(_, count)| *count == 0);
        self.until("end of buffers and queue pairs", CLOSE_TIME, || {
            hosts.iter().all(has_no_objects)
        })
        .await?;
        let has_no_memory = |host: &Arc<Host>| {
            host.endpoint.memory().release_all_unneeded();
            host.endpoint.memory().used() == 0
        };
        self.until("end of charged memory", CLOSE_TIME, || {
            hosts.iter().all(has_no_memory)
        })
        .await
    }

    /// No task outlives its endpoint.
    pub(crate) fn check_tasks(&self) -> Verdict {
        let has_killed = lock(&self.lives).iter().any(|host| host.has_been_killed());
        self.drop_hosts();
        if has_killed {
            return Ok(());
        }
        let runtime = self.networks.runtime();
        runtime.run_for(CLOSE_TIME);
        match runtime.task_count() {
            0 => Ok(()),
            count => Err(Violation::new("tasks are left", format!("{count} tasks"))),
        }
    }

    /// Whether no event may end a connection or a set-up.
    fn is_strict(&self) -> bool {
        let is_harmless = |effects: &Effects| {
            let Effects {
                on_direct, on_rdma, ..
            } = *effects;
            !effects.may_fail() && !on_direct && !on_rdma
        };
        let gives_up = |action: &Action| {
            matches!(
                action,
                Action::Connect { give_up: 1.., .. } | Action::Replay { .. }
            )
        };
        let mut events = self.schedule.events.iter();
        self.effects.iter().all(is_harmless) && !events.any(|event| gives_up(&event.action))
    }

    /// Whether RMBs may stay announced.
    fn keeps_rkeys(&self) -> bool {
        let both = Features::SINGLE_LINK | Features::AUTHENTICATION;
        let hosts = self.schedule.setting.hosts.iter();
        let mut features = hosts.map(|host| Features::from_bits_retain(host.features));
        features.any(|features| features.contains(both))
    }
}

impl Expected {
    /// Whether this is the reason of an end of such a set-up.
    fn is_for(self, reason: &FallbackReason, is_client: bool) -> bool {
        let codes = (reason.local, reason.peer);
        match (self, is_client) {
            (Self::Direct | Self::Rdma, _) => false,
            (Self::TcpByClient(code), true) | (Self::TcpByServer(code), false) => {
                codes == (code, None)
            }
            (Self::TcpByClient(code), false) | (Self::TcpByServer(code), true) => {
                codes == (DeclineCode::PEERDECL, Some(code))
            }
            (Self::Plain, true) => codes == (DeclineCode::OPTUNSUPP, None),
            (Self::Plain, false) => codes == (DeclineCode::PEERNOSMC, None),
        }
    }
}

impl Host {
    pub(crate) fn describe(&self) -> String {
        let mut text = format!(
            "host {}, {} ends, closed: {}\n",
            self.index,
            self.ends.load(Ordering::Relaxed),
            self.is_closed.load(Ordering::Relaxed)
        );
        for group in self.endpoint.link_groups() {
            let number = group.connections;
            text += &format!("  {} {}: {number} members\n", group.id, group.state.name());
        }
        for group in self.endpoint.rdma_groups() {
            let links = group.links.iter();
            let links = links.map(|link| format!("{} on {}", link.state.name(), link.device));
            let links: Vec<_> = links.collect();
            let (id, role) = (group.id, group.role);
            text += &format!(
                "  {id} {role:?} {links:?}: {} connections, {} rtokens, {} retiring, {} kept\n",
                group.connections, group.rtokens, group.retiring, group.kept
            );
        }
        for connection in self.endpoint.connections() {
            let smc = connection.smc.as_ref();
            let state = smc.map_or("TCP", |smc| smc.state.name());
            text += &format!("  {state} {:?} to {}\n", connection.local, connection.peer);
        }
        let used = self.endpoint.memory().used();
        text += &format!("  {:?}, {used} bytes charged\n", self.device_objects());
        text
    }
}

const SETUPS_TIME: Duration = Duration::from_secs(60);

const KEYS_TIME: Duration = Duration::from_secs(120);

const CLOSE_TIME: Duration = Duration::from_secs(10);
