//! A tool that needs nothing but the wire crate: explains a DECLINE or any other CLC
//! message, and builds one.
//!
//! ```text
//! cargo run -p smc-examples --bin explain_decline
//! cargo run -p smc-examples --bin explain_decline -- e2d4c3d904001c1812340200000000aa0400000000000000e2d4c3d9
//! ```

use std::env;
use std::error::Error;

use smc_wire::clc::{Decline, Message};
use smc_wire::types::{DeclineCode, OsType, Version};

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = match env::args().nth(1) {
        Some(hex) => from_hex(&hex)?,
        None => example()?,
    };
    match Message::parse(&bytes)? {
        Message::Decline(decline) => {
            let diagnosis = decline.diagnosis;
            println!("DECLINE {diagnosis}");
            println!(
                "{}",
                diagnosis
                    .description()
                    .unwrap_or("a reason that is not Linux's")
            );
        }
        other => println!("{other:?}"),
    }
    Ok(())
}

/// What a server without a common EID sends.
fn example() -> Result<Vec<u8>, Box<dyn Error>> {
    let decline = Decline::new(Version::V2, DeclineCode::NOUEID, OsType::LINUX);
    let mut bytes = vec![0; decline.encoded_len()];
    let len = decline.emit(&mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn from_hex(hex: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let digit = |c: char| {
        c.to_digit(16)
            .ok_or_else(|| format!("'{c}' is not a hex digit"))
    };
    let digits = hex.chars().map(digit).collect::<Result<Vec<_>, _>>()?;
    if digits.len() % 2 != 0 {
        return Err("an odd number of hex digits".into());
    }
    Ok(digits
        .chunks(2)
        .filter_map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok())
        .collect())
}
