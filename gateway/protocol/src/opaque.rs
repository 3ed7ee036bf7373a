//! Field types that `Debug` does not show: bytes and tokens, so that no log line ever holds a row or a credential (Q1).

use crate::read::{Malformed, Reader};
use crate::wire::{IntoOwned, Shape, Wire};
use crate::write;
use std::borrow::Cow;
use std::fmt;

/// Bytes: a row's wire form, a cursor, a continuation token.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Bin<'a>(pub Cow<'a, [u8]>);

impl std::ops::Deref for Bin<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> From<&'a [u8]> for Bin<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Bin(Cow::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for Bin<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Bin(Cow::Owned(bytes))
    }
}

impl fmt::Debug for Bin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bin of {} bytes", self.0.len())
    }
}

impl<'a> Wire<'a> for Bin<'a> {
    const SHAPE: Shape = Shape::Bin;
    fn put(&self, out: &mut Vec<u8>) {
        write::bin(out, self);
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.bin().map(Bin::from)
    }
}

impl IntoOwned for Bin<'_> {
    type Owned = Bin<'static>;
    fn into_owned(self) -> Bin<'static> {
        Bin(Cow::Owned(self.0.into_owned()))
    }
}

/// Text that `Debug` does not show: an access token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<'a>(pub Cow<'a, str>);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("secret")
    }
}

impl<'a> Wire<'a> for Secret<'a> {
    const SHAPE: Shape = Shape::Str;
    fn put(&self, out: &mut Vec<u8>) {
        write::str(out, &self.0);
    }
    fn take(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Wire::take(reader).map(Secret)
    }
}

impl IntoOwned for Secret<'_> {
    type Owned = Secret<'static>;
    fn into_owned(self) -> Secret<'static> {
        Secret(IntoOwned::into_owned(self.0))
    }
}
