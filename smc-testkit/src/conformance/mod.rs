//! The rules that an SMC-D device has to keep, as tests; for SMC-R devices see [`rdma`].
//!
//! A provider shows how to make two of its devices that can reach each other ([`Provider`]) and
//! names it once; every rule becomes a test of its own, so that a failure names the rule:
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
//!         Ok(Pair::new(fabric.device("mem0"), fabric.device("mem1")))
//!     }
//! }
//!
//! smc_testkit::conformance_suite!(Memory);
//! # fn main() {
//! #     let report = smc_testkit::conformance::run_all(&Memory);
//! #     assert!(report.is_passed(), "{report}");
//! # }
//! ```
//!
//! Several suites in one file go into modules of their own. [`run_all`] runs everything in a row
//! and gives a report instead, for tools.
//!
//! The suite stands in for the driver of an endpoint: it is the one consumer of each device, and
//! waits in the order *drain, arm, drain, park*. For a [`Doorbell::Waker`] it registers its waker
//! before the first drain. While it waits for a set-up call of one device it drains all of them,
//! as their drivers would. It needs no async runtime; a device that does brings it along through
//! [`Provider::block_on`].
//!
//! What a device cannot do, such as nocopy, and what a provider cannot do, such as
//! killing a device, is reported as skipped with the reason.
//!
//! [`Doorbell::Waker`]: smc_core::device::Doorbell::Waker

mod attach;
mod bounds;
mod buffers;
mod concurrency;
mod departure;
mod fixture;
#[cfg(feature = "runtimes")]
pub mod hostile;
mod identity;
mod moves;
mod node;
mod order;
mod provider;
pub mod rdma;
mod signals;
mod wakeups;

pub use provider::{Effort, Pair, Provider, Skip};

use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fixture::{Fixture, Stop, Verdict};
use node::FabricKind;

/// One rule with the test of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Check {
    /// The name of the test.
    pub name: &'static str,
    /// What a device has to do, in a sentence.
    pub rule: &'static str,
    kind: FabricKind,
    run: fn(&mut Fixture<'_>) -> Verdict,
}

impl Check {
    /// Tests a fresh pair of devices.
    #[must_use]
    pub fn run(&self, provider: &dyn Provider) -> Outcome {
        let attempt = || match Fixture::new(provider, self.kind) {
            Ok(mut fixture) => (self.run)(&mut fixture),
            Err(stop) => Err(stop),
        };
        match catch_unwind(AssertUnwindSafe(attempt)) {
            Ok(Ok(())) => Outcome::Passed,
            Ok(Err(Stop::Skip(why))) => Outcome::Skipped(why),
            Ok(Err(Stop::Fail(why))) => Outcome::Failed(why),
            Err(panic) => Outcome::Failed(format!("panicked: {}", panic_text(&*panic))),
        }
    }
}

/// How a check went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The device kept the rule.
    Passed,
    /// The rule does not apply, or could not be tested, for this reason.
    Skipped(String),
    /// The device broke the rule in this way.
    Failed(String),
}

/// What [`run_all`] found.
#[derive(Clone, Debug)]
pub struct Report {
    outcomes: Vec<(Check, Outcome)>,
}

