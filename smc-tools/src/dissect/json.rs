//! One JSON object per message and line.

use serde_json::{Map, Value as Json, json};
use smc_wire::pretty;

use super::describe::{Description, kind};
use super::hex;
use super::message::{Family, Message};

/// A message of a capture.
pub(super) fn of_message(file: &str, message: &Message, with_hex: bool) -> Json {
    let mut object = Map::new();
    object.insert("file".to_owned(), json!(file));
    object.insert("frame".to_owned(), json!(message.mark.frame));
    object.insert(
        "time".to_owned(),
        json!(message.mark.time.map(|time| time.to_string())),
    );
    object.insert("src".to_owned(), json!(message.src.to_string()));
    object.insert("dst".to_owned(), json!(message.dst.to_string()));
    object.insert("family".to_owned(), json!(message.family.name()));
    object.insert("type".to_owned(), json!(message.kind()));
    object.insert("retransmission".to_owned(), json!(message.retransmission));
    finish(
        object,
        Description::of_message(message),
        &message.bytes,
        with_hex,
    )
}

/// A message from the command line.
pub(super) fn of_bytes(
    family: Family,
    content: pretty::Family,
    bytes: &[u8],
    description: Description,
    with_hex: bool,
) -> Json {
    let mut object = Map::new();
    object.insert("family".to_owned(), json!(family.name()));
    object.insert("type".to_owned(), json!(kind(content, bytes)));
    finish(object, description, bytes, with_hex)
}

fn finish(
    mut object: Map<String, Json>,
    description: Description,
    bytes: &[u8],
    with_hex: bool,
) -> Json {
    object.insert("fields".to_owned(), Json::Object(description.fields));
    if let Some(error) = description.error {
        object.insert("error".to_owned(), json!(error));
    }
    if !description.notes.is_empty() {
        object.insert("notes".to_owned(), json!(description.notes));
    }
    if with_hex {
        object.insert("hex".to_owned(), json!(hex::compact(bytes)));
    }
    Json::Object(object)
}
