//! `smc dissect` from the outside: the program is run, and its output is read.

mod captures;
mod decode;
mod files;
mod follow;
mod links;
mod live;
mod roce;
mod running;
mod streams;
mod support;
