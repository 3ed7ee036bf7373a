//! Scope names and the templates that make them.

use std::fmt;

/// Name of a scope: the unit of subscription, cursor, checksum and rebuild.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeName(pub String);

impl ScopeName {
    /// SHA-256 of the name: its unique key in our tables, so that no name is too long for an index.
    pub fn hash(&self) -> [u8; 32] {
        use sha2::Digest;
        sha2::Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Display for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One part of a template.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TemplatePart {
    /// Literal text.
    Text(String),
    /// The text form of a column of the rule's relation.
    Column(String),
    /// A claim of the subject; only `id` is known.
    Subject(String),
}

/// A scope name with holes. Registration has checked that rendered names are unambiguous.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Template(pub Vec<TemplatePart>);

impl Template {
    /// Fills the holes. `value` gives the text form of a hole, or `None` for null: then the row is in no scope (DT-08).
    pub fn render<'v>(
        &self,
        mut value: impl FnMut(&TemplatePart) -> Option<std::borrow::Cow<'v, str>>,
    ) -> Option<ScopeName> {
        let mut name = String::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => name.push_str(text),
                hole => encode_component(&value(hole)?, &mut name),
            }
        }
        Some(ScopeName(name))
    }
}

/// Percent-encodes `value` exactly as JavaScript's `encodeURIComponent` does, so that an application can build a scope's name and
/// no value can look like a separator.
fn encode_component(value: &str, out: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(&byte) {
            out.push(byte as char);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            out.push('%');
            out.push(DIGITS[usize::from(byte >> 4)] as char);
            out.push(DIGITS[usize::from(byte & 15)] as char);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[test]
    fn dt08_values_with_separators_make_distinct_names_and_null_makes_none() {
        let template =
            Template(vec![TemplatePart::Text("list:".into()), TemplatePart::Column("list_id".into())]);
        let name = |value: Option<&'static str>| template.render(|_| value.map(Cow::Borrowed)).map(|s| s.0);
        assert_eq!(name(Some("L1")).as_deref(), Some("list:L1"));
        assert_eq!(name(Some("")).as_deref(), Some("list:"));
        assert_eq!(name(Some("a/b")).as_deref(), Some("list:a%2Fb"));
        assert_eq!(name(Some("a\"b")).as_deref(), Some("list:a%22b"));
        assert_eq!(name(Some("é:%")).as_deref(), Some("list:%C3%A9%3A%25"));
        assert_eq!(name(None), None);
    }
}
