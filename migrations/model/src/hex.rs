//! Lower-case hexadecimal, for the few places where bytes are shown to people.

use std::fmt;

/// Writes `bytes` as lower-case hexadecimal.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}
