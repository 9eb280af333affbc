//! The same for SMC-R devices.

mod device;
mod flaw;
mod parts;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use smc_core::device::Limits;
use smc_testkit::conformance::rdma::{CHECKS, run_all};
use smc_testkit::conformance::{Effort, Outcome, Pair, Provider, Skip};
use smc_testkit::memory_rdma::{RdmaNetwork, RdmaOptions};

use device::Broken;
use flaw::Flaw;
use parts::Shared;

/// Every check with a flaw that it has to find.
const FINDINGS: &[(&str, Flaw)] = &[
    ("a_device_has_a_name", Flaw::Nameless),
    ("addresses_make_sense", Flaw::DoublesAddresses),
    ("addresses_stay_the_same", Flaw::RestlessAddresses),
    ("unknown_addresses_are_refused", Flaw::OpensAnywhere),
    ("a_pending_link_knows_its_end", Flaw::WrongMac),
    ("queue_pairs_have_numbers_of_their_own", Flaw::Renumbers),
    ("messages_go_both_ways", Flaw::OneWay),
    ("messages_go_both_ways", Flaw::Panics),
    ("the_smaller_mtu_wins", Flaw::IgnoresMtu),
    ("unreachable_ends_are_refused", Flaw::ConnectsAnywhere),
    ("a_wrong_queue_pair_number_gets_no_answer", Flaw::HidesDown),
    ("a_wrong_sequence_number_gets_no_answer", Flaw::IgnoresPsn),
    ("messages_arrive_whole", Flaw::PadsMessages),
    ("messages_arrive_whole", Flaw::AlwaysLong),
    ("messages_arrive_in_order", Flaw::ReordersMessages),
    ("messages_arrive_in_order", Flaw::LosesSome),
    ("messages_name_their_link", Flaw::WrongLink),
    ("too_long_messages_are_refused", Flaw::TruncatesMessages),
    ("a_slow_receiver_loses_nothing", Flaw::LosesWhenFull),
    ("both_ends_post_at_once", Flaw::LosesSome),
    ("writes_arrive", Flaw::WritesOffByOne),
    ("two_pieces_become_one_span", Flaw::SwapsPieces),
    ("two_writes_take_effect_in_order", Flaw::SwapsWrites),
    ("the_message_comes_after_the_data", Flaw::WritesLate),
    ("sent_comes_in_order", Flaw::ReordersCompletions),
    ("sent_comes_in_order", Flaw::ReportsCompletionsTwice),
    ("sent_means_arrived", Flaw::WritesLate),
    ("a_link_takes_its_posts", Flaw::SmallQueue),
    ("a_full_link_recovers", Flaw::NeverRecovers),
    (
        "pieces_outside_of_their_memory_are_refused",
        Flaw::ClampsPieces,
    ),
    ("registered_memory_is_the_memory", Flaw::ShowsPart),
    ("all_of_the_memory_can_be_written", Flaw::ShortMemory),
    ("parts_can_be_registered", Flaw::CopiesMemory),
    ("memory_can_be_registered_twice", Flaw::OneRegistration),
    (
        "memory_lives_as_long_as_its_registration",
        Flaw::CopiesMemory,
    ),
    ("registrations_come_and_go", Flaw::NeverFreesMemory),
    ("the_limit_is_kept_and_recovers", Flaw::NeverFreesMemory),
    ("unknown_keys_cost_the_link", Flaw::AnyKeyDoes),
    ("unknown_keys_cost_the_link", Flaw::SwallowsRefusals),
    (
        "writes_outside_of_the_memory_cost_the_link",
        Flaw::ClampsWrites,
    ),
    ("local_memory_is_no_target", Flaw::IgnoresAccess),
    ("memory_of_another_domain_is_no_target", Flaw::OneDomain),
    ("memory_of_another_domain_is_no_source", Flaw::OneDomain),
    (
        "dropped_registrations_are_no_target",
        Flaw::NeverFreesMemory,
    ),
    ("other_links_survive", Flaw::AllGoTogether),
    ("a_message_before_the_first_drain_is_seen", Flaw::OneWay),
    ("a_message_between_drain_and_arm_is_seen", Flaw::ArmForgets),
    (
        "a_message_between_arm_and_drain_is_seen",
        Flaw::ArmedDrainForgets,
    ),
    (
        "a_message_after_the_second_drain_rings",
        Flaw::EmptyDrainDisarms,
    ),
    ("a_message_after_the_second_drain_rings", Flaw::NoBell),
    ("completions_ring", Flaw::NoBell),
    ("a_lost_link_rings", Flaw::NoBell),
    ("an_idle_doorbell_is_quiet", Flaw::RestlessBell),
    ("wake_ups_are_never_lost", Flaw::LosesSome),
    ("wake_ups_are_never_lost", Flaw::EmptyDrainDisarms),
    ("wake_ups_are_never_lost_both_ways", Flaw::LosesSome),
    ("wake_ups_are_never_lost_both_ways", Flaw::EmptyDrainDisarms),
    ("completions_always_wake", Flaw::LosesCompletions),
    ("a_closed_link_is_silent", Flaw::CloseIsNothing),
    ("a_dropped_link_is_silent", Flaw::NeverFreesLinks),
    ("a_closed_link_takes_no_posts", Flaw::PostsAfterClose),
    (
        "the_peer_of_a_closed_link_gets_no_answer",
        Flaw::CloseIsNothing,
    ),
    ("a_failed_link_is_reported_once", Flaw::ReportsDownTwice),
    ("things_can_be_dropped_in_any_order", Flaw::DropOrderMatters),
    ("many_links_at_once", Flaw::FewLinks),
    ("links_come_and_go", Flaw::NeverFreesLinks),
    (
        "the_limit_of_links_is_kept_and_recovers",
        Flaw::NeverFreesLinks,
    ),
    ("the_limit_of_links_is_kept_and_recovers", Flaw::Stingy),
    ("threads_share_a_device", Flaw::WrongLink),
    ("without_packets_a_link_gives_up", Flaw::HidesDown),
    ("a_dead_peer_gives_no_answer", Flaw::HidesDown),
    ("a_port_that_goes_down_says_so", Flaw::HidesPorts),
    ("a_removed_device_says_so", Flaw::IgnoresRemoval),
];

