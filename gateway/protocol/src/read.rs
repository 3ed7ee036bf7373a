//! Bytes in, MessagePack tokens out. Borrows from the frame, allocates nothing, and trusts no length: each is checked against
//! the limits and against the bytes that are really there before anyone reserves memory for it.

use crate::wire::UINT_MAX;
use rmp::Marker;

/// What a decoder accepts. Everything beyond is refused before memory is spent on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest frame, in bytes.
    pub frame_bytes_max: usize,
    /// Most elements of any one array, or pairs of any one map.
    pub items_max: u32,
}

impl Limits {
    /// For frames that come from clients: one mebibyte, ten thousand items.
    pub const FROM_CLIENT: Limits = Limits { frame_bytes_max: 1 << 20, items_max: 10_000 };
    /// For frames that come from a server that we chose to connect to: 64 mebibytes, a million items.
    pub const FROM_SERVER: Limits = Limits { frame_bytes_max: 64 << 20, items_max: 1_000_000 };
}

/// Deepest nesting inside a field that nobody knows and that is skipped. Known fields nest as deep as their type, at most six.
const SKIP_DEPTH_MAX: usize = 16;

/// Why bytes are not what the frame table says. Names the field, never its content (Q1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Innermost field that was being read, once known.
    pub field: Option<&'static str>,
    /// What is wrong.
    pub reason: Reason,
}

/// See [`Malformed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The bytes end inside a value.
    Truncated,
    /// Bytes follow the frame.
    Trailing,
    /// A field came twice.
    Duplicate,
    /// A field that the table requires is absent or nil.
    Missing,
    /// A value has another type or range than the table says.
    Expected(&'static str),
    /// More than [`Limits::items_max`] in one array or map.
    TooManyItems,
    /// More than [`Limits::frame_bytes_max`].
    TooManyBytes,
    /// An unknown field nests too deep.
    TooDeep,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Reason::Truncated => "ends inside a value",
            Reason::Trailing => "bytes follow its end",
            Reason::Duplicate => "given twice",
            Reason::Missing => "missing",
            Reason::Expected(what) => return write!(f, "expected {what}"),
            Reason::TooManyItems => "too many items",
            Reason::TooManyBytes => "too many bytes",
            Reason::TooDeep => "nested too deep",
        })
    }
}

impl Malformed {
    pub(crate) fn new(reason: Reason) -> Malformed {
        Malformed { field: None, reason }
    }

    pub(crate) fn expected(what: &'static str) -> Malformed {
        Malformed::new(Reason::Expected(what))
    }

    /// Adds the field's name unless an inner field has given its own.
    pub(crate) fn within(self, field: &'static str) -> Malformed {
        Malformed { field: self.field.or(Some(field)), ..self }
    }
}

