//! P: where effects stand, in what was really written and decoded.

use crate::world::observer::Observer;
use crate::world::points::{Armed, is_killed, kill_at};
use crate::world::{ITEMS, LISTS_AND_ITEMS, World};
use crate::{grouping, reset};
use std::cmp::Ordering;
use tidegate_capture::failpoints as at;
use tidegate_embedded::pg_test;
use tidegate_model::{Lsn, Point, Position, StreamGeneration};

/// An effect as stored: its position, and which scope, table and key it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    position: Position,
    scope_id: i64,
    row: (i32, Vec<u8>, i16),
}

/// Effects in the order of their positions.
async fn stored(world: &World) -> Vec<Stored> {
    type Row = (uuid::Uuid, String, i64, i32, i64, i32, Vec<u8>, i16);
    let rows: Vec<Row> = sqlx::query_as(
        "select g.token, e.commit_lsn::text, e.event_ordinal, e.effect_ordinal, e.scope_id, e.table_id, e.key, e.op
         from tidegate.effect e join tidegate.stream_generation g on g.id = e.generation
         order by e.generation, e.commit_lsn, e.event_ordinal, e.effect_ordinal, e.scope_id",
    )
    .fetch_all(world.pool())
    .await
    .expect("effects");
    let stored = |(token, commit, event, effect, scope_id, table, key, op): Row| Stored {
        position: Position {
            generation: StreamGeneration(token),
            point: Point::Effect {
                commit_lsn: commit.parse().expect("a position"),
                event_ordinal: event as u64,
                effect_ordinal: effect as u32,
            },
        },
        scope_id,
        row: (table, key, op),
    };
    rows.into_iter().map(stored).collect()
}

fn ordinals(stored: &Stored) -> (u64, u32) {
    let Point::Effect { event_ordinal, effect_ordinal, .. } = stored.position.point else {
        panic!("an effect")
    };
    (event_ordinal, effect_ordinal)
}

