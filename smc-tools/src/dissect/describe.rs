//! The fields of a message as JSON, from the printer of `smc-wire`.

use serde_json::{Map, Value as Json, json};
use smc_wire::clc::ClcType;
use smc_wire::cursor::Cursor;
use smc_wire::llc::MessageType;
use smc_wire::option::{self, SmcOption};
use smc_wire::pretty::{self, Field, Group, Problem, Value, Visitor};

use super::message::Message;

/// All fields of a message, and what is wrong with it.
#[derive(Debug)]
pub(super) struct Description {
    /// Fields by name, groups as objects, lists as arrays.
    pub(super) fields: Map<String, Json>,
    /// Why it does not decode.
    pub(super) error: Option<String>,
    /// What is odd about it, although it decodes.
    pub(super) notes: Vec<String>,
}

impl Description {
    /// Reads all fields that are there, also of a message that does not decode.
    pub(super) fn of(family: pretty::Family, bytes: &[u8]) -> Self {
        let mut collector = Collector::default();
        for (name, value) in summary(family, bytes) {
            collector.put(name, None, value);
        }
        pretty::describe(family, bytes, &mut collector);
        if family == pretty::Family::Llc {
            collector.refuse_unknown(bytes);
        }
        let Collector {
            fields,
            refused,
            missing,
            notes,
            ..
        } = collector;
        let error = refused.or(missing).or_else(|| no_smc_option(family, bytes));
        Self {
            fields,
            error,
            notes,
        }
    }

    /// The same for a message of a capture, of which bytes may not have been captured.
    pub(super) fn of_message(message: &Message) -> Self {
        let mut description = Self::of(message.content(), &message.bytes);
        if let Some(cut) = message.cut {
            description.error = Some(cut.to_string());
        }
        description
    }
}

/// The name of a message, as `ADD_LINK`; the code if it is unknown.
pub(super) fn kind(family: pretty::Family, bytes: &[u8]) -> String {
    let at = match family {
        pretty::Family::Clc => CLC_TYPE,
        _ => 0,
    };
    let code = bytes.get(at).copied();
    let known = match family {
        pretty::Family::TcpOption => return "OPTION".to_owned(),
        pretty::Family::CdcR | pretty::Family::CdcD(_) => return "CDC".to_owned(),
        pretty::Family::Clc => code.and_then(ClcType::from_code).map(ClcType::kind),
        pretty::Family::Llc => code.and_then(MessageType::from_byte).map(MessageType::kind),
        _ => None,
    };
    match (known, code) {
        (Some(kind), _) => kind.name().replace(' ', "_"),
        (None, Some(code)) => format!("UNKNOWN_{code:#04x}"),
        (None, None) => "UNKNOWN".to_owned(),
    }
}

/// Offset of the type in CLC messages.
const CLC_TYPE: usize = 4;
/// Offset of the version and flag byte in CLC messages.
const CLC_FLAGS: usize = 7;
/// Offset of the flag byte in LLC messages, and the bit that marks a response.
const LLC_FLAGS: usize = 3;
const LLC_RESPONSE: u8 = 0x80;

/// What tools ask of every message: its version, and whether it is a response.
fn summary(family: pretty::Family, bytes: &[u8]) -> Vec<(&'static str, Json)> {
    match family {
        pretty::Family::Clc => {
            let version = bytes.get(CLC_FLAGS).map(|flags| json!(flags >> 4));
            version
                .map(|version| ("version", version))
                .into_iter()
                .collect()
        }
        pretty::Family::Llc => {
            let Some((first, flags)) = bytes.first().zip(bytes.get(LLC_FLAGS)) else {
                return Vec::new();
            };
            // The version nibble is 0 in version 1.
            let version = if first >> 4 == 0 { 1 } else { first >> 4 };
            vec![
                ("version", json!(version)),
                ("response", json!(flags & LLC_RESPONSE != 0)),
            ]
        }
        _ => Vec::new(),
    }
}

/// The printer shows any TCP options; here one of them has to be that of SMC.
fn no_smc_option(family: pretty::Family, bytes: &[u8]) -> Option<String> {
    if family != pretty::Family::TcpOption || option::find(bytes).is_some() {
        return None;
    }
    match SmcOption::parse(bytes) {
        Err(error) if bytes.first() == Some(&option::KIND) => Some(error.to_string()),
        _ => Some("there is no SMC option".to_owned()),
    }
}

/// Puts fields into JSON objects.
#[derive(Default)]
struct Collector {
    /// What is outside of all groups.
    fields: Map<String, Json>,
    /// The groups that have begun, outermost first.
    open: Vec<(Group, Map<String, Json>)>,
    refused: Option<String>,
    missing: Option<String>,
    notes: Vec<String>,
}

impl Collector {
    /// Adds a member to the innermost group; elements of a list are gathered in an array.
    fn put(&mut self, name: &str, index: Option<usize>, value: Json) {
        let object = self
            .open
            .last_mut()
            .map_or(&mut self.fields, |(_, object)| object);
        match index {
            None => {
                object.insert(name.to_owned(), value);
            }
            Some(_) => match object.get_mut(name) {
                Some(Json::Array(list)) => list.push(value),
                _ => {
                    object.insert(name.to_owned(), json!([value]));
                }
            },
        }
    }

    /// Receivers silently drop types they do not know; a dissector has to report them.
    fn refuse_unknown(&mut self, bytes: &[u8]) {
        let unknown = |kind: &&u8| MessageType::from_byte(**kind).is_none();
        if let Some(kind) = bytes.first().filter(unknown) {
            self.refused = Some(format!("no LLC message has the type {kind:#04x}"));
        }
    }
}

impl Visitor for Collector {
    fn enter(&mut self, group: &Group) {
        self.open.push((*group, Map::new()));
    }

    fn field(&mut self, field: &Field<'_>) {
        self.put(field.name, field.index, to_json(field.value));
    }

    fn leave(&mut self) {
        if let Some((group, object)) = self.open.pop() {
            self.put(group.name, group.index, Json::Object(object));
        }
    }

    fn problem(&mut self, problem: &Problem) {
        match problem {
            Problem::Missing { .. } => {
                self.missing.get_or_insert_with(|| problem.to_string());
            }
            Problem::Rejected(error) => {
                self.refused.get_or_insert_with(|| error.to_string());
            }
            _ => self.notes.push(problem.to_string()),
        }
    }
}

/// Numbers that count stay numbers; identifiers become text, because they may have 64 bits.
fn to_json(value: Value<'_>) -> Json {
    match value {
        Value::Unsigned(value) => json!(value),
        Value::Code { value, name, .. } => json!({ "code": value, "name": name }),
        Value::Size { code, bytes } => json!({ "code": code, "bytes": bytes }),
        Value::Flag(value) => json!(value),
        Value::Cursor(Cursor { wrap, count }) => json!({ "wrap": wrap, "count": count }),
        Value::Text(_) | Value::Eid(_) => json!(value.to_string().trim_matches('"')),
        _ => json!(value.to_string()),
    }
}
