//! Assembly: ordinals, registry generations, metadata drift, TRUNCATE, half-received transactions.

use crate::frames::{self, Cell};
use crate::source::{self, ITEM, LIST, OTHER, Source, TEXT, fixture, item, list, other, registry};
use crate::store::{assembler, blocked, feed, paired};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_model::{Lsn, RegistryGeneration, RelationId, RowOperation};
use tidegate_stream::*;
use uuid::Uuid;

fn class_of(frames: &[Vec<u8>]) -> Failure {
    match feed(&mut assembler(fixture()), frames) {
        Ok(_) => panic!("a blocking failure"),
        Err(failure) => failure,
    }
}

#[test]
fn p4_ordinals_count_every_row_change_before_any_filtering() {
    let mut source = Source::default();
    let frames = source.changes(&[
        other(1),
        item('I', 1, Some("L1"), "a", 1),
        other(2),
        other(3),
        item('I', 2, Some("L1"), "b", 1),
        item('I', 3, Some("L1"), "c", 1),
        list('I', "L1", "first"),
    ]);
    let transaction = paired(&mut assembler(fixture()), &frames).expect("pairs");
    assert_eq!(transaction.header().event_count, 7);
    let manifest = Manifest::decode(transaction.manifest()).expect("a manifest");
    let run = |first, count, relation| Run {
        first,
        count,
        relation: RelationId(relation),
        operation: RowOperation::Insert,
    };
    assert_eq!(manifest.runs, [run(1, 1, 1), run(4, 2, 1), run(6, 1, 2)]);
}

#[test]
fn p1_r1_identity_is_the_commit_position_not_the_end() {
    let frames = Source::default().changes(&[]);
    let transaction = paired(&mut assembler(fixture()), &frames).expect("pairs");
    let header = transaction.header();
    assert_eq!((header.commit_lsn, header.end_lsn), (Lsn(frames.commit_lsn), Lsn(frames.commit_lsn + 8)));
    assert_eq!((header.xid, header.event_count), (700, 0));
}

#[test]
fn tx06_a_half_received_transaction_is_discarded_whole_on_reconnect() {
    let mut source = Source::default();
    let frames = source.changes(&[item('I', 1, Some("L1"), "a", 1), item('U', 1, Some("L1"), "b", 1)]).all();
    let mut whole = assembler(fixture());
    let expected =
        feed(&mut whole, &frames).expect("assembles").remove(0).pair().map_err(blocked).expect("pairs");
    for cut in 0..frames.len() {
        let mut assembler = assembler(fixture());
        assert!(feed(&mut assembler, &frames[..cut]).expect("assembles").is_empty());
        assert_eq!(assembler.is_idle(), cut == 0, "A3");
        assembler.reconnected(fixture());
        assert!(assembler.is_idle());
        let again = feed(&mut assembler, &frames)
            .expect("assembles")
            .remove(0)
            .pair()
            .map_err(blocked)
            .expect("pairs");
        assert_eq!(again.header(), expected.header());
        assert_eq!(again.manifest(), expected.manifest());
    }
}

#[test]
fn r3_the_same_transaction_has_the_same_manifest_and_another_one_blocks() {
    let mut source = Source::default();
    let frames = source.changes(&[item('I', 1, Some("L1"), "a", 1)]);
    let other = source.changes(&[item('I', 1, Some("L1"), "a", 1)]);
    let stored = paired(&mut assembler(fixture()), &frames).expect("pairs");
    let replayed = paired(&mut assembler(fixture()), &frames).expect("pairs");
    assert_eq!(replayed.verify_replay(stored.manifest()), Ok(()));
    let different = paired(&mut assembler(fixture()), &other).expect("pairs");
    let failure = different.verify_replay(stored.manifest()).unwrap_err();
    assert_eq!(failure.class, FailureClass::ManifestMismatch);
    assert_eq!(failure.commit_lsn, Some(Lsn(other.commit_lsn)));
}

#[test]
fn g3_an_activation_holds_for_later_events_of_the_same_transaction() {
    // Generation 0 knows nothing; generation 1 comes by a message between two inserts.
    let mut source = Source::default();
    let early = item('I', 1, Some("L1"), "a", 1);
    let late = item('I', 2, Some("L1"), "b", 1);
    let body = vec![
        source::describe(ITEM),
        early.frame(),
        // Its fence does not apply either: the relation was not in force.
        source.fence(&early).frame(),
        frames::message(true, "tidegate.registry", b"1:1"),
        late.frame(),
        source.fence(&late).frame(),
    ];
    let mut empty = registry(0);
    empty.relations.clear();
    empty.grants.clear();
    let mut assembler = assembler(Arc::new(empty));
    let transaction = paired(&mut assembler, &source::Frames { commit_lsn: 900, body }).expect("pairs");
    let manifest = Manifest::decode(transaction.manifest()).expect("a manifest");
    assert_eq!((manifest.runs.len(), manifest.runs[0].first, manifest.runs[0].count), (1, 1, 1));
    assert_eq!(transaction.header().event_count, 2);
    assert_eq!(assembler.registry().generation, RegistryGeneration(1), "and for later transactions");
}

