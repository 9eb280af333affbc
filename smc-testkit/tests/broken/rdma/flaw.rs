/// What an SMC-R device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,

    // Its identity and addresses.
    Nameless,
    DoublesAddresses,
    RestlessAddresses,
    OpensAnywhere,
    Panics,

    // Links.
    WrongMac,
    Renumbers,
    IgnoresMtu,
    ConnectsAnywhere,
    IgnoresPsn,
    FewLinks,
    NeverFreesLinks,
    Stingy,

    // Messages.
    OneWay,
    PadsMessages,
    AlwaysLong,
    ReordersMessages,
    WrongLink,
    TruncatesMessages,
    LosesWhenFull,
    LosesSome,

    // Posts.
    WritesOffByOne,
    SwapsPieces,
    SwapsWrites,
    WritesLate,
    ReordersCompletions,
    ReportsCompletionsTwice,
    SmallQueue,
    NeverRecovers,
    ClampsPieces,

    // Memory.
    CopiesMemory,
    ShowsPart,
    ShortMemory,
    OneRegistration,
    NeverFreesMemory,
    IgnoresAccess,
    OneDomain,

    // Bounds.
    AnyKeyDoes,
    ClampsWrites,
    SwallowsRefusals,
    AllGoTogether,

    // The doorbell.
    ArmForgets,
    ArmedDrainForgets,
    EmptyDrainDisarms,
    NoBell,
    RestlessBell,
    LosesCompletions,

    // The end.
    CloseIsNothing,
    PostsAfterClose,
    HidesDown,
    ReportsDownTwice,
    DropOrderMatters,
    HidesPorts,
    IgnoresRemoval,
}
