//! R2: grouped, ungrouped and piecewise runs leave identical rows in every table.

use crate::effects::check;
use crate::frames::Cell;
use crate::source::{Change, Frames, Source, fixture, item, list, member, other, registry};
use crate::store::{Store, assembler, blocked, feed, paired};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_stream::*;

/// A wish, made possible by what exists: insert if the row is absent, else update or delete.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    table: u8,
    key: u8,
    delete: bool,
    list: u8,
    rev: u8,
    omit: bool,
}

pub fn wishes() -> impl Strategy<Value = Vec<Vec<Vec<Wish>>>> {
    let wish = (0..8u8, 0..5u8, proptest::bool::weighted(0.3), 0..4u8, 0..10u8, any::<bool>())
        .prop_map(|(table, key, delete, list, rev, omit)| Wish { table, key, delete, list, rev, omit });
    let statement = proptest::collection::vec(wish, 1..4);
    let transaction = proptest::collection::vec(statement, 0..5);
    proptest::collection::vec(transaction, 1..9)
}

/// Rows that exist, by table and key: whether the body is null.
pub type Existing = BTreeMap<(u32, String), ()>;

pub fn grant(wish: Wish, existing: &mut Existing) -> Change {
    let lists = [None, Some("L1"), Some("L2"), Some("L 3/é")];
    let list_id = lists[usize::from(wish.list)];
    let (id, rev) = (i64::from(wish.key) - 2, i32::from(wish.rev));
    let make = |operation| match wish.table {
        0..=3 => item(operation, id, list_id, &format!("t{rev}"), rev),
        4 | 5 => list(operation, list_id.unwrap_or("L0"), &format!("n{rev}")),
        6 => {
            member(operation, id, list_id.unwrap_or("L0"), ["ann", "bob"][usize::from(wish.key % 2)], rev > 3)
        }
        _ => other(id),
    };
    let change = make('I');
    if wish.table == 7 {
        return change;
    }
    let at = (change.oid, change.key());
    if existing.insert(at.clone(), ()).is_none() {
        return change;
    }
    if wish.delete {
        existing.remove(&at);
        return make('D');
    }
    let mut update = make('U');
    if wish.omit && update.cells.len() > 3 {
        // The body, and by chance the title: out of line and unchanged.
        update.cells[3] = Cell::Unchanged;
        if wish.table < 4 && wish.rev.is_multiple_of(2) {
            update.cells[2] = Cell::Unchanged;
        }
    }
    update
}

/// Valid transactions from wishes. A statement does not touch one row twice.
pub fn transactions(wishes: &[Vec<Vec<Wish>>]) -> Vec<Frames> {
    let mut source = Source::default();
    let mut existing = Existing::new();
    let mut out = Vec::new();
    for transaction in wishes {
        let mut statements = Vec::new();
        for statement in transaction {
            let mut changes: Vec<Change> = Vec::new();
            for wish in statement {
                let mut next = existing.clone();
                let change = grant(*wish, &mut next);
                if changes.iter().all(|c| (c.oid, c.key()) != (change.oid, change.key())) {
                    existing = next;
                    changes.push(change);
                }
            }
            statements.push(changes);
        }
        out.push(source.transaction(&statements));
    }
    out
}

fn pair_all(frames: &[Frames], limits: Limits) -> Vec<PairedTransaction> {
    let mut assembler = Assembler::new(fixture(), limits, MemorySpool::factory());
    frames.iter().map(|frames| paired(&mut assembler, frames).expect("a valid transaction")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn r2_grouped_ungrouped_and_piecewise_runs_leave_identical_rows(
        wishes in wishes(),
        cuts in proptest::collection::vec(any::<bool>(), 9),
        rows_max in 1..4usize,
        bytes_max in 1..200usize,
        memory_bytes in prop_oneof![Just(0usize), Just(150), Just(1 << 20)],
    ) {
        let frames = transactions(&wishes);
        let mut single = Store::default();
        for transaction in pair_all(&frames, Limits::default()) {
            single.group(vec![transaction]).expect("materializes");
        }
        check(&single, &fixture());

        let mut grouped = Store::default();
        let mut group = Vec::new();
        for (transaction, cut) in pair_all(&frames, Limits::default()).into_iter().zip(&cuts) {
            group.push(transaction);
            if *cut {
                grouped.group(std::mem::take(&mut group)).expect("materializes");
            }
        }
        grouped.group(group).expect("materializes");
        prop_assert_eq!(&grouped.tables, &single.tables);

        // R9: spooled while received, handed out piece by piece.
        let mut piecewise = Store::default();
        for transaction in pair_all(&frames, Limits { memory_bytes, ..Limits::default() }) {
            piecewise.pieces(transaction, &PieceLimits { rows_max, bytes_max }).expect("materializes");
        }
        prop_assert_eq!(&piecewise.tables, &single.tables);
    }

    #[test]
    fn f7_fences_in_any_order_pair_alike(wishes in wishes(), keys in proptest::collection::vec(any::<u32>(), 64)) {
        let mut frames = transactions(&wishes);
        let mut ordered = Store::default();
        ordered.group(pair_all(&frames, Limits::default())).expect("materializes");
        for transaction in &mut frames {
            let places: Vec<usize> = (0..transaction.body.len()).filter(|at| transaction.body[*at][0] == b'M').collect();
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|at| keys[at % keys.len()]);
            let fences: Vec<_> = order.iter().map(|at| transaction.body[places[*at]].clone()).collect();
            // Each at the place of another: some come before their rows.
            for (place, fence) in places.iter().zip(fences) {
                transaction.body[*place] = fence;
            }
        }
        let mut shuffled = Store::default();
        shuffled.group(pair_all(&frames, Limits::default())).expect("materializes");
        // The manifest covers the order in which things were decoded; nothing else depends on it.
        shuffled.tables.transactions = ordered.tables.transactions.clone();
        prop_assert_eq!(&shuffled.tables, &ordered.tables);
    }

    #[test]
    fn q2_a_group_with_a_bad_transaction_fails_there_and_writes_nothing(wishes in wishes(), at in any::<proptest::sample::Index>()) {
        let mut frames = transactions(&wishes);
        let bad = at.index(frames.len());
        // A second insert of a row that this same transaction has just inserted or that is there: never valid.
        let mut source = Source::at(1 << 40);
        let rogue = source.changes(&[item('I', 900, Some("L1"), "x", 1), item('I', 900, Some("L1"), "x", 1)]);
        frames[bad].body.extend(rogue.body);
        let failing = frames[bad].commit_lsn;
        let mut store = Store::default();
        let failure = store.group(pair_all(&frames, Limits::default())).expect_err("a bad transaction blocks");
        prop_assert_eq!((failure.class, failure.commit_lsn.map(|lsn| lsn.0)), (FailureClass::InsertOnExisting, Some(failing)));
        prop_assert!(store.tables == crate::store::Tables::default());
    }
}

