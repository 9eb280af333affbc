//! What a hostile peer can do with an SMC-D device, as tests: it is to end its own connections, and
//! nothing else.
//!
//! The peer has what every peer has: a device on the fabric, the victim's address, and the buffers
//! of its connections. It does what the device lets it do, in and out of place: wrong words, data
//! that changes, signals without end, tokens of others, set-ups that are abandoned; and it
//! vanishes. The provider is that of the [conformance suite](super), with
//! [a third device](super::Pair::with_third); one line makes a test of every attack:
//!
//! ```
//! use async_trait::async_trait;
//! use smc_testkit::conformance::{Pair, Provider, Skip};
//! use smc_testkit::memory_device::MemFabric;
//!
//! struct Memory;
//!
//! #[async_trait]
//! impl Provider for Memory {
//!     async fn pair(&self) -> Result<Pair, Skip> {
//!         let fabric = MemFabric::new(1);
//!         let pair = Pair::new(fabric.device("victim"), fabric.device("hostile"));
//!         Ok(pair.with_third(fabric.device("good")).with_kill(drop))
//!     }
//! }
//!
//! smc_testkit::hostile_suite!(Memory);
//! # fn main() {
//! #     smc_testkit::hostile::assert_survives("random_blocks", &Memory);
//! # }
//! ```
//!
//! In each test the first device is the victim's and the third one that of a good peer; both have
//! an endpoint, with streams whose bytes are checked. The second is that of the hostile peer, which
//! has none: it writes the messages of the handshake, and moves what it likes. The test fails if
//!
//! - a connection of the hostile peer that broke a rule does not end, or one that has no peer left;
//! - a byte of the good streams is wrong, they stand still or end, or a new one cannot be made;
//! - a task of the victim panics;
//! - a connection, a buffer or an attachment is left when the hostile peer has none any more. One
//!   that has ended sending and never closes has the victim's close timeout.
//!
//! A hostile peer that knows the token of a buffer of another peer, which is random, can name it in
//! a handshake (SECURITY.md#early-data-over-smc-d); here it guesses.
//!
//! A test writes the rate of the good streams before and during the attack to standard output. No
//! test depends on it: to measure what an attack costs others takes processes, and one that only
//! takes CPU time to compare with.

mod attacker;
mod cursors;
mod departure;
mod memory;
mod scene;
mod setups;

use super::node::FabricKind;
use super::{Check, Provider, Report, assert_check, check_table, run_each};

/// Runs every attack, each on fresh devices, and reports.
#[must_use]
pub fn run_all(provider: &dyn Provider) -> Report {
    run_each(CHECKS, provider)
}

/// Runs one attack as a test: panics if it does harm, prints why if it is skipped.
///
/// # Panics
///
/// When it does, or there is no attack of this name.
pub fn assert_survives(name: &str, provider: &dyn Provider) {
    assert_check(CHECKS, name, provider);
}

/// Makes a test of every attack on the SMC-D devices of a
/// [`conformance::Provider`](crate::conformance::Provider).
///
/// The argument is an expression that gives the provider; it is evaluated once per test.
#[macro_export]
macro_rules! hostile_suite {
    ($provider:expr $(,)?) => {
        $crate::__hostile_attacks!([$crate::__conformance_tests](
            $crate::hostile::assert_survives,
            $provider
        ));
    };
}

/// The one list of attacks; hands it to the macro in brackets, behind the argument.
#[doc(hidden)]
#[macro_export]
macro_rules! __hostile_attacks {
    ([$($then:tt)*] $argument:tt) => { $($then)*! { $argument;
        cursors {
            producer_cursors_outside_of_the_ring: "Producer cursors beyond the buffer.",
            producer_cursors_that_go_back: "Producer cursors behind those before.",
            producer_cursors_past_the_free_space:
                "A producer cursor past the space that the victim has published.",
            wrap_counts_that_jump: "Producer cursors several rings ahead.",
            consumer_cursors_that_cannot_be:
                "Consumer cursors ahead of what the victim has written, and outside of the ring.",
            all_flags_at_once: "All flags, and all that end nothing.",
            flags_of_an_end_before_any_data:
                "Flags of an end before any data, and before the handshake has ended.",
            random_blocks: "Blocks of random bytes, before the handshake has ended and behind it.",
            words_that_change_all_the_time: "Words that change all the time, random and plausible.",
        }
        memory {
            data_that_changes_while_it_is_read: "Data that is overwritten while it is read.",
            data_that_is_not_read: "Data whose answer is not read, so that the victim waits.",
            signals_without_end: "Signals without data, as fast as possible.",
            signals_of_attachments_without_end: "The same by way of an attachment.",
            events_without_end: "Events from device to device, as fast as possible.",
            tokens_of_others: "Moves to buffers of others, and attaching them.",
            guessed_tokens: "Moves to tokens that are guessed from others, and attaching them.",
            freed_tokens: "Moves to buffers of connections that have ended, and attaching them.",
            attachments_that_come_and_go: "Attaching and detaching the same buffer.",
            registrations_up_to_the_limit: "Buffers for all devices, as many as there can be.",
        }
        setups {
            connections_without_a_proposal: "Connections that are closed, or stay silent.",
            proposals_in_part: "A part of a PROPOSAL, of each length.",
            proposals_that_are_left: "PROPOSALs whose answer is not awaited.",
            accepts_without_a_confirm: "Handshakes that end at the ACCEPT.",
            confirms_in_part: "A part of a CONFIRM, of each length.",
            connections_that_end_at_once: "Connections that end with their handshake.",
            proposals_of_others: "PROPOSALs with the GIDs of other devices.",
            forged_confirms: "CONFIRMs with tokens, sizes and GIDs that are wrong, or of others.",
            missing_accepts: "As a server: no ACCEPT, or a part of one.",
            forged_accepts: "As a server: ACCEPTs with what is wrong, or of others.",
        }
        departure {
            a_device_that_vanishes_behind_its_proposal: "A device that vanishes after PROPOSAL.",
            a_device_that_vanishes_before_its_confirm: "One that vanishes before its CONFIRM.",
            a_device_that_vanishes_behind_its_confirm: "One that vanishes after its CONFIRM.",
            a_device_that_vanishes_amid_data: "One that vanishes while there is data.",
        }
    } };
}

__hostile_attacks!([check_table](Direct, scene::survive));
