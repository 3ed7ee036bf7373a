//! Pairing of row changes and fences (F7, F8).

use crate::frames;
use crate::source::{self, Change, Fence, Frames, ITEM, Source, fixture, item, list, member};
use crate::store::{Store, apply, assembler, feed, paired};
use tidegate_model::{Lsn, RelationId};
use tidegate_stream::*;
use uuid::Uuid;

/// One transaction of `changes` with exactly these `fences` behind them.
fn transaction(changes: &[Change], fences: &[Fence]) -> Frames {
    let mut body = vec![
        source::describe(source::ITEM),
        source::describe(source::LIST),
        source::describe(source::MEMBER),
    ];
    body.extend(changes.iter().map(Change::frame));
    body.extend(fences.iter().map(Fence::frame));
    Frames { commit_lsn: 5000, body }
}

fn fences(changes: &[Change]) -> Vec<Fence> {
    let mut source = Source::default();
    changes.iter().map(|change| source.fence(change)).collect()
}

fn failure(changes: &[Change], fences: &[Fence]) -> Failure {
    let failure = apply(&mut Store::default(), &transaction(changes, fences)).expect_err("a mismatch");
    assert_eq!(failure.commit_lsn, Some(Lsn(5000)));
    failure
}

#[test]
fn f7_fences_of_different_rows_interleave_freely() {
    let changes = [
        item('I', 1, Some("L1"), "a", 1),
        item('I', 2, Some("L1"), "b", 1),
        list('I', "L1", "x"),
        item('U', 1, Some("L2"), "c", 1),
        item('D', 2, None, "", 0),
    ];
    let fences = fences(&changes);
    // Any arrival order pairs: within a row the ordinals decide, between rows nothing does.
    for turn in 0..fences.len() {
        let mut turned = fences.clone();
        turned.rotate_left(turn);
        let mut store = Store::default();
        apply(&mut store, &transaction(&changes, &turned)).expect("pairs");
        let versions: Vec<_> = store.tables.rows.values().map(|row| row.version).collect();
        assert_eq!(versions, [fences[3].version, fences[2].version], "each row has its last fence's version");
    }
}

#[test]
fn f7_the_kth_change_pairs_with_the_kth_lowest_ordinal() {
    let changes = [
        item('I', 1, Some("L1"), "a", 1),
        item('U', 1, Some("L1"), "b", 1),
        item('U', 1, Some("L1"), "c", 1),
    ];
    let mut fences = fences(&changes);
    fences.swap(1, 2);
    let mut store = Store::default();
    apply(&mut store, &transaction(&changes, &fences)).expect("pairs");
    let last = fences.iter().max_by_key(|fence| fence.ordinal).expect("a fence");
    assert_eq!(store.tables.rows.values().next().expect("a row").version, last.version);
    // The ordinals of insert and update in the other order: reordered within a row.
    fences[0].ordinal = last.ordinal + 1;
    assert_eq!(failure(&changes, &fences).class, FailureClass::FenceOperationMismatch);
}

#[test]
fn tx03_f11_a_row_without_its_fence_blocks_with_its_relation() {
    for changes in [
        vec![item('I', 70, Some("L1"), "SECRET-7f3a", 1)],
        vec![item('I', 69, Some("L1"), "", 1), list('I', "L1", "SECRET-7f3a")],
    ] {
        let mut fences = fences(&changes);
        fences.pop();
        let failure = failure(&changes, &fences);
        assert_eq!(failure.class, FailureClass::FenceMissing);
        assert_eq!(failure.relation, Some(RelationId(if changes.len() == 1 { 1 } else { 2 })));
        assert!(!failure.to_string().contains("SECRET") && !failure.to_string().contains("70"), "{failure}");
    }
}

#[test]
fn tx03_op08_a_fence_without_its_row_blocks_with_its_relation() {
    let changes = [item('I', 1, Some("L1"), "a", 1)];
    let mut forged = fences(&[changes[0].clone(), list('I', "L9", "x")]);
    let failure = failure(&changes, &forged);
    assert_eq!((failure.class, failure.relation), (FailureClass::FenceWithoutRow, Some(RelationId(2))));
    // The same row once more.
    forged[1] = Fence { key: "1".into(), oid: ITEM, ..forged[1].clone() };
    let failure = super::pairing::failure(&changes, &forged);
    assert_eq!((failure.class, failure.relation), (FailureClass::FenceWithoutRow, Some(RelationId(1))));
}

