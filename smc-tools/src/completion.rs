//! `smc completion`: scripts that complete command lines.

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Cli, output};

/// Arguments of `smc completion`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  smc completion bash > ~/.local/share/bash-completion/completions/smc
  smc completion zsh > _smc                    # in a directory of $fpath
  smc completion fish > ~/.config/fish/completions/smc.fish")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Runs `smc completion`.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(), "smc", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(true)
}

/// The command line without its hidden commands, which the scripts would list.
fn visible() -> clap::Command {
    let all = Cli::command();
    let shown = all.get_subcommands().filter(|it| !it.is_hide_set());
    clap::Command::new("smc")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommands(shown.cloned())
}
