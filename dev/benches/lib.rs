//! Instructions that hot calls take, counted by callgrind: the same on a busy machine as on an idle
//! one, so that a change for the worse shows anywhere.
//!
//! ```text
//! cargo install --locked gungraun-runner@0.20.0
//! cargo bench -p smc-benches
//! ```
//!
//! Valgrind is needed, too. `hot` is the data path of a stream, `cdc` the codec of CDC messages.
//! Each run compares with the one before; `-- --save-baseline=main` and `-- --baseline=main`
//! compare with a named run.
