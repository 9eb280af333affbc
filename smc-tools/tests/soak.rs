//! `smc soak` for some seconds over each transport.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::{Command, Stdio};

#[test]
fn processes_are_killed_and_stopped_and_nothing_is_lost() {
    for transport in TRANSPORTS {
        let text = soak(transport, &["--epochs", "5", "--seed", "22"]);
        // With this seed the second epoch has it.
        assert!(value(&text, "kill client") > 0, "{transport}: {text}");
        let clients = text.lines().find(|line| line.starts_with("clients: "));
        let whole = clients.unwrap().split(' ').nth(1).unwrap();
        assert!(whole.parse::<u64>().unwrap() > 0, "{transport}: {text}");
    }
}

/// Without violations. Gives the summary.
fn soak(transport: &str, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["soak", "--epoch", "1", "--measured", "2M"])
        .args(["--transport", transport])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{transport}: {text}");
    assert_eq!(value(&text, "violations"), 0, "{transport}: {text}");
    text
}

fn value(text: &str, name: &str) -> u64 {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
    let value = values.find_map(|rest| rest.strip_prefix(": "));
    value
        .unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .unwrap()
}

const TRANSPORTS: [&str; 3] = ["loop", "loop-unix", "ism"];
