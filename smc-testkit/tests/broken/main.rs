//! The conformance suite can fail: for every check there is a device that is broken in just the
//! way the check is about, and the check reports it.

#![allow(clippy::unwrap_used, reason = "a panic of a test is a failed test")]

mod device;
mod flaw;
mod parts;
mod rdma;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use smc_core::device::Limits;
use smc_testkit::conformance::{CHECKS, Check, Effort, Outcome, Pair, Provider, Skip};
use smc_testkit::memory_device::MemFabric;

use device::{Broken, Shared};
use flaw::Flaw;

/// Every check with a flaw that it has to find.
const FINDINGS: &[(&str, Flaw)] = &[
    ("a_device_has_a_name", Flaw::Nameless),
    ("limits_allow_at_least_one_buffer", Flaw::NoLimits),
    ("chid_and_gid_agree", Flaw::NativeGid),
    ("gids_do_not_change", Flaw::RestlessGid),
    ("the_peer_can_be_reached", Flaw::ReachesNothing),
    ("unknown_devices_are_unreachable", Flaw::ReachesEverything),
    ("reaching_oneself_ends", Flaw::Hangs),
    ("buffers_have_the_asked_length", Flaw::ShortBuffers),
    ("buffers_start_zeroed", Flaw::RecyclesMemory),
    ("tokens_are_never_reused", Flaw::NumbersTokens),
    ("tokens_cannot_be_guessed", Flaw::NumbersTokens),
    ("too_long_buffers_are_refused", Flaw::ClampsLength),
    ("buffers_for_unknown_peers_end", Flaw::Hangs),
    ("buffers_do_not_share_memory", Flaw::OneMemory),
    ("moves_arrive", Flaw::WritesOffByOne),
    ("vectored_moves_are_gathered", Flaw::TakesFirstSlice),
    ("empty_moves_write_nothing", Flaw::RefusesEmpty),
    ("moves_hit_only_their_buffer", Flaw::OneMemory),
    ("later_moves_overwrite_earlier_ones", Flaw::ReordersMoves),
    ("moves_past_the_end_are_refused", Flaw::Truncates),
    ("offsets_do_not_wrap", Flaw::WrapsOffsets),
    ("unknown_tokens_are_refused", Flaw::SwallowsErrors),
    (
        "the_owner_cannot_move_into_its_own_buffer",
        Flaw::AllWritersPermitted,
    ),
    ("third_devices_cannot_write", Flaw::AllWritersPermitted),
    (
        "tokens_name_buffers_of_their_owner_only",
        Flaw::AllOwnersPermitted,
    ),
    ("freed_tokens_are_refused", Flaw::NeverFrees),
    ("freed_tokens_hit_no_other_buffer", Flaw::RedirectsFreed),
    ("words_are_not_torn", Flaw::TearsWords),
    ("words_arrive_in_ascending_order", Flaw::WritesBackwards),
    ("data_arrives_before_the_header", Flaw::ReordersMoves),
    ("signals_are_reported", Flaw::Mute),
    ("moves_without_signal_stay_silent", Flaw::AlwaysSignals),
    ("signals_name_their_buffer", Flaw::ReportsAll),
    ("empty_moves_can_signal", Flaw::RefusesEmpty),
    ("several_signals_may_be_one_but_not_none", Flaw::Mute),
    ("a_signal_before_the_first_drain_is_seen", Flaw::Mute),
    ("a_signal_between_drain_and_arm_is_seen", Flaw::ArmForgets),
    (
        "a_signal_between_arm_and_drain_is_seen",
        Flaw::ArmedDrainForgets,
    ),
    (
        "a_signal_after_the_second_drain_rings",
        Flaw::EmptyDrainDisarms,
    ),
    ("a_signal_after_the_second_drain_rings", Flaw::NoBell),
    ("a_polling_driver_sees_signals", Flaw::PollForgets),
    ("a_signal_after_polls_rings", Flaw::PollDisarms),
    ("a_buffer_can_be_armed_late", Flaw::Mute),
    ("an_idle_doorbell_is_quiet", Flaw::RestlessBell),
    ("a_drained_doorbell_is_quiet", Flaw::RestlessBell),
    (
        "signals_to_a_dropped_buffer_are_harmless",
        Flaw::FreedSpoilsDrain,
    ),
    ("wake_ups_are_never_lost", Flaw::LosesSome),
    ("wake_ups_are_never_lost", Flaw::EmptyDrainDisarms),
    ("wake_ups_are_never_lost", Flaw::SignalsFirst),
    ("wake_ups_are_never_lost_both_ways", Flaw::LosesSome),
    ("wake_ups_are_never_lost_both_ways", Flaw::EmptyDrainDisarms),
    ("wake_ups_are_never_lost_with_many_buffers", Flaw::LosesSome),
    ("both_ends_agree_on_nocopy", Flaw::OneSidedNocopy),
    ("attached_memory_is_shared", Flaw::AttachesCopy),
    ("attachments_and_moves_agree", Flaw::AttachesCopy),
    ("attachment_signals_are_reported", Flaw::Mute),
    (
        "attachment_signals_between_the_drains_are_seen",
        Flaw::ArmForgets,
    ),
    (
        "detaching_between_the_drains_loses_no_wake_up",
        Flaw::EmptyDrainDisarms,
    ),
    ("attachment_wake_ups_are_never_lost", Flaw::LosesSome),
    ("unknown_tokens_cannot_be_attached", Flaw::AttachesAnything),
    ("third_devices_cannot_attach", Flaw::AttachesAnything),
    ("freed_buffers_cannot_be_attached", Flaw::NeverFrees),
    ("attached_memory_outlives_the_buffer", Flaw::RecyclesMemory),
    ("buffers_outlive_their_attachments", Flaw::DetachWipes),
    ("many_buffers_at_once", Flaw::OneMemory),
    ("the_limit_is_kept_and_recovers", Flaw::NeverFrees),
    ("the_limit_is_kept_and_recovers", Flaw::NoLimits),
    ("threads_share_a_device", Flaw::RecyclesMemory),
    ("moves_and_drops_race_safely", Flaw::RedirectsFreed),
    ("a_dead_peer_is_reported_once", Flaw::ReportsGoneTwice),
    ("a_dead_peer_is_reported_once", Flaw::HidesGone),
    ("a_dead_peer_is_reported_once", Flaw::NoBell),
    ("moves_to_a_dead_peer_fail", Flaw::SwallowsErrors),
    ("a_dead_peer_is_unreachable", Flaw::ReachesEverything),
    ("buffers_outlive_a_dead_peer", Flaw::DeathWipes),
    ("attachments_outlive_a_dead_peer", Flaw::DeathWipes),
    ("others_survive_a_dead_peer", Flaw::AllGoTogether),
    ("a_removed_device_says_so", Flaw::IgnoresRemoval),
    ("signals_are_reported", Flaw::Panics),
];

