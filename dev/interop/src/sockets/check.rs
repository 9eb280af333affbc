//! What `smc check` finds out about servers of another machine.

use anyhow::{Context as _, Result, bail, ensure};

use super::{PAIRS, Pair, usual};
use crate::lab::Lab;
use crate::protocol::End;
use crate::runner::{self, guest_of};
use crate::scenario::{EID, ScenarioEnd};
use crate::workload::Kind;

/// A server, options, and what is to be found.
struct Case {
    server: Kind,
    options: &'static str,
    is_smc: bool,
    text: &'static str,
}

/// Runs `smc check` in the guest of the clients, against servers that listen in the other one.
pub(super) fn run(lab: &mut Lab, smc: &str) -> Result<()> {
    for case in &CASES {
        let is_it = |pair: &&Pair| pair.server == case.server;
        let (number, pair) = (0..)
            .zip(&PAIRS)
            .find(|(_, pair)| is_it(pair))
            .context("no pair")?;
        let run = usual(pair.network);
        let job = runner::job(&run, ScenarioEnd::Subject, Pair::port(2 * number)?);
        let End::Connect(at) = job.end else {
            bail!("the subject does not connect");
        };
        let options = case.options.replace("EID", EID);
        let command = format!("{smc} check {options} {at}");
        // A status of failure makes it an error, with the output.
        let (is_smc, text) = match lab.exec(guest_of(ScenarioEnd::Subject), &command) {
            Ok(text) => (true, text),
            Err(error) => (false, format!("{error:#}")),
        };
        ensure!(
            is_smc == case.is_smc && text.contains(case.text),
            "`{command}` does not find {:?}:\n{text}",
            case.text
        );
        if !is_smc && !text.contains("exit status: 1") {
            bail!("`{command}` has another status than 1:\n{text}");
        }
        println!("`smc check {options}` finds: {}", case.text);
    }
    Ok(())
}

const CASES: [Case; 4] = [
    Case {
        server: Kind::Kernel,
        options: "--rdma rxe0 --ueid EID",
        is_smc: true,
        text: "SMC-R v2.1",
    },
    Case {
        server: Kind::Kernel,
        options: "--rdma rxe0 --ueid ANOTHER-ONE",
        is_smc: false,
        text: "0x05000000/0x03030000",
    },
    Case {
        server: Kind::Kernel,
        options: "",
        is_smc: false,
        text: "no SMC listener is announced",
    },
    Case {
        server: Kind::Tcp,
        options: "--rdma rxe0",
        is_smc: false,
        text: "no option in its SYN",
    },
];