#[test]
fn g4_an_unfinished_activation_is_forgotten_with_its_transaction() {
    let mut assembler = assembler(fixture());
    let half = [frames::begin(100, 1), frames::message(true, "tidegate.registry", b"1:2")];
    feed(&mut assembler, &half).expect("assembles");
    assembler.reconnected(fixture());
    assert_eq!(assembler.registry().generation, RegistryGeneration(1));
}

#[test]
fn g4_a_reconnect_starts_under_the_registry_of_its_boundary_and_forgets_descriptions() {
    let mut assembler = assembler(fixture());
    let activates = [
        frames::begin(100, 1),
        frames::message(true, "tidegate.registry", b"1:2"),
        source::describe(ITEM),
        frames::commit(100),
    ];
    feed(&mut assembler, &activates).expect("assembles");
    assert_eq!(assembler.registry().generation, RegistryGeneration(2));
    // Nothing of it was durable: the stream comes again from before.
    assembler.reconnected(fixture());
    assert_eq!(assembler.registry().generation, RegistryGeneration(1));
    let undescribed = [frames::begin(100, 1), item('I', 1, Some("L1"), "a", 1).frame()];
    let Err(failure) = feed(&mut assembler, &undescribed) else { panic!("the server describes again") };
    assert_eq!(failure.class, FailureClass::RelationUndescribed);
}

#[test]
fn r3_rows_in_another_order_are_another_transaction() {
    let rows = [item('I', 1, Some("L1"), "a", 1), item('I', 2, Some("L1"), "a", 1)];
    let fences: Vec<_> = {
        let mut source = Source::default();
        rows.iter().map(|row| source.fence(row).frame()).collect()
    };
    let manifest = |order: [usize; 2]| {
        let mut body = vec![source::describe(ITEM)];
        body.extend(order.map(|at| rows[at].frame()));
        body.extend(fences.iter().cloned());
        let frames = source::Frames { commit_lsn: 900, body };
        paired(&mut assembler(fixture()), &frames).expect("pairs").manifest().to_vec()
    };
    assert_ne!(manifest([0, 1]), manifest([1, 0]));
    assert_eq!(manifest([0, 1]), manifest([0, 1]));
}

#[test]
fn g2_activations_that_do_not_parse_go_backwards_or_are_not_answered_block() {
    let announce =
        |content: &[u8]| vec![frames::begin(100, 9), frames::message(true, "tidegate.registry", content)];
    assert_eq!(class_of(&announce(b"2:1")).class, FailureClass::RegistryMessageMalformed);
    assert_eq!(class_of(&announce(b"1:x")).class, FailureClass::RegistryMessageMalformed);
    assert_eq!(class_of(&announce(b"1:0")).class, FailureClass::RegistryGenerationBackwards);

    let mut waiting = assembler(fixture());
    waiting.frame(&frames::begin(100, 9)).expect("begins");
    let step = waiting.frame(&frames::message(true, "tidegate.registry", b"1:5")).expect("asks");
    assert!(matches!(step, Step::NeedsSnapshot { generation: RegistryGeneration(5), xid: 9 }));
    let Err(error) = waiting.frame(&frames::commit(100)) else { panic!("unanswered") };
    assert_eq!(blocked(error).class, FailureClass::RegistryGenerationMissing);
    let failure = blocked(waiting.provide_snapshot(Arc::new(registry(4))).unwrap_err());
    assert_eq!(failure.class, FailureClass::RegistryGenerationMissing);

    let mut repeated = assembler(fixture());
    let frames =
        [frames::begin(100, 9), frames::message(true, "tidegate.registry", b"1:1"), frames::commit(100)];
    assert_eq!(feed(&mut repeated, &frames).expect("the generation in force changes nothing").len(), 1);
}

