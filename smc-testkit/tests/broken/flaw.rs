/// What a device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,

    // Its identity and what it reaches.
    Nameless,
    NoLimits,
    NativeGid,
    RestlessGid,
    ReachesNothing,
    ReachesEverything,
    Hangs,

    // Buffers and tokens.
    ShortBuffers,
    ClampsLength,
    RecyclesMemory,
    OneMemory,
    NumbersTokens,
    NeverFrees,

    // Moves.
    WritesOffByOne,
    TakesFirstSlice,
    RefusesEmpty,
    ReordersMoves,
    Truncates,
    WrapsOffsets,
    SwallowsErrors,
    AllWritersPermitted,
    AllOwnersPermitted,
    RedirectsFreed,
    TearsWords,
    WritesBackwards,

    // Signals and the doorbell.
    Mute,
    AlwaysSignals,
    SignalsFirst,
    LosesSome,
    ReportsAll,
    ArmForgets,
    PollForgets,
    PollDisarms,
    ArmedDrainForgets,
    EmptyDrainDisarms,
    NoBell,
    RestlessBell,
    FreedSpoilsDrain,
    Panics,

    // Attachments.
    OneSidedNocopy,
    AttachesCopy,
    AttachesAnything,
    DetachWipes,

    // Departures.
    ReportsGoneTwice,
    HidesGone,
    AllGoTogether,
    DeathWipes,
    IgnoresRemoval,
}
