//! `smc demo`, and what it leaves behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_demonstration_leaves_nothing_behind() {
    for carrier in ["loop", "ism"] {
        let runtime_dir = tempfile::tempdir().unwrap();
        let demo = Command::new(env!("CARGO_BIN_EXE_smc"))
            .args([
                "demo",
                "--size",
                "64K",
                "--rounds",
                "1",
                "--transport",
                carrier,
            ])
            .env("SMC_RUNTIME_DIR", runtime_dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mine = format!("smc-bench-{}-", demo.id());
        let output = demo.wait_with_output().unwrap();
        let reported = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{carrier}: {reported}");
        assert_eq!(left(runtime_dir.path(), ""), [""; 0], "{carrier}");
        for place in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            assert_eq!(left(place, &mine), [""; 0], "{carrier}");
        }
    }
}

#[test]
fn the_help_explains_the_columns_of_the_table() {
    let smc = || Command::new(env!("CARGO_BIN_EXE_smc"));
    let output = smc().args(["demo", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for column in ["throughput", "round trip", "messages", "vs TCP", "vs UNIX"] {
        assert!(help.contains(column), "{column}: {help}");
    }
}

/// The names in a directory that begin like this.
fn left(place: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(prefix)).collect()
}
