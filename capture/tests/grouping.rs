//! R2: transactions that share a commit leave what they would leave alone.

use crate::world::{ITEMS, World};
use tidegate_embedded::pg_test;

/// A small generator, so that a printed seed reproduces a run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn transaction(random: &mut Random) -> String {
    let mut sql = String::from("begin;");
    for _ in 0..1 + random.below(5) {
        let (key, list) = (random.below(25), random.below(6));
        sql += &match random.below(6) {
            0 | 1 => format!(
                "insert into items values ('{key}', 'L{list}', 0, 'x') on conflict (id) do update set n = items.n + 1, list_id = excluded.list_id;"
            ),
            2 => {
                format!("update items set list_id = 'L{list}' where id in ('{key}', '{}');", random.below(25))
            }
            3 => format!("delete from items where id = '{key}';"),
            4 => format!(
                "savepoint s; update items set n = -1; rollback to s; update members set team = 'L{list}' where id = {};",
                key % 5
            ),
            _ => format!(
                "insert into members values ({0}, 'L{list}', 'u{1}') on conflict (id) do update set who = excluded.who;",
                key % 5,
                random.below(3)
            ),
        };
    }
    sql + "commit"
}

/// Statements of a transaction on the items alone.
pub fn items_transaction(random: &mut Random) -> String {
    let mut sql = String::new();
    for _ in 0..1 + random.below(4) {
        let (key, list) = (random.below(40), random.below(6));
        sql += &match random.below(4) {
            0 | 1 => format!(
                "insert into items values ('{key}', 'L{list}', 0, 'x') on conflict (id) do update set n = items.n + 1, list_id = excluded.list_id;"
            ),
            2 => format!("update items set list_id = 'L{list}' where id = '{key}';"),
            _ => format!("delete from items where id = '{key}';"),
        };
    }
    sql
}

