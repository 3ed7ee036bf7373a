//! The suite that every adapter passes, unchanged (S6). An adapter's tests implement [`Subject`] over a real store and call
//! [`all`]; a failure panics with the rule's name.

use crate::{Batch, Bounds, OrderedLog, Subscription};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// An adapter under test. Marks are payloads that identify entries; streams are numbered from 0.
pub trait Subject: Send + Sync {
    /// The adapter.
    type Log: OrderedLog;

    /// The log, empty at first.
    fn log(&self) -> Arc<Self::Log>;

    /// The position before everything.
    fn start(&self) -> <Self::Log as OrderedLog>::Position;

    /// Adds one unit of order that puts `marks` into the streams named beside them, and returns once it is durable. Readers are
    /// woken only if `wake`.
    fn append(&self, marks: &[(u32, u64)], wake: bool) -> impl Future<Output = ()> + Send;

    /// Stream and mark of each entry in a batch, in the order in which a reader takes them.
    fn marks(&self, batch: &<Self::Log as OrderedLog>::Batch) -> Vec<(u32, u64)>;

    /// One stream.
    fn stream(&self, number: u32) -> impl Future<Output = <Self::Log as OrderedLog>::Stream> + Send;

    /// Mark and position of each entry of a stream's batch, in order.
    fn stream_marks(
        &self,
        batch: &<Self::Log as OrderedLog>::StreamBatch,
    ) -> Vec<(u64, <Self::Log as OrderedLog>::StreamPosition)>;

    /// The first position of any stream.
    fn stream_start(&self) -> <Self::Log as OrderedLog>::StreamPosition;
}

const WHOLE: Bounds = Bounds { units_max: 1000, entries_max: 100_000, bytes_max: 1 << 30 };
const SMALLEST: Bounds = Bounds { units_max: 1, entries_max: 1, bytes_max: 1 };

/// Runs the whole suite on an empty log.
pub async fn all<S: Subject>(subject: &S) {
    s1_s3_reading_resumes_after_every_position(subject).await;
    s1_read_stream_begins_at_its_position(subject).await;
    s2_positions_survive_being_stored(subject).await;
    s5_a_subscription_misses_nothing(subject).await;
}

async fn drain<S: Subject>(
    subject: &S,
    from: &<S::Log as OrderedLog>::Position,
    bounds: Bounds,
) -> (Vec<(u32, u64)>, Vec<<S::Log as OrderedLog>::Position>) {
    let (mut marks, mut positions, mut at) = (Vec::new(), Vec::new(), from.clone());
    loop {
        let batch =
            subject.log().read_all(&at, bounds).await.unwrap_or_else(|error| panic!("read_all: {error}"));
        assert!(*batch.through() >= at, "S3: positions never go back");
        assert_eq!(
            batch.is_empty(),
            *batch.through() == at,
            "S1: a batch that brings something moves the position"
        );
        at = batch.through().clone();
        marks.extend(subject.marks(&batch));
        if batch.at_tip() && batch.is_empty() {
            return (marks, positions);
        }
        positions.push(at.clone());
    }
}

fn sorted<T: Ord + Clone>(items: &[T]) -> Vec<T> {
    let mut items = items.to_vec();
    items.sort();
    items
}