#[test]
fn every_check_finds_its_flaw() {
    expect_findings(CHECKS, FINDINGS, Workshop);
}

/// Attacks with a flaw of the device that lets them do harm.
#[cfg(feature = "runtimes")]
const HARM: &[(&str, Flaw)] = &[
    ("tokens_of_others", Flaw::AllWritersPermitted),
    ("tokens_of_others", Flaw::AttachesAnything),
    ("guessed_tokens", Flaw::SwallowsErrors),
    ("freed_tokens", Flaw::NeverFrees),
    ("accepts_without_a_confirm", Flaw::NeverFrees),
    ("a_device_that_vanishes_amid_data", Flaw::HidesGone),
    ("a_device_that_vanishes_amid_data", Flaw::AllGoTogether),
];

#[cfg(feature = "runtimes")]
#[test]
fn hostile_peers_do_harm_where_devices_have_flaws() {
    expect_findings(smc_testkit::hostile::CHECKS, HARM, Workshop);
}

#[test]
fn no_check_is_without_a_flaw() {
    expect_coverage(CHECKS, FINDINGS);
}

/// Runs each check with devices that have its flaw; it has to fail.
fn expect_findings<F, W>(checks: &[Check], findings: &[(&str, F)], workshop: impl Fn(F) -> W)
where
    F: Copy + Debug,
    W: Provider,
{
    let mut missed = Vec::new();
    for (name, flaw) in findings {
        let check = checks.iter().find(|check| check.name == *name).unwrap();
        // A race may need more than one try, most of all on a busy machine.
        let outcome = (0..TRIES)
            .map(|_| check.run(&workshop(*flaw)))
            .find(|outcome| matches!(outcome, Outcome::Failed(_)));
        match outcome {
            Some(outcome) => println!("{name} of {flaw:?}: {outcome:?}"),
            None => missed.push((name, flaw)),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

fn expect_coverage<F>(checks: &[Check], findings: &[(&str, F)]) {
    let covered: BTreeSet<_> = findings.iter().map(|(name, _)| *name).collect();
    let all: BTreeSet<_> = checks.iter().map(|check| check.name).collect();
    assert_eq!(covered, all);
}

#[test]
fn without_a_flaw_nothing_is_found() {
    let report = smc_testkit::conformance::run_all(&Workshop(Flaw::None));
    assert!(report.is_passed(), "{report}");
    assert!(
        report
            .outcomes()
            .all(|(_, outcome)| *outcome == Outcome::Passed),
        "{report}"
    );
}

/// Makes devices with a flaw.
struct Workshop(Flaw);

impl Workshop {
    fn pair_on(&self, fabric: &MemFabric) -> Pair {
        let shared = Arc::new(Shared::default());
        let make = |index: usize| {
            let inner = fabric.device(&format!("broken{index}"));
            Arc::new(Broken::new(inner, self.0, index, &shared))
        };
        let (local, peer, third) = (make(0), make(1), make(2));
        let removed = Arc::clone(&local);
        Pair::new(local, peer)
            .with_third(third)
            .with_kill(|peer| Broken::of(&peer).inner.leave())
            .with_removal(move |_| removed.remove())
    }
}

#[async_trait]
impl Provider for Workshop {
    async fn pair(&self) -> Result<Pair, Skip> {
        self.pair_with_limit(DMBS).await
    }

    async fn pair_with_limit(&self, dmbs: usize) -> Result<Pair, Skip> {
        Ok(self.pair_on(&MemFabric::new(0xbad).with_limits(Limits::new(dmbs, 1 << 20))))
    }

    fn effort(&self) -> Effort {
        // What is lost shows soon.
        let timeout = if self.0 == Flaw::None { 10_000 } else { 250 };
        Effort::default().with_timeout(Duration::from_millis(timeout))
    }
}

/// How often a check may search for its flaw.
const TRIES: usize = 5;

/// Buffers of a device: fewer than the set-ups of an attack, which find those that are not freed.
const DMBS: usize = 200;