/// Every table that materialization writes, without timestamps and surrogate ids.
async fn dump(world: &World) -> Vec<String> {
    let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
    let named = format!(
        "(select coalesce(array_agg(s.name order by s.name), '{{}}') from unnest(p.scope_ids) i join tidegate_projection.s{state}_scope s on s.scope_id = i)"
    );
    let queries = [
        "select 't' || row(commit_lsn, end_lsn, xid, event_count, effect_count, effect_bytes, manifest)::text from tidegate.source_transaction order by commit_lsn".to_owned(),
        format!("select 'e' || row(s.name, commit_lsn, event_ordinal, effect_ordinal, op, table_id, key, version, row, schema_version, digest_after, count_after)::text
                 from tidegate.effect e join tidegate_projection.s{state}_scope s using (scope_id) order by commit_lsn, event_ordinal, s.name, effect_ordinal"),
        "select 'g' || row(commit_lsn, ordinal, op, subject, scope)::text from tidegate.grant_effect order by commit_lsn, ordinal".to_owned(),
        format!("select 's' || row(name, row_count, digest, tail_commit_lsn, tail_event_ordinal, tail_effect_ordinal)::text from tidegate_projection.s{state}_scope order by name"),
        format!("select 'r' || row(s.name, relation_id, key_index)::text from tidegate_projection.s{state}_scope_row r join tidegate_projection.s{state}_scope s using (scope_id) order by s.name, relation_id, key_index"),
        format!("select 'u' || row(subject, scope, row_count, since_commit_lsn)::text from tidegate_projection.s{state}_subject_grant order by subject, scope"),
        format!("select 'p' || row(key_index, version, row, digest, {named}, grants)::text from tidegate_projection.s{state}_p1 p order by key_index"),
        format!("select 'q' || row(key_index, version, row, digest, {named}, grants)::text from tidegate_projection.s{state}_p2 p order by key_index"),
        "select 'a' || row(processed_end_lsn, materialized_commit_lsn, materialized_end_lsn, registry_generation)::text from tidegate.progress".to_owned(),
    ];
    let mut lines = Vec::new();
    for sql in queries {
        let rows: Vec<String> =
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(world.pool()).await.expect("dump");
        lines.extend(rows);
    }
    lines
}

pg_test!(
    Slots,
    async fn r2_grouped_and_ungrouped_runs_leave_identical_rows(world: World) {
        let seed = std::process::id() as u64 * 2_654_435_761 + 1;
        println!("seed {seed}");
        let mut random = Random(seed);
        world.sql(ITEMS).await;
        world.sql("create table public.members (id int primary key, team text, who text);
        select tidegate.register_grant('{\"scope\": \"list:{members.team}\", \"from\": \"public.members\", \"where\": \"members.who = {subject.id}\"}')").await;
        let worker = world.start();
        world.until_streaming().await;
        worker.kill().await;
        world.until("the slot to be free", "select not active from pg_replication_slots join tidegate.stream_generation using (slot_name)").await;
        // Everything as it is before the run; the slot is copied, so that the same WAL can be read twice.
        world.sql("select pg_copy_logical_replication_slot(slot_name, 'copy_of_' || slot_name) from tidegate.stream_generation;
        create table public.saved as select * from tidegate.progress").await;
        for _ in 0..120 {
            world.sql(&transaction(&mut random)).await;
        }
        let end: String = world
            .text("select pg_logical_emit_message(true, 'tidegate.marker', '1:' || gen_random_uuid())::text")
            .await;
        let reached = format!("select processed_end_lsn >= '{end}'::pg_lsn from tidegate.progress");

        let lock = world.lock_projection(1).await;
        let worker = world.start();
        world.until_gathered(&end).await;
        lock.rollback().await.expect("rollback");
        world.until("the grouped run", &reached).await;
        let commits: i64 =
            world.scalar("select count(distinct xmin::text) from tidegate.source_transaction").await;
        assert!(commits < 60, "the first run is grouped: {commits} commits");
        let grouped = dump(&world).await;
        worker.kill().await;
        world.until("the slot to be free", "select not active from pg_replication_slots join tidegate.stream_generation using (slot_name)").await;

        let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
        world.sql(&format!(
        "truncate tidegate.source_transaction, tidegate.effect, tidegate.grant_effect, tidegate_projection.s{state}_scope,
             tidegate_projection.s{state}_scope_row, tidegate_projection.s{state}_subject_grant, tidegate_projection.s{state}_p1, tidegate_projection.s{state}_p2;
         update tidegate.progress p set processed_end_lsn = s.processed_end_lsn, acknowledged_end_lsn = s.acknowledged_end_lsn,
             materialized_commit_lsn = s.materialized_commit_lsn, materialized_end_lsn = s.materialized_end_lsn from public.saved s"
    )).await;
        world.sql("select pg_drop_replication_slot(slot_name) from tidegate.stream_generation").await;
        world.sql("select pg_copy_logical_replication_slot('copy_of_' || slot_name, slot_name) from tidegate.stream_generation").await;
        let mut config = world.config();
        config.limits.group_transactions_max = 1;
        config.limits.cache_bytes_max = 0;
        let worker = world.start_with(config);
        world.until("the ungrouped run", &reached).await;
        let ungrouped = dump(&world).await;
        assert!(grouped.len() > 150, "there is something to compare");
        for (a, b) in grouped.iter().zip(&ungrouped) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(grouped.len(), ungrouped.len());
        world.assert_consistent().await;
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn r2_a_commit_is_on_disk_whatever_the_database_would_choose(world: World) {
        world.sql(ITEMS).await;
        let database = world.db.database.name().to_owned();
        world.sql(&format!("alter database \"{database}\" set synchronous_commit = off")).await;
        let worker = world.start_with(world.eager());
        world.until_streaming().await;
        world.keep_history().await;
        world.sql("insert into items values ('a', 'L1')").await;
        world.settle().await;
        world.write_noise().await;
        world
            .until(
                "an idle boundary and an acknowledgement",
                "select count(*) > 3 from public.progress_history where xid is not null",
            )
            .await;
        let chosen =
            "select string_agg(distinct synchronous, ' ') from public.progress_history where xid is not null";
        assert_eq!(world.text(chosen).await, "on", "of everything that writes progress");
        worker.stop().await;
    }
);
