//! What PostgreSQL 15 and 18 really sent (see `recorded/record.sql`), through everything, against what the tables then said.

use crate::effects::check;
use crate::store::{Store, blocked};
use std::sync::Arc;
use tidegate_model::{
    RegistryGeneration, RelationId, RowKey, RowOperation, Snapshot, encode_row_header, encode_text_value,
};
use tidegate_stream::decode::{Message, Value, decode};
use tidegate_stream::*;
use uuid::Uuid;

/// One recording.
struct Recording {
    registries: Vec<Arc<Snapshot>>,
    start: RegistryGeneration,
    frames: Vec<Vec<u8>>,
    /// Relation, version, captured columns in text form.
    rows: Vec<(RelationId, Uuid, Vec<Option<String>>)>,
}

fn recordings() -> [Recording; 2] {
    [include_str!("recorded/pg15.txt"), include_str!("recorded/pg18.txt")].map(read)
}

fn read(text: &str) -> Recording {
    let mut out = Recording {
        registries: Vec::new(),
        start: RegistryGeneration(0),
        frames: Vec::new(),
        rows: Vec::new(),
    };
    for line in text.lines() {
        let (kind, rest) = line.split_once(' ').expect("a kind");
        match kind {
            "start" => out.start = RegistryGeneration(rest.parse().expect("a generation")),
            "registry" => out.registries.push(Arc::new(Snapshot::from_json(rest).expect("a registry"))),
            "frame" => out.frames.push(bytes_of(rest)),
            "row" => {
                let mut parts = rest.splitn(3, ' ');
                let mut next = || parts.next().expect("a part");
                let relation = RelationId(next().parse().expect("a relation"));
                let version = next().parse().expect("a version");
                out.rows.push((relation, version, serde_json::from_str(next()).expect("columns")));
            }
            _ => assert_eq!(kind, "#"),
        }
    }
    out
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(pair).collect()
}

impl Recording {
    fn registry(&self, generation: RegistryGeneration) -> Arc<Snapshot> {
        self.registries
            .iter()
            .find(|registry| registry.generation == generation)
            .expect("it was stored")
            .clone()
    }

    fn transactions(&self, limits: Limits) -> Vec<PairedTransaction> {
        let mut assembler = Assembler::new(self.registry(self.start), limits, MemorySpool::factory());
        let mut out = Vec::new();
        for frame in &self.frames {
            match assembler.frame(frame).map_err(blocked).unwrap_or_else(|failure| panic!("{failure}")) {
                Step::Continue => {}
                Step::NeedsSnapshot { generation, .. } => {
                    assembler.provide_snapshot(self.registry(generation)).expect("the one asked for");
                }
                Step::Transaction(transaction) => {
                    out.push(
                        transaction.pair().map_err(blocked).unwrap_or_else(|failure| panic!("{failure}")),
                    );
                }
            }
        }
        out
    }
}

#[test]
fn every_recorded_frame_decodes_and_every_kind_of_change_occurs() {
    for recording in recordings() {
        let mut seen = std::collections::BTreeSet::new();
        for frame in &recording.frames {
            let message = decode(frame).unwrap_or_else(|error| panic!("{error}"));
            seen.insert(match &message {
                Message::Row(row)
                    if row.new.is_some_and(|new| new.values().any(|value| value == Value::Unchanged)) =>
                {
                    "omits a value"
                }
                Message::Row(row) if row.operation == RowOperation::Insert => "insert",
                Message::Row(row) if row.operation == RowOperation::Update => "update",
                Message::Row(_) => "delete",
                Message::Logical(message) if message.transactional => "message",
                Message::Logical(_) => "message outside",
                Message::Relation(_) => "relation",
                Message::Begin(_) => "begin",
                Message::Commit(_) => "commit",
                other => panic!("{other:?}"),
            });
            for end in 0..frame.len() {
                assert!(decode(&frame[..end]).is_err(), "a frame cut short is no frame");
            }
        }
        let expected = [
            "begin",
            "commit",
            "delete",
            "insert",
            "message",
            "message outside",
            "omits a value",
            "relation",
            "update",
        ];
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn r7_r8_dt03_the_projection_equals_the_tables_and_versions_equal_row_versions() {
    for recording in recordings() {
        let mut store = Store::default();
        for transaction in recording.transactions(Limits::default()) {
            store.group(vec![transaction]).unwrap_or_else(|failure| panic!("{failure}"));
        }
        let registry = recording.registries.last().expect("a registry");
        for (relation, version, columns) in &recording.rows {
            let relation = registry.relation(*relation).expect("registered");
            let mut image = Vec::new();
            encode_row_header(columns.len(), &mut image);
            for (column, text) in relation.columns.iter().zip(columns) {
                encode_text_value(column.wire, text.as_deref(), &mut image).expect("a value");
            }
            let key = columns[relation.key_index()].as_deref().expect("a key");
            let key = RowKey::from_text(relation.key.key_type, key).expect("a key");
            let stored =
                store.tables.rows.get(&(relation.relation_id.0, key.index_bytes())).expect("projected");
            assert_eq!(stored.row, image, "snapshot and stream have the same bytes: {}", relation.name);
            assert_eq!(stored.version, *version, "the version is the fence's: {}", relation.name);
        }
        assert_eq!(store.tables.rows.len(), recording.rows.len(), "and nothing else is projected");
        check(&store, registry);
        let granted: Vec<_> =
            store.tables.grants.keys().map(|(subject, scope)| (subject.as_str(), scope.as_str())).collect();
        assert_eq!(granted, [("ann", "list:L1"), ("bob", "list:L2")]);
        assert_eq!(store.tables.activations.len(), 3, "item, odd, the grant");
    }
}

#[test]
fn r2_r9_recorded_transactions_grouped_and_in_pieces_leave_the_same_rows() {
    for recording in recordings() {
        let mut single = Store::default();
        recording
            .transactions(Limits::default())
            .into_iter()
            .for_each(|one| single.group(vec![one]).expect("materializes"));
        let mut grouped = Store::default();
        grouped.group(recording.transactions(Limits::default())).expect("materializes");
        assert!(grouped.tables == single.tables);
        let mut pieces = Store::default();
        for transaction in recording.transactions(Limits { memory_bytes: 500, ..Limits::default() }) {
            pieces.pieces(transaction, &PieceLimits { rows_max: 1, bytes_max: 1 }).expect("materializes");
        }
        assert!(pieces.tables == single.tables);
    }
}

#[test]
fn r3_a_recorded_stream_replays_to_the_same_manifests() {
    for recording in recordings() {
        let first = recording.transactions(Limits::default());
        let again = recording.transactions(Limits { memory_bytes: 0, ..Limits::default() });
        assert_eq!(first.len(), again.len());
        for (stored, replayed) in first.iter().zip(&again) {
            assert_eq!(replayed.verify_replay(stored.manifest()), Ok(()));
        }
        let marked: Vec<_> = first.iter().flat_map(|transaction| transaction.markers()).collect();
        assert_eq!(marked, [&Uuid::from_u128(0x2a)], "B4");
    }
}