pg_test!(
    Slots,
    async fn p1_an_effect_stands_at_the_commit_position_and_restarts_keep_the_generation(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.settle().await;
        let observer = Observer::start(&world).await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        let first = stored(&world).await[0].position;
        let decoded = observer.transactions(&world).await[0].clone();
        assert_eq!(first.point.commit_lsn(), Some(decoded.commit_lsn));
        assert_ne!(first.point.commit_lsn(), Some(decoded.end_lsn));
        worker.kill().await;
        let worker = world.start();
        world.sql("insert into items values ('b', 'L1')").await;
        world.settle().await;
        world.stop_and_release(worker).await;
        let worker = world.start();
        world.sql("insert into items values ('c', 'L1')").await;
        world.settle().await;
        let generations: Vec<_> =
            stored(&world).await.iter().map(|stored| stored.position.generation).collect();
        assert_eq!(generations, [first.generation; 3]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p2_p7_every_effect_lies_between_the_ends_of_its_transaction_and_the_one_before(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        let generation = StreamGeneration(world.scalar("select token from tidegate.stream_generation").await);
        for round in 0..4 {
            world.sql(&format!("insert into items select '{round}-' || g, 'L' || g % 2, 0, 'x' from generate_series(1, 4) g")).await;
            // It has no effect, and an end all the same.
            world.sql("select pg_logical_emit_message(true, 'somebody', 'x')").await;
            world.sql(&format!("update items set list_id = 'L3' where id = '{round}-1'")).await;
        }
        world.settle().await;
        let records: Vec<String> = sqlx::query_scalar(
            "select t.commit_lsn::text from tidegate.source_transaction t order by t.commit_lsn",
        )
        .fetch_all(world.pool())
        .await
        .expect("records");
        let records: Vec<Lsn> = records.iter().map(|text| text.parse().expect("a position")).collect();
        assert!(records.len() >= 12);
        let effects = stored(&world).await;
        let mut line = vec![Position { generation, point: Point::GenerationStart }];
        for commit_lsn in &records {
            let of_it = |stored: &&Stored| stored.position.point.commit_lsn() == Some(*commit_lsn);
            let mut positions: Vec<_> = effects.iter().filter(of_it).map(|stored| stored.position).collect();
            // Scopes share a position; within one each is its own.
            positions.dedup();
            line.extend(positions);
            line.push(Position { generation, point: Point::TransactionEnd { commit_lsn: *commit_lsn } });
        }
        for pair in line.windows(2) {
            assert_eq!(pair[0].compare(&pair[1]), Ok(Ordering::Less), "{pair:?}");
        }
        let mark = "select materialized_commit_lsn::text from tidegate.progress";
        assert_eq!(world.text(mark).await, records.last().expect("some").to_string(), "P7");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p3_positions_from_before_and_after_a_reset_do_not_compare(world: World) {
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        reset::request(&world).await;
        world.until("the new generation", reset::SECOND).await;
        world.sql("insert into items values ('b', 'L1')").await;
        world.settle().await;
        let [before, after] = &stored(&world).await[..] else { panic!("one effect of each") };
        assert_ne!(before.position.generation, after.position.generation);
        // Although both commit positions are of one server and one timeline.
        assert!(before.position.point < after.position.point);
        assert!(before.position.compare(&after.position).is_err());
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p4_event_ordinals_count_every_row_change_whatever_becomes_of_it(world: World) {
        world.sql(ITEMS).await;
        // Published, and not ours.
        world.sql("create table public.foreign_rows (id int primary key); alter publication tidegate add table foreign_rows").await;
        let worker = world.start();
        world.until_streaming().await;
        worker.kill().await;
        let observer = Observer::start(&world).await;
        world.sql(
            "begin; insert into foreign_rows values (1); select pg_logical_emit_message(true, 'somebody', 'x');
             insert into items values ('a', 'L1'); insert into items values ('no scope', null); insert into foreign_rows values (2);
             insert into items values ('gone', 'L1'); delete from items where id = 'gone'; insert into items values ('b', 'L1'); commit",
        )
        .await;
        let worker = world.start();
        world.settle().await;
        let found: Vec<_> = stored(&world).await.iter().map(ordinals).collect();
        // Row changes: foreign 0, a 1, no scope 2, foreign 3, gone 4 and 5, b 6; the message is none.
        assert_eq!(found, [(1, 0), (6, 0)]);
        let decoded = observer.assert_recorded(&world).await;
        assert_eq!(decoded[0].rows, 7);
        worker.kill().await;
        // Neither a wider scope nor another registry renumbers: the same events, with the foreign table registered.
        world.sql("delete from foreign_rows; select tidegate.register_table('public.foreign_rows', '{\"scopes\": [{\"name\": \"all\"}]}')").await;
        world
            .sql("begin; insert into foreign_rows values (1); insert into items values ('c', 'L1'); commit")
            .await;
        let worker = world.start();
        world.settle().await;
        let found: Vec<_> = stored(&world).await.iter().skip(2).map(ordinals).collect();
        assert_eq!(found, [(0, 0), (1, 0)]);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p5_a_net_effect_belongs_to_the_last_event_of_its_row_and_stays_there(world: Armed) {
        world.sql(LISTS_AND_ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        world.sql("insert into list values ('L1', 'one'), ('L2', 'two'); insert into item (id, list_id) values (1, 'L1'), (2, 'L1')").await;
        world.settle().await;
        world.sql("truncate tidegate.effect").await;
        world.stop_and_release(worker).await;
        world.sql(
            "begin; update item set rev = 2 where id = 1; update item set rev = 2 where id = 2; update list set name = 'x' where id = 'L1';
             update item set list_id = 'L2' where id = 1; update item set rev = 3 where id = 2; update item set rev = 3 where id = 1; commit",
        )
        .await;
        let expected = [
            // Event 2 is the list's last, 4 that of item 2, 5 that of item 1, which leaves one scope for another by it.
            ("list:L1 upsert L1", (2, 0)),
            ("list:L1 upsert 2", (4, 0)),
            ("list:L1 delete 1", (5, 0)),
            ("list:L2 upsert 1", (5, 0)),
        ];
        // Replayed from the same WAL after a death in the middle: the same choice.
        for name in [at::MATERIALIZE_READ, at::MATERIALIZE_WRITTEN] {
            kill_at(name);
            is_killed(world.start(), name).await;
        }
        let worker = world.start();
        world.settle().await;
        let names = world.effects().await;
        let found: Vec<_> =
            names.iter().map(String::as_str).zip(stored(&world).await.iter().map(ordinals)).collect();
        assert_eq!(found, expected);
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn p6_pages_of_one_effect_read_each_scope_once_and_whole(world: World) {
        let seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut random = grouping::Random(seed + 1);
        world.sql(ITEMS).await;
        let worker = world.start();
        world.until_streaming().await;
        for _ in 0..30 {
            world.sql(&format!("begin; {} commit", grouping::items_transaction(&mut random))).await;
        }
        world.sql("insert into items select 'many' || g, 'L1' from generate_series(1, 50) g").await;
        world.settle().await;
        let whole = stored(&world).await;
        let scopes: std::collections::BTreeSet<i64> = whole.iter().map(|stored| stored.scope_id).collect();
        for scope in scopes {
            let (mut place, mut paged) = (("0/0".to_owned(), -1_i64, -1_i32), Vec::new());
            loop {
                let next: Option<(String, i64, i32)> = sqlx::query_as(
                    "select e.commit_lsn::text, e.event_ordinal, e.effect_ordinal from tidegate.effect e where e.scope_id = $1
                         and (e.commit_lsn, e.event_ordinal, e.effect_ordinal) > ($2::pg_lsn, $3, $4)
                     order by e.commit_lsn, e.event_ordinal, e.effect_ordinal limit 1",
                )
                .bind(scope)
                .bind(&place.0)
                .bind(place.1)
                .bind(place.2)
                .fetch_optional(world.pool())
                .await
                .expect("a page");
                let Some(next) = next else { break };
                place = next.clone();
                paged.push(next);
            }
            let of_it = whole.iter().filter(|stored| stored.scope_id == scope);
            let expected: Vec<_> = of_it
                .map(|stored| {
                    let (event, effect) = ordinals(stored);
                    let commit = stored.position.point.commit_lsn().expect("an effect");
                    (commit.to_string(), event as i64, effect as i32)
                })
                .collect();
            assert_eq!(paged, expected, "seed {seed}");
        }
        worker.stop().await;
    }
);
