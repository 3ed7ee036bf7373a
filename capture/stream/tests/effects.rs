//! Membership, net effects, totals and grants.

use crate::source::{Source, fixture, item, list, member};
use crate::store::{Store, apply};
use std::collections::BTreeMap;
use tidegate_model::{Lsn, RowDigest, RowKey, RowVersion, ScopeDigest, TableId, row_digest};
use tidegate_stream::FailureClass;

/// Effects of one transaction: scope, event ordinal, effect ordinal, op, count after.
fn effects_of(store: &Store, commit_lsn: u64) -> Vec<(String, i64, i32, i16, i64)> {
    let of = |(scope, lsn, event, ordinal): &(String, Lsn, i64, i32)| {
        (lsn.0 == commit_lsn).then(|| (scope.clone(), *event, *ordinal))
    };
    let effects = store.tables.effects.iter();
    effects
        .filter_map(|(at, e)| {
            of(at).map(|(scope, event, ordinal)| (scope, event, ordinal, e.op, e.count_after))
        })
        .collect()
}

/// Row digests of one scope, by table and key.
type Held = BTreeMap<(i32, Vec<u8>), [u8; 16]>;

/// What every test ends with: totals follow from rows and edges, and a client that applies each scope's effects, checking digest and
/// count after each (V4), holds exactly the scope's rows.
pub fn check(store: &Store, registry: &tidegate_model::Snapshot) {
    let tables = &store.tables;
    let relation = |id: i32| registry.relation(tidegate_model::RelationId(id)).expect("registered");
    let table_of = |id: i32| relation(id).table_id.expect("only rows of synced relations are in scopes").0;
    let mut totals: BTreeMap<&str, (i64, ScopeDigest)> =
        tables.scopes.keys().map(|s| (s.as_str(), (0, ScopeDigest::EMPTY))).collect();
    let mut rows_of: BTreeMap<&str, Held> = BTreeMap::new();
    let mut edges = 0;
    for ((relation, key_index), row) in &tables.rows {
        for scope in &row.scopes {
            let total = totals.get_mut(scope.as_str()).expect("a scope");
            *total = (total.0 + 1, total.1.plus(RowDigest(row.digest)));
            assert!(tables.edges.contains_key(&(scope.clone(), *relation, key_index.clone())));
            rows_of.entry(scope).or_default().insert((table_of(*relation), key_index.clone()), row.digest);
            edges += 1;
        }
    }
    assert_eq!(edges, tables.edges.len());
    for (scope, stored) in &tables.scopes {
        assert_eq!(
            (stored.row_count, stored.digest),
            (totals[scope.as_str()].0, totals[scope.as_str()].1.to_bytes()),
            "{scope}"
        );
    }
    let mut clients: BTreeMap<&str, Held> = BTreeMap::new();
    for ((scope, lsn, event, ordinal), effect) in &tables.effects {
        let client = clients.entry(scope).or_default();
        let key = key_of_wire(&effect.key);
        let at = (effect.table, key.index_bytes());
        match &effect.row {
            Some(row) => {
                let digest = row_digest(TableId(effect.table), &key, RowVersion(effect.version), row);
                client.insert(at, digest.0);
            }
            None => assert!(client.remove(&at).is_some(), "a delete finds its row"),
        }
        let digest = client.values().fold(ScopeDigest::EMPTY, |sum, digest| sum.plus(RowDigest(*digest)));
        assert_eq!(
            (client.len() as i64, digest.to_bytes()),
            (effect.count_after, effect.digest_after),
            "{scope} {lsn} {event}.{ordinal}"
        );
        if tables
            .effects
            .range((scope.clone(), *lsn, *event, ordinal + 1)..)
            .next()
            .is_none_or(|(next, _)| next.0 != *scope)
        {
            assert_eq!(tables.scopes[scope].tail, (*lsn, *event, *ordinal), "the tail is the last effect");
        }
    }
    clients.retain(|_, rows| !rows.is_empty());
    assert_eq!(clients, rows_of);
    for (lsn, (_, _, _, events, effects, ..)) in &tables.transactions {
        assert_eq!(tables.effects.keys().filter(|key| key.1 == *lsn).count() as i64, *effects);
        assert!(tables.effects.keys().filter(|key| key.1 == *lsn).all(|key| key.2 < *events));
    }
}

fn key_of_wire(mut bytes: &[u8]) -> RowKey {
    match tidegate_model::RowReader::new(&[&[0x91], bytes].concat())
        .and_then(|mut reader| Some(reader.next_value()?.0))
    {
        Some(tidegate_model::WireValue::Int(value)) => RowKey::Int(value),
        _ => {
            // A string: skip its header.
            let header = match bytes[0] {
                0xd9 => 2,
                0xda => 3,
                0xdb => 5,
                _ => 1,
            };
            bytes = &bytes[header..];
            RowKey::Text(std::str::from_utf8(bytes).expect("UTF-8").to_owned())
        }
    }
}

