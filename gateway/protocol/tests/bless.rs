//! Committed files that are made from the frame table. `TIDEGATE_BLESS=1` rewrites them; otherwise they must be current.

use std::path::{Path, PathBuf};

pub fn blessing() -> bool {
    std::env::var_os("TIDEGATE_BLESS").is_some_and(|value| value == "1")
}

/// A path given from this crate's folder.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

pub fn read(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("read {relative}: {error}"))
}

/// Fails unless the file holds `expected`, or makes it so.
pub fn file_is(relative: &str, expected: &str) {
    if blessing() {
        std::fs::create_dir_all(path(relative).parent().unwrap()).unwrap();
        std::fs::write(path(relative), expected).unwrap();
    } else if read(relative) != expected {
        panic!(
            "{relative} is not what the frame table gives; rewrite it with TIDEGATE_BLESS=1 and look at the difference"
        );
    }
}

/// The text of a vector file with one string of the vector `name` replaced.
pub fn with_field(text: &str, name: &str, field: &str, value: &str) -> String {
    let vector = text.find(&format!("\"name\": \"{name}\"")).expect("the vector is in the file");
    let key = format!("\"{field}\": \"");
    let begin = vector + text[vector..].find(&key).expect("the vector has the field") + key.len();
    let end = begin + text[begin..].find('"').expect("a string ends");
    format!("{}{value}{}", &text[..begin], &text[end..])
}
