//! `smc man`: manual pages.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Arg, Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
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
    write_all(directory)
        .with_context(|| format!("cannot write pages to {}", directory.display()))?;
    output::print(&format!("pages are in {}\n", directory.display()))?;
    Ok(true)
}

fn write_all(directory: &Path) -> Result<()> {
    let mut all = Cli::command().disable_help_subcommand(true);
    all.build();
    let shown: Vec<_> = all
        .get_subcommands()
        .filter(|it| !it.is_hide_set())
        .collect();
    let names: Vec<_> = shown.iter().map(|command| command.get_name()).collect();
    let general = Notes::of(&all);
    for command in [&[&all][..], &shown[..]].concat() {
        let is_main = command.get_name() == all.get_name();
        let mut notes = Notes::of(command);
        if notes.exit_status.is_empty() {
            notes.exit_status.clone_from(&general.exit_status);
        }
        let others = names.iter().copied();
        let others = others.filter(|name| is_main || mentions(command, name));
        let others = others.map(|name| format!("smc-{name}(1)"));
        let main = (!is_main).then(|| "smc(1)".to_owned());
        let see_also: Vec<_> = main.into_iter().chain(others).collect();
        // An empty date would be left out, and the version be taken for it.
        let man = Man::new(command.clone())
            .date(" ")
            .source(concat!("smc ", env!("CARGO_PKG_VERSION")))
            .manual("SMC tools");
        let page = page(&man, command, &notes, &see_also.join(", "))?;
        fs::write(directory.join(man.get_filename()), page)?;
    }
    Ok(())
}

/// The text of a page. What `clap_mangen` renders as a whole has all notes in one section, and a
/// synopsis without the values of options.
fn page(man: &Man, command: &Command, notes: &Notes, see_also: &str) -> Result<String> {
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]).text(usage(command));
    synopsis.to_writer(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut rest = Roff::new();
    for (title, lines) in [
        ("EXIT STATUS", &notes.exit_status),
        ("NOTES", &notes.notes),
        ("EXAMPLES", &notes.examples),
    ] {
        if !lines.is_empty() {
            rest.control("SH", [title]);
            add_lines(&mut rest, lines);
        }
    }
    rest.control("SH", ["SEE ALSO"]).text([roman(see_also)]);
    rest.to_writer(&mut out)?;
    // Each section begins with the same definitions, of which a page needs one.
    let definitions = Roff::new().render();
    let sections = String::from_utf8(out)?.replace(&definitions, "");
    Ok(definitions + &sections)
}

/// The command with its options and their values.
fn usage(command: &Command) -> Vec<Inline> {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    for option in shown().filter(|arg| !arg.is_positional()) {
        let is_required = option.is_required_set();
        line.push(roman(if is_required { " " } else { " [" }));
        line.extend(option_usage(option));
        line.extend((!is_required).then(|| roman("]")));
    }
    for positional in shown().filter(|arg| arg.is_positional()) {
        line.extend([roman(" "), italic(positional.to_string())]);
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("<COMMAND>")]);
    }
    line
}

/// An option, such as `-o|--output <FILE>`.
fn option_usage(option: &Arg) -> Vec<Inline> {
    let mut parts = Vec::new();
    if let (Some(short), Some(_)) = (option.get_short(), option.get_long()) {
        parts.extend([bold(format!("-{short}")), roman("|")]);
    }
    // The long name, if there is one, and the values.
    let text = option.to_string();
    let at = text.find([' ', '=', '[']).unwrap_or(text.len());
    let (flag, values) = text.split_at(at);
    parts.push(bold(flag));
    parts.extend((!values.is_empty()).then(|| italic(values)));
    parts
}

/// Adds lines as paragraphs. Those that are indented stay as they are.
fn add_lines(roff: &mut Roff, lines: &[String]) {
    let is_indented = |line: &str| line.starts_with(' ');
    for run in lines.chunk_by(|one, next| is_indented(one) == is_indented(next)) {
        if run.first().is_some_and(|line| is_indented(line)) {
            roff.control("RS", ["4"]).control("nf", []);
            for line in run {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []).control("RE", []);
            continue;
        }
        for line in run {
            match line.is_empty() {
                true => roff.control("PP", []),
                false => roff.text([roman(line)]),
            };
        }
    }
}

/// The lines behind the options in the help of a command, by section.
#[derive(Debug, Default)]
struct Notes {
    exit_status: Vec<String>,
    notes: Vec<String>,
    examples: Vec<String>,
}

impl Notes {
    fn of(command: &Command) -> Self {
        let mut notes = Self::default();
        let help = command.get_after_help().map(ToString::to_string);
        for paragraph in help.unwrap_or_default().split("\n\n") {
            let lines: Vec<_> = paragraph.lines().collect();
            match lines.first() {
                Some(&("Example:" | "Examples:")) => {
                    add_paragraph(&mut notes.examples, &lines[1..]);
                }
                Some(first) if first.starts_with("Example") => {
                    add_paragraph(&mut notes.examples, &lines);
                }
                _ => {
                    let is_status = |line: &&str| line.starts_with("The exit status");
                    let at = lines.iter().position(is_status).unwrap_or(lines.len());
                    let (before, status) = lines.split_at(at);
                    add_paragraph(&mut notes.notes, before);
                    add_paragraph(&mut notes.exit_status, status);
                }
            }
        }
        notes
    }
}

fn add_paragraph(section: &mut Vec<String>, lines: &[&str]) {
    if !lines.is_empty() && !section.is_empty() {
        section.push(String::new());
    }
    section.extend(lines.iter().map(|line| (*line).to_owned()));
}

/// Whether the help of a command names another command.
fn mentions(command: &Command, other: &str) -> bool {
    let help = command.clone().render_long_help().to_string();
    let is_in_name = |next: char| next == '-' || next.is_alphanumeric();
    let name = format!("smc {other}");
    let mut rests = help.split(&name).skip(1);
    command.get_name() != other && rests.any(|rest| !rest.starts_with(is_in_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_the_section_that_they_begin_with() {
        let command = Command::new("one").after_help(
            "It ends.\nThe exit status is 0\nthen.\n\nMore:\n  1\n\nExample:\n  smc one\n\n\
             Example, in two:\n  smc two",
        );
        let notes = Notes::of(&command);
        assert_eq!(notes.exit_status, ["The exit status is 0", "then."]);
        assert_eq!(notes.notes, ["It ends.", "", "More:", "  1"]);
        let examples = ["  smc one", "", "Example, in two:", "  smc two"];
        assert_eq!(notes.examples, examples);
    }

    #[test]
    fn a_name_that_begins_with_another_one_is_not_taken_for_it() {
        let command = Command::new("one").about("It has smc bench-agent beside it, and `smc one`");
        assert!(mentions(&command, "bench-agent"));
        assert!(!mentions(&command, "bench"));
        assert!(!mentions(&command, "one"));
    }
}