#[test]
fn r6_a_row_inserted_and_deleted_in_one_transaction_leaves_nothing() {
    let mut store = Store::default();
    let frames = Source::default().changes(&[item('I', 6, Some("L1"), "a", 9), item('D', 6, None, "", 0)]);
    apply(&mut store, &frames).expect("materializes");
    assert!(
        store.tables.effects.is_empty() && store.tables.rows.is_empty() && store.tables.scopes.is_empty()
    );
    let record = store.tables.transactions.values().next().expect("R4: its record");
    assert_eq!((record.3, record.4), (2, 0));
}

#[test]
fn r4_a_transaction_without_applicable_events_is_recorded() {
    let mut store = Store::default();
    for frames in [Source::default().changes(&[]), Source::default().changes(&[crate::source::other(1)])] {
        store.tables.transactions.clear();
        apply(&mut store, &frames).expect("materializes");
        assert_eq!(store.tables.transactions.len(), 1);
    }
}

#[test]
fn tx09_values_that_flip_leave_at_most_one_effect_per_scope_and_row() {
    let mut source = Source::default();
    let mut store = Store::default();
    apply(&mut store, &source.changes(&[item('I', 5, Some("L1"), "a", 1)])).expect("inserts");
    let flips = [
        item('U', 5, Some("L2"), "a", 1),
        item('U', 5, Some("L1"), "a", 1),
        item('U', 5, Some("L2"), "a", 9),
    ];
    let frames = source.changes(&flips);
    apply(&mut store, &frames).expect("flips");
    let expected = [("hot", 2, 0, 1, 1), ("list:L1", 2, 0, 2, 0), ("list:L2", 2, 0, 1, 1)];
    assert_eq!(
        effects_of(&store, frames.commit_lsn),
        expected.map(|(s, event, ordinal, op, count)| (s.to_owned(), event, ordinal, op, count))
    );
    let leave =
        store.tables.effects.iter().find(|(at, e)| at.0 == "list:L1" && e.op == 2).expect("it leaves").1;
    let row = store.tables.rows.values().next().expect("a row");
    assert_eq!(
        (leave.version, leave.row.as_ref()),
        (row.version, None),
        "a delete has the version of the fence that caused it"
    );

    let back = source.changes(&[item('U', 5, Some("L1"), "a", 1), item('U', 5, Some("L2"), "a", 9)]);
    apply(&mut store, &back).expect("leaves and comes back");
    let expected = [("hot", 1, 0, 1, 1), ("list:L2", 1, 0, 1, 1)];
    assert_eq!(
        effects_of(&store, back.commit_lsn),
        expected.map(|(s, event, ordinal, op, count)| (s.to_owned(), event, ordinal, op, count))
    );
    check(&store, &fixture());
}

#[test]
fn dt08_null_is_no_scope_and_moves_to_and_from_it_are_seen() {
    let mut source = Source::default();
    let mut store = Store::default();
    apply(&mut store, &source.changes(&[item('I', 1, None, "a", 1), item('I', 2, Some(""), "a", 1)]))
        .expect("inserts");
    assert_eq!(store.tables.scopes.keys().collect::<Vec<_>>(), ["list:"], "an empty value is a value");
    let to = source.changes(&[item('U', 1, Some("a/b"), "a", 1)]);
    apply(&mut store, &to).expect("updates");
    assert_eq!(effects_of(&store, to.commit_lsn), [("list:a%2Fb".to_owned(), 0, 0, 1, 1)]);
    let from = source.changes(&[item('U', 1, None, "a", 1)]);
    apply(&mut store, &from).expect("updates");
    assert_eq!(effects_of(&store, from.commit_lsn), [("list:a%2Fb".to_owned(), 0, 0, 2, 0)]);
    check(&store, &fixture());
}

#[test]
fn r6_a_scope_named_by_two_rules_holds_a_row_once() {
    let mut source = Source::default();
    let mut store = Store::default();
    let mut untitled = item('I', 1, Some("L1"), "", 1);
    untitled.cells[2] = crate::frames::Cell::Null;
    let frames = source.changes(&[untitled]);
    apply(&mut store, &frames).expect("inserts");
    assert_eq!(effects_of(&store, frames.commit_lsn), [("list:L1".to_owned(), 0, 0, 1, 1)]);
    check(&store, &fixture());
}

