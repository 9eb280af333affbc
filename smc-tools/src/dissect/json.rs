//! One JSON object per message and line.

use serde_json::{Value as Json, json};
use smc_wire::pretty;

use super::describe::{Description, kind};
use super::hex;
use super::message::{Family, Message};

/// A message of a capture.
pub(super) fn of_message(file: &str, message: &Message, with_hex: bool) -> Json {
    let object = json!({
        "file": file,
        "frame": message.mark.frame,
        "time": message.mark.time.map(|time| time.to_string()),
        "src": message.src.to_string(),
        "dst": message.dst.to_string(),
        "family": message.family,
        "type": message.kind(),
        "retransmission": message.retransmission,
    });
    let description = Description::of_message(message);
    finish(object, description, &message.bytes, with_hex)
}

/// A message from the command line.
pub(super) fn of_bytes(
    family: Family,
    content: pretty::Family,
    bytes: &[u8],
    description: Description,
    with_hex: bool,
) -> Json {
    let object = json!({ "family": family, "type": kind(content, bytes) });
    finish(object, description, bytes, with_hex)
}

fn finish(mut object: Json, description: Description, bytes: &[u8], with_hex: bool) -> Json {
    object["fields"] = Json::Object(description.fields);
    if let Some(error) = description.error {
        object["error"] = json!(error);
    }
    if !description.notes.is_empty() {
        object["notes"] = json!(description.notes);
    }
    if with_hex {
        object["hex"] = json!(hex::compact(bytes));
    }
    object
}
