//! Lack of descriptors or memory, as an explanation of set-ups that fail soon afterwards.

use std::time::{Duration, Instant};

use crate::OsError;

/// The last lack of a resource for which a peer was not accepted, and its time.
#[derive(Debug, Default)]
pub struct Shortage(Option<(Instant, OsError)>);

impl Shortage {
    /// Records an error for which a peer was not accepted, if a resource was lacking
    /// ([`OsError::is_lack`]). Returns whether it was.
    pub fn record(&mut self, error: &OsError) -> bool {
        let is_lack = error.is_lack();
        if is_lack {
            self.0 = Some((Instant::now(), error.clone()));
        }
        is_lack
    }

    /// The error, while it may explain that a set-up fails.
    #[must_use]
    pub fn recent(&self) -> Option<&OsError> {
        let (at, error) = self.0.as_ref()?;
        (at.elapsed() < LIFETIME).then_some(error)
    }
}

/// About as long as a set-up may take.
const LIFETIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn only_lack_of_a_resource_explains_later_failures() {
        let error = |errno: Errno| OsError::new("accept a peer", &errno.into());
        let mut shortage = Shortage::default();
        assert!(!shortage.record(&error(Errno::ACCESS)));
        assert_eq!(shortage.recent(), None);
        assert!(shortage.record(&error(Errno::MFILE)));
        assert!(!shortage.record(&error(Errno::ACCESS)));
        assert_eq!(shortage.recent(), Some(&error(Errno::MFILE)));
    }
}
