//! Names of tests, as their sources have them: functions with a test attribute or inside a macro, and titles of TypeScript tests.
//! Text in, names out; and the walk over the workspace's files.

use crate::ids::leading;
use std::path::Path;

/// Names of the tests in a Rust file: functions with a test attribute, and what a macro outside of functions is given: functions,
/// as in `pg_test!(Slots, async fn a7_x(…) {…})`, and names that carry an id, as in `killed_at!(a6_x, …)`.
pub fn rust(text: &str) -> Vec<String> {
    let code = code(text);
    let tokens: Vec<&str> = tokens(&code).collect();
    let is = |at: usize, wanted: &str| tokens.get(at) == Some(&wanted);
    let mut names: Vec<&str> = Vec::new();
    // Whether an attribute of the item that follows makes it a test.
    let mut attributed = false;
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "#" => {
                let end = closing(&tokens, at + 1);
                attributed |= tokens[at..end].contains(&"test");
                at = end;
            }
            // What it makes has the names that it is given where it is called.
            "macro_rules" => at = closing(&tokens, at + 3),
            "fn" => {
                names.extend(tokens.get(at + 1).filter(|_| attributed).copied());
                attributed = false;
                at = function_end(&tokens, at + 2);
            }
            _ if is(at + 1, "!") && !is(at + 2, "=") => {
                let end = closing(&tokens, at + 2);
                names.extend(given(&tokens[(at + 3).min(end)..end]));
                at = end;
            }
            "{" | "}" | ";" => attributed = false,
            _ => {}
        }
        at += 1;
    }
    names.into_iter().map(str::to_owned).collect()
}

/// Names of tests among the arguments of a macro.
fn given<'t>(arguments: &[&'t str]) -> Vec<&'t str> {
    let mut names = Vec::new();
    let mut at = 0;
    while at < arguments.len() {
        let carries = |word: &str| word.contains('_') && !leading(word).is_empty();
        match arguments[at] {
            "fn" => {
                names.extend(arguments.get(at + 1).copied());
                at += 1;
            }
            "(" | "[" | "{" => at = closing(arguments, at),
            word if carries(word) => names.push(word),
            _ => {}
        }
        at += 1;
    }
    names
}

/// Index at which a function ends whose name was before `at`.
fn function_end(tokens: &[&str], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at] {
            "(" | "[" => at = closing(tokens, at),
            "{" => return closing(tokens, at),
            ";" => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Index of the bracket that closes the one at `open`; the end where none does.
fn closing(tokens: &[&str], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth <= 1 => return at,
            ")" | "]" | "}" => depth -= 1,
            _ if depth == 0 => return at,
            _ => {}
        }
    }
    tokens.len()
}

/// Words, and every other character by itself.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    let mut rest = code;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let length = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

/// The text without comments and without what stands in quotes.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest) {
            length
        } else if first == '"' {
            quoted(rest)
        } else if first == '\'' {
            character(rest)
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// Length of a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix('r')?.bytes().take_while(|byte| *byte == b'#').count();
    let body = text[1 + hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&close).map_or(text.len(), |end| 2 + hashes + end + close.len()))
}

/// Length of a string that begins with the quote here; escapes do not end it.
fn quoted(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character here; a lifetime is only its quote.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => quoted(text),
        (_, Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Titles of the tests in a TypeScript file; of a template, its text up to the first placeholder.
pub fn typescript(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("(") {
        let before = &text[..at];
        let word = before.trim_end_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        if !matches!(&before[word.len()..], "test" | "it") || commented(word) {
            continue;
        }
        let title = text[at + 1..].trim_start();
        if title.starts_with(['\'', '"', '`']) {
            let inner = &title[1..quoted(title).max(2) - 1];
            names.push(inner.split("${").next().unwrap_or_default().to_owned());
        }
    }
    names
}

/// Whether a comment begins on the last line of this text.
fn commented(text: &str) -> bool {
    text.rsplit('\n').next().is_some_and(|line| line.trim_start().starts_with("//"))
}

/// Every test of the workspace at `root`, in no order.
pub fn of_workspace(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                // What is built, fetched or hidden.
                if !name.starts_with('.') && !matches!(name.as_str(), "target" | "node_modules" | "dist") {
                    folders.push(path);
                }
                continue;
            }
            let read = || {
                std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            };
            if name.ends_with(".rs") {
                names.extend(rust(&read()));
            } else if name.ends_with(".test.ts") {
                names.extend(typescript(&read()));
            }
        }
    }
    names
}

#[test]
fn rust_tests_are_told_from_other_functions() {
    let text = r###"
        #[test] fn plain() {}
        #[tokio::test(flavor = "multi_thread")]
        #[should_panic]
        async fn awaited() { fn inner() {} }
        #[cfg(feature = "x")] fn other() {}
        fn helper() { let _ = "#[test] fn quoted() {}"; }
        // #[test] fn commented() {}
        /* #[test] fn also() {} */
        const RAW: &str = r#"#[test] fn "raw"() {}"#;
        pg_test!(
            Private { "a" = "b)" },
            async fn on_postgresql(db: Database) -> Result<(), Box<dyn Error + 'static>> { let c = '('; fn deep() {} }
        );
        macro_rules! each { ($($name:ident)*) => { $(mod $name { #[test] fn pg15() {} })* } }
        each!(a6_killed_at_x, a6_killed_at_y, SOMETHING_ELSE, plain_word);
        fn sized() -> [u8; 2] { assert!(a1_x != 2); [0; 2] }
        #[test]
        fn last() {}
    "###;
    let names = ["plain", "awaited", "on_postgresql", "a6_killed_at_x", "a6_killed_at_y", "last"];
    assert_eq!(rust(text), names);
}

#[test]
fn an_attribute_belongs_to_the_item_that_follows_it() {
    assert_eq!(rust("#[test] mod tests { fn helper() {} }"), [""; 0]);
    assert_eq!(rust("#[test] pub(crate) async fn it_is() {} fn helper() {}"), ["it_is"]);
}

#[test]
fn typescript_titles_are_read_whatever_their_quotes() {
    let text = r#"
        test('v4 a mismatch', () => {});
        test(
          "it's v5", async () => {});
        it(`v3 ${code}: a new id`, () => {});
        // test('commented', () => {});
        test.skip('skipped', () => {});
        describe('a group', () => {});
        latest('not one');
        test(name, () => {});
    "#;
    assert_eq!(typescript(text), ["v4 a mismatch", "it's v5", "v3 "]);
}
