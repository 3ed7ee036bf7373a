//! A position in PostgreSQL's write-ahead log.

use std::{fmt, str::FromStr};

/// A WAL position in bytes since the cluster's beginning, written `0/16B3748`.
///
/// Ordered only within one stream generation: compare [`crate::Position`]s where generations may differ (P1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(into = "String", try_from = "String")]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before every record.
    pub const ZERO: Lsn = Lsn(0);

    /// Bytes from `earlier` to `self`, zero when `earlier` is not earlier.
    pub fn bytes_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 as u32)
    }
}

/// The text was not of the form `16/B374D848`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WAL position (expected two hexadecimal numbers joined by a slash)")]
pub struct LsnParseError;

impl FromStr for Lsn {
    type Err = LsnParseError;

    fn from_str(text: &str) -> Result<Self, LsnParseError> {
        let (high, low) = text.split_once('/').ok_or(LsnParseError)?;
        let part = |s: &str| {
            if s.is_empty() || s.len() > 8 || s.starts_with('+') {
                return Err(LsnParseError);
            }
            u32::from_str_radix(s, 16).map_err(|_| LsnParseError)
        };
        Ok(Lsn(u64::from(part(high)?) << 32 | u64::from(part(low)?)))
    }
}

impl From<Lsn> for String {
    fn from(lsn: Lsn) -> String {
        lsn.to_string()
    }
}

impl TryFrom<String> for Lsn {
    type Error = LsnParseError;
    fn try_from(text: String) -> Result<Lsn, LsnParseError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_garbage_is_refused() {
        for (text, value) in [
            ("0/0", 0),
            ("0/16B3748", 0x16B3748),
            ("16/B374D848", 0x16_B374_D848),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(text.parse::<Lsn>(), Ok(Lsn(value)));
            assert_eq!(Lsn(value).to_string(), text);
        }
        for text in ["", "/", "0", "0/", "/0", "0/100000000", "0/+1", "g/0", "0/0/0", " 0/0"] {
            assert_eq!(text.parse::<Lsn>(), Err(LsnParseError), "{text:?}");
        }
    }
}
