//! Transactions larger than memory (R9, TX-07).

use crate::source::{Change, Source, fixture, item, list};
use crate::store::{Store, blocked, feed, paired};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_stream::*;

/// Counts what it takes and keeps it.
struct Counting(MemorySpool, Arc<AtomicU64>);

impl Spool for Counting {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.1.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.0.append(bytes)
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, into)
    }
}

fn many(rows: i64) -> Vec<Change> {
    (0..rows)
        .map(|id| item('I', id, Some(["L1", "L2", "L3"][id as usize % 3]), "a title of some length", 1))
        .collect()
}

#[test]
fn r9_a_spooled_transaction_goes_through_in_bounded_pieces_and_leaves_the_same_rows() {
    let mut source = Source::default();
    // One statement over everything, then a second that touches every other row again, then a third for one row only.
    let again: Vec<Change> = (0..3000).step_by(2).map(|id| item('U', id, Some("L2"), "another", 9)).collect();
    let mut statements = vec![many(3000), again];
    statements.extend((0..50).map(|n| vec![item('U', 0, Some("L1"), &format!("turn {n}"), 1)]));
    statements.push(vec![list('I', "L1", "x")]);
    let frames = source.transaction(&statements);

    let taken = Arc::new(AtomicU64::new(0));
    let counter = taken.clone();
    let open: SpoolFactory =
        Box::new(move || Ok(Box::new(Counting(MemorySpool::default(), counter.clone()))));
    let limits = Limits { memory_bytes: 10_000, ..Limits::default() };
    let transaction = paired(&mut Assembler::new(fixture(), limits, open), &frames).expect("pairs");
    assert_eq!(taken.load(Ordering::Relaxed), transaction.bytes(), "all of it was spooled");
    let mut spooled = Store::default();
    let pieces = spooled
        .pieces(transaction, &PieceLimits { rows_max: 100, bytes_max: usize::MAX })
        .expect("materializes");
    assert_eq!(pieces, 3001usize.div_ceil(100));

    let mut whole = Store::default();
    crate::store::apply(&mut whole, &frames).expect("materializes");
    assert!(spooled.tables == whole.tables);
    crate::effects::check(&whole, &fixture());
}

#[test]
fn r9_a_file_holds_what_memory_would() {
    let path = std::env::temp_dir().join(format!("tidegate-spool-test-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("unlinks");
    let mut file = Some(file);
    let open: SpoolFactory =
        Box::new(move || Ok(Box::new(FileSpool::new(file.take().expect("opened once per transaction")))));
    let frames = Source::default().transaction(&[many(500)]);
    let limits = Limits { memory_bytes: 4096, ..Limits::default() };
    let transaction = paired(&mut Assembler::new(fixture(), limits, open), &frames).expect("pairs");
    let mut from_file = Store::default();
    from_file
        .pieces(transaction, &PieceLimits { rows_max: 64, bytes_max: usize::MAX })
        .expect("materializes");
    let mut from_memory = Store::default();
    crate::store::apply(&mut from_memory, &frames).expect("materializes");
    assert!(from_file.tables == from_memory.tables);
}

#[test]
fn tx07_beyond_a_hard_limit_the_transaction_blocks_with_its_whole_size() {
    let frames = Source::default().transaction(&[many(100)]);
    for limits in
        [Limits { events_max: 99, ..Limits::default() }, Limits { bytes_max: 1000, ..Limits::default() }]
    {
        let mut assembler = Assembler::new(fixture(), limits, MemorySpool::factory());
        let Err(failure) = feed(&mut assembler, &frames.all()) else { panic!("too large") };
        assert_eq!(failure.class, FailureClass::TransactionTooLarge);
        assert!(failure.explanation().starts_with("200 row changes and fences, "), "{failure}");
        assert_eq!(failure.commit_lsn.map(|lsn| lsn.0), Some(frames.commit_lsn));
        assert!(failure.end_lsn.is_some(), "it was read to its end");
    }
    let limits = Limits { events_max: 100, ..Limits::default() };
    assert!(feed(&mut Assembler::new(fixture(), limits, MemorySpool::factory()), &frames.all()).is_ok());
}

#[test]
fn q4_a_spool_that_fails_is_no_poison() {
    let open: SpoolFactory = Box::new(|| Err(std::io::ErrorKind::StorageFull.into()));
    let limits = Limits { memory_bytes: 100, ..Limits::default() };
    let mut assembler = Assembler::new(fixture(), limits, open);
    let frames = Source::default().transaction(&[many(10)]).all();
    let error = frames.iter().find_map(|frame| assembler.frame(frame).err()).expect("the disk is full");
    assert!(matches!(error, StreamError::Spool(_)));
    // The WAL still has it: on the next connection it goes through.
    let mut assembler = Assembler::new(fixture(), limits, MemorySpool::factory());
    assert_eq!(feed(&mut assembler, &frames).expect("assembles").len(), 1);
}

#[test]
fn r9_one_row_changed_many_times_takes_the_memory_of_one_image() {
    let mut statements = vec![vec![item('I', 1, Some("L1"), "t", 1)]];
    statements.extend((0..5000).map(|n| vec![item('U', 1, Some("L1"), &format!("title {n}"), 1)]));
    let frames = Source::default().transaction(&statements);
    let limits = Limits { memory_bytes: 4096, ..Limits::default() };
    let mut transaction =
        paired(&mut Assembler::new(fixture(), limits, MemorySpool::factory()), &frames).expect("pairs");
    let piece =
        transaction.next_piece(&PieceLimits { rows_max: 10, bytes_max: 1 }).map_err(blocked).expect("folds");
    assert!(piece.is_some_and(|piece| piece.bytes() < 100));
}
