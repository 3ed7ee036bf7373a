//! PostgreSQL's COPY text format, one row at a time. Pure.

/// Splits one row into its fields and undoes the escapes; `\N` is null. `scratch` holds the unescaped text of one row.
///
/// # Errors
/// `None` when it is not a row of exactly `columns` fields, or not UTF-8.
pub(super) fn fields<'s>(
    line: &[u8],
    columns: usize,
    scratch: &'s mut Vec<u8>,
    spans: &mut Vec<Option<(usize, usize)>>,
) -> Option<&'s str> {
    scratch.clear();
    spans.clear();
    let line = line.strip_suffix(b"\n")?;
    for field in line.split(|byte| *byte == b'\t') {
        if field == b"\\N" {
            spans.push(None);
            continue;
        }
        let start = scratch.len();
        unescape(field, scratch)?;
        spans.push(Some((start, scratch.len())));
    }
    (spans.len() == columns).then_some(())?;
    std::str::from_utf8(scratch).ok()
}

/// Tabs and line ends inside of a value are always escaped, so splitting first is safe.
fn unescape(field: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = field;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        out.push(match rest.get(at + 1)? {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            // COPY TO writes no octal or hexadecimal escapes; anything else stands for itself.
            other => *other,
        });
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(line: &str, columns: usize) -> Option<Vec<Option<String>>> {
        let (mut scratch, mut spans) = (Vec::new(), Vec::new());
        let text = fields(line.as_bytes(), columns, &mut scratch, &mut spans)?.to_owned();
        Some(spans.iter().map(|span| span.map(|(from, to)| text[from..to].to_owned())).collect())
    }

    #[test]
    fn dt08_null_empty_and_backslashes_stay_apart() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(row("1\t\\N\t\n", 3), Some(vec![some("1"), None, some("")]));
        assert_eq!(row("\\\\N\ta\\tb\\nc\\\\\n", 2), Some(vec![some("\\N"), some("a\tb\nc\\")]));
        assert_eq!(row("é\\b\\f\\r\\v\n", 1), Some(vec![some("é\u{8}\u{c}\r\u{b}")]));
        assert_eq!(row("1\t2\n", 3), None);
        assert_eq!(row("1\\\n", 1), None, "an escape of nothing");
    }
}