/// Reading in the smallest steps and at once gives the same; from every position in between, exactly the rest.
async fn s1_s3_reading_resumes_after_every_position<S: Subject>(subject: &S) {
    for unit in 0..4u64 {
        let marks: Vec<_> = (0..3u64).map(|i| ((i % 2) as u32, unit * 10 + i)).collect();
        subject.append(&marks, true).await;
    }
    let (whole, _) = drain(subject, &subject.start(), WHOLE).await;
    assert_eq!(whole.len(), 12, "S1: every entry once");
    let (steps, positions) = drain(subject, &subject.start(), SMALLEST).await;
    assert_eq!(sorted(&steps), sorted(&whole), "S1: small steps bring the same entries");
    for stream in 0..2 {
        let of = |all: &[(u32, u64)]| {
            all.iter().filter(|(s, _)| *s == stream).map(|(_, m)| *m).collect::<Vec<_>>()
        };
        assert_eq!(of(&steps), of(&whole), "S1: a stream keeps its order whatever the bounds");
    }
    let mut seen = Vec::new();
    let mut at = subject.start();
    for position in positions {
        let batch =
            subject.log().read_all(&at, SMALLEST).await.unwrap_or_else(|error| panic!("read_all: {error}"));
        seen.extend(subject.marks(&batch));
        at = position;
        let (rest, _) = drain(subject, &at, WHOLE).await;
        let joined: Vec<_> = seen.iter().copied().chain(rest).collect();
        assert_eq!(
            sorted(&joined),
            sorted(&whole),
            "S1: read_all is exclusive: nothing twice, nothing skipped"
        );
    }
}

/// `read_stream` is inclusive at each of its positions.
async fn s1_read_stream_begins_at_its_position<S: Subject>(subject: &S) {
    let end = {
        let batch = subject.log().read_all(&subject.start(), WHOLE).await;
        batch.unwrap_or_else(|error| panic!("read_all: {error}")).through().clone()
    };
    for number in 0..2 {
        let stream = subject.stream(number).await;
        let log = subject.log();
        let read = async |from: &_, bounds| {
            let batch = log.read_stream(&stream, from, &end, bounds).await;
            subject.stream_marks(&batch.unwrap_or_else(|error| panic!("read_stream: {error}")))
        };
        let all = read(&subject.stream_start(), WHOLE).await;
        assert!(!all.is_empty(), "S1: the stream has entries");
        assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1), "S2: a stream's positions grow");
        for (i, (mark, position)) in all.iter().enumerate() {
            let rest = read(position, WHOLE).await;
            assert_eq!(rest.first().map(|(mark, _)| mark), Some(mark), "S1: read_stream is inclusive");
            assert_eq!(rest.len(), all.len() - i, "S1: and goes on to the end");
            assert_eq!(read(position, SMALLEST).await.len(), 1, "S1: bounds hold down to one entry");
        }
    }
}

/// A position that was written down and read again is the same place.
async fn s2_positions_survive_being_stored<S: Subject>(subject: &S) {
    fn stored<P: crate::Place + Debug>(position: &P) -> P {
        let text = serde_value::to_text(position);
        serde_value::from_text(&text)
    }
    let (_, positions) = drain(subject, &subject.start(), SMALLEST).await;
    for position in &positions {
        assert_eq!(stored(position), *position, "S2: positions are serializable");
    }
    assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "S2: positions are ordered");
}

/// Catching up and following, with wakes and without.
async fn s5_a_subscription_misses_nothing<S: Subject>(subject: &S) {
    let (before, _) = drain(subject, &subject.start(), WHOLE).await;
    let mut subscription =
        Subscription::new(subject.log(), subject.start(), SMALLEST, Duration::from_millis(20));
    let mut seen = Vec::new();
    let mut expected = before.clone();
    for unit in 0..6u64 {
        // Some wakes are lost; the periodic look finds what they would have announced.
        let mark = (0, 1000 + unit);
        subject.append(&[mark], unit % 3 != 1).await;
        expected.push(mark);
        while seen.len() < expected.len() {
            let batch = subscription.next().await.unwrap_or_else(|error| panic!("subscription: {error}"));
            seen.extend(subject.marks(&batch));
        }
    }
    assert_eq!(sorted(&seen), sorted(&expected), "S5: every entry once, also those whose wake was lost");
}

/// Serialization for the check above, through serde's own values: the suite needs no format of its own.
mod serde_value {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    pub fn to_text<T: Serialize>(value: &T) -> String {
        serde_json::to_string(value).unwrap_or_else(|error| panic!("S2: serialize a position: {error}"))
    }

    pub fn from_text<T: DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("S2: read a position back: {error}"))
    }
}
