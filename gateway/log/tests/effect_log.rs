use sqlx::{AssertSqlSafe, PgPool};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_embedded::pg_test;
use tidegate_log::{
    Batch, Bounds, ClientKey, EffectBatch, EffectLog, EffectLogError, EffectPosition, Interest, OrderedLog,
    ScopeRead, TailPosition, WakeListener, conformance,
};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::{ClientId, Lsn, ScopeId, ScopeName, Subject};
use uuid::Uuid;

const STATE: i32 = 7;
const WHOLE: Bounds = Bounds { units_max: 1000, entries_max: 10_000, bytes_max: 1 << 30 };

async fn execute(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// A stream that has just been started: generation 1, nothing materialized.
async fn started(database: &LoadedDatabase) -> Arc<EffectLog> {
    let sql = format!(
        "select tidegate.create_state({STATE});
         insert into tidegate.stream_generation
             (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
         values (1, gen_random_uuid(), {STATE}, 's', '0/10', '0/20', '', 1, 1);
         insert into tidegate.progress (generation, processed_end_lsn, registry_generation) values (1, '0/20', 0);"
    );
    execute(&database.pool, &sql).await;
    Arc::new(EffectLog::open(database.pool.clone(), 3).await.expect("open"))
}

/// Writes one source transaction with its effects, as (scope, mark).
async fn transaction(pool: &PgPool, commit: u64, effects: &[(i64, u64)], wake: bool) {
    let lsn = Lsn(commit);
    let mut sql = format!(
        "insert into tidegate.source_transaction values (1, '{lsn}', '{}', 1, now(), {n}, {n}, {}, '');
         update tidegate.progress set materialized_commit_lsn = '{lsn}', processed_end_lsn = '{lsn}';",
        Lsn(commit + 1),
        effects.len() * 100,
        n = effects.len(),
    );
    for (event, (scope, mark)) in effects.iter().enumerate() {
        sql += &format!(
            "insert into tidegate_projection.s{STATE}_scope (scope_id, name_hash, name, row_count, digest)
             values ({scope}, sha256('scope:{scope}'), 'scope:{scope}', 0, repeat('x', 16)::bytea)
             on conflict (scope_id) do nothing;
             insert into tidegate.effect values (1, {scope}, '{lsn}', {event}, 0, 1, 1, '\\x01', gen_random_uuid(),
             int8send({mark}), 1, '\\x{mark:032x}', {mark});"
        );
    }
    execute(pool, &sql).await;
    if wake {
        execute(pool, "notify tidegate_wake, 'not a payload: look'").await;
    }
}

fn mark(row: &[u8]) -> u64 {
    u64::from_be_bytes(row.try_into().expect("eight bytes"))
}

struct Fixture {
    pool: PgPool,
    log: Arc<EffectLog>,
    next: AtomicU64,
}

impl conformance::Subject for Fixture {
    type Log = EffectLog;

    fn log(&self) -> Arc<EffectLog> {
        self.log.clone()
    }
    fn start(&self) -> TailPosition {
        TailPosition::default()
    }
    async fn append(&self, marks: &[(u32, u64)], wake: bool) {
        let effects: Vec<_> = marks.iter().map(|(stream, mark)| (i64::from(*stream), *mark)).collect();
        transaction(&self.pool, self.next.fetch_add(100, Ordering::Relaxed), &effects, wake).await;
    }
    fn marks(&self, batch: &EffectBatch) -> Vec<(u32, u64)> {
        let mark = |effect: &tidegate_log::Effect| mark(effect.row.as_ref().expect("an upsert"));
        batch.effects.iter().map(|effect| (effect.scope.0 as u32, mark(effect))).collect()
    }
    async fn stream(&self, number: u32) -> ScopeId {
        ScopeId(i64::from(number))
    }
    fn stream_marks(&self, batch: &ScopeRead) -> Vec<(u64, EffectPosition)> {
        batch.effects.iter().map(|e| (mark(e.row.as_ref().expect("an upsert")), e.position)).collect()
    }
    fn stream_start(&self) -> EffectPosition {
        EffectPosition { commit_lsn: Lsn::ZERO, event_ordinal: 0, effect_ordinal: 0 }
    }
}

pg_test!(
    NoSlots,
    async fn s6_the_suite_passes_on_the_effect_log(database: LoadedDatabase) {
        let log = started(&database).await;
        let listener = tokio::spawn(WakeListener::new(database.pool.clone(), log.clone()).run());
        let fixture = Fixture { pool: database.pool.clone(), log, next: AtomicU64::new(0x1000) };
        conformance::all(&fixture).await;
        listener.abort();
    }
);

pg_test!(
    NoSlots,
    async fn a_large_transaction_comes_in_parts_its_grants_first_that_say_which_scope_goes_on(
        database: LoadedDatabase,
    ) {
        let log = started(&database).await;
        transaction(&database.pool, 0x1000, &[(1, 0), (1, 1), (2, 2), (2, 3), (2, 4)], false).await;
        execute(
            &database.pool,
            "insert into tidegate.grant_effect values (1, '0/1000', 0, 1, 'anna', 'scope:1')",
        )
        .await;
        let bounds = Bounds { units_max: 10, entries_max: 2, bytes_max: 1 << 20 };
        let mut at = TailPosition::default();
        let mut parts = Vec::new();
        while parts.len() < 3 {
            let batch = log.read_all(&at, bounds).await.expect("read");
            at = *batch.through();
            parts.push((batch.effects.len(), batch.continues, at.inside.is_some(), batch.grants.len()));
        }
        assert_eq!(
            parts,
            [(2, Some(ScopeId(2)), true, 1), (2, Some(ScopeId(2)), true, 0), (1, None, false, 0),]
        );
        assert_eq!(at, TailPosition::end_of(Lsn(0x1000)));
    }
);

pg_test!(
    NoSlots,
    async fn one_snapshot_has_grants_pending_and_materialized_mutations_and_names(database: LoadedDatabase) {
        let log = started(&database).await;
        transaction(&database.pool, 0x1000, &[(5, 0)], false).await;
        let client = Uuid::from_u128(9);
        execute(&database.pool, &format!(
        "insert into tidegate.grant_effect values (1, '0/1000', 0, 2, 'anna', 'scope:5'), (1, '0/1000', 1, 1, 'ben', 'scope:5');
         insert into tidegate.write_fence (fence_id, mutation_id, subject, client_id, number, relation_id, key, version, generation, materialized_commit_lsn)
         values (gen_random_uuid(), 1, 'anna', '{client}', 3, 1, 'k', gen_random_uuid(), 1, '0/1000'),
                (gen_random_uuid(), 1, 'anna', '{client}', 3, 1, 'l', gen_random_uuid(), 1, '0/1000'),
                (gen_random_uuid(), 2, 'anna', '{client}', 4, 1, 'k', gen_random_uuid(), null, null);")).await;
        execute(&database.pool, &format!(
        "insert into tidegate_projection.s{STATE}_subject_grant values (sha256('anna'), sha256('scope:9'), 'anna', 'scope:9', 1, '0/1000')")).await;
        let hash = |text: &str| ScopeName(text.into()).hash();
        let interest = Interest {
            names: true,
            scopes: vec![hash("scope:5"), hash("scope:6")],
            subjects: vec![hash("anna")],
        };
        log.set_interest(interest);
        let batch = log.read_all(&TailPosition::default(), WHOLE).await.expect("read");
        let anna = ClientKey { subject: Subject("anna".into()), client: ClientId(client) };
        assert_eq!(
            batch.grants.iter().map(|g| (g.granted, g.subject.0.as_str())).collect::<Vec<_>>(),
            [(false, "anna"), (true, "ben")]
        );
        assert_eq!(
            batch.materialized.iter().map(|m| m.number).collect::<Vec<_>>(),
            [3],
            "two fences, one mutation"
        );
        assert_eq!(batch.pending.of(&anna), Some(&[4][..]));
        assert_eq!(batch.names, [(ScopeId(5), ScopeName("scope:5".into()).hash())]);
        assert!(batch.at_tip);
        let told = batch.told.as_ref().expect("asked for");
        assert_eq!(
            told.facts.keys().collect::<Vec<_>>(),
            [&hash("scope:5")],
            "the other scope does not exist"
        );
        assert_eq!(
            told.held.iter().map(|g| (g.scope.0.as_str(), g.since)).collect::<Vec<_>>(),
            [("scope:9", Some(Lsn(0x1000)))]
        );
        // More than a read may bring: nothing is known of anybody, so nobody's pages pass.
        execute(&database.pool, &format!(
        "insert into tidegate.write_fence (fence_id, mutation_id, subject, client_id, number, relation_id, key, version)
         select gen_random_uuid(), n, 'ben', '{client}', n, 1, 'k', gen_random_uuid() from generate_series(1, 9) n")).await;
        let batch = log.read_all(batch.through(), WHOLE).await.expect("read");
        assert!(batch.is_empty());
        assert_eq!(batch.pending.of(&anna), None);
    }
);

pg_test!(
    NoSlots,
    async fn a_scope_read_tells_how_the_scope_stood_and_what_it_is(database: LoadedDatabase) {
        let log = started(&database).await;
        for commit in 1..=4 {
            transaction(&database.pool, commit << 12, &[(1, commit), (1, commit + 100)], false).await;
        }
        execute(&database.pool, &format!(
        "update tidegate_projection.s{STATE}_scope set tail_commit_lsn = '0/4000', tail_event_ordinal = 1, tail_effect_ordinal = 0,
         floor_commit_lsn = '0/800', floor_event_ordinal = 0, floor_effect_ordinal = 0, floor_row_count = 5, floor_digest = repeat('f', 16)::bytea")).await;
        let from = EffectPosition { commit_lsn: Lsn(0x2000), event_ordinal: 1, effect_ordinal: 0 };
        let read = log.read_scope(ScopeId(1), from, Lsn(0x3000), WHOLE, 2).await.expect("read");
        assert_eq!(read.effects.iter().map(|e| e.after.row_count).collect::<Vec<_>>(), [102, 3, 103]);
        assert_eq!(read.before.map(|(p, s)| (p.commit_lsn, s.row_count)), Some((Lsn(0x2000), 2)));
        assert!(read.complete && !read.more);
        assert_eq!(read.replay_count, 2, "counted up to the limit");
        let facts = read.facts.expect("it exists");
        assert_eq!(facts.floor.map(|(p, s)| (p.commit_lsn, s.row_count)), Some((Lsn(0x800), 5)));
        assert_eq!(facts.tail.map(|p| p.commit_lsn), Some(Lsn(0x4000)));
        let one = Bounds { units_max: 1, entries_max: 1, bytes_max: 1 };
        let read = log
            .read_scope(ScopeId(1), EffectPosition { event_ordinal: 0, ..from }, Lsn(0x3000), one, 0)
            .await
            .expect("read");
        assert!(!read.complete && read.more, "the transaction goes on");
    }
);

pg_test!(
    NoSlots,
    async fn p9_s3_a_history_that_was_put_back_is_reported_by_name(database: LoadedDatabase) {
        let put_back = "delete from tidegate.effect where commit_lsn > '0/1000';
             delete from tidegate.source_transaction where commit_lsn > '0/1000';
             update tidegate.progress set materialized_commit_lsn = '0/1000', processed_end_lsn = '0/1000'";
        let other = |read: Result<EffectBatch, EffectLogError>| {
            assert!(matches!(read, Err(EffectLogError::LineageChanged("history"))), "{read:?}");
        };
        let log = started(&database).await;
        transaction(&database.pool, 0x1000, &[(1, 0)], false).await;
        transaction(&database.pool, 0x2000, &[(1, 1)], false).await;
        let at = *log.read_all(&TailPosition::default(), WHOLE).await.expect("read").through();
        assert_eq!(at, TailPosition::end_of(Lsn(0x2000)));
        assert!(log.read_all(&at, WHOLE).await.expect("nothing has changed").is_empty());
        execute(&database.pool, put_back).await;
        // The log does not reach so far any more: neither the tail nor whoever follows it may go on.
        other(log.read_all(&at, WHOLE).await);
        let from = EffectPosition { commit_lsn: Lsn::ZERO, event_ordinal: 0, effect_ordinal: 0 };
        let read = log.read_scope(ScopeId(1), from, Lsn(0x2000), WHOLE, 0).await;
        assert!(matches!(read, Err(EffectLogError::LineageChanged("history"))), "{read:?}");
        // It has gone on, past the place.
        transaction(&database.pool, 0x3000, &[(1, 2)], false).await;
        other(log.read_all(&at, WHOLE).await);
        // Another transaction stands at the very place.
        execute(&database.pool, put_back).await;
        transaction(&database.pool, 0x2000, &[(1, 1)], false).await;
        other(log.read_all(&at, WHOLE).await);
        // Inside a large transaction, too; whoever opens the log anew goes on in the history that there is.
        let log = Arc::new(EffectLog::open(database.pool.clone(), 3).await.expect("open"));
        let at = *log.read_all(&log.opened_at(), WHOLE).await.expect("read").through();
        transaction(&database.pool, 0x3000, &[(1, 0), (1, 1), (1, 2)], false).await;
        let few = Bounds { units_max: 10, entries_max: 1, bytes_max: 1 << 20 };
        let inside = *log.read_all(&at, few).await.expect("a part").through();
        assert!(inside.inside.is_some());
        let next = *log.read_all(&inside, few).await.expect("the next part").through();
        execute(&database.pool, put_back).await;
        transaction(&database.pool, 0x2000, &[(1, 1)], false).await;
        transaction(&database.pool, 0x3000, &[(1, 0), (1, 1), (1, 2)], false).await;
        other(log.read_all(&next, few).await);
    }
);

pg_test!(
    NoSlots,
    async fn p3_another_generation_is_reported_by_name(database: LoadedDatabase) {
        assert!(matches!(EffectLog::open(database.pool.clone(), 3).await, Err(EffectLogError::NoGeneration)));
        let log = started(&database).await;
        execute(&database.pool, &format!(
        "insert into tidegate.stream_generation
             (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
         values (2, gen_random_uuid(), {}, 's', '0/10', '0/20', '', 1, 1);
         update tidegate.progress set generation = 2", STATE + 1)).await;
        let read = log.read_all(&TailPosition::default(), WHOLE).await;
        assert!(matches!(read, Err(EffectLogError::LineageChanged("stream generation"))), "{read:?}");
    }
);