#[test]
fn g5_every_kind_of_drift_blocks_before_the_next_row() {
    const GOOD: [(&str, u32, bool); 5] = [
        ("id", 20, true),
        ("list_id", 25, false),
        ("title", 25, false),
        ("body", 25, false),
        ("rev", 23, false),
    ];
    let with = |at: usize, column: (&'static str, u32, bool)| {
        let mut columns = GOOD.to_vec();
        columns[at] = column;
        columns
    };
    let cases = [
        (FailureClass::RelationReplaced, frames::relation(99, "public", "item", b'd', &GOOD), 99),
        (FailureClass::RelationRenamed, frames::relation(ITEM, "public", "item_old", b'd', &GOOD), ITEM),
        (FailureClass::RelationRenamed, frames::relation(ITEM, "archive", "item", b'd', &GOOD), ITEM),
        (FailureClass::ReplicaIdentityChanged, frames::relation(ITEM, "public", "item", b'f', &GOOD), ITEM),
        (FailureClass::ReplicaIdentityChanged, frames::relation(ITEM, "public", "item", b'n', &GOOD), ITEM),
        (FailureClass::ReplicaIdentityChanged, frames::relation(ITEM, "public", "item", b'i', &GOOD), ITEM),
        (
            FailureClass::PrimaryKeyChanged,
            frames::relation(ITEM, "public", "item", b'd', &with(0, ("id", 20, false))),
            ITEM,
        ),
        (
            FailureClass::PrimaryKeyChanged,
            frames::relation(ITEM, "public", "item", b'd', &with(4, ("rev", 23, true))),
            ITEM,
        ),
        (
            FailureClass::ColumnMissing,
            frames::relation(ITEM, "public", "item", b'd', &with(2, ("headline", 25, false))),
            ITEM,
        ),
        (
            FailureClass::ColumnTypeChanged,
            frames::relation(ITEM, "public", "item", b'd', &with(4, ("rev", 20, false))),
            ITEM,
        ),
    ];
    for (class, description, oid) in cases {
        let change = item('I', 1, Some("L1"), "a", 1);
        let row = frames::insert(oid, &change.cells);
        let failure = class_of(&[frames::begin(100, 1), description, row]);
        assert_eq!(failure.class, class);
        assert_eq!((failure.commit_lsn, failure.relation), (Some(Lsn(100)), Some(RelationId(1))), "{class}");
        assert!(!failure.class.retryable(), "{class}");
    }
}

#[test]
fn g5_dd02_columns_that_are_not_captured_come_and_go() {
    // In between, in front, in another order, and one that the registration left out is gone again.
    let columns = [
        ("extra", 1700, false),
        ("rev", 23, false),
        ("body", 25, false),
        ("title", 25, false),
        ("list_id", 25, false),
        ("id", 20, true),
    ];
    let cells: [Cell; 6] = ["9.5".into(), "3".into(), Cell::Null, "a".into(), "L1".into(), "1".into()];
    let fence = Source::default().fence(&item('I', 1, Some("L1"), "a", 3));
    let shuffled = [
        frames::begin(100, 1),
        frames::relation(ITEM, "public", "item", b'd', &columns),
        frames::insert(ITEM, &cells),
        fence.frame(),
        frames::commit(100),
    ];
    let plain = Source::default().changes(&[item('I', 1, Some("L1"), "a", 3)]);
    let mut images = Vec::new();
    for frames in [shuffled.to_vec(), plain.all()] {
        let mut store = crate::store::Store::default();
        let transaction =
            feed(&mut assembler(fixture()), &frames).expect("assembles").remove(0).pair().map_err(blocked);
        store.group(vec![transaction.expect("pairs")]).expect("materializes");
        images.push(store.tables.rows.into_values().map(|row| row.row).collect::<Vec<_>>());
    }
    assert_eq!(images[0], images[1], "the image has the captured columns in registry order");
}

#[test]
fn g5_a_description_is_judged_under_the_registry_in_force_at_its_row() {
    // An unregistered table that will be registered later drifts as it likes until then.
    let odd = frames::relation(ITEM, "public", "item", b'f', &[("id", 20, true)]);
    let mut empty = registry(0);
    empty.relations.clear();
    empty.grants.clear();
    let row = frames::insert(ITEM, &["1".into()]);
    let before = [frames::begin(100, 1), odd.clone(), row.clone(), frames::commit(100)];
    let mut assembler = assembler(Arc::new(empty));
    feed(&mut assembler, &before).expect("does not apply");
    let after = [frames::begin(200, 1), frames::message(true, "tidegate.registry", b"1:1"), row];
    let Err(failure) = feed(&mut assembler, &after) else { panic!("drift") };
    assert_eq!(failure.class, FailureClass::ReplicaIdentityChanged);
}

