//! The typed primary key of a row (K1), in the forms that indexes, digests and the wire need.

use sha2::{Digest, Sha256};

/// Portable type of a primary key (K1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyType {
    /// text, varchar, uuid.
    String,
    /// int2, int4.
    Int,
    /// int8.
    Int64,
}

/// A primary-key value. Ordered as P5 wants: integers by value, text by code points.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKey {
    /// An integer key of any width.
    Int(i64),
    /// A text-like key: text, varchar, uuid.
    Text(String),
}

/// Longest text key that an index entry carries whole, in bytes. PostgreSQL's limit is about 2,700 for a whole entry; ours
/// also holds a scope and a relation.
const INDEX_TEXT_BYTES_MAX: usize = 1000;
const INDEX_PREFIX_BYTES: usize = 500;

impl RowKey {
    /// Reads PostgreSQL's text output for a key of the given type; `None` when it is not a value of that type.
    pub fn from_text(key_type: KeyType, text: &str) -> Option<RowKey> {
        match key_type {
            KeyType::String => Some(RowKey::Text(text.to_owned())),
            KeyType::Int | KeyType::Int64 => text.parse().ok().map(RowKey::Int),
        }
    }

    /// The key as PostgreSQL's text input takes it.
    pub fn to_text(&self) -> String {
        match self {
            RowKey::Int(value) => value.to_string(),
            RowKey::Text(text) => text.clone(),
        }
    }

    /// Bounded and unambiguous form for our own indexes, so that they never refuse a key that the application's index took.
    /// Equal keys have equal forms; different keys differ (long ones up to a SHA-256 collision).
    pub fn index_bytes(&self) -> Vec<u8> {
        match self {
            RowKey::Int(value) => {
                let mut out = vec![1];
                // The flipped sign bit makes byte order numeric order.
                out.extend_from_slice(&((*value as u64) ^ (1 << 63)).to_be_bytes());
                out
            }
            RowKey::Text(text) if text.len() <= INDEX_TEXT_BYTES_MAX => {
                let mut out = Vec::with_capacity(1 + text.len());
                out.push(2);
                out.extend_from_slice(text.as_bytes());
                out
            }
            RowKey::Text(text) => {
                let mut out = vec![3];
                out.extend_from_slice(&text.as_bytes()[..INDEX_PREFIX_BYTES]);
                out.extend_from_slice(&Sha256::digest(text.as_bytes()));
                out
            }
        }
    }

    /// The form that row digests cover: `0x01` and eight bytes big-endian two's complement, or `0x02` and UTF-8.
    pub(crate) fn digest_bytes(&self) -> Vec<u8> {
        match self {
            RowKey::Int(value) => {
                let mut out = vec![1];
                out.extend_from_slice(&value.to_be_bytes());
                out
            }
            RowKey::Text(text) => {
                let mut out = Vec::with_capacity(1 + text.len());
                out.push(2);
                out.extend_from_slice(text.as_bytes());
                out
            }
        }
    }

    /// One MessagePack value: the smallest integer form, or a string.
    pub fn wire(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            RowKey::Int(value) => crate::value::write_int(&mut out, *value),
            RowKey::Text(text) => crate::value::write_str(&mut out, text),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dt02_integer_keys_beyond_two_to_the_53_stay_distinct_in_every_form() {
        let keys = [i64::MIN, -9007199254740993, -1, 0, 9007199254740992, 9007199254740993, i64::MAX]
            .map(RowKey::Int);
        for pair in keys.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].index_bytes() < pair[1].index_bytes(), "index order is numeric order");
            assert_ne!(pair[0].digest_bytes(), pair[1].digest_bytes());
            assert_ne!(pair[0].wire(), pair[1].wire());
        }
    }

    #[test]
    fn dt08_no_two_text_keys_share_a_form() {
        let long = "x".repeat(5000);
        let keys = ["", "a", "a/b", "a.b", "a\"b", "é", "e\u{301}", "1", &long, &(long.clone() + "y")]
            .map(|t| RowKey::Text(t.to_owned()));
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a.index_bytes() == b.index_bytes(), i == j);
                assert_eq!(a.digest_bytes() == b.digest_bytes(), i == j);
            }
            assert!(a.index_bytes().len() <= 1001);
        }
        assert_ne!(RowKey::Text("1".into()).digest_bytes(), RowKey::Int(1).digest_bytes());
    }
}
