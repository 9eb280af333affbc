//! The rules that an SMC-R device has to keep, as tests.
//!
//! A provider is the same as for SMC-D devices ([`Provider`]); one line makes a test of every rule:
//!
//! ```
//! use async_trait::async_trait;
//! use smc_testkit::conformance::{Pair, Provider, Skip};
//! use smc_testkit::memory_rdma::RdmaNetwork;
//!
//! struct Memory;
//!
//! #[async_trait]
//! impl Provider for Memory {
//!     async fn pair(&self) -> Result<Pair, Skip> {
//!         let network = RdmaNetwork::new(1);
//!         Ok(Pair::new(network.device("rdma0"), network.device("rdma1")))
//!     }
//! }
//!
//! smc_testkit::rdma_conformance_suite!(Memory);
//! # fn main() {
//! #     let report = smc_testkit::conformance::rdma::run_all(&Memory);
//! #     assert!(report.is_passed(), "{report}");
//! # }
//! ```
//!
//! A machine with one device gives [`Pair::alone`](super::Pair::alone), and links of the device to
//! itself are tested. Where a link is to be made between other addresses than the first, the
//! provider reports it ([`Pair::with_link_between`](super::Pair::with_link_between)). Senders that
//! get no answer give up only after a while, on some hardware after several seconds; the timeout of
//! [`Effort`](super::Effort) has to be longer.

mod bounds;
mod closing;
mod concurrency;
mod departure;
mod ends;
mod identity;
mod links;
mod memory;
mod messages;
mod posts;
mod wakeups;

use super::fixture::Verdict;
use super::node::FabricKind;
use super::{Check, Provider, Report, assert_check, check_table, run_each};

/// Runs every check of SMC-R devices, each with fresh devices, and reports.
#[must_use]
pub fn run_all(provider: &dyn Provider) -> Report {
    run_each(CHECKS, provider)
}

/// Runs one check of SMC-R devices as a test: panics if it fails, prints why if it is skipped.
///
/// # Panics
///
/// When the device breaks the rule, or there is no check of this name.
pub fn assert_conforms(name: &str, provider: &dyn Provider) {
    assert_check(CHECKS, name, provider);
}

/// Makes a test of every rule for the SMC-R devices of a
/// [`conformance::Provider`](crate::conformance::Provider).
///
/// The argument is an expression that gives the provider; it is evaluated once per test.
#[macro_export]
macro_rules! rdma_conformance_suite {
    ($provider:expr $(,)?) => {
        $crate::__rdma_conformance_checks!([$crate::__conformance_tests](
            $crate::conformance::rdma::assert_conforms,
            $provider
        ));
    };
}

