//! `smc bench` with minimal settings: its output, never how fast anything is.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _, read_to_string};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use smc_testkit::port::HeldPort;

/// Runs it with `line`, in a runtime directory that must be left as it was.
fn bench(line: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_smc"))
        .arg("bench")
        .args(line.split_whitespace())
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json(line: &str) -> Value {
    report(&format!("{line} --time 50"))
}

fn report(line: &str) -> Value {
    let output = bench(&format!("{line} --json --rounds 2"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every row has its figures from both rounds, and what was verified.
fn check(line: &str, load: u64, figures: &[&str]) {
    let report = json(&format!("{line} --transports loop,tcp"));
    let workload = line.split_whitespace().next().unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, transport) in rows.iter().zip(["loop", "tcp"]) {
        assert_eq!(row["workload"], workload);
        assert_eq!(row["load"], load);
        assert_eq!(row["transport"], transport);
        let path = row["path"].as_str().unwrap();
        let wanted = if transport == "loop" {
            "SMC-D v2.1 nocopy on loop"
        } else {
            "TCP"
        };
        assert!(path.starts_with(wanted), "{path}");
        assert!(row["verified"].as_u64().unwrap() > 0);
        assert_eq!(row["skipped"], Value::Null);
        assert_eq!(row["failed"], Value::Array(Vec::new()));
        for figure in figures {
            let figure = &row["figures"][figure];
            assert_eq!(figure["values"].as_array().unwrap().len(), 2, "{row:#}");
            assert!(figure["median"].as_f64().unwrap() >= 0.0);
            assert!(figure["unit"].is_string() && figure["better"].is_string());
        }
        let first = &row["figures"][figures[0]];
        assert!(first["median"].as_f64().unwrap() > 0.0);
        assert!(first["vs_tcp"]["ratio"].as_f64().unwrap() > 0.0);
        // Two rounds are too few for a verdict.
        assert_eq!(first["vs_tcp"]["verdict"], "unclear");
    }
}

#[test]
fn workloads_have_their_figures() {
    let memory = ["p50", "p99", "cpu", "idle_cpu", "memory", "kernel_memory"];
    for (line, load, figures) in [
        ("rate", 100, &["messages", "cpu"][..]),
        ("pingpong", 14, &["p50", "p99", "p999", "cpu"]),
        ("bulk --sizes 64000", 64_000, &["bytes", "cpu"]),
        (
            "http --connections 2",
            2,
            &["requests", "p50", "p99", "cpu"],
        ),
        (
            "connect --clients 2",
            2,
            &["connections", "p50", "p99", "cpu"],
        ),
        ("fanin --open 100", 100, &memory),
    ] {
        check(line, load, figures);
    }
}

#[test]
fn every_runtime_and_transport_carries_data() {
    let transports = [
        "loop",
        "loop-copy",
        "loop-inplace",
        "ism",
        "ism-copy",
        "tcp",
        "unix",
        "fallback",
    ];
    let line = "rate pingpong --runtime smol,tokio,tokio-mt --transports";
    let report = json(&format!("{line} {}", transports.join(",")));
    let rows = report["rows"].as_array().unwrap();
    for transport in transports {
        let of = rows.iter().filter(|row| row["transport"] == transport);
        let wanted = if transport == "loop-inplace" { 3 } else { 6 };
        assert_eq!(of.count(), wanted, "{transport}");
    }
    for row in rows {
        assert!(row["verified"].as_u64().unwrap() > 0, "{row:#}");
    }
    assert!(report["host"]["cpus"].as_u64().unwrap() > 0);
    assert_eq!(report["settings"]["ping"], 14);
}

#[test]
fn data_is_carried_while_both_processes_answer_requests() {
    // Long enough for an answer of a process that gets little CPU time.
    let report = report("rate pingpong --transports loop-observed --time 500");
    for row in report["rows"].as_array().unwrap() {
        assert!(row["verified"].as_u64().unwrap() > 0, "{row:#}");
        assert_eq!(row["failed"], Value::Array(Vec::new()));
    }
}

#[test]
fn connections_share_the_memory_of_a_fabric() {
    let report = json("http --connections 300 --transports ism-copy");
    let row = &report["rows"][0];
    let path = row["path"].as_str().unwrap();
    assert!(path.ends_with("receive ring of 16352 bytes"), "{path}");
}

#[test]
fn a_server_may_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("ism.sock");
    let smc = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smc"));
        let child = command.args(args).stdout(Stdio::piped()).spawn();
        Ended(child.unwrap())
    };
    let path = socket.to_str().unwrap();
    let mut fabric = smc(&["ism-server", path, "--size", "16M"]);
    // Held, so that nothing else listens there when the agent has ended.
    let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let at = port.addr().to_string();
    let mut agent = smc(&["bench-agent", &at, "--ism-server", path]);
    fabric.line();
    agent.line();
    let line = format!("rate bulk --sizes 64000 --remote {at} --ism-server {path}");
    let report = json(&format!("{line} --transports ism-copy,tcp --buffer 64K"));
    for row in report["rows"].as_array().unwrap() {
        assert!(row["verified"].as_u64().unwrap() > 0, "{row:#}");
        // Of the server's process nothing is seen.
        assert!(row["figures"].get("cpu").is_none(), "{row:#}");
    }
    let path = report["rows"][0]["path"].as_str().unwrap();
    assert!(path.starts_with("SMC-D v2.1 copy on ism"), "{path}");
    let far = format!("rate --transports tcp --rounds 1 --time 20 --remote {at}");
    drop(agent);
    assert!(!bench(&far).status.success());
}

#[test]
fn errors_of_servers_for_another_machine_are_returned() {
    // What `smc bench` sends to an agent.
    let fake = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = fake.local_addr().unwrap();
    let bench = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["bench", "rate", "--transports", "tcp", "--rounds", "1"])
        .args(["--pin", "0,0", "--remote", &at.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let bench = Ended(bench.unwrap());
    let mut task = String::new();
    let (stream, _) = fake.accept().unwrap();
    BufReader::new(stream).read_line(&mut task).unwrap();
    drop((bench, fake));
    assert!(task.contains("\"pin\":[0,0]"), "{task}");
    // On a processor that there is not.
    let task = task.replace("\"pin\":[0,0]", "\"pin\":[0,1023]");

    let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_smc"));
    let agent = agent
        .args(["bench-agent", &port.addr().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut agent = Ended(agent.spawn().unwrap());
    agent.line();
    const TASKS: usize = 40;
    for _ in 0..TASKS {
        let mut stream = TcpStream::connect(port.addr()).unwrap();
        stream.write_all(task.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "");
    }
    let stderr = agent.0.stderr.take().unwrap();
    drop(agent);
    let written = read_to_string(stderr).unwrap();
    assert!(
        written.contains("smc bench-agent: smc bench-end: cannot run on CPU 1023"),
        "{written}"
    );
    // Two lines for each task, but sixty of them at most.
    let lines = written.lines().count();
    assert_eq!(lines, 61, "{written}");
}

/// A program that is ended.
struct Ended(Child);

impl Ended {
    /// The first line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn settings_reach_both_processes() {
    let report = json("rate --transports loop --buffer 64K --polling 0 --pin 0,0 --message 7");
    let row = &report["rows"][0];
    assert_eq!(row["load"], 7);
    // Without the 32 bytes that are not the ring's.
    let path = row["path"].as_str().unwrap();
    assert!(path.ends_with("receive ring of 65504 bytes"), "{path}");
    assert_eq!(report["settings"]["buffer"], 65536);
}

#[test]
fn what_the_machine_does_not_allow_is_left_out_with_a_reason() {
    let report = json("fanin --transports tcp --open 1000000");
    let row = &report["rows"][0];
    let why = row["skipped"].as_str().unwrap_or_default();
    if row["figures"] != Value::Object(serde_json::Map::new()) {
        println!("skipped: this machine allows a million descriptors");
        return;
    }
    assert!(why.contains("descriptors"), "{row:#}");
}

#[test]
fn a_report_is_a_page_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let line =
        "pingpong bulk --sizes 1K,64000 --transports loop,tcp --rounds 1 --time 20 --report ";
    let output = bench(&format!("{line}{}", page.display()));
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("pingpong, 14 bytes") && table.contains("vs TCP"),
        "{table}"
    );
    check_page(&page);
}

fn check_page(path: &Path) {
    let page = std::fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<svg").count(), 2, "throughput and latencies");
    for outside in ["<script", "<link", "src=", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf\""));
}

#[test]
fn nonsense_is_refused() {
    for line in [
        "nothing",
        "rate --transports none",
        "bulk --sizes 0",
        "http --transports loop-inplace",
    ] {
        assert!(!bench(line).status.success(), "{line}");
    }
}

/// Polling while the other end waits for the same CPU delays both. What it takes is CPU
/// time, which does not depend on what other programs do.
#[test]
fn on_one_processor_polling_does_not_burn_a_window_for_each_message() {
    let cpu = one_processor();
    let cpu_per_message = |polling: u32, workload: &str| -> f64 {
        let line = format!(
            "{workload} --transports loop --pin {cpu},{cpu} --polling {polling} --json --rounds 5 --time 60"
        );
        let output = bench(&line);
        assert!(output.status.success(), "{line}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let values = report["rows"][0]["figures"]["cpu"]["values"].as_array();
        let values = values.unwrap().iter().map(|value| value.as_f64().unwrap());
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        values[2]
    };
    // Both ends burning a window for each message takes twenty times as much.
    const TOLERANCE: f64 = 5.0;
    for workload in ["pingpong", "rate"] {
        let asleep = cpu_per_message(0, workload);
        let polling = cpu_per_message(100, workload);
        assert!(
            polling <= asleep * TOLERANCE,
            "{workload}: {polling} s a message with polling, {asleep} s without"
        );
    }
}

/// A CPU that this process may run on.
fn one_processor() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = allowed.unwrap().trim().split([',', '-']).next().unwrap();
    first.parse().unwrap()
}
