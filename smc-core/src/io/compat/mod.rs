//! Trait implementations for other ecosystems, each behind its feature.

#[cfg(feature = "tokio")]
mod tokio;
