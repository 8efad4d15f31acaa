//! Columns for people. Cells are escaped: names and commands come from inside sandboxes.

use anyhow::Result;

use crate::terminal;

/// Between columns.
const GAP: &str = "  ";

/// Prints a header and rows to standard output.
pub(crate) fn print<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> Result<()> {
    terminal::data(&render(header, rows))
}

fn render<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> String {
    let escaped = rows.iter().map(|row| {
        row.each_ref()
            .map(|cell| terminal::escape(cell).into_owned())
    });
    let lines: Vec<[String; N]> = std::iter::once(header.map(str::to_owned))
        .chain(escaped)
        .collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let lines = lines.iter().map(|line| {
        let cells = line
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_rows_stay_on_their_lines() {
        let rows = [["a".into(), "ü\n".into()], ["longer".into(), String::new()]];
        assert_eq!(
            render(["NAME", "X"], &rows),
            "NAME    X\na       ü\\n\nlonger"
        );
    }
}
