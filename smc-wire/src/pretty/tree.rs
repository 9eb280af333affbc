//! The tree form: one line per field.

use core::fmt;

use super::value::HexBytes;
use super::{Family, Field, Group, Problem, Text, Visitor, describe};

/// Shows a message as one line per field: offset, bytes, name and value, indented by group.
///
/// Lines of problems begin with `!`. Every line ends with a newline.
#[must_use]
pub const fn tree(family: Family, bytes: &[u8]) -> Text<'_> {
    Text::new(family, bytes, write)
}

fn write(f: &mut fmt::Formatter<'_>, family: Family, bytes: &[u8]) -> fmt::Result {
    let mut writer = TreeWriter {
        f,
        depth: 0,
        result: Ok(()),
    };
    describe(family, bytes, &mut writer);
    writer.result
}

/// Writes each event as a line; after an error of the formatter it does nothing.
struct TreeWriter<'f, 'b> {
    f: &'f mut fmt::Formatter<'b>,
    depth: usize,
    result: fmt::Result,
}

impl TreeWriter<'_, '_> {
    fn line(&mut self, write: impl FnOnce(&mut fmt::Formatter<'_>, usize) -> fmt::Result) {
        if self.result.is_ok() {
            let indent = self.depth.saturating_mul(2);
            self.result = write(self.f, indent);
        }
    }
}

impl Visitor for TreeWriter<'_, '_> {
    fn enter(&mut self, group: &Group) {
        self.line(|f, indent| {
            write!(f, "{:>5}  {:COLUMN$}  {:indent$}", group.offset, "", "")?;
            name(f, group.name, group.index)?;
            f.write_str("\n")
        });
        self.depth = self.depth.saturating_add(1);
    }

    fn field(&mut self, field: &Field<'_>) {
        self.line(|f, indent| {
            write!(f, "{:>5}  ", field.offset)?;
            bytes_column(f, field.bytes)?;
            write!(f, "  {:indent$}", "")?;
            name(f, field.name, field.index)?;
            match field.value {
                // The column to the left shows short byte strings already.
                super::Value::Bytes(bytes) if bytes.len() <= SHOWN => {}
                value => write!(f, ": {value}")?,
            }
            match field.note {
                Some(note) => writeln!(f, " [{note}]"),
                None => f.write_str("\n"),
            }
        });
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn problem(&mut self, problem: &Problem) {
        self.line(|f, _| writeln!(f, "{:>5}  {problem}", "!"));
    }
}

/// Bytes of a field that are shown in the column for them.
const SHOWN: usize = 8;
/// Width of that column: two digits per byte and a mark for what is left out.
const COLUMN: usize = 17;

fn name(f: &mut fmt::Formatter<'_>, name: &str, index: Option<usize>) -> fmt::Result {
    f.write_str(name)?;
    match index {
        Some(index) => write!(f, "[{index}]"),
        None => Ok(()),
    }
}

fn bytes_column(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match bytes.get(..SHOWN) {
        Some(shown) if bytes.len() > SHOWN => write!(f, "{}…", HexBytes(shown)),
        _ => {
            let padding = COLUMN.saturating_sub(bytes.len().saturating_mul(2));
            write!(f, "{}{:padding$}", HexBytes(bytes), "")
        }
    }
}
