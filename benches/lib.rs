//! Instructions that hot calls take, counted by callgrind: the same on a busy machine as on an idle
//! one, so that a change for the worse shows anywhere.
//!
//! ```text
//! cargo install --locked gungraun-runner@0.20.0
//! cargo bench -p smc-benches
//! ```
//!
//! It takes valgrind, too. `hot` is the way of a stream's bytes, `cdc` what accompanies them. Each
//! run compares with the one before; `-- --save-baseline=main` and `-- --baseline=main` compare
//! with one that has a name.