#[test]
fn k3_tx04_truncate_of_a_registered_table_blocks_and_of_another_does_not() {
    let failure = class_of(&[frames::begin(100, 1), frames::truncate(&[OTHER, LIST])]);
    assert_eq!((failure.class, failure.relation), (FailureClass::Truncate, Some(RelationId(2))));
    assert!(!failure.class.retryable());
    assert!(failure.explanation().contains("public.list"));
    let unregistered = [frames::begin(100, 1), frames::truncate(&[OTHER]), frames::commit(100)];
    assert_eq!(feed(&mut assembler(fixture()), &unregistered).expect("does not apply").len(), 1);
}

#[test]
fn f1_a_key_change_blocks_and_a_repeated_key_does_not() {
    let cells = item('U', 2, Some("L1"), "a", 1).cells;
    let old = |key: &str| [Cell::from(key), Cell::Null, Cell::Null, Cell::Null, Cell::Null];
    let frames = |key| {
        vec![
            frames::begin(100, 1),
            source::describe(ITEM),
            frames::update(ITEM, Some((b'K', &old(key))), &cells),
        ]
    };
    assert_eq!(class_of(&frames("1")).class, FailureClass::KeyChanged);
    assert!(feed(&mut assembler(fixture()), &frames("2")).is_ok());
}

#[test]
fn r8_an_unchanged_out_of_line_key_is_taken_from_the_old_tuple() {
    let describe = source::describe(LIST);
    let old = [Cell::from("long key"), Cell::Null];
    let known = frames::update(LIST, Some((b'K', &old)), &[Cell::Unchanged, "x".into()]);
    assert!(feed(&mut assembler(fixture()), &[frames::begin(100, 1), describe.clone(), known]).is_ok());
    let unknown = frames::update(LIST, None, &[Cell::Unchanged, "x".into()]);
    assert_eq!(class_of(&[frames::begin(100, 1), describe, unknown]).class, FailureClass::ValueMalformed);
}

#[test]
fn q1_malformed_values_name_their_column_and_nothing_of_themselves() {
    let mut cells = item('I', 1, Some("L1"), "SECRET-7f3a", 1).cells;
    cells[4] = "SECRET-7f3a".into();
    let failure = class_of(&[frames::begin(100, 1), source::describe(ITEM), frames::insert(ITEM, &cells)]);
    assert_eq!((failure.class, failure.relation), (FailureClass::ValueMalformed, Some(RelationId(1))));
    assert!(failure.explanation().contains("rev") && !failure.to_string().contains("SECRET"), "{failure}");
    let mut cells = cells.clone();
    cells[0] = "SECRET-7f3a".into();
    let failure = class_of(&[frames::begin(100, 1), source::describe(ITEM), frames::insert(ITEM, &cells)]);
    assert_eq!(failure.class, FailureClass::ValueMalformed);
    assert!(!failure.to_string().contains("SECRET"), "{failure}");
}

#[test]
fn q4_messages_outside_of_their_place_block() {
    let row = item('I', 1, Some("L1"), "a", 1).frame();
    let begin = frames::begin(100, 1);
    assert_eq!(class_of(std::slice::from_ref(&row)).class, FailureClass::MessageUnexpected);
    assert_eq!(class_of(&[begin.clone(), row]).class, FailureClass::RelationUndescribed);
    assert_eq!(class_of(&[begin.clone(), begin.clone()]).class, FailureClass::MessageUnexpected);
    assert_eq!(class_of(&[frames::commit(100)]).class, FailureClass::MessageUnexpected);
    assert_eq!(class_of(&[begin.clone(), frames::commit(101)]).class, FailureClass::MessageUnexpected);
    let again = [begin.clone(), frames::commit(100), begin.clone()];
    assert_eq!(class_of(&again).class, FailureClass::MessageUnexpected, "R5: out of commit order");
    assert_eq!(
        class_of(&[frames::message(true, "tidegate.fence", b"")]).class,
        FailureClass::MessageUnexpected
    );
    let failure = class_of(&[begin, vec![b'I', 0]]);
    assert_eq!((failure.class, failure.commit_lsn), (FailureClass::FrameMalformed, Some(Lsn(100))));
}

#[test]
fn messages_of_others_and_outside_of_transactions_are_ignored() {
    let frames = [
        frames::message(false, "tidegate.fence", b"garbage"),
        frames::begin(100, 1),
        frames::origin(),
        frames::type_name(4),
        frames::message(false, "tidegate.registry", b"garbage"),
        frames::message(true, "somebody.else", b"garbage"),
        frames::commit(100),
    ];
    assert_eq!(feed(&mut assembler(fixture()), &frames).expect("assembles").len(), 1);
}