#[test]
fn f8_duplicate_reused_and_inconsistent_fences_block() {
    use FailureClass::*;
    let changes = [
        item('I', 1, Some("L1"), "a", 1),
        item('I', 2, Some("L1"), "b", 1),
        item('U', 1, Some("L1"), "c", 1),
    ];
    let good = fences(&changes);
    apply(&mut Store::default(), &transaction(&changes, &good)).expect("pairs");
    let with = |at: usize, change: &dyn Fn(&mut Fence)| {
        let mut fences = good.clone();
        change(&mut fences[at]);
        failure(&changes, &fences).class
    };
    assert_eq!(with(1, &|fence| fence.id = good[0].id), FenceDuplicate, "an id of another row's fence");
    assert_eq!(with(2, &|fence| fence.id = good[0].id), FenceDuplicate, "an id of the same row's fence");
    assert_eq!(
        with(2, &|fence| fence.ordinal = good[0].ordinal),
        FenceDuplicate,
        "an ordinal of the same row's fence"
    );
    assert_eq!(with(2, &|fence| fence.version = good[0].version), FenceVersionReused);
    assert_eq!(with(0, &|fence| fence.version = Uuid::nil()), FenceMalformed, "the reserved version");
    assert_eq!(with(0, &|fence| fence.operation = 'D'), FenceOperationMismatch);
    assert_eq!(with(0, &|fence| fence.key = "x".into()), FenceMalformed);
    assert_eq!(with(0, &|fence| fence.key = "7".into()), FenceMissing, "of another row: this one has none");
    assert_eq!(
        with(0, &|fence| fence.key = "01".into()),
        FenceKeyMismatch,
        "the same number in other digits"
    );
}

#[test]
fn f8_ids_that_share_only_their_first_half_are_distinct() {
    let changes = [item('I', 1, Some("L1"), "a", 1), item('I', 2, Some("L1"), "b", 1)];
    let mut fences = fences(&changes);
    fences[1].id = Uuid::from_u128(fences[0].id.as_u128() ^ 1);
    apply(&mut Store::default(), &transaction(&changes, &fences)).expect("pairs");
}

#[test]
fn f4_a_fence_that_contradicts_its_registration_blocks() {
    let change = item('I', 1, Some("L1"), "a", 1);
    let content = Source::default().fence(&change).content();
    let class = |content: String| {
        let frames = [
            frames::begin(100, 1),
            source::describe(ITEM),
            change.frame(),
            frames::message(true, "tidegate.fence", content.as_bytes()),
        ];
        feed(&mut assembler(fixture()), &frames).map(|_| ()).map_err(|failure| failure.class)
    };
    assert_eq!(class(content.clone()), Ok(()));
    assert_eq!(class(content.replace("1:s:1:11:", "1:s:1:12:")), Err(FailureClass::FenceRelationMismatch));
    assert_eq!(class(content.replace("1:s:1:11:", "1:d:1::")), Err(FailureClass::FenceRelationMismatch));
    assert_eq!(
        class(content.replace("public.item", "public.itex")),
        Err(FailureClass::FenceRelationMismatch)
    );
    assert_eq!(class(content.replace("1:s:1:11:", "1:s:1::")), Err(FailureClass::FenceMalformed));
    assert_eq!(class(content.replace(":I:", ":X:")), Err(FailureClass::FenceMalformed));
    assert_eq!(class(String::new()), Err(FailureClass::FenceMalformed));
}

#[test]
fn b13_fences_and_rows_of_a_relation_that_is_not_in_force_do_not_apply() {
    let mut fewer = source::registry(1);
    fewer.relations.remove(1);
    let frames = Source::default().changes(&[list('I', "L1", "x"), item('I', 1, Some("L1"), "a", 1)]);
    let transaction = paired(&mut assembler(std::sync::Arc::new(fewer)), &frames).expect("pairs");
    assert_eq!((transaction.rows(), transaction.header().event_count), (1, 2));
}

#[test]
fn f8_write_fences_are_named_for_reconciliation() {
    let changes = [
        item('I', 1, Some("L1"), "a", 1),
        member('I', 5, "L1", "ann", true),
        item('U', 1, Some("L1"), "b", 1),
    ];
    let mut fences = fences(&changes);
    fences[0].mutation = Some(88);
    fences[2].mutation = Some(89);
    let mut store = Store::default();
    apply(&mut store, &transaction(&changes, &fences)).expect("pairs");
    let expected = [(0, 88), (2, 89)].map(|(at, mutation)| {
        let fence: &Fence = &fences[at];
        (fence.id, (mutation, 1, "1".to_owned(), fence.version, Lsn(5000)))
    });
    assert_eq!(store.tables.fences, expected.into_iter().collect());
}

#[test]
fn f7_text_keys_pair_like_integers_whatever_they_contain() {
    let keys = ["", "a:b", "é", "e\u{301}", "1", "'", &"k".repeat(5000)];
    let mut changes: Vec<_> = keys.iter().map(|key| list('I', key, "x")).collect();
    changes.extend(keys.iter().map(|key| list('U', key, "y")));
    let mut store = Store::default();
    apply(&mut store, &transaction(&changes, &fences(&changes))).expect("pairs");
    assert_eq!(store.tables.rows.len(), keys.len());
}
