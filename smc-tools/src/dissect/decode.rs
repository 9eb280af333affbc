//! `smc dissect --decode`: one message from the command line.

use std::io::{self, Read as _, Write};

use smc_wire::cdc::{ByteOrder, CdcD, CdcR};
use smc_wire::pretty;

use super::describe::Description;
use super::message::Family;
use super::{Args, hex, json, report, warn};

/// Shows the message; false if it does not decode.
pub(super) fn run(args: &Args, family: Family, out: &mut dyn Write) -> io::Result<bool> {
    let bytes = match input(args).and_then(|text| hex::parse(&text)) {
        Ok(bytes) => bytes,
        Err(reason) => return fail(&reason),
    };
    let content = match content(family, bytes.len(), args.big_endian) {
        Ok(content) => content,
        Err(reason) => return fail(&reason),
    };
    let mut description = Description::of(content, &bytes);
    // Exactly one message was announced, so what is odd in a capture is wrong here.
    if description.error.is_none() && !description.notes.is_empty() {
        description.error = Some(std::mem::take(&mut description.notes).join("; "));
    }
    let error = description.error.clone();
    if args.json {
        let object = json::of_bytes(family, content, &bytes, description, args.hex);
        writeln!(out, "{object}")?;
    } else {
        writeln!(out, "{}", pretty::line(content, &bytes))?;
        report::body(args, content, &bytes, true, out)?;
    }
    out.flush()?;
    match error {
        Some(reason) => fail(&reason),
        None => Ok(true),
    }
}

fn fail(reason: &str) -> io::Result<bool> {
    warn(&format_args!("cannot decode: {reason}"));
    Ok(false)
}

/// All hex from the command line; `-` stands for standard input.
fn input(args: &Args) -> Result<String, String> {
    let mut text = String::new();
    for input in &args.inputs {
        match input.to_str() {
            Some("-") => {
                io::stdin()
                    .read_to_string(&mut text)
                    .map_err(|error| error.to_string())?;
            }
            Some(digits) => text.push_str(digits),
            None => return Err("the arguments are not text".to_owned()),
        }
        text.push(' ');
    }
    Ok(text)
}

/// What the bytes are to be read as. The two forms of CDC differ in length.
fn content(family: Family, len: usize, big_endian: bool) -> Result<pretty::Family, String> {
    let order = match (big_endian, cfg!(target_endian = "big")) {
        (true, _) | (_, true) => ByteOrder::Big,
        _ => ByteOrder::Little,
    };
    match (family, len) {
        (Family::TcpOption, _) => Ok(pretty::Family::TcpOption),
        (Family::Clc, _) => Ok(pretty::Family::Clc),
        (Family::Llc, _) => Ok(pretty::Family::Llc),
        (Family::Cdc, CDC_R) => Ok(pretty::Family::CdcR),
        (Family::Cdc, CDC_D) => Ok(pretty::Family::CdcD(order)),
        (Family::Cdc, _) => Err(format!(
            "a CDC message has {CDC_R} bytes (SMC-R) or {CDC_D} (SMC-D), this has {len}"
        )),
    }
}

const CDC_R: usize = CdcR::LEN;
const CDC_D: usize = CdcD::LEN;