impl Report {
    /// Whether no check failed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Every check with its outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&Check, &Outcome)> {
        self.outcomes
            .iter()
            .map(|(check, outcome)| (check, outcome))
    }

    /// The checks that failed, and how.
    pub fn failures(&self) -> impl Iterator<Item = (&Check, &str)> {
        self.outcomes
            .iter()
            .filter_map(|(check, outcome)| match outcome {
                Outcome::Failed(why) => Some((check, why.as_str())),
                _ => None,
            })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (check, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => writeln!(f, "ok       {}", check.name)?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {}: {why}", check.name)?,
                Outcome::Failed(why) => {
                    writeln!(f, "FAILED   {}: {why}", check.name)?;
                    writeln!(f, "         rule: {}", check.rule)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs every check, each with fresh devices, and reports.
#[must_use]
pub fn run_all(provider: &dyn Provider) -> Report {
    run_each(CHECKS, provider)
}

fn run_each(checks: &[Check], provider: &dyn Provider) -> Report {
    let outcomes = checks.iter().map(|check| (*check, check.run(provider)));
    Report {
        outcomes: outcomes.collect(),
    }
}

/// Runs one check as a test: panics if it fails. If it is skipped, writes why to standard error,
/// which is seen without `--nocapture`.
///
/// # Panics
///
/// When the device breaks the rule, or there is no check of this name.
pub fn assert_conforms(name: &str, provider: &dyn Provider) {
    assert_check(CHECKS, name, provider);
}

fn assert_check(checks: &[Check], name: &str, provider: &dyn Provider) {
    let check = checks.iter().find(|check| check.name == name);
    let check = check.unwrap_or_else(|| panic!("no conformance check is called {name}"));
    match check.run(provider) {
        Outcome::Passed => {}
        Outcome::Skipped(why) => {
            // The macros would not do: tests capture their output.
            let _unseen = writeln!(std::io::stderr(), "skipped: {name}: {why}");
        }
        Outcome::Failed(why) => panic!("{why}\nrule: {}", check.rule),
    }
}

/// Makes a test of every rule for the devices of a [`conformance::Provider`](Provider).
///
/// The argument is an expression that gives the provider; it is evaluated once per test.
#[macro_export]
macro_rules! conformance_suite {
    ($provider:expr $(,)?) => {
        $crate::__conformance_checks!([$crate::__conformance_tests](
            $crate::conformance::assert_conforms,
            $provider
        ));
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($assert:path, $provider:expr); $($module:ident { $($name:ident: $rule:literal,)* })*) => {
        $($(
            #[doc = $rule]
            #[test]
            fn $name() {
                $assert(stringify!($name), &$provider);
            }
        )*)*
    };
}

macro_rules! check_table {
    // The functions of the list are run by another one.
    (($kind:ident, $by:path); $($module:ident { $($name:ident: $rule:literal,)* })*) => {
        /// Every rule, in the order in which [`run_all`] tests them.
        pub const CHECKS: &[Check] = &[$($(Check {
            name: stringify!($name),
            rule: $rule,
            kind: FabricKind::$kind,
            run: |fixture| $by(fixture, $module::$name),
        },)*)*];
    };
    ($kind:ident; $($module:ident { $($name:ident: $rule:literal,)* })*) => {
        /// Every rule, in the order in which [`run_all`] tests them.
        pub const CHECKS: &[Check] = &[$($(Check {
            name: stringify!($name),
            rule: $rule,
            kind: FabricKind::$kind,
            run: $module::$name,
        },)*)*];
    };
}
use check_table;

/// The one list of rules; hands it to the macro in brackets, behind the argument.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_checks {
    ([$($then:tt)*] $argument:tt) => { $($then)*! { $argument;
        identity {
            a_device_has_a_name: "The identity has a name and does not change.",
            limits_allow_at_least_one_buffer: "A device can hold a buffer of 16 KiB or more.",
            chid_and_gid_agree:
                "Emulated devices (CHID 0xFF00 to 0xFFFF) have GIDs with a second half that is not \
                zero, native ones have 64 bits; devices that communicate have the same CHID.",
            gids_do_not_change: "A GID is not zero and stays the same.",
            the_peer_can_be_reached: "`reach` finds a device on the fabric, from both sides.",
            unknown_devices_are_unreachable:
                "`reach` of a GID that is not on the fabric ends with `Unreachable`.",
            reaching_oneself_ends: "`reach` of the own GID ends, one way or the other.",
        }
        buffers {
            buffers_have_the_asked_length:
                "`register` gives memory of exactly the length asked for, aligned to 8, for each \
                DMB size up to the limit.",
            buffers_start_zeroed:
                "A new buffer is zeroed, also if its memory was in use before: no stale cursor of \
                another connection.",
            tokens_are_never_reused: "Tokens differ, also from those of buffers that are gone.",
            tokens_cannot_be_guessed:
                "Where peers are not trusted a token cannot be guessed from others: no small \
                numbers, no fixed distance.",
            too_long_buffers_are_refused: "`register` of more than `max_dmb_len` fails.",
            buffers_for_unknown_peers_end:
                "`register` for a GID that is not on the fabric ends; an error states that the peer \
                is not there.",
            buffers_do_not_share_memory:
                "What is written into one buffer does not show in another.",
        }
        moves {
            moves_arrive:
                "`move_data` writes exactly the given bytes at the given place, in the direction \
                of either side.",
            vectored_moves_are_gathered:
                "Several slices of one `move_data` arrive as one run of bytes, empty ones \
                included.",
            empty_moves_write_nothing: "A `move_data` without bytes succeeds and writes nothing.",
            moves_hit_only_their_buffer: "`move_data` writes into the named buffer and no other.",
            later_moves_overwrite_earlier_ones: "Calls take effect in order.",
        }
        bounds {
            moves_past_the_end_are_refused:
                "`move_data` that passes the end of the buffer is `OutOfBounds` and writes \
                nothing.",
            offsets_do_not_wrap:
                "Offset and length near 2^32 are `OutOfBounds`, not wrapped around.",
            unknown_tokens_are_refused:
                "`move_data` to an unregistered token is `UnknownToken`.",
            the_owner_cannot_move_into_its_own_buffer:
                "Only the peer named in `register` may write, not even the owner itself.",
            third_devices_cannot_write:
                "Only the peer named in `register` may write: for another device the token is \
                unknown.",
            tokens_name_buffers_of_their_owner_only:
                "`move_data` and `attach` with the GID of one device and the token of another's \
                buffer fail: a peer in a handshake may name any token.",
            freed_tokens_are_refused:
                "After a buffer was dropped, moves to it soon fail with `UnknownToken`.",
            freed_tokens_hit_no_other_buffer:
                "A move to a buffer that is gone never changes another buffer.",
        }
        order {
            words_are_not_torn:
                "Aligned 8-byte words of an aligned move of up to 32 bytes arrive each in one \
                piece.",
            words_arrive_in_ascending_order:
                "The words of such a move arrive in ascending order: the producer cursor is never \
                behind the consumer word of the same block.",
            data_arrives_before_the_header:
                "Bytes moved by an earlier call are there when the header of a later call is.",
        }
        signals {
            signals_are_reported:
                "`Signal::Yes` to an armed buffer is reported by `drain` with its token, after the \
                data is there.",
            moves_without_signal_stay_silent: "`Signal::No` does not report the buffer as a rule.",
            signals_name_their_buffer:
                "Only the buffer that was written is reported as a rule: a wake-up costs work for \
                ready connections only.",
            empty_moves_can_signal: "`Signal::Yes` with no bytes is reported like any other.",
            several_signals_may_be_one_but_not_none:
                "After any number of signals there is at least one report.",
            a_signal_before_the_first_drain_is_seen:
                "Drain, arm, drain, park: a signal before the first drain is reported by it.",
            a_signal_between_drain_and_arm_is_seen:
                "Drain, arm, drain, park: a signal between the first drain and `arm` is reported \
                by the second drain, or rings.",
            a_signal_between_arm_and_drain_is_seen:
                "Drain, arm, drain, park: a signal between `arm` and the second drain is reported \
                by the second drain, or rings.",
            a_signal_after_the_second_drain_rings:
                "Drain, arm, drain, park: a signal after the second drain rings the doorbell.",
            a_polling_driver_sees_signals:
                "A driver that polls sees a signal by `poll`, or by its doorbell and `drain`.",
            a_signal_after_polls_rings:
                "Drain, arm, drain, park as before, after polls that were not armed.",
            a_buffer_can_be_armed_late:
                "What was signalled to a buffer before it was armed is in memory when it is armed, \
                and the next signal is reported.",
            an_idle_doorbell_is_quiet: "Without an event the doorbell does not ring repeatedly.",
            a_drained_doorbell_is_quiet: "Draining makes the doorbell quiet again.",
            signals_to_a_dropped_buffer_are_harmless:
                "A signal that is under way when its buffer is dropped disturbs nothing else.",
        }
        wakeups {
            wake_ups_are_never_lost:
                "Over many rounds against a peer thread that signals at any moment, a driver that \
                parks is always woken.",
            wake_ups_are_never_lost_both_ways:
                "The same while both sides wait for each other in turn.",
            wake_ups_are_never_lost_with_many_buffers:
                "The same with several buffers on one device, each written by a thread of its own.",
        }
        attach {
            both_ends_agree_on_nocopy: "Both ends of a fabric have nocopy, or neither.",
            attached_memory_is_shared:
                "An attachment is the peer's buffer: both see what the other writes, and all of \
                its length.",
            attachments_and_moves_agree:
                "A move and an attachment to one buffer reach the same memory.",
            attachment_signals_are_reported: "`Attachment::signal` is reported like `Signal::Yes`.",
            attachment_signals_between_the_drains_are_seen:
                "A signal of an attachment is seen wherever it falls in drain, arm, drain, park.",
            detaching_between_the_drains_loses_no_wake_up:
                "The end of a use that falls between arm and drain leaves the doorbell armed.",
            attachment_wake_ups_are_never_lost:
                "Over many rounds a parked owner is always woken by `Attachment::signal`.",
            unknown_tokens_cannot_be_attached:
                "`attach` to a token that names no buffer for this device is `Invalid`.",
            third_devices_cannot_attach:
                "`attach` to a buffer that was registered for another peer is refused.",
            freed_buffers_cannot_be_attached: "`attach` to a buffer that is gone is refused.",
            attached_memory_outlives_the_buffer:
                "Attached memory stays valid after the owner dropped the buffer, and shows no \
                else's data.",
            buffers_outlive_their_attachments:
                "Detaching leaves the buffer to its owner, and it can be attached again.",
        }
        concurrency {
            many_buffers_at_once:
                "Many buffers live side by side, each with its own data and signals.",
            the_limit_is_kept_and_recovers:
                "`max_dmbs` buffers can be registered, one more is `Exhausted`, and dropping one \
                makes space.",
            threads_share_a_device:
                "Buffers can be registered, written and dropped from several threads at once, with \
                distinct tokens and no crosstalk.",
            moves_and_drops_race_safely:
                "Dropping a buffer while the peer writes it harms nothing.",
        }
        departure {
            a_dead_peer_is_reported_once:
                "When the peer's device goes away, `PeerGone` with its GID is reported, once, also \
                to a parked driver.",
            moves_to_a_dead_peer_fail:
                "After `PeerGone` moves fail with `PeerGone` or `UnknownToken`.",
            a_dead_peer_is_unreachable: "After `PeerGone` the peer cannot be reached.",
            buffers_outlive_a_dead_peer:
                "Own buffers stay readable after the peer has gone, and can be dropped.",
            attachments_outlive_a_dead_peer:
                "Attached memory stays valid after the peer has gone; signalling it is harmless.",
            others_survive_a_dead_peer:
                "When one peer goes away, buffers shared with another keep working.",
            a_removed_device_says_so:
                "A device that is removed reports `DeviceGone` or fails `drain`; whatever is asked \
                of it afterwards is an error, not a panic.",
        }
    } };
}

__conformance_checks!([check_table] Direct);

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no text)")
}
