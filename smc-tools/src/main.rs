//! `smc`: the command-line companion of the SMC crates.
//!
//! A subcommand is its arguments and one function that runs it and returns whether it succeeded.
//! Its module has its name, with exceptions: `bench`, `bench-agent`, `bench-end` and `demo` are in
//! `bench`; `soak` and `soak-end` in `soak`; `ss`, `groups`, `links`, `stats`, `top` and `info`,
//! which ask processes, are in `processes`. The README of this crate lists them.

mod bench;
mod cat;
mod check;
mod child;
mod completion;
mod devices;
mod dissect;
mod endpoint;
mod ism_server;
mod listen;
mod man;
mod output;
mod processes;
mod proxy;
mod relay;
mod report;
mod runtime;
mod serve;
#[cfg(feature = "syn-option")]
mod setup;
mod soak;
mod user;
mod values;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};

use self::output::Usage;

/// Tools for Shared Memory Communications (SMC-R and SMC-D).
#[derive(Debug, Parser)]
#[command(
    name = "smc",
    version,
    about,
    arg_required_else_help = true,
    infer_subcommands = true,
    after_help = "\
A command may be shortened to what no other one begins with: `smc dis` is `smc dissect`.
The exit status is 0 for success, 1 for failure and 2 for wrong arguments."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure SMC streams, TCP and UNIX sockets side by side, between two processes
    Bench(Box<bench::Args>),
    /// Run the servers of `smc bench --remote`, which measures between two machines
    BenchAgent(bench::AgentArgs),
    /// One end of a measurement
    #[command(hide = true)]
    BenchEnd(child::Args),
    /// Read and write a stream with standard input and output, as netcat does
    Cat(cat::Args),
    /// Connect to a server, and explain why the connection is SMC or TCP
    Check(check::CheckArgs),
    /// Print a script that completes command lines in a shell
    Completion(completion::Args),
    /// Stream a file between two processes over SMC-D, and compare with TCP and UNIX sockets
    Demo(bench::DemoArgs),
    /// List what could carry SMC on this machine, and why it cannot
    Devices(devices::Args),
    /// Show the SMC messages in captures and on interfaces: handshakes on TCP, LLC and CDC on RoCE
    Dissect(dissect::Args),
    /// List the link groups of running processes
    Groups(processes::GroupArgs),
    /// Show versions, and the processes that use SMC
    Info(processes::InfoArgs),
    /// Serve shared memory to QEMU (ivshmem-doorbell) and to processes, for SMC-D between them
    IsmServer(ism_server::Args),
    /// List the links of SMC-R link groups of running processes
    Links(processes::LinkArgs),
    /// Send back what clients send: a server for `smc check`
    Listen(listen::Args),
    /// Write the manual pages of all commands
    Man(man::Args),
    /// Carry connections of TCP or UNIX sockets over SMC, and back, for programs as they are
    Proxy(proxy::Args),
    /// Write one archive with what a bug report needs of this machine and its processes
    Report(report::Args),
    /// Let programs of all users use SMC with kernels: pin what adds the TCP option
    #[cfg(feature = "syn-option")]
    Setup(setup::Args),
    /// Exchange data for hours while processes are killed, stopped and short of descriptors
    Soak(soak::Args),
    /// One process of a soak
    #[command(hide = true)]
    SoakEnd(child::Args),
    /// List the SMC sockets of running processes, and why others are TCP
    Ss(processes::SsArgs),
    /// Show what running processes have done: connections, bytes, fallbacks
    Stats(processes::StatsArgs),
    /// Show the connections with the most data, again and again
    Top(processes::TopArgs),
}

fn main() -> ExitCode {
    let (name, outcome) = match parse().command {
        Command::Bench(args) => ("smc bench", bench::run(&args)),
        Command::BenchAgent(args) => ("smc bench-agent", bench::run_agent(&args)),
        Command::BenchEnd(args) => ("smc bench-end", bench::run_end(&args)),
        Command::Cat(args) => ("smc cat", cat::run(args)),
        Command::Check(args) => ("smc check", check::run_check(&args)),
        Command::Completion(args) => ("smc completion", completion::run(&args)),
        Command::Demo(args) => ("smc demo", bench::run_demo(&args)),
        Command::Devices(args) => ("smc devices", devices::run(&args)),
        Command::Dissect(args) => ("smc dissect", dissect::run(&args)),
        Command::Groups(args) => ("smc groups", processes::run_groups(&args)),
        Command::Info(args) => ("smc info", processes::run_info(&args)),
        Command::IsmServer(args) => ("smc ism-server", ism_server::run(&args)),
        Command::Links(args) => ("smc links", processes::run_links(&args)),
        Command::Listen(args) => ("smc listen", listen::run(args)),
        Command::Man(args) => ("smc man", man::run(&args)),
        Command::Proxy(args) => ("smc proxy", proxy::run(args)),
        Command::Report(args) => ("smc report", report::run(&args)),
        #[cfg(feature = "syn-option")]
        Command::Setup(args) => ("smc setup", setup::run(&args)),
        Command::Soak(args) => ("smc soak", soak::run(&args)),
        Command::SoakEnd(args) => ("smc soak-end", soak::run_end(&args)),
        Command::Ss(args) => ("smc ss", processes::run_ss(&args)),
        Command::Stats(args) => ("smc stats", processes::run_stats(&args)),
        Command::Top(args) => ("smc top", processes::run_top(&args)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<Usage>() => {
            output::note(name, &format_args!("{error}; see {name} --help"));
            ExitCode::from(USAGE)
        }
        Err(error) => {
            output::note(name, &format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments, or ends with the reason why they are wrong.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| with_commands(error).exit())
}

/// An error of the parser. What is no command is called ambiguous if it begins several, and hidden
/// commands are not suggested.
fn with_commands(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let mut all = Cli::command();
    let shown = all.get_subcommands().filter(|it| !it.is_hide_set());
    let shown: Vec<_> = shown.map(|it| it.get_name().to_owned()).collect();
    let begun = shown.iter().filter(|name| name.starts_with(&**given));
    let begun: Vec<_> = begun.map(|name| format!("'{name}'")).collect();
    if begun.len() > 1 && !given.is_empty() {
        let text = format!("'{given}' is ambiguous: it begins {}", begun.join(", "));
        return all.error(ErrorKind::InvalidSubcommand, text);
    }
    if let Some(ContextValue::Strings(similar)) = error.remove(ContextKind::SuggestedSubcommand) {
        let similar = similar.into_iter().filter(|name| shown.contains(name));
        let similar: Vec<_> = similar.collect();
        if !similar.is_empty() {
            let similar = ContextValue::Strings(similar);
            error.insert(ContextKind::SuggestedSubcommand, similar);
        }
    }
    error
}

/// Exit status for wrong arguments, as that of the parser.
const USAGE: u8 = 2;
