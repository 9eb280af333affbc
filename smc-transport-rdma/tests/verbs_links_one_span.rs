//! The same links on a device whose receives take a single span of memory.

#[path = "verbs_links.rs"]
mod links;
