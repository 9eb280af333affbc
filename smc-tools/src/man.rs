//! `smc man`: manual pages.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use fs_err as fs;

use crate::{Cli, output};

/// Arguments of `smc man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
There is a page for the command and one for each of its commands, in section 1.

Examples:
  smc man /usr/local/share/man/man1
  smc man pages && man pages/smc-dissect.1")]
pub(crate) struct Args {
    /// Where to write the pages; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `smc man`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let directory = &args.directory;
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write pages to {}", directory.display()))?;
    output::print(&format!("pages are in {}\n", directory.display()))?;
    Ok(true)
}
