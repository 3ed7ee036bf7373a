//! PostgreSQL's COPY binary format: written for staging, read for verification. Pure.

use bytes::{Buf, Bytes};

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
const INT8_OID: u32 = 20;

/// A buffer of tuples for one COPY command.
pub(super) struct BinaryCopy {
    buffer: Vec<u8>,
    columns: i16,
}

impl BinaryCopy {
    pub(super) fn new(columns: i16) -> BinaryCopy {
        let mut copy = BinaryCopy { buffer: Vec::new(), columns };
        copy.reset();
        copy
    }

    fn reset(&mut self) {
        self.buffer.clear();
        self.buffer.extend_from_slice(SIGNATURE);
        self.buffer.extend_from_slice(&[0; 8]);
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there is no tuple.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.len() == SIGNATURE.len() + 8
    }

    /// Begins a tuple; exactly `columns` values follow.
    pub(super) fn tuple(&mut self) {
        self.buffer.extend_from_slice(&self.columns.to_be_bytes());
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        self.buffer.extend_from_slice(&(value.len() as i32).to_be_bytes());
        self.buffer.extend_from_slice(value);
    }

    pub(super) fn int4(&mut self, value: i32) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn int8(&mut self, value: i64) {
        self.bytes(&value.to_be_bytes());
    }

    pub(super) fn int8_array(&mut self, values: &[i64]) {
        let header = if values.is_empty() { 12 } else { 20 };
        self.buffer.extend_from_slice(&((header + values.len() * 12) as i32).to_be_bytes());
        self.buffer.extend_from_slice(&i32::from(!values.is_empty()).to_be_bytes());
        self.buffer.extend_from_slice(&0_i32.to_be_bytes());
        self.buffer.extend_from_slice(&INT8_OID.to_be_bytes());
        if !values.is_empty() {
            self.buffer.extend_from_slice(&(values.len() as i32).to_be_bytes());
            self.buffer.extend_from_slice(&1_i32.to_be_bytes());
        }
        for value in values {
            self.int8(*value);
        }
    }

    /// `None` is null.
    pub(super) fn jsonb(&mut self, text: Option<&str>) {
        match text {
            None => self.buffer.extend_from_slice(&(-1_i32).to_be_bytes()),
            Some(text) => {
                self.buffer.extend_from_slice(&(text.len() as i32 + 1).to_be_bytes());
                // Version of jsonb's binary form.
                self.buffer.push(1);
                self.buffer.extend_from_slice(text.as_bytes());
            }
        }
    }

    /// The whole command's data; the buffer starts anew.
    pub(super) fn take(&mut self) -> Vec<u8> {
        self.buffer.extend_from_slice(&(-1_i16).to_be_bytes());
        let capacity = self.buffer.len();
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(capacity));
        self.reset();
        full
    }
}

/// Reads the tuple that one CopyData message of COPY TO carries; `None` for the trailer. The first message may begin with the
/// header.
pub(super) fn tuple(mut message: Bytes) -> Result<Option<Vec<Option<Bytes>>>, ()> {
    if message.starts_with(SIGNATURE) {
        message.advance(SIGNATURE.len());
        let mut fixed = take(&mut message, 8)?;
        fixed.advance(4);
        let extension = fixed.get_u32();
        take(&mut message, extension as usize)?;
        if message.is_empty() {
            return Ok(None);
        }
    }
    let count = take(&mut message, 2)?.get_i16();
    let Ok(count) = usize::try_from(count) else { return Ok(None) };
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let length = take(&mut message, 4)?.get_i32();
        values.push(match usize::try_from(length) {
            Ok(length) => Some(take(&mut message, length)?),
            Err(_) => None,
        });
    }
    Ok(Some(values))
}

fn take(message: &mut Bytes, length: usize) -> Result<Bytes, ()> {
    if message.len() < length { Err(()) } else { Ok(message.split_to(length)) }
}

/// Elements of a binary `int8[]` without nulls.
pub(super) fn int8_array(mut value: Bytes) -> Option<Vec<i64>> {
    let dimensions = take(&mut value, 12).ok()?.get_i32();
    if dimensions == 0 {
        return Some(Vec::new());
    }
    let count = take(&mut value, 8).ok()?.get_i32();
    (0..count)
        .map(|_| {
            let mut element = take(&mut value, 12).ok()?;
            (element.get_i32() == 8).then(|| element.get_i64())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut copy = BinaryCopy::new(4);
        assert!(copy.is_empty());
        copy.tuple();
        copy.bytes(b"k");
        copy.int8_array(&[1, -2]);
        copy.jsonb(None);
        copy.int8_array(&[]);
        let data = Bytes::from(copy.take());
        assert!(copy.is_empty());
        let values = tuple(data).ok().flatten().expect("a tuple");
        assert_eq!(values[0].as_deref(), Some(&b"k"[..]));
        assert_eq!(values[1].clone().and_then(int8_array), Some(vec![1, -2]));
        assert_eq!(values[2], None);
        assert_eq!(values[3].clone().and_then(int8_array), Some(vec![]));
        assert_eq!(tuple(Bytes::from_static(&[0xff, 0xff])), Ok(None), "the trailer");
        assert_eq!(tuple(Bytes::from_static(&[0, 1, 0])), Err(()));
    }
}
