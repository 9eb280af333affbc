//! Small closed state machines as tables: state x event -> next state.
//!
//! `transitions!` defines the enum of states, one method per event, and for tests a matrix of all
//! cells, which they compare with the specification.
//!
//! ```text
//! transitions! {
//!     /// A valve.
//!     #[derive(PartialOrd)]
//!     pub(crate) enum Valve {
//!         /// No flow.
//!         Closed = "CLOSED",
//!         /// Full flow.
//!         Open = "OPEN",
//!         /// It can no longer be closed.
//!         Broken = "BROKEN",
//!     }
//!
//!     /// The valve is opened.
//!     open(Closed => Open);
//!     /// The valve is closed.
//!     shut(Open => Closed);
//!     /// An event with several rows.
//!     burst(Closed => Open, Open | Broken => Broken);
//! }
//!
//! let mut valve = Valve::Closed;
//! assert_eq!(valve.open(), Ok(Valve::Open));
//! assert!(valve.open().is_err());     // still open, the state is unchanged
//! ```
//!
//! If the result of an event depends on more than the state, define two events.

/// An event occurred in a state that has no row for it. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{machine}: {event} is not possible in state {state}")]
pub struct InvalidTransition {
    /// Name of the state enum.
    pub machine: &'static str,
    /// The state it was in.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

/// All cells of a machine's table, one line per state: the result of each event by name, in the
/// order of the states.
#[cfg(test)]
pub(crate) fn matrix(
    states: &[&'static str],
    events: &[(&'static str, Vec<Option<&'static str>>)],
) -> String {
    let cell = |next: Option<&'static str>| next.unwrap_or("-");
    let mut columns = vec![[&["state"], states].concat()];
    for (event, next) in events {
        columns.push(
            [*event]
                .into_iter()
                .chain(next.iter().copied().map(cell))
                .collect(),
        );
    }
    let widths = columns
        .iter()
        .map(|column| column.iter().map(|cell| cell.len()).max());
    let widths: Vec<_> = widths.map(Option::unwrap_or_default).collect();
    let mut out = String::new();
    for row in 0..=states.len() {
        let cells = columns.iter().zip(&widths);
        let cells = cells.map(|(column, width)| format!("{:width$}", column[row]));
        let line = cells.collect::<Vec<_>>().join(" | ");
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Defines a state enum with one method per event; see the [module](self).
///
/// Each event becomes `fn event(&mut self) -> Result<Self, InvalidTransition>`, which moves to the
/// next state and returns it. `Self::ALL` lists the states, `name()` and `Display` give the name of
/// a state, and in tests `Self::table()` the whole table.
macro_rules! transitions {
    (
        $(#[$enum_meta:meta])*
        $vis:vis enum $machine:ident {
            $( $(#[$state_meta:meta])* $state:ident = $name:literal ),+ $(,)?
        }
        $(
            $(#[$event_meta:meta])*
            $event:ident ( $( $( $from:ident )|+ => $to:ident ),+ $(,)? );
        )+
    ) => {
        $(#[$enum_meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $machine {
            $( $(#[$state_meta])* $state, )+
        }

        #[allow(dead_code, reason = "a table is generated whole")]
        impl $machine {
            /// All states, in the order of their declaration.
            $vis const ALL: &[Self] = &[$( Self::$state ),+];

            /// The name of the state in the protocol.
            #[must_use]
            $vis const fn name(self) -> &'static str {
                match self {
                    $( Self::$state => $name, )+
                }
            }

            $(
                $(#[$event_meta])*
                ///
                /// Moves to the next state and returns it.
                ///
                /// # Errors
                ///
                /// [`InvalidTransition`]($crate::proto::table::InvalidTransition) when the table
                /// has no row for it; nothing changes then.
                $vis fn $event(
                    &mut self,
                ) -> Result<Self, $crate::proto::table::InvalidTransition> {
                    let next = match *self {
                        $( $( Self::$from )|+ => Self::$to, )+
                        #[allow(unreachable_patterns, reason = "a row may cover every state")]
                        state => {
                            return Err($crate::proto::table::InvalidTransition {
                                machine: stringify!($machine),
                                state: state.name(),
                                event: stringify!($event),
                            });
                        }
                    };
                    *self = next;
                    Ok(next)
                }
            )+

            /// All cells of the table, one line per state.
            #[cfg(test)]
            $vis fn table() -> String {
                let events = [$(
                    (stringify!($event), {
                        let next = |state: &Self| { *state }.$event().ok().map(Self::name);
                        Self::ALL.iter().map(next).collect()
                    }),
                )+];
                $crate::proto::table::matrix(&[$( $name ),+], &events)
            }
        }

        impl ::std::fmt::Display for $machine {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use transitions;

#[cfg(test)]
mod tests {
    transitions! {
        /// A valve.
        enum Valve {
            /// No flow.
            Closed = "CLOSED",
            /// Full flow.
            Open = "OPEN",
            /// It can no longer be closed.
            Broken = "BROKEN",
        }

        /// The valve is opened.
        open(Closed => Open);
        /// The valve is closed.
        shut(Open => Closed);
        /// The valve bursts.
        burst(Closed => Open, Open | Broken => Broken);
    }

    #[test]
    fn events_move_the_state_and_return_it() {
        let mut valve = Valve::Closed;
        assert_eq!(valve.open(), Ok(Valve::Open));
        assert_eq!(valve, Valve::Open);
        assert_eq!(valve.burst(), Ok(Valve::Broken));
    }

    #[test]
    fn an_event_without_a_row_changes_nothing_and_names_both() {
        let mut valve = Valve::Broken;
        let error = valve.open().unwrap_err();
        assert_eq!(valve, Valve::Broken);
        assert_eq!(
            error.to_string(),
            "Valve: open is not possible in state BROKEN"
        );
    }

    #[test]
    fn the_matrix_shows_every_cell() {
        let expected = "\
state  | open | shut   | burst
CLOSED | OPEN | -      | OPEN
OPEN   | -    | CLOSED | BROKEN
BROKEN | -    | -      | BROKEN
";
        assert_eq!(Valve::table(), expected);
    }
}
