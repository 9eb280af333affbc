//! Shows the messages of a capture.

use std::io::{self, Write};

use smc_wire::pretty;

use super::message::{Family, Message};
use super::{Args, hex, json};
use crate::processes::escaped;

/// Shows a message.
pub(super) fn message(
    args: &Args,
    file: &str,
    message: &Message,
    out: &mut dyn Write,
) -> io::Result<()> {
    if args.json {
        let object = json::of_message(file, message, args.hex);
        return writeln!(out, "{}", escaped(&object.to_string()));
    }
    if args.timestamps {
        match message.mark.time {
            Some(time) => write!(out, "{time} ")?,
            None => write!(out, "- ")?,
        }
    }
    let Message { mark, src, dst, .. } = message;
    write!(out, "{:>5}  {src} -> {dst}: ", mark.frame)?;
    match message.family {
        Family::TcpOption => write!(out, "{} with the SMC option", message.kind())?,
        _ => write!(out, "{}", pretty::line(message.content(), &message.bytes))?,
    }
    if message.retransmission {
        write!(out, " [retransmission]")?;
    }
    if let Some(cut) = message.cut {
        write!(out, " [{cut}]")?;
    }
    writeln!(out)?;
    body(args, message.content(), &message.bytes, args.tree, out)
}

/// What follows the line of a message: its fields and its bytes, where asked for.
pub(super) fn body(
    args: &Args,
    content: pretty::Family,
    bytes: &[u8],
    with_tree: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    if with_tree {
        for line in pretty::tree(content, bytes).to_string().lines() {
            writeln!(out, "       {line}")?;
        }
    }
    if args.hex {
        out.write_all(hex::dump(bytes).as_bytes())?;
    }
    Ok(())
}