/// Reads tokens from the front of a slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    items_max: u32,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, unless they are longer than the limits allow.
    pub fn new(bytes: &'a [u8], limits: &Limits) -> Result<Reader<'a>, Malformed> {
        if bytes.len() > limits.frame_bytes_max {
            return Err(Malformed::new(Reason::TooManyBytes));
        }
        Ok(Reader { rest: bytes, items_max: limits.items_max })
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Succeeds when everything has been read.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed::new(Reason::Trailing)) }
    }

    pub(crate) fn peek(&self) -> Result<Marker, Malformed> {
        self.rest.first().map(|byte| Marker::from_u8(*byte)).ok_or(Malformed::new(Reason::Truncated))
    }

    fn marker(&mut self) -> Result<Marker, Malformed> {
        let marker = self.peek()?;
        self.rest = &self.rest[1..];
        Ok(marker)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        if count > self.rest.len() {
            return Err(Malformed::new(Reason::Truncated));
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Big-endian length of `N` bytes.
    fn length<const N: usize>(&mut self) -> Result<usize, Malformed> {
        Ok(self.fixed::<N>()?.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    }

    /// A length of an array or map, whose elements take at least `element_bytes_min` bytes each.
    fn items(&self, count: usize, element_bytes_min: usize) -> Result<u32, Malformed> {
        if count > self.items_max as usize {
            return Err(Malformed::new(Reason::TooManyItems));
        }
        if count * element_bytes_min > self.rest.len() {
            return Err(Malformed::new(Reason::Truncated));
        }
        Ok(count as u32)
    }

    /// Takes a nil if it is next.
    pub(crate) fn nil(&mut self) -> Result<bool, Malformed> {
        let nil = self.peek()? == Marker::Null;
        if nil {
            self.rest = &self.rest[1..];
        }
        Ok(nil)
    }

    pub(crate) fn array(&mut self) -> Result<u32, Malformed> {
        let count = match self.marker()? {
            Marker::FixArray(count) => usize::from(count),
            Marker::Array16 => self.length::<2>()?,
            Marker::Array32 => self.length::<4>()?,
            _ => return Err(Malformed::expected("array")),
        };
        self.items(count, 1)
    }

    pub(crate) fn map(&mut self) -> Result<u32, Malformed> {
        let count = match self.marker()? {
            Marker::FixMap(count) => usize::from(count),
            Marker::Map16 => self.length::<2>()?,
            Marker::Map32 => self.length::<4>()?,
            _ => return Err(Malformed::expected("map")),
        };
        self.items(count, 2)
    }

    /// The bytes of a str, UTF-8 or not.
    pub(crate) fn str_bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let count = match self.marker()? {
            Marker::FixStr(count) => usize::from(count),
            Marker::Str8 => self.length::<1>()?,
            Marker::Str16 => self.length::<2>()?,
            Marker::Str32 => self.length::<4>()?,
            _ => return Err(Malformed::expected("str")),
        };
        self.bytes(count)
    }

    pub(crate) fn str(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.str_bytes()?).map_err(|_| Malformed::expected("UTF-8"))
    }

    /// The name of a map's pair. One that is not UTF-8 is simply a name that nobody knows.
    pub(crate) fn name(&mut self) -> Result<&'a str, Malformed> {
        Ok(std::str::from_utf8(self.str_bytes()?).unwrap_or("\u{fffd}"))
    }

    pub(crate) fn bin(&mut self) -> Result<&'a [u8], Malformed> {
        let count = match self.marker()? {
            Marker::Bin8 => self.length::<1>()?,
            Marker::Bin16 => self.length::<2>()?,
            Marker::Bin32 => self.length::<4>()?,
            _ => return Err(Malformed::expected("bin")),
        };
        self.bytes(count)
    }

    pub(crate) fn bin16(&mut self) -> Result<[u8; 16], Malformed> {
        self.bin()?.try_into().map_err(|_| Malformed::expected("bin of 16 bytes"))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.marker()? {
            Marker::True => Ok(true),
            Marker::False => Ok(false),
            _ => Err(Malformed::expected("bool")),
        }
    }

    /// Any integer, in whichever width it came: writers need not choose the smallest. `None` for one beyond int64.
    pub(crate) fn int(&mut self) -> Result<Option<i64>, Malformed> {
        Ok(Some(match self.marker()? {
            Marker::FixPos(value) => i64::from(value),
            Marker::FixNeg(value) => i64::from(value),
            Marker::U8 => i64::from(u8::from_be_bytes(self.fixed()?)),
            Marker::U16 => i64::from(u16::from_be_bytes(self.fixed()?)),
            Marker::U32 => i64::from(u32::from_be_bytes(self.fixed()?)),
            Marker::U64 => return Ok(i64::try_from(u64::from_be_bytes(self.fixed()?)).ok()),
            Marker::I8 => i64::from(i8::from_be_bytes(self.fixed()?)),
            Marker::I16 => i64::from(i16::from_be_bytes(self.fixed()?)),
            Marker::I32 => i64::from(i32::from_be_bytes(self.fixed()?)),
            Marker::I64 => i64::from_be_bytes(self.fixed()?),
            _ => return Err(Malformed::expected("integer")),
        }))
    }

    /// The wire type `uint`: at most 2^53 - 1, so that any client may hold it as a double.
    pub(crate) fn uint(&mut self) -> Result<u64, Malformed> {
        let wrong = Malformed::expected("unsigned integer below 2^53");
        let value = self.int()?.ok_or(wrong)?;
        u64::try_from(value).ok().filter(|value| *value <= UINT_MAX).ok_or(wrong)
    }

    /// Passes over one value of any type and gives its bytes. Does not recurse, so no nesting exhausts the stack.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8], Malformed> {
        let before = self.rest;
        // Values still to come at each level; the bottom holds the one value that was asked for.
        let mut pending = [0u64; SKIP_DEPTH_MAX + 1];
        let mut depth = 0;
        pending[0] = 1;
        loop {
            while pending[depth] == 0 {
                if depth == 0 {
                    return Ok(&before[..before.len() - self.rest.len()]);
                }
                depth -= 1;
            }
            pending[depth] -= 1;
            let inner = self.skip_token()?;
            if inner > 0 {
                depth += 1;
                *pending.get_mut(depth).ok_or(Malformed::new(Reason::TooDeep))? = inner;
            }
        }
    }

    /// Passes over one scalar, or over the head of an array or map: then gives the number of values inside.
    fn skip_token(&mut self) -> Result<u64, Malformed> {
        let bytes = match self.peek()? {
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => return Ok(self.array()?.into()),
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => return Ok(2 * u64::from(self.map()?)),
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                self.str_bytes()?;
                return Ok(0);
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                self.bin()?;
                return Ok(0);
            }
            marker => {
                self.marker()?;
                match marker {
                    Marker::FixPos(_) | Marker::FixNeg(_) | Marker::Null | Marker::True | Marker::False => 0,
                    Marker::U8 | Marker::I8 => 1,
                    Marker::U16 | Marker::I16 | Marker::FixExt1 => 2,
                    Marker::FixExt2 => 3,
                    Marker::U32 | Marker::I32 | Marker::F32 => 4,
                    Marker::FixExt4 => 5,
                    Marker::U64 | Marker::I64 | Marker::F64 => 8,
                    Marker::FixExt8 => 9,
                    Marker::FixExt16 => 17,
                    Marker::Ext8 => self.length::<1>()? + 1,
                    Marker::Ext16 => self.length::<2>()? + 1,
                    Marker::Ext32 => self.length::<4>()?.saturating_add(1),
                    _ => return Err(Malformed::expected("MessagePack")),
                }
            }
        };
        self.bytes(bytes)?;
        Ok(0)
    }
}