#[test]
fn r2_a_row_that_comes_and_goes_within_a_group_leaves_its_effects_and_no_row() {
    let mut source = Source::default();
    let frames =
        [source.changes(&[item('I', 1, Some("L1"), "a", 1)]), source.changes(&[item('D', 1, None, "", 0)])];
    let mut store = Store::default();
    store.group(pair_all(&frames, Limits::default())).expect("materializes");
    assert!(store.tables.rows.is_empty() && store.tables.edges.is_empty());
    let ops: Vec<_> = store.tables.effects.values().map(|effect| (effect.op, effect.count_after)).collect();
    assert_eq!(ops, [(1, 1), (2, 0)], "nothing is netted across transactions");
    assert_eq!(store.tables.scopes["list:L1"].row_count, 0);
}

#[test]
fn r2_a_grant_that_goes_and_comes_back_within_a_group_holds_since_it_came_back() {
    let mut source = Source::default();
    let frames = [
        source.changes(&[member('I', 1, "L1", "ann", true)]),
        source.changes(&[member('U', 1, "L1", "ann", false)]),
        source.changes(&[member('U', 1, "L1", "ann", true)]),
    ];
    let [mut grouped, mut single] = [Store::default(), Store::default()];
    let [first, rest @ ..] = &frames;
    for store in [&mut grouped, &mut single] {
        store.group(pair_all(std::slice::from_ref(first), Limits::default())).expect("materializes");
    }
    grouped.group(pair_all(rest, Limits::default())).expect("materializes");
    pair_all(rest, Limits::default())
        .into_iter()
        .for_each(|one| single.group(vec![one]).expect("materializes"));
    assert_eq!(grouped.tables, single.tables);
    assert_eq!(
        grouped.tables.grants.values().next().and_then(|pair| pair.1),
        Some(tidegate_model::Lsn(frames[2].commit_lsn))
    );
    assert_eq!(grouped.tables.grant_effects.len(), 3);
}

#[test]
fn g3_a_row_changed_under_two_generations_is_evaluated_under_its_last_events() {
    let mut source = Source::default();
    let changes = [item('I', 1, Some("L1"), "a", 1), item('U', 1, Some("L2"), "b", 1)];
    let mut body = vec![
        crate::source::describe(crate::source::ITEM),
        changes[0].frame(),
        source.fence(&changes[0]).frame(),
    ];
    body.push(crate::frames::message(true, "tidegate.registry", b"1:2"));
    body.extend([changes[1].frame(), source.fence(&changes[1]).frame()]);
    let mut store = Store::default();
    store.group(pair_all(&[Frames { commit_lsn: 900, body }], Limits::default())).expect("materializes");
    let effects: Vec<_> =
        store.tables.effects.iter().map(|(at, effect)| (at.0.as_str(), effect.schema_version)).collect();
    assert_eq!(effects, [("list:L2", 2)]);
}

#[test]
fn g3_effects_carry_the_registry_generation_that_encoded_their_row() {
    let mut source = Source::default();
    let mut announce = source.changes(&[item('I', 1, Some("L1"), "a", 1)]);
    announce.body.push(crate::frames::message(true, "tidegate.registry", b"1:2"));
    let after = source.changes(&[item('I', 2, Some("L1"), "a", 1)]);
    let mut assembler = assembler(Arc::new(registry(1)));
    let group = [announce, after].map(|frames| {
        feed(&mut assembler, &frames.all())
            .expect("assembles")
            .remove(0)
            .pair()
            .map_err(blocked)
            .expect("pairs")
    });
    let mut store = Store::default();
    store.group(group.into()).expect("materializes");
    let generations: Vec<_> = store.tables.effects.values().map(|effect| effect.schema_version).collect();
    assert_eq!(generations, [1, 2]);
    assert_eq!(store.tables.activations.values().collect::<Vec<_>>(), [&1], "events from ordinal 1 on");
}