/// The one list of rules; hands it to the macro in brackets, behind the argument.
#[doc(hidden)]
#[macro_export]
macro_rules! __rdma_conformance_checks {
    ([$($then:tt)*] $argument:tt) => { $($then)*! { $argument;
        identity {
            a_device_has_a_name: "The identity has a name and does not change.",
            addresses_make_sense:
                "An active device has addresses; each has a GID, a MAC, a port from 1 and an MTU, \
                and none is there twice.",
            addresses_stay_the_same: "Addresses do not change while no port does.",
            unknown_addresses_are_refused:
                "`open_link` at an address that the device does not have is `Invalid`.",
        }
        links {
            a_pending_link_knows_its_end:
                "The end of a new queue pair has GID, MAC and MTU of the address it was made at.",
            queue_pairs_have_numbers_of_their_own:
                "Queue pairs that live at the same time have different numbers, and keep them \
                when they are connected.",
            messages_go_both_ways:
                "When both ends are connected, each receives what the other posts.",
            the_smaller_mtu_wins:
                "Ends that were given a smaller path MTU than their own carry long messages and \
                writes.",
            unreachable_ends_are_refused: "`connect` to the zero GID is an error.",
            a_wrong_queue_pair_number_gets_no_answer:
                "A link to a queue pair that does not exist goes down with `RetryExceeded` when \
                something is posted.",
            a_wrong_sequence_number_gets_no_answer:
                "So does a link whose peer was given another sequence number than it begins with.",
        }
        messages {
            messages_arrive_whole:
                "A message of 1 to `MESSAGE_MAX` bytes arrives with exactly its bytes, `Short` if \
                it has the usual size and `Long` if not.",
            messages_arrive_in_order: "Messages of a link arrive once and in order.",
            messages_name_their_link: "A message is reported for the link that it came on.",
            too_long_messages_are_refused:
                "A message over `MESSAGE_MAX` is `OutOfBounds`, and nothing is sent.",
            a_slow_receiver_loses_nothing:
                "What is posted while the receiver is not drained arrives when it is.",
            both_ends_post_at_once: "Links carry full load in both directions at once.",
        }
        posts {
            writes_arrive:
                "A write puts exactly its bytes at its place of the peer's memory, and nothing \
                anywhere else.",
            two_pieces_become_one_span: "The second piece of a write follows the first.",
            two_writes_take_effect_in_order: "Both writes of a post arrive, the later one last.",
            the_message_comes_after_the_data:
                "When a message is reported, all data posted with it or before it is in memory.",
            sent_comes_in_order: "Posts are reported as sent once each and in order, by name.",
            sent_means_arrived:
                "When a post is reported as sent, its data is in the peer's memory, and the \
                memory written from can be used again.",
            a_link_takes_its_posts:
                "A link takes `SENDS_MAX` posts with two writes each before the first is \
                reported.",
            a_full_link_recovers:
                "After `WouldBlock` there is space again when posts were reported.",
            pieces_outside_of_their_memory_are_refused:
                "A piece outside of its memory is `OutOfBounds`, and nothing is sent.",
        }
        memory {
            registered_memory_is_the_memory:
                "A registration shows the region it was made of, and has a key of its own.",
            all_of_the_memory_can_be_written: "Peers can write the first byte and the last.",
            parts_can_be_registered:
                "A part of a larger region can be registered, and only it is written.",
            memory_can_be_registered_twice:
                "Two registrations of one region both work, and one survives the other.",
            memory_lives_as_long_as_its_registration:
                "Registered memory stays there after all other handles were dropped.",
            registrations_come_and_go:
                "Registering and dropping again and again uses nothing up.",
            the_limit_is_kept_and_recovers:
                "`max_dmbs` regions can be registered, one more is `Exhausted`, and dropping one \
                makes space.",
        }
        bounds {
            unknown_keys_cost_the_link:
                "A write with a key that the peer does not have takes the link down with \
                `RemoteAccess` and touches nothing.",
            writes_outside_of_the_memory_cost_the_link:
                "So does a write that begins before the peer's memory or passes its end.",
            local_memory_is_no_target:
                "So does a write into memory that was registered for local use.",
            memory_of_another_domain_is_no_target:
                "So does a write into memory of another protection domain of the same device.",
            memory_of_another_domain_is_no_source:
                "`post` refuses a write from memory of another protection domain, and nothing is \
                sent.",
            dropped_registrations_are_no_target:
                "So does a write into memory whose registration was dropped.",
            other_links_survive: "A link that goes down takes no other link with it.",
        }
        wakeups {
            a_message_before_the_first_drain_is_seen:
                "Drain, arm, drain, park: a message before the first drain is seen.",
            a_message_between_drain_and_arm_is_seen:
                "Drain, arm, drain, park: a message between the first drain and `arm` is seen.",
            a_message_between_arm_and_drain_is_seen:
                "Drain, arm, drain, park: a message between `arm` and the second drain is seen.",
            a_message_after_the_second_drain_rings:
                "Drain, arm, drain, park: a message after the second drain rings the doorbell.",
            completions_ring: "Posts that complete ring the doorbell of a parked driver.",
            a_lost_link_rings: "A link that goes down rings the doorbell of a parked driver.",
            an_idle_doorbell_is_quiet: "Without an event the doorbell does not ring repeatedly.",
            wake_ups_are_never_lost:
                "Over many rounds against a peer thread that posts at any moment, a driver that \
                parks is always woken.",
            wake_ups_are_never_lost_both_ways:
                "The same while both sides wait for each other in turn.",
            completions_always_wake:
                "Over many rounds, a driver that parks for its own completions is always woken.",
        }
        closing {
            a_closed_link_is_silent: "After `close` nothing is reported of a link.",
            a_dropped_link_is_silent:
                "After a link was dropped nothing is reported of it, with posts under way or not.",
            a_closed_link_takes_no_posts: "`post` on a closed link is `PeerGone`.",
            the_peer_of_a_closed_link_gets_no_answer:
                "Posts to a link that was closed or dropped take the other end down.",
            a_failed_link_is_reported_once:
                "`LinkDown` is the last report of a link, and `post` is `PeerGone` from then on.",
            things_can_be_dropped_in_any_order:
                "Links, memory and links that were never connected can be dropped in any order.",
        }
        concurrency {
            many_links_at_once: "Many links live side by side, each with its own messages.",
            links_come_and_go: "Opening, connecting and dropping again and again uses nothing up.",
            the_limit_of_links_is_kept_and_recovers:
                "When the device has no queue pair left, `open_link` is `Exhausted`, and dropping \
                one makes space.",
            threads_share_a_device:
                "Several threads can register, open, connect and post at once.",
        }
        departure {
            without_packets_a_link_gives_up:
                "When packets are lost permanently, a post ends in `RetryExceeded`.",
            a_dead_peer_gives_no_answer:
                "When the peer's device is gone, a post ends in `LinkDown`.",
            a_port_that_goes_down_says_so:
                "When a port goes down its links do, its addresses go and `AddressesChanged` is \
                reported; when it comes back so do its addresses.",
            a_removed_device_says_so:
                "A device that is removed reports `DeviceGone` or fails `drain`; whatever is asked \
                of it afterwards is an error, not a panic.",
        }
    } };
}

__rdma_conformance_checks!([check_table] Rdma);