#[test]
fn every_check_finds_its_flaw() {
    crate::expect_findings(CHECKS, FINDINGS, Workshop);
}

#[test]
fn no_check_is_without_a_flaw() {
    crate::expect_coverage(CHECKS, FINDINGS);
}

#[test]
fn without_a_flaw_nothing_is_found() {
    let report = run_all(&Workshop(Flaw::None));
    let is_passed = |outcome: &Outcome| *outcome == Outcome::Passed;
    assert!(report.outcomes().all(|(_, it)| is_passed(it)), "{report}");
}

/// Makes devices with a flaw.
struct Workshop(Flaw);

impl Workshop {
    fn pair_of(&self, options: &RdmaOptions) -> Pair {
        let (shared, network) = (Arc::new(Shared::default()), RdmaNetwork::new(0xbad));
        let make = |index: usize| {
            let inner = network.device_with(&format!("broken{index}"), options.clone());
            Arc::new(Broken::new(inner, self.0, index, &shared))
        };
        let (local, peer) = (make(0), make(1));
        let (removed, switched) = (Arc::clone(&local), Arc::clone(&local.inner));
        Pair::new(local, peer)
            .with_kill(|peer| Broken::of(&peer).inner.leave())
            .with_removal(move |_| removed.remove())
            .with_cut(move || network.cut())
            .with_port_switch(move |is_active| switched.set_port_active(1, is_active))
    }
}

#[async_trait]
impl Provider for Workshop {
    async fn pair(&self) -> Result<Pair, Skip> {
        Ok(self.pair_of(&RdmaOptions::default()))
    }

    async fn pair_with_limit(&self, registrations: usize) -> Result<Pair, Skip> {
        let limits = Limits::new(registrations, 1 << 20);
        Ok(self.pair_of(&RdmaOptions::default().with_limits(limits)))
    }

    async fn pair_with_links(&self, links: usize) -> Result<Pair, Skip> {
        Ok(self.pair_of(&RdmaOptions::default().with_max_links(links)))
    }

    fn effort(&self) -> Effort {
        // What is lost shows soon.
        let timeout = if self.0 == Flaw::None { 10_000 } else { 250 };
        Effort::default().with_timeout(Duration::from_millis(timeout))
    }
}
