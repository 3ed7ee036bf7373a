//! Projection: omitted values, inserts of what is there, changes of what is not.

use crate::frames::Cell;
use crate::source::{Change, ITEM, Source, item, list};
use crate::store::{Store, apply};
use tidegate_model::{RowReader, WireValue};
use tidegate_stream::FailureClass;

fn body_of(store: &Store, at: usize) -> Option<String> {
    let row = store.tables.rows.values().nth(at).expect("a row");
    match RowReader::new(&row.row).expect("an image").nth_value(3).expect("a body").0 {
        WireValue::Str(text) => Some(text.to_owned()),
        WireValue::Nil => None,
        other => panic!("{other:?}"),
    }
}

fn with_body(mut change: Change, body: Cell) -> Change {
    change.cells[3] = body;
    change
}

#[test]
fn r8_dt01_omitted_values_come_from_the_projected_image() {
    let big = "x".repeat(70_000);
    let mut source = Source::default();
    let mut store = Store::default();
    let insert = source.changes(&[with_body(item('I', 1, Some("L1"), "a", 1), big.as_str().into())]);
    apply(&mut store, &insert).expect("inserts");
    let update = source.changes(&[with_body(item('U', 1, Some("L1"), "b", 1), Cell::Unchanged)]);
    apply(&mut store, &update).expect("updates");
    assert_eq!(body_of(&store, 0).as_deref(), Some(big.as_str()));
    let effect = store.tables.effects.values().last().expect("an effect");
    assert_eq!(
        effect.row.as_ref(),
        store.tables.rows.values().next().map(|row| &row.row),
        "the effect carries it whole"
    );
}

#[test]
fn r8_dt01_omitted_values_come_from_earlier_in_the_same_transaction() {
    let mut source = Source::default();
    let mut store = Store::default();
    let frames = source.changes(&[
        with_body(item('I', 2, Some("L1"), "a", 1), "long".into()),
        with_body(item('U', 2, Some("L1"), "b", 1), Cell::Unchanged),
    ]);
    apply(&mut store, &frames).expect("projects");
    assert_eq!(body_of(&store, 0).as_deref(), Some("long"));

    // Written by the first update, omitted by the second; another value is omitted by both.
    let mut second = with_body(item('U', 2, Some("L1"), "", 1), Cell::Unchanged);
    second.cells[2] = Cell::Unchanged;
    let frames = source.changes(&[with_body(item('U', 2, Some("L2"), "c", 7), Cell::Unchanged), second]);
    apply(&mut store, &frames).expect("projects");
    assert_eq!(body_of(&store, 0).as_deref(), Some("long"));
    let row = store.tables.rows.values().next().expect("a row");
    assert_eq!(
        RowReader::new(&row.row).expect("an image").nth_value(2).expect("a title").0,
        WireValue::Str("c")
    );
    assert_eq!(row.scopes, ["list:L1"], "the last list_id is L1 again, and rev 1 is not hot");
}

#[test]
fn dt01_an_omitted_value_stays_null_when_it_was_null() {
    let mut source = Source::default();
    let mut store = Store::default();
    apply(&mut store, &source.changes(&[item('I', 1, Some("L1"), "a", 1)])).expect("inserts");
    apply(&mut store, &source.changes(&[with_body(item('U', 1, Some("L1"), "b", 1), Cell::Unchanged)]))
        .expect("updates");
    assert_eq!(body_of(&store, 0), None);
}

#[test]
fn dt01_nothing_is_invented_for_a_row_that_the_projection_lacks() {
    let mut source = Source::default();
    let cases = [
        (FailureClass::UpdateOnMissing, vec![with_body(item('U', 1, Some("L1"), "b", 1), Cell::Unchanged)]),
        (FailureClass::UpdateOnMissing, vec![item('U', 1, Some("L1"), "b", 1)]),
        (FailureClass::DeleteOnMissing, vec![item('D', 1, None, "", 0)]),
        (FailureClass::ValueMissing, vec![with_body(item('I', 1, Some("L1"), "b", 1), Cell::Unchanged)]),
        (
            FailureClass::InsertOnExisting,
            vec![item('I', 1, Some("L1"), "a", 1), item('I', 1, Some("L1"), "a", 1)],
        ),
        (
            FailureClass::UpdateOnMissing,
            vec![
                item('I', 1, Some("L1"), "a", 1),
                item('D', 1, None, "", 0),
                item('U', 1, Some("L1"), "a", 1),
            ],
        ),
        (
            FailureClass::DeleteOnMissing,
            vec![item('I', 1, Some("L1"), "a", 1), item('D', 1, None, "", 0), item('D', 1, None, "", 0)],
        ),
        (
            FailureClass::ValueMissing,
            vec![
                item('I', 1, Some("L1"), "a", 1),
                item('D', 1, None, "", 0),
                with_body(item('I', 1, Some("L1"), "b", 1), Cell::Unchanged),
            ],
        ),
    ];
    for (class, changes) in cases {
        let failure = apply(&mut Store::default(), &source.changes(&changes)).expect_err("blocks");
        assert_eq!(failure.class, class);
        assert!(failure.relation.is_some() && failure.commit_lsn.is_some());
    }
}

#[test]
fn q4_an_insert_of_a_row_that_the_projection_has_blocks() {
    let mut source = Source::default();
    let mut store = Store::default();
    let insert = [item('I', 1, Some("L1"), "a", 1)];
    apply(&mut store, &source.changes(&insert)).expect("inserts");
    let before = store.tables.clone();
    let failure = apply(&mut store, &source.changes(&insert)).expect_err("blocks");
    assert_eq!(failure.class, FailureClass::InsertOnExisting);
    assert_eq!(store.tables, before, "Q2: nothing in part");
}

#[test]
fn f8_a_version_that_the_projected_row_has_already_blocks() {
    let mut source = Source::default();
    let mut store = Store::default();
    let insert = item('I', 1, Some("L1"), "a", 1);
    apply(&mut store, &source.changes(std::slice::from_ref(&insert))).expect("inserts");
    let version = store.tables.rows.values().next().expect("a row").version;
    let update = item('U', 1, Some("L1"), "b", 1);
    let mut fence = source.fence(&update);
    fence.version = version;
    let body = vec![crate::source::describe(ITEM), update.frame(), fence.frame()];
    let failure = apply(&mut store, &crate::source::Frames { commit_lsn: 9000, body }).expect_err("blocks");
    assert_eq!(failure.class, FailureClass::FenceVersionReused);
}

#[test]
fn tx09_delete_and_insert_of_one_key_in_one_transaction_is_one_update() {
    let mut source = Source::default();
    let mut store = Store::default();
    apply(&mut store, &source.changes(&[list('I', "L1", "old"), item('I', 1, Some("L1"), "a", 1)]))
        .expect("inserts");
    let frames = source.changes(&[list('D', "L1", ""), list('I', "L1", "new")]);
    apply(&mut store, &frames).expect("projects");
    let effects: Vec<_> =
        store.tables.effects.iter().filter(|((_, lsn, ..), _)| lsn.0 == frames.commit_lsn).collect();
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!((effects[0].0.2, effects[0].1.op), (1, 1), "an upsert at the last event");
}
