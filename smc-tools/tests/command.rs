//! The command as a whole: its names, its help, its exit statuses and its colours.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};

/// A DECLINE of version 1.
const DECLINE: &str = "e2d4c3d904001c1000000000000000000303000000000000e2d4c3d9";

fn smc<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    command(arguments).output().unwrap()
}

fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smc"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The subcommands that the help lists.
fn subcommands() -> Vec<String> {
    let help = stdout(&smc(&["--help"]));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| line.starts_with("  "))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help");
    let names: Vec<_> = names.collect();
    assert!(names.len() >= 8, "{names:?}");
    names
}

#[test]
fn a_completion_script_has_all_subcommands_and_none_that_is_hidden() {
    for shell in ["bash", "zsh", "fish"] {
        let output = smc(&["completion", shell]);
        assert!(output.status.success(), "{}", stderr(&output));
        let script = stdout(&output);
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("follow"), "{shell}");
        assert!(!script.contains("bench-end"), "{shell}");
    }
}

#[test]
fn bash_takes_its_completion_script_and_completes_a_subcommand() {
    let script = stdout(&smc(&["completion", "bash"]));
    let line =
        "\nCOMP_WORDS=(smc dis) COMP_CWORD=1\n_smc smc dis smc\nprintf '%s\\n' ${COMPREPLY[@]}";
    match Command::new("bash").arg("-c").arg(script + line).output() {
        Ok(output) => assert_eq!(stdout(&output), "dissect\n", "{}", stderr(&output)),
        Err(why) => println!("skipped: why: no program `bash`: {why}"),
    }
}

#[test]
fn each_subcommand_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    // The directory is made.
    let pages = directory.path().join("share/man1");
    let output = smc(&[OsStr::new("man"), pages.as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let first = page("smc.1");
    for name in subcommands() {
        assert!(first.contains(&name.replace('-', "\\-")), "{name}");
        let own = page(&format!("smc-{name}.1"));
        assert!(
            own.contains(".SH NAME") && own.contains(".SH OPTIONS"),
            "{name}"
        );
    }
    let count = std::fs::read_dir(&pages).unwrap().count();
    assert_eq!(count, subcommands().len() + 1);
    assert!(page("smc-dissect.1").contains("\\-\\-follow"));
}

#[test]
fn a_manual_page_has_the_sections_values_and_version_of_other_pages() {
    let directory = tempfile::tempdir().unwrap();
    let output = smc(&[OsStr::new("man"), directory.path().as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    let version = format!(" \" \" \"smc {}\" \"SMC tools\"", env!("CARGO_PKG_VERSION"));
    for name in subcommands() {
        let own = page(&format!("smc-{name}.1"));
        let title = own.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(title.ends_with(&version), "{title}");
        assert!(own.contains(".SH \"EXIT STATUS\"\n"), "{name}");
        assert!(own.contains(".SH \"SEE ALSO\"\nsmc(1)"), "{name}");
        assert!(!own.contains(".SH EXTRA"), "{name}");
    }
    let cat = page("smc-cat.1");
    assert!(
        cat.contains("\\fB\\-\\-timeout\\fR\\fI <SECONDS>\\fR]"),
        "{cat}"
    );
    assert!(cat.contains("\nThe exit status is 0 if everything was copied"));
    assert!(cat.contains(".SH EXAMPLES\n.RS 4\n.nf\nsmc cat \\-l 127.0.0.1:4000"));
}

#[test]
fn a_subcommand_may_be_shortened_as_long_as_it_is_the_only_one() {
    let full = smc(&["dissect", "--decode", "clc", DECLINE]);
    for short in ["dis", "diss", "dissec"] {
        let output = smc(&[short, "--decode", "clc", DECLINE]);
        assert!(output.status.success(), "{short}: {}", stderr(&output));
        assert_eq!(output.stdout, full.stdout, "{short}");
    }
    // A whole name is meant, although another one begins with it.
    let help = stdout(&smc(&["bench", "--help"]));
    assert!(help.contains("Usage: smc bench ["), "{help}");
    let output = smc(&["d"]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    let expected = "error: 'd' is ambiguous: it begins 'demo', 'devices', 'dissect'\n";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn no_hidden_command_is_suggested() {
    for given in ["b", "bench-", "bench-emd"] {
        let output = smc(&[given]);
        assert_eq!(output.status.code(), Some(2), "{given}");
        let error = stderr(&output);
        assert!(!error.contains("bench-end"), "{error}");
    }
    let error = stderr(&smc(&["dimsect"]));
    assert!(error.contains("'dissect'"), "{error}");
}

#[test]
fn the_exit_status_tells_success_failure_and_wrong_arguments_apart() {
    for (expected, line) in [
        (0, "--help"),
        (0, "--version"),
        (0, "help dissect"),
        (0, "completion fish"),
        (0, &format!("dissect --decode clc {DECLINE}")),
        (1, "dissect /nowhere/capture.pcap"),
        (1, "dissect --follow /nowhere/capture.pcap"),
        (1, "dissect --decode clc e2d4"),
        (1, "dissect -i no-such-interface"),
        (1, "man /proc/none"),
        (1, "ism-server /nowhere/sock"),
        (1, "demo --file /nowhere/file"),
        (2, ""),
        (2, "nonsense"),
        (2, "b-nonsense"),
        (2, "--nonsense"),
        (2, "dissect"),
        (2, "dissect -i lo capture.pcap"),
        (2, "dissect -i lo --follow"),
        (2, "dissect --follow one two"),
        (2, "dissect --follow --decode clc e2d4"),
        (2, "completion nonsense"),
        (2, "man"),
        (2, "report --output -"),
        (2, "ism-server"),
        (2, "bench nonsense"),
        (2, "bench rate --transports loop --remote 127.0.0.1:1"),
        (2, "demo --size nonsense"),
    ] {
        let arguments: Vec<_> = line.split_whitespace().collect();
        let output = smc(&arguments);
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(expected), "smc {line}: {error}");
        // What is wrong stands on standard error.
        assert_eq!(error.is_empty(), expected == 0, "smc {line}: {error}");
        assert!(expected != 0 || !output.stdout.is_empty(), "smc {line}");
        assert!(expected != 2 || output.stdout.is_empty(), "smc {line}");
    }
}

#[test]
fn an_output_that_is_closed_is_no_failure() {
    for arguments in [
        &["completion", "bash"][..],
        &["devices"],
        &["dissect", "--decode", "clc", DECLINE],
        &["--help"],
    ] {
        let (out, reader) = UnixStream::pair().unwrap();
        drop(reader);
        let output = command(arguments)
            .stdout(OwnedFd::from(out))
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
        assert_eq!(error, "", "{arguments:?}");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = command(&["completion", "bash"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to standard output"));
}

#[test]
fn there_are_no_colours_in_a_pipe() {
    let runtime_dir = tempfile::tempdir().unwrap();
    for line in [
        "--help",
        "help bench",
        "nonsense",
        "dissect",
        "dissect /nowhere",
        "devices",
        "demo --size 4K --rounds 1 --time 1",
        "bench pingpong --transports tcp --rounds 1 --time 1",
    ] {
        let arguments: Vec<_> = line.split_whitespace().collect();
        let output = command(&arguments)
            .env("SMC_RUNTIME_DIR", runtime_dir.path())
            .output()
            .unwrap();
        let shown = [output.stdout, output.stderr].concat();
        assert!(!shown.is_empty() && !shown.contains(&0x1B), "smc {line}");
    }
}
