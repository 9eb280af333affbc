//! What a seed decides about one end.

use crate::Rng;

/// How one end is used.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    /// Operations of the writer before it finishes.
    pub(super) writes: usize,
    /// Operations of the reader before it stops; `None` to read to the end.
    pub(super) reads: Option<usize>,
    pub(super) finish: Finish,
    /// Closing resets.
    pub(super) has_zero_linger: bool,
    /// Most bytes of one operation are below this.
    pub(super) scale: usize,
    pub(super) rng: Rng,
}

/// How the ends of a stream are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One task reads and writes.
    Whole,
    /// Borrowed halves in one task.
    Split,
    /// Owned halves in two tasks, each dropped when it is done.
    Owned,
    /// Owned halves in one task, put together again at the end.
    Reunited,
    /// One stream, used through `&` by two tasks.
    Shared,
}

/// What the writer does when it has written everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// `shutdown(Write)` where there is one, else as `Close`.
    Shutdown,
    /// `poll_close` where there is one, else as `Shutdown`.
    Close,
    /// Leaves it to the drop of the stream.
    Nothing,
}

impl Plan {
    /// Plans for both ends that do not make them wait for each other.
    pub(super) fn pair(rng: &mut Rng) -> [Self; 2] {
        let mut plans = [Self::new(rng), Self::new(rng)];
        if plans.iter().all(|plan| plan.finish == Finish::Nothing) {
            plans[1].finish = Finish::Close;
        }
        plans
    }

    fn new(rng: &mut Rng) -> Self {
        let shape = match rng.below(5) {
            0 => Shape::Whole,
            1 => Shape::Split,
            2 => Shape::Owned,
            3 => Shape::Reunited,
            _ => Shape::Shared,
        };
        let reads = rng.chance(250).then(|| rng.below(30));
        let finish = match rng.below(3) {
            0 => Finish::Shutdown,
            1 => Finish::Close,
            // A side that waits for the peer's end has to end its own direction.
            _ if reads.is_some() => Finish::Nothing,
            _ => Finish::Shutdown,
        };
        Self {
            shape,
            writes: rng.below(50),
            reads,
            finish,
            has_zero_linger: rng.chance(60),
            scale: [16, 300, 6_000, 40_000, 120_000][rng.below(5)],
            rng: rng.fork(),
        }
    }
}

/// A length for one operation, nothing included.
pub(super) fn size(rng: &mut Rng, scale: usize) -> usize {
    match rng.below(20) {
        0 => 0,
        1..=3 => rng.below(9),
        4..=17 => rng.below(scale + 1),
        _ => rng.below(120_001),
    }
}
