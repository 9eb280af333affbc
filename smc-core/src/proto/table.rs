//! Small closed state machines as tables: state x event -> next state.
//!
//! `transitions!` defines the enum of states, one method per event, and a [`TransitionTable`] of all cells,
//! which tests compare with the specification and which can be rendered as a graph.
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

use std::fmt;

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

impl InvalidTransition {
    pub(crate) const fn new(
        machine: &'static str,
        state: &'static str,
        event: &'static str,
    ) -> Self {
        Self {
            machine,
            state,
            event,
        }
    }
}

/// All cells of a machine's table, by name.
///
/// `Display` prints the matrix, one line per state; [`TransitionTable::dot`] prints a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionTable {
    machine: &'static str,
    states: &'static [&'static str],
    events: Vec<Row>,
}

/// Result of one event in each state, in the order of the states.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    event: &'static str,
    next: Vec<Option<&'static str>>,
}

impl TransitionTable {
    pub(crate) fn new(machine: &'static str, states: &'static [&'static str]) -> Self {
        Self {
            machine,
            states,
            events: Vec::new(),
        }
    }

    pub(crate) fn with(
        mut self,
        event: &'static str,
        next: impl Iterator<Item = Option<&'static str>>,
    ) -> Self {
        self.events.push(Row {
            event,
            next: next.collect(),
        });
        self
    }

    /// The table as a directed graph in the DOT language; one edge per pair of states, labelled
    /// with all events that lead from one to the other.
    #[must_use]
    pub fn dot(&self) -> String {
        let mut out = format!("digraph {} {{\n", self.machine);
        for (index, from) in self.states.iter().enumerate() {
            for to in self.states {
                let labels: Vec<_> = self
                    .events
                    .iter()
                    .filter(|row| row.next.get(index).copied().flatten() == Some(to))
                    .map(|row| row.event)
                    .collect();
                if !labels.is_empty() {
                    out.push_str(&format!(
                        "  \"{from}\" -> \"{to}\" [label=\"{}\"];\n",
                        labels.join("\\n")
                    ));
                }
            }
        }
        out.push_str("}\n");
        out
    }
}

impl fmt::Display for TransitionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.states.iter().map(|name| name.len()).max().unwrap_or(0);
        let first = first.max(CORNER.len());
        let mut line = format!("{CORNER:first$}");
        for row in &self.events {
            line.push_str(&format!(" | {:width$}", row.event, width = row.width()));
        }
        writeln!(f, "{}", line.trim_end())?;
        for (index, state) in self.states.iter().enumerate() {
            let mut line = format!("{state:first$}");
            for row in &self.events {
                let next = row.next.get(index).copied().flatten().unwrap_or("-");
                line.push_str(&format!(" | {next:width$}", width = row.width()));
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Row {
    fn width(&self) -> usize {
        let cells = self
            .next
            .iter()
            .flatten()
            .map(|name| name.len())
            .max()
            .unwrap_or(0);
        cells.max(self.event.len())
    }
}

/// Heading of the column of states.
const CORNER: &str = "state";

/// Defines a state enum with one method per event; see the [module](self).
///
/// Each event becomes `fn event(&mut self) -> Result<Self, InvalidTransition>`, which moves to the
/// next state and returns it. `Self::ALL` lists the states, `name()` and `Display` give the name of
/// a state, and `Self::table()` the whole table.
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
                            return Err($crate::proto::table::InvalidTransition::new(
                                stringify!($machine),
                                state.name(),
                                stringify!($event),
                            ));
                        }
                    };
                    *self = next;
                    Ok(next)
                }
            )+

            /// All cells of the table, for tests and documentation.
            #[must_use]
            $vis fn table() -> $crate::proto::table::TransitionTable {
                $crate::proto::table::TransitionTable::new(stringify!($machine), &[$( $name ),+])
                    $(
                        .with(
                            stringify!($event),
                            Self::ALL.iter().map(|state| {
                                let mut state = *state;
                                state.$event().ok().map(Self::name)
                            }),
                        )
                    )+
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
        assert_eq!(Valve::table().to_string(), expected);
    }

    #[test]
    fn the_graph_has_one_edge_per_pair_of_states() {
        let expected = r#"digraph Valve {
  "CLOSED" -> "OPEN" [label="open\nburst"];
  "OPEN" -> "CLOSED" [label="shut"];
  "OPEN" -> "BROKEN" [label="burst"];
  "BROKEN" -> "BROKEN" [label="burst"];
}
"#;
        assert_eq!(Valve::table().dot(), expected);
    }
}
