//! `smc dissect` from the outside: the program is run, and its output is read.

mod captures;
mod decode;
mod files;
mod links;
mod roce;
mod streams;
mod support;
