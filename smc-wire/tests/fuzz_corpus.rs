//! Keeps the fuzz corpus in step with the captures and the synthetic messages.
//!
//! The corpus has one message for each combination of type, length and flags that occurs. Run with
//! `SMC_WIRE_WRITE_CORPUS=1` to write what is missing.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use capture::captures;
use support::{ALL_CLC, ALL_EXTENDED, C1, C2, X1, hex};

/// Synthetic LLC messages, of forms that no capture has.
const LLC: [&str; 11] = [
    "022c01c00200000000aa0000fe80000000000000020000fffe0000aa00012302030a0b0c0000000000000000",
    "032c00000203000000001a2b00003c4d000000001234000000001a2c00003c4e000000001235000000000000",
    "253c00000000000000000000000000000000000000000000020000000000000000000000 0000ffffc0000201
     00000000000000000000ffffc0000202",
    "072c0000000102030405060708090a0b0c0d0e0f000000000000000000000000000000000000000000000000",
    "062c00000200001a2b00000000123400000200003c4d00000000123400000300005e6f000000001234000000",
    "092c00a00240000000001a2b00001a2c00000000000000000000000000000000000000000000000000000000",
    "042c002002000500000000000000000000000000000000000000000000000000000000000000000000000000",
    "082c000003040000040000000000000100000500000500000000000001000006000006000000000000010000",
    "25002cc100000000000000000000000000000000000000000000000000000000000000000000000000000000",
    "2200580052540000000100000000000000000000 0000ffff0a09000100001202033dd5dc0000000000000000
     80000000000000000000 0000ffff0a09000100000000000000000001000003bb00000512ff459d1383810000",
    "800000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
];

#[test]
fn the_corpus_holds_every_form_of_message() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev/fuzz/corpus");
    let write = std::env::var_os("SMC_WIRE_WRITE_CORPUS").is_some();
    let mut missing = Vec::new();
    for (path, bytes) in seeds() {
        let path = corpus.join(path);
        match std::fs::read(&path) {
            Ok(stored) if stored == bytes => {}
            _ if write => {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            _ => missing.push(path),
        }
    }
    assert!(
        missing.is_empty(),
        "not in the corpus, see the top of this file: {missing:?}"
    );
}

/// All seeds by their path in the corpus.
fn seeds() -> BTreeMap<PathBuf, Vec<u8>> {
    let mut forms: BTreeMap<(&str, Vec<u8>), Vec<u8>> = BTreeMap::new();
    let mut add = |target, form: Vec<u8>, bytes: &[u8]| {
        forms
            .entry((target, form))
            .or_insert_with(|| bytes.to_vec());
    };
    let clc = ALL_CLC.iter().map(|(_, digits)| hex(digits));
    let extended = ALL_EXTENDED.iter().map(|(_, digits)| hex(digits));
    let llc = LLC.iter().map(|digits| hex(digits));
    let direct = [C1, C2].iter().map(|digits| hex(digits));
    direct.for_each(|bytes| add("cdc", bytes.clone(), &bytes));
    clc.for_each(|bytes| add("clc", clc_form(&bytes), &bytes));
    extended.for_each(|bytes| add("extensions", clc_form(&bytes), &bytes));
    // Behind their number, those of the first message alone, with one header of a region.
    let own = [&[4][..], &hex(X1)[220..296]].concat();
    add("extensions", Vec::new(), &own);
    llc.for_each(|bytes| add("llc", llc_form(&bytes), &bytes));
    for capture in captures() {
        for found in &capture.clc {
            add("clc", clc_form(&found.bytes), &found.bytes);
        }
        for found in &capture.llc {
            add("llc", llc_form(&found.bytes), &found.bytes);
        }
        for found in &capture.cdc {
            // The flag bytes.
            add("cdc", found.bytes[24..26].to_vec(), &found.bytes);
        }
        for found in &capture.options {
            add(
                "tcp_option",
                vec![u8::try_from(found.bytes.len()).unwrap()],
                &found.bytes,
            );
        }
    }
    let mut seeds = BTreeMap::new();
    for ((target, _), bytes) in forms {
        seeds.insert(Path::new(target).join(name(&bytes)), bytes.clone());
        // The printers take all of them, behind a byte that chooses the family.
        let families: &[u8] = match target {
            "tcp_option" => &[0],
            "extensions" if bytes[0] != 0xe2 => &[],
            "clc" | "extensions" => &[1],
            "llc" => &[2],
            "cdc" if bytes.len() == 44 => &[3],
            _ => &[4, 5],
        };
        for family in families {
            let mut input = vec![*family];
            input.extend_from_slice(&bytes);
            seeds.insert(Path::new("pretty").join(name(&input)), input);
        }
    }
    seeds
}

/// Type, length, version and flags.
fn clc_form(bytes: &[u8]) -> Vec<u8> {
    bytes[..8].to_vec()
}

/// Type, length and flags.
fn llc_form(bytes: &[u8]) -> Vec<u8> {
    bytes[..4].to_vec()
}

/// A file name made from the contents (FNV-1a).
fn name(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    format!("{hash:016x}")
}
