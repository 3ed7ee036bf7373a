//! The frame table as data, and what every frame has in common. `client.rs` and `server.rs` state each frame once; the macros of
//! `declare.rs` make the Rust types from that statement, and [`frames`], from which TypeScript and documentation are made.

use crate::read::{Limits, Malformed, Reader, Reason};
use crate::wire::Field;
use crate::write;

/// Who sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to server.
    ToServer,
    /// Server to client.
    ToClient,
}

/// One frame of the table.
#[derive(Debug)]
pub struct Frame {
    /// The value of `t`.
    pub name: &'static str,
    /// Name of its type in Rust and TypeScript.
    pub type_name: &'static str,
    /// Who sends it.
    pub direction: Direction,
    /// What it is for.
    pub doc: &'static str,
    /// In wire order, after `t`.
    pub fields: &'static [Field],
}

/// Every frame of the protocol, the client's first.
pub fn frames() -> impl Iterator<Item = &'static Frame> {
    crate::client::FRAMES.iter().chain(crate::server::FRAMES)
}

/// A received frame that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A type that this side does not know. A server answers it with `unknown_frame`; a client ignores it.
    #[error("frame type {0} is unknown")]
    UnknownFrame(FrameName),
    /// More bytes, items or nesting than the limits allow.
    #[error("frame{} is too large: {reason}", of(.frame))]
    TooLarge {
        /// Its type, if it got that far.
        frame: Option<&'static str>,
        /// Which limit.
        reason: Reason,
    },
    /// Not what the table says.
    #[error("frame{} is malformed{}: {reason}", of(.frame), at(.field))]
    Malformed {
        /// Its type, if it got that far.
        frame: Option<&'static str>,
        /// The innermost field being read.
        field: Option<&'static str>,
        /// What is wrong; has no part of the frame.
        reason: Reason,
    },
}

fn of(frame: &Option<&'static str>) -> String {
    frame.map(|name| format!(" `{name}`")).unwrap_or_default()
}

fn at(field: &Option<&'static str>) -> String {
    field.map(|name| format!(" at `{name}`")).unwrap_or_default()
}

impl DecodeError {
    pub(crate) fn new(frame: Option<&'static str>, Malformed { field, reason }: Malformed) -> DecodeError {
        match reason {
            Reason::TooManyBytes | Reason::TooManyItems | Reason::TooDeep => {
                DecodeError::TooLarge { frame, reason }
            }
            _ => DecodeError::Malformed { frame, field, reason },
        }
    }
}

/// Name of an unknown frame type, safe to show: at most 32 bytes, everything but letters, digits and `_` replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameName {
    bytes: [u8; FrameName::BYTES_MAX],
    len: u8,
}

impl FrameName {
    const BYTES_MAX: usize = 32;

    fn new(name: &[u8]) -> FrameName {
        let mut bytes = [0; FrameName::BYTES_MAX];
        let len = name.len().min(FrameName::BYTES_MAX);
        for (out, byte) in bytes.iter_mut().zip(&name[..len]) {
            *out = if byte.is_ascii_alphanumeric() || *byte == b'_' { *byte } else { b'?' };
        }
        FrameName { bytes, len: len as u8 }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("made of ASCII")
    }
}

impl std::fmt::Display for FrameName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A struct that is written as the pairs of a map.
pub(crate) trait Fields<'a>: Sized {
    const FIELDS: &'static [Field];
    fn pairs(&self) -> usize;
    fn put_fields(&self, out: &mut Vec<u8>);
    fn take_fields(reader: &mut Reader<'a>, pairs: u32) -> Result<Self, Malformed>;
}

/// The head of a frame: its map, its type, and how many pairs follow.
pub(crate) fn take_head<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<(Reader<'a>, &'a [u8], u32), DecodeError> {
    fn head<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], u32), Malformed> {
        let pairs = reader.map()?;
        if pairs == 0 || reader.name()? != "t" {
            return Err(Malformed::new(Reason::Expected("`t` as the first key")));
        }
        Ok((reader.str_bytes()?, pairs - 1))
    }
    let fail = |error| DecodeError::new(None, error);
    let mut reader = Reader::new(bytes, limits).map_err(fail)?;
    let (name, pairs) = head(&mut reader).map_err(fail)?;
    Ok((reader, name, pairs))
}

/// The type of a frame, without reading the rest of it.
pub fn frame_name(bytes: &[u8]) -> Result<&str, DecodeError> {
    let (_, name, _) = take_head(bytes, &Limits { frame_bytes_max: usize::MAX, items_max: u32::MAX })?;
    std::str::from_utf8(name).map_err(|_| unknown(name))
}

pub(crate) fn unknown(name: &[u8]) -> DecodeError {
    DecodeError::UnknownFrame(FrameName::new(name))
}

pub(crate) fn take_body<'a, T: Fields<'a>>(
    frame: &'static str,
    mut reader: Reader<'a>,
    pairs: u32,
) -> Result<T, DecodeError> {
    T::take_fields(&mut reader, pairs)
        .and_then(|body| reader.end().map(|()| body))
        .map_err(|error| DecodeError::new(Some(frame), error))
}

pub(crate) fn put_frame<'a>(frame: &str, body: &impl Fields<'a>, out: &mut Vec<u8>) {
    write::map(out, 1 + body.pairs());
    write::str(out, "t");
    write::str(out, frame);
    body.put_fields(out);
}
