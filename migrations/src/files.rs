//! The migration files in replay order, and the hash that stands for them. Pure.

use sha2::{Digest, Sha256};

/// One file: its name and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// File name without folder.
    pub name: &'static str,
    /// Its SQL.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => { &[$(File { name: $name, text: include_str!(concat!("../sql/", $name)) }),*] };
}

/// The one list that every program with the full loader replays (L3).
static FILES: &[File] = files![
    "0001_foundation.sql",
    "0002_stream.sql",
    "0003_registry.sql",
    "0004_log.sql",
    "0005_write.sql",
    "0006_definition.sql",
    "0007_fence.sql",
    "0008_register.sql",
    "0009_push.sql",
    "0010_check.sql",
    "0011_validate.sql",
];

/// Number of the schema: that of its last file. Grows when a file is added; a change of text shows in the hash alone.
pub const GENERATION: i32 = 11;

/// Name of the full loader (L3).
pub const LOADER: &str = "tidegate";

/// What a loader replays and stamps. Programs use [`Schema::full`]; others exist for partial loaders and tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Schema generation.
    pub generation: i32,
    /// Loader name: a partial loader has one of its own, so that the full one replays after it (L3).
    pub loader: &'static str,
    /// In replay order.
    pub files: Vec<File>,
}

impl Schema {
    /// Every file.
    pub fn full() -> Schema {
        Schema { generation: GENERATION, loader: LOADER, files: FILES.to_vec() }
    }

    /// L2: SHA-256 over each file's name and text in replay order, each with its length before it, so that no two
    /// lists agree by moving a boundary.
    pub fn content_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in self.files.iter().flat_map(|file| [file.name, file.text]) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(files: &[(&'static str, &'static str)]) -> [u8; 32] {
        let files = files.iter().map(|&(name, text)| File { name, text }).collect();
        Schema { generation: 1, loader: "x", files }.content_hash()
    }

    #[test]
    fn l2_moving_a_boundary_changes_the_hash() {
        let one = hash(&[("a", "bc"), ("d", "e")]);
        assert_ne!(one, hash(&[("ab", "c"), ("d", "e")]), "between name and text");
        assert_ne!(one, hash(&[("a", "bcd"), ("", "e")]), "between two files");
        assert_ne!(one, hash(&[("a", "bcde")]), "two files joined");
        assert_ne!(one, hash(&[("d", "e"), ("a", "bc")]), "order");
        assert_eq!(one, hash(&[("a", "bc"), ("d", "e")]));
    }

    #[test]
    fn l2_any_byte_of_any_file_changes_the_hash() {
        let full = Schema::full();
        for index in 0..full.files.len() {
            let mut changed = full.clone();
            changed.files[index].text = &changed.files[index].text[1..];
            assert_ne!(full.content_hash(), changed.content_hash(), "{}", full.files[index].name);
        }
    }

    #[test]
    fn l3_the_list_names_every_file_of_the_folder_in_order_and_the_generation_is_the_last_one() {
        let mut names: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/sql"))
            .expect("sql folder")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("a plain name"))
            .collect();
        names.sort();
        let listed: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        assert_eq!(listed, names);
        let last = listed.last().and_then(|name| name.split('_').next()).expect("a numbered file");
        assert_eq!(last.parse(), Ok(GENERATION));
    }
}
