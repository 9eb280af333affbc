//! Tables of text.

use std::fmt::Write as _;

/// A table whose columns are as wide as their longest cell.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&str]) -> Self {
        Self {
            rows: vec![header.iter().map(|name| (*name).to_owned()).collect()],
        }
    }

    pub(super) fn add(&mut self, row: Vec<String>) {
        // Without runs of spaces, by which a cell could look like the end of its row.
        let cells = row.iter().map(|cell| {
            let words: Vec<_> = cell.split_whitespace().collect();
            cut(&printable(&words.join(" ")), CELL_MAX)
        });
        self.rows.push(cells.collect());
    }

    pub(super) fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a string cannot fail.
                let _ = write!(line, "{cell:<width$} ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A text of another process without characters that a terminal would act on, or that change how
/// others are shown.
pub(crate) fn printable(text: &str) -> String {
    let replace = |char: char| match is_printable(char) {
        true => char,
        false => char::REPLACEMENT_CHARACTER,
    };
    text.chars().map(replace).collect()
}

/// A text of another process or machine, which can have any length, as a terminal gets it.
pub(crate) fn shown(text: &str) -> String {
    printable(&cut(text, TEXT_MAX))
}

/// JSON with such characters as escapes. JSON itself has none of them outside of strings.
pub(crate) fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if is_printable(char) {
            text.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// Neither a control character (C0, DEL, C1), nor one of Unicode's format characters (such as those
/// for the direction of text) or separators of lines and paragraphs, nor a character that is shown
/// as nothing or as a blank and is no white space, nor one that changes the character before it.
fn is_printable(char: char) -> bool {
    !char.is_control()
        && !matches!(
            char,
            '\u{ad}'
                | '\u{300}'..='\u{36f}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{1ab0}'..='\u{1aff}'
                | '\u{1dc0}'..='\u{1dff}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{20d0}'..='\u{20ff}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{fe20}'..='\u{fe2f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e01ef}'
        )
}

/// A text, cut to so many characters; `..` shows that it was.
pub(super) fn cut(text: &str, len: usize) -> String {
    if text.chars().count() <= len {
        return text.to_owned();
    }
    let kept: String = text.chars().take(len.saturating_sub(2)).collect();
    kept + ".."
}

/// Longest text that is shown, in characters.
const TEXT_MAX: usize = 200;

/// Longest cell, in characters: an address with its port fits.
const CELL_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_needed_and_nothing_reaches_the_terminal() {
        let mut table = Table::new(&["State", "Peer"]);
        table.add(vec!["ACTIVE".to_owned(), "\u{1b}[31mred".to_owned()]);
        assert_eq!(table.text(), "State  Peer\nACTIVE \u{fffd}[31mred\n");
        table.add(vec!["x".repeat(100_000), String::new()]);
        assert!(table.text().len() < 500);
        let mut table = Table::new(&["State"]);
        table.add(vec![format!("ACTIVE{}LISTEN", " ".repeat(80))]);
        assert_eq!(table.text(), "State\nACTIVE LISTEN\n");
        for blank in [
            '\u{2800}', '\u{115f}', '\u{3164}', '\u{ffa0}', '\u{fe0f}', '\u{301}',
        ] {
            let mut table = Table::new(&["State"]);
            table.add(vec![format!("ACTIVE{blank}LISTEN")]);
            assert_eq!(table.text(), "State\nACTIVE\u{fffd}LISTEN\n", "{blank:?}");
        }
        assert_eq!(cut("127.0.0.1:8080", 9), "127.0.0..");
        assert_eq!(cut("127.0.0.1", 9), "127.0.0.1");
    }

    #[test]
    fn text_neither_controls_the_terminal_nor_changes_its_direction() {
        let text = "\u{9b}31m \u{7f}\u{202e}gpj.\u{2066}\u{e0041} \u{e9}";
        assert_eq!(
            printable(text),
            "\u{fffd}31m \u{fffd}\u{fffd}gpj.\u{fffd}\u{fffd} \u{e9}"
        );
        let json = serde_json::to_string(text).unwrap();
        let line = escaped(&json);
        assert_eq!(
            line,
            "\"\\u009b31m \\u007f\\u202egpj.\\u2066\\udb40\\udc41 \u{e9}\""
        );
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
    }
}