#[test]
fn b4_markers_are_reported_with_their_transaction() {
    let nonce = Uuid::from_u128(42);
    let message = frames::message(true, "tidegate.marker", format!("1:{nonce}").as_bytes());
    let frames = [frames::begin(100, 1), message, frames::commit(100)];
    let transactions = feed(&mut assembler(fixture()), &frames).expect("assembles");
    assert_eq!(transactions[0].markers(), [nonce]);
    let malformed = [frames[0].clone(), frames::message(true, "tidegate.marker", b"1:x")];
    assert_eq!(class_of(&malformed).class, FailureClass::MarkerMalformed);
}

#[test]
fn g1_registered_names_are_compared_with_their_quotes_off() {
    let mut odd = registry(1);
    odd.relations[0].schema = "Or\"d.er".into();
    odd.relations[0].name = "select".into();
    let odd = Arc::new(odd);
    let description = frames::relation(
        ITEM,
        "Or\"d.er",
        "select",
        b'd',
        &[
            ("id", 20, true),
            ("list_id", TEXT, false),
            ("title", TEXT, false),
            ("body", TEXT, false),
            ("rev", 23, false),
        ],
    );
    let change = item('I', 1, Some("L1"), "a", 1);
    let fence = Source::default().fence(&change).content();
    let named = |name: &str| fence.replace(":11:public.item:", &format!(":{}:{name}:", name.len()));
    for (name, good) in [
        ("\"Or\"\"d.er\".\"select\"", true),
        ("\"Or\"\"d.er\".select", true),
        ("\"Or\"\"d.er\".selects", false),
        ("\"Or\"d.er\".\"select\"", false),
        ("\"Or\"\"d\".\"er.select\"", false),
        ("select", false),
        ("", false),
    ] {
        let message = frames::message(true, "tidegate.fence", named(name).as_bytes());
        let frames =
            [frames::begin(100, 1), description.clone(), change.frame(), message, frames::commit(100)];
        match feed(&mut assembler(odd.clone()), &frames) {
            Ok(_) => assert!(good, "{name}"),
            Err(failure) => {
                assert!(!good && failure.class == FailureClass::FenceRelationMismatch, "{name}: {failure}")
            }
        }
    }
}

proptest! {
    #[test]
    fn manifests_round_trip(parts in proptest::collection::vec((0..1u64 << 40, 1..1u64 << 20, 1..i32::MAX, 0..3usize), 0..40), digest in any::<[u8; 16]>()) {
        let mut end = 0;
        let mut runs = Vec::new();
        for (gap, count, relation, operation) in parts {
            let operation = [RowOperation::Insert, RowOperation::Update, RowOperation::Delete][operation];
            runs.push(Run { first: end + gap, count, relation: RelationId(relation), operation });
            end += gap + count;
        }
        let manifest = Manifest { digest, runs };
        let packed = manifest.encode();
        prop_assert_eq!(Manifest::decode(&packed), Some(manifest));
        for cut in 0..packed.len() {
            // A cut at a run's edge is a shorter manifest, never a panic.
            let _ = Manifest::decode(&packed[..cut]);
        }
    }

    #[test]
    fn no_sequence_of_frames_makes_the_assembler_panic(picks in proptest::collection::vec(0..12usize, 0..30)) {
        let change = item('I', 1, Some("L1"), "a", 1);
        let mut source = Source::default();
        let mut assembler = assembler(fixture());
        for pick in picks {
            let frame = match pick {
                0 => frames::begin(100, 1),
                1 => frames::commit(100),
                2 => source::describe(ITEM),
                3 => change.frame(),
                4 => source.fence(&change).frame(),
                5 => frames::truncate(&[ITEM]),
                6 => frames::message(true, "tidegate.registry", b"1:2"),
                7 => frames::message(true, "tidegate.fence", b"1:s:1:11:"),
                8 => item('D', 1, None, "", 0).frame(),
                9 => frames::insert(ITEM, &[Cell::Unchanged]),
                10 => item('U', 1, None, "", 0).frame(),
                _ => frames::origin(),
            };
            match assembler.frame(&frame) {
                Ok(Step::NeedsSnapshot { generation, .. }) => {
                    let _ = assembler.provide_snapshot(Arc::new(registry(generation.0)));
                }
                Ok(Step::Transaction(transaction)) => drop(transaction.pair()),
                Ok(Step::Continue) | Err(_) => {}
            }
        }
    }
}