#[test]
fn p5_rows_of_several_tables_share_a_scope_and_each_effect_belongs_to_its_rows_last_event() {
    let mut store = Store::default();
    let frames = Source::default().transaction(&[
        vec![item('I', 2, Some("L1"), "a", 1), item('I', 1, Some("L1"), "b", 1)],
        vec![list('I', "L1", "x")],
        vec![item('U', 2, Some("L1"), "c", 1)],
    ]);
    apply(&mut store, &frames).expect("materializes");
    let expected = [(1, 0, 1, 1), (2, 0, 1, 2), (3, 0, 1, 3)];
    let expected =
        expected.map(|(event, ordinal, op, count)| ("list:L1".to_owned(), event, ordinal, op, count));
    assert_eq!(effects_of(&store, frames.commit_lsn), expected);
    check(&store, &fixture());
}

#[test]
fn v7_grants_change_only_when_the_last_row_that_gives_them_does() {
    let mut source = Source::default();
    let mut store = Store::default();
    let first = source.changes(&[
        member('I', 1, "L1", "ann", true),
        member('I', 2, "L1", "ann", true),
        member('I', 3, "L1", "bob", false),
    ]);
    apply(&mut store, &first).expect("grants");
    let granted = |op, subject: &str, scope: &str| (op, subject.to_owned(), scope.to_owned());
    assert_eq!(
        store.tables.grant_effects,
        [((Lsn(first.commit_lsn), 0), granted(1, "ann", "list:L1"))].into()
    );
    assert_eq!(
        store.tables.grants,
        [(("ann".into(), "list:L1".into()), (2, Some(Lsn(first.commit_lsn))))].into()
    );
    assert!(store.tables.effects.is_empty(), "clients see no rows of a dependency");

    apply(&mut store, &source.changes(&[member('D', 1, "", "", false)])).expect("one of two goes");
    assert_eq!(
        (store.tables.grant_effects.len(), store.tables.grants.values().next()),
        (1, Some(&(1, Some(Lsn(first.commit_lsn)))))
    );

    // In one transaction: one pair goes and comes back, another comes and goes, a third moves.
    let frames = source.changes(&[
        member('U', 2, "L1", "ann", false),
        member('U', 3, "L2", "bob", true),
        member('U', 2, "L1", "ann", true),
        member('U', 3, "L3", "bob", true),
    ]);
    apply(&mut store, &frames).expect("moves");
    let of_last: Vec<_> = store
        .tables
        .grant_effects
        .iter()
        .filter(|((lsn, _), _)| lsn.0 == frames.commit_lsn)
        .map(|(at, e)| (at.1, e.clone()))
        .collect();
    assert_eq!(of_last, [(0, granted(1, "bob", "list:L3"))]);
    assert_eq!(
        store.tables.grants[&("ann".to_owned(), "list:L1".to_owned())],
        (1, Some(Lsn(first.commit_lsn))),
        "held without a gap"
    );

    let frames = source.changes(&[
        member('D', 2, "", "", false),
        member('U', 3, "L1", "bob", true),
        member('I', 4, "L3", "bob", true),
    ]);
    apply(&mut store, &frames).expect("moves");
    let of_last: Vec<_> = store
        .tables
        .grant_effects
        .iter()
        .filter(|((lsn, _), _)| lsn.0 == frames.commit_lsn)
        .map(|(at, e)| (at.1, e.clone()))
        .collect();
    assert_eq!(
        of_last,
        [(0, granted(2, "ann", "list:L1")), (1, granted(1, "bob", "list:L1"))],
        "in the order of subject and scope"
    );
    assert_eq!(store.tables.grants.len(), 2);
}

#[test]
fn q4_a_projected_state_that_contradicts_itself_blocks() {
    let mut source = Source::default();
    let mut store = Store::default();
    apply(&mut store, &source.changes(&[item('I', 1, Some("L1"), "a", 1)])).expect("inserts");
    let update = source.changes(&[item('U', 1, Some("L1"), "b", 1)]);
    let delete = source.changes(&[item('D', 1, None, "", 0)]);

    let mut lost_scope = store.clone();
    lost_scope.tables.scopes.clear();
    assert_eq!(
        apply(&mut lost_scope, &update).expect_err("blocks").class,
        FailureClass::ProjectionInconsistent
    );
    let mut no_rows = store.clone();
    no_rows.tables.scopes.get_mut("list:L1").expect("a scope").row_count = 0;
    assert_eq!(apply(&mut no_rows, &delete).expect_err("blocks").class, FailureClass::ProjectionInconsistent);
    let mut misshapen = store.clone();
    misshapen.tables.rows.values_mut().next().expect("a row").row = vec![0x92, 1, 2];
    let mut omitted = item('U', 1, Some("L1"), "b", 1);
    omitted.cells[3] = crate::frames::Cell::Unchanged;
    let omitted = source.changes(&[omitted]);
    assert_eq!(
        apply(&mut misshapen, &omitted).expect_err("blocks").class,
        FailureClass::ProjectionInconsistent
    );
}
