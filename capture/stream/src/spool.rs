//! Where a large transaction waits while it is received, so that memory stays bounded (R9, TX-07). The only I/O of this crate,
//! and only behind a trait: the caller opens the file.
//!
//! Nothing here is durable or needs to be: the WAL is the truth until the transaction is materialized.

use bytes::{BufMut, Bytes, BytesMut};
use std::io;

/// An append-only store of bytes, readable at any offset already written.
pub trait Spool: Send {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// Whatever the medium reports.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Fills `into` from `offset` on.
    ///
    /// # Errors
    /// Whatever the medium reports; also when the range was not written.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// Opens a spool; called at most once per transaction, and only for large ones.
pub type SpoolFactory = Box<dyn FnMut() -> io::Result<Box<dyn Spool>> + Send>;

/// A spool in memory, for tests and for callers that have no disk. It bounds nothing.
#[derive(Debug, Default)]
pub struct MemorySpool(Vec<u8>);

impl MemorySpool {
    /// A factory of such spools.
    pub fn factory() -> SpoolFactory {
        Box::new(|| Ok(Box::new(MemorySpool::default())))
    }
}

impl Spool for MemorySpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let stored = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)?.get(..into.len()));
        into.copy_from_slice(stored.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A spool in a file that the caller has opened for reading and writing, preferably one without a name.
#[derive(Debug)]
pub struct FileSpool(std::fs::File);

impl FileSpool {
    /// Takes an empty file.
    pub fn new(file: std::fs::File) -> FileSpool {
        FileSpool(file)
    }
}

impl Spool for FileSpool {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        io::Write::write_all(&mut self.0, bytes)
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, into, offset)
    }
}

/// Records being written: in memory up to a bound, then in the spool. Each record is preceded by its length.
pub(crate) struct RecordWriter {
    memory: BytesMut,
    spool: Option<Box<dyn Spool>>,
    /// Bytes that have left memory.
    spooled_bytes: u64,
}

/// Bytes of a record's length prefix.
const LENGTH_BYTES: usize = 4;

impl RecordWriter {
    pub(crate) fn new() -> RecordWriter {
        RecordWriter { memory: BytesMut::new(), spool: None, spooled_bytes: 0 }
    }

    /// Bytes written so far, in memory or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.spooled_bytes + self.memory.len() as u64
    }

    /// Appends one record and gives its offset.
    pub(crate) fn push(&mut self, record: &[u8]) -> u64 {
        let offset = self.bytes();
        self.memory.reserve(LENGTH_BYTES + record.len());
        self.memory.put_u32(record.len() as u32);
        self.memory.put_slice(record);
        offset
    }

    /// Moves what is in memory to the spool once it exceeds `memory_bytes`.
    pub(crate) fn spill(&mut self, memory_bytes: usize, open: &mut SpoolFactory) -> io::Result<()> {
        if self.memory.len() <= memory_bytes {
            return Ok(());
        }
        if self.spool.is_none() {
            self.spool = Some(open()?);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Some(spool) = &mut self.spool {
            spool.append(&self.memory)?;
            self.spooled_bytes += self.memory.len() as u64;
            self.memory.clear();
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> io::Result<RecordReader> {
        self.flush()?;
        let bytes = self.bytes();
        Ok(match self.spool {
            None => RecordReader::Memory(self.memory.freeze()),
            Some(spool) => RecordReader::Spooled { spool, bytes, windows: Default::default() },
        })
    }
}

/// Which of the two interleaved sequences of records a reader follows: each reads ahead for itself.
#[derive(Clone, Copy)]
pub(crate) enum Sequence {
    Events = 0,
    Fences = 1,
}

/// Records of a complete transaction.
pub(crate) enum RecordReader {
    Memory(Bytes),
    Spooled { spool: Box<dyn Spool>, bytes: u64, windows: [Window; 2] },
}

/// What was read ahead.
#[derive(Default)]
pub(crate) struct Window {
    offset: u64,
    data: Vec<u8>,
}

/// One read ahead: large enough that its system call is shared by hundreds of records.
const WINDOW_BYTES: u64 = 128 * 1024;

impl RecordReader {
    /// The record at `offset`. From memory it shares the transaction's buffer; from a spool it is a copy, so that one record
    /// does not keep a whole window alive.
    pub(crate) fn record(&mut self, sequence: Sequence, offset: u64) -> io::Result<Bytes> {
        match self {
            RecordReader::Memory(data) => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let length = data.get(at..).and_then(<[u8]>::first_chunk::<LENGTH_BYTES>);
                let length = u32::from_be_bytes(*length.ok_or(io::ErrorKind::UnexpectedEof)?) as usize;
                let start = at + LENGTH_BYTES;
                if data.len() - start < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(data.slice(start..start + length))
            }
            RecordReader::Spooled { spool, bytes, windows } => {
                let window = &mut windows[sequence as usize];
                let head = window.get(spool.as_mut(), *bytes, offset, LENGTH_BYTES)?;
                let length =
                    u32::from_be_bytes(head.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?) as usize;
                let body = window.get(spool.as_mut(), *bytes, offset + LENGTH_BYTES as u64, length)?;
                Ok(Bytes::copy_from_slice(body))
            }
        }
    }
}

impl Window {
    fn get(&mut self, spool: &mut dyn Spool, bytes: u64, offset: u64, length: usize) -> io::Result<&[u8]> {
        let held = |window: &Window| {
            let start = usize::try_from(offset.checked_sub(window.offset)?).ok()?;
            let end = start.checked_add(length)?;
            (end <= window.data.len()).then_some(start..end)
        };
        if held(self).is_none() {
            let ahead = WINDOW_BYTES.max(length as u64).min(bytes.saturating_sub(offset));
            // Taken out: after a failed read nothing stale may look valid.
            let mut data = std::mem::take(&mut self.data);
            data.resize(ahead as usize, 0);
            spool.read_at(offset, &mut data)?;
            (self.offset, self.data) = (offset, data);
        }
        let range = held(self).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(&self.data[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_records_read_back_alike_from_memory_and_from_a_spool() {
        let records: Vec<Vec<u8>> =
            (0..2000usize).map(|n| vec![n as u8; n * 7 % 400]).chain([vec![9; 300_000]]).collect();
        for memory_bytes in [usize::MAX, 1000, 0] {
            let mut writer = RecordWriter::new();
            let mut open = MemorySpool::factory();
            let mut offsets = Vec::new();
            for record in &records {
                offsets.push(writer.push(record));
                writer.spill(memory_bytes, &mut open).expect("spills");
            }
            let mut reader = writer.finish().expect("finishes");
            assert_eq!(matches!(reader, RecordReader::Memory(_)), memory_bytes == usize::MAX);
            for (n, record) in records.iter().enumerate().chain(records.iter().enumerate().rev()) {
                let sequence = if n % 2 == 0 { Sequence::Events } else { Sequence::Fences };
                assert_eq!(reader.record(sequence, offsets[n]).expect("reads"), record.as_slice());
            }
        }
    }
}
