//! Compares what ours sends to an unmodified kernel with all features beyond the released protocol
//! and without them. Its wire image (RFC 8546) has to be the same, but for the features that a
//! PROPOSAL states.

mod compare;
mod form;
mod segment;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use smc_wire::types::Features;

use crate::capture;
use crate::lab::Lab;
use crate::protocol::OurFeatures;
use crate::runner::{self, Outcome, Run, Show};
use crate::scenario::{self, Role, ScenarioEnd};
use crate::workload::{self, Kind, Measure};
use compare::{Message, WireImage, compare};
use segment::Segment;

/// What is recorded twice.
struct Case {
    about: &'static str,
    role: Role,
    /// Links of the group.
    links: usize,
    /// Each connect is given early data, which only a client can be.
    has_early_data: bool,
}

/// Boots, and compares in both roles.
pub(crate) fn run() -> Result<bool> {
    let [first, ..] = CASES;
    let mut lab = Lab::boot(first.run(OurFeatures::None).kernels())?;
    runner::after_boot(&mut lab)?;
    let mut passed = true;
    for case in CASES {
        let [without, with] = [OurFeatures::None, OurFeatures::FastOpen].map(|features| {
            let run = case.run(features);
            let capture = case.record(&mut lab, &run)?;
            anyhow::Ok((wire_image(&capture)?, run, capture))
        });
        let (without, with) = (without?, with?);
        let what = format!("{}: {}", with.1.parties(), case.about);
        let compared = compare(&without.0, &with.0, all_over_ipv4());
        if compared.violations.is_empty() {
            println!("passed: {what}; {}", compared.summary);
            continue;
        }
        passed = false;
        println!("FAILED: {what}");
        for violation in compared.violations {
            println!("  {violation}");
        }
        for (_, run, capture) in [without, with] {
            runner::keep(&run, &capture)?;
        }
    }
    Ok(passed)
}

impl Case {
    fn run(&self, features: OurFeatures) -> Run {
        let name = match (self.links, features) {
            (1, OurFeatures::None) => "wire-image",
            (1, _) => "wire-image-features",
            (_, OurFeatures::None) => "wire-image-two-links",
            _ => "wire-image-two-links-features",
        };
        Run {
            scenario: scenario::one_after_another(name, self.links, features),
            role: self.role,
            subject: Kind::Ours,
            peer: Kind::Kernel,
        }
    }

    /// Gives the path of the capture.
    fn record(&self, lab: &mut Lab, run: &Run) -> Result<PathBuf> {
        let name = run.scenario.name;
        let capture = lab.folder().join(name);
        lab.record(&capture)?;
        let done = if self.has_early_data {
            let measures = [Measure::Requests {
                count: 3,
                len: 64,
                beside: false,
            }];
            let features = run.scenario.subject.features;
            runner::measure(lab, run, features, &measures, &mut |_, _| Ok(())).map(drop)
        } else {
            perform(lab, run)
        };
        lab.stop_recording()?;
        done.with_context(|| format!("{name}, {}", run.parties()))?;
        Ok(capture)
    }
}

fn perform(lab: &mut Lab, run: &Run) -> Result<()> {
    let show = Show {
        log: false,
        capture: false,
    };
    match runner::run(lab, run, show)?.outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed(why) | Outcome::Skipped(why) => bail!("{why}"),
    }
}

/// What ours has sent.
fn wire_image(capture: &Path) -> Result<WireImage> {
    let ours = runner::addresses(ScenarioEnd::Subject);
    let segments = fs::read(capture)?;
    let segments = capture::frames(&segments).filter_map(Segment::of_frame);
    let text = capture::dissect(capture, &["--json", "--hex"])?;
    let messages: Result<Vec<_>> = text.lines().map(Message::of_json).collect();
    let is_ours = |message: &Message| message.sender().is_some_and(|ip| ours.contains(&ip));
    Ok(WireImage {
        segments: segments
            .filter(|segment| ours.contains(&segment.from.ip()))
            .collect(),
        messages: messages?.into_iter().filter(is_ours).collect(),
    })
}

/// What a PROPOSAL over IPv4 states with all features.
fn all_over_ipv4() -> Features {
    let features = workload::features(OurFeatures::FastOpen) | Features::FAST_OPEN;
    features.difference(Features::RDMA_IPV6)
}

const CASES: [Case; 4] = [
    Case {
        about: "one link, early data",
        role: Role::Client,
        links: 1,
        has_early_data: true,
    },
    Case {
        about: "one link",
        role: Role::Server,
        links: 1,
        has_early_data: false,
    },
    Case {
        about: "two links",
        role: Role::Client,
        links: 2,
        has_early_data: false,
    },
    Case {
        about: "two links",
        role: Role::Server,
        links: 2,
        has_early_data: false,
    },
];
