//! What every ordered log promises (S1–S3). Names no adapter's batching, paging or storage.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use crate::Wakes;

/// A place in a log or in one of its streams: ordered, serializable, and otherwise the adapter's own (S2).
pub trait Place: Clone + Ord + Debug + Send + Sync + Serialize + DeserializeOwned + 'static {}

impl<T: Clone + Ord + Debug + Send + Sync + Serialize + DeserializeOwned + 'static> Place for T {}

/// How much one read may return. A read makes progress whatever the bounds: a single entry is returned even if it alone is
/// beyond them, unless the adapter can split it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most units of order (transactions, appends) in one read.
    pub units_max: u32,
    /// Most entries in one read.
    pub entries_max: u32,
    /// Most payload bytes in one read.
    pub bytes_max: u64,
}

/// What a read returned, and where that leaves the reader.
pub trait Batch: Send + 'static {
    /// The log's position type.
    type Position: Place;

    /// Where the next read goes on: pass it to [`OrderedLog::read_all`].
    fn through(&self) -> &Self::Position;

    /// Whether the batch reached everything that was visible when it was read.
    fn at_tip(&self) -> bool;

    /// Whether it brought nothing new.
    fn is_empty(&self) -> bool;
}

/// An ordered log.
///
/// **Order.** Entries have one total order. Once a position has been observed, by any reader, no smaller one becomes visible
/// later (S3): a reader that remembers only the last position it saw misses nothing.
///
/// **Resuming.** [`read_all`](Self::read_all) and a subscription are *exclusive*: they go on after the position given.
/// [`read_stream`](Self::read_stream) is *inclusive*: it begins at the position given (S1).
///
/// **Waking.** A wake is a hint (S5). It may come late, come twice, come for nothing, or be lost; what a log holds is known by
/// reading it.
pub trait OrderedLog: Send + Sync + 'static {
    /// A place in the whole log: what `read_all` and a subscription resume from.
    type Position: Place;
    /// A place in one stream.
    type StreamPosition: Place;
    /// Names one stream of the log.
    type Stream: Send + Sync;
    /// What `read_all` returns.
    type Batch: Batch<Position = Self::Position>;
    /// What `read_stream` returns.
    type StreamBatch: Send;
    /// Why a read failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Entries of all streams, in order, *after* `from` (exclusive).
    fn read_all(
        &self,
        from: &Self::Position,
        bounds: Bounds,
    ) -> impl Future<Output = Result<Self::Batch, Self::Error>> + Send;

    /// Entries of one stream, in order, *at and after* `from` (inclusive), up to and including those at `through`.
    fn read_stream(
        &self,
        stream: &Self::Stream,
        from: &Self::StreamPosition,
        through: &Self::Position,
        bounds: Bounds,
    ) -> impl Future<Output = Result<Self::StreamBatch, Self::Error>> + Send;

    /// The log's wakes, as a subscription arms and awaits them.
    fn wakes(&self) -> Wakes<Self::Position>;
}
