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
        let cells = row.iter().map(|cell| cut(&printable(cell), CELL_MAX));
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

/// A text of another process without characters that a terminal would act on.
pub(crate) fn printable(text: &str) -> String {
    let replace = |char: char| match char.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => char,
    };
    text.chars().map(replace).collect()
}

/// A text, cut to so many characters; `..` shows that it was.
pub(super) fn cut(text: &str, len: usize) -> String {
    if text.chars().count() <= len {
        return text.to_owned();
    }
    let kept: String = text.chars().take(len.saturating_sub(2)).collect();
    kept + ".."
}

/// Longest cell, in characters.
const CELL_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_needed_and_nothing_reaches_the_terminal() {
        let mut table = Table::new(&["State", "Peer"]);
        table.add(vec!["ACTIVE".to_owned(), "\u{1b}[31mred".to_owned()]);
        assert_eq!(table.text(), "State  Peer\nACTIVE \u{fffd}[31mred\n");
        table.add(vec!["x".repeat(100_000), String::new()]);
        assert!(table.text().len() < 2000);
        assert_eq!(cut("127.0.0.1:8080", 9), "127.0.0..");
        assert_eq!(cut("127.0.0.1", 9), "127.0.0.1");
    }
}
