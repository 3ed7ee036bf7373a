//! L: the gated loader against servers.

use crate::application;
use crate::stream::failure;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool};
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestDatabase, TestServer};
use tidegate_migrations::definition::{ApplyError, ApplyOptions, Definitions, Status, apply, apply_with};
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tidegate_migrations::{
    LoadError, LoadOptions, Loaded, Reason, Schema, connect_and_load, force_replay, load_schema,
};

const SKIPPED: Loaded = Loaded { replayed: false, reason: None };

fn replayed(reason: Reason) -> Loaded {
    Loaded { replayed: true, reason: Some(reason) }
}

async fn run(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pg_test!(
    NoSlots,
    async fn l1_the_first_connect_replays_and_the_second_skips(database: TestDatabase) {
        let pool = pool(&database.url());
        assert_eq!(connect_and_load(&pool).await.expect("load"), replayed(Reason::NoStamp));
        let stamped = "select xmin::text::bigint from tidegate.schema_stamp";
        let before = count(&pool, stamped).await;
        assert_eq!(connect_and_load(&pool).await.expect("load"), SKIPPED);
        assert_eq!(count(&pool, stamped).await, before, "a skipped replay writes nothing");
    }
);

pg_test!(
    NoSlots,
    async fn l6_concurrent_starters_replay_once(database: TestDatabase) {
        let pool = pool(&database.url());
        let starters = (0..6).map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { connect_and_load(&pool).await.expect("load").replayed })
        });
        let mut replays = 0;
        for starter in starters.collect::<Vec<_>>() {
            replays += i32::from(starter.await.expect("starter"));
        }
        assert_eq!(replays, 1);
    }
);

pg_test!(
    NoSlots,
    async fn l6_a_database_of_another_encoding_is_refused_on_every_connect(server: TestServer) {
        let name = format!("t_{}_latin", std::process::id());
        let create = format!("create database {name} template template0 encoding 'LATIN1' locale 'C'");
        server.sql("postgres", &create).expect("create");
        let pool = pool(&server.url(&name));
        for _ in 0..2 {
            let error = connect_and_load(&pool).await.expect_err("refused");
            assert_eq!(
                error.to_string(),
                "use a database with encoding LATIN1: Tidegate needs one with encoding UTF8"
            );
        }
        assert_eq!(count(&pool, "select count(*) from pg_namespace where nspname like 'tidegate%'").await, 0);
        pool.close().await;
        server.sql("postgres", &format!("drop database {name} with (force)")).expect("drop");
    }
);

pg_test!(
    NoSlots,
    async fn l7_a_forced_replay_runs_once(db: LoadedDatabase) {
        assert_eq!(connect_and_load(&db.pool).await.expect("load"), SKIPPED);
        force_replay(&db.pool).await.expect("force");
        assert_eq!(connect_and_load(&db.pool).await.expect("load"), replayed(Reason::Cleared));
        assert_eq!(connect_and_load(&db.pool).await.expect("load"), SKIPPED);
    }
);

pg_test!(
    NoSlots,
    async fn l7_drift_is_repaired_by_no_connect_but_by_a_forced_replay(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        apply(&db.pool, &definitions()).await.expect("apply");
        run(&db.pool, "create or replace function tidegate.refuse_truncate() returns trigger language plpgsql as $$ begin return null; end $$;
            drop function tidegate.function_hash(oid) cascade; drop function tidegate.fence_1() cascade; drop index tidegate.write_fence_pending").await;
        let present = "select count(*) from (values (to_regprocedure('tidegate.function_hash(oid)')::oid), (to_regprocedure('tidegate.fence_1()')::oid),
            (to_regclass('tidegate.write_fence_pending')::oid)) v (o) where o is not null";
        for _ in 0..2 {
            assert_eq!(connect_and_load(&db.pool).await.expect("load"), SKIPPED);
            assert_eq!(count(&db.pool, present).await, 0, "the stamp is trusted");
        }
        force_replay(&db.pool).await.expect("force");
        assert_eq!(connect_and_load(&db.pool).await.expect("load"), replayed(Reason::Cleared));
        assert_eq!(count(&db.pool, present).await, 3);
        assert_eq!(count(&db.pool, "select count(*) from tidegate.trigger_problems()").await, 0);
    }
);

pg_test!(
    NoSlots,
    async fn l4_every_doubt_replays(db: LoadedDatabase) {
        for (doubt, reason) in [
            ("delete from tidegate.schema_stamp", Reason::NoStamp),
            ("drop table tidegate.schema_stamp", Reason::NoStamp),
            ("update tidegate.schema_stamp set content_hash = null", Reason::Cleared),
            ("update tidegate.schema_stamp set replaying = generation", Reason::Cleared),
            ("update tidegate.schema_stamp set loader = 'partial'", Reason::OtherLoader),
            ("update tidegate.schema_stamp set loader = ''", Reason::OtherLoader),
            ("update tidegate.schema_stamp set generation = generation - 1", Reason::OtherGeneration),
            ("update tidegate.schema_stamp set content_hash = sha256('other')", Reason::OtherContent),
            (
                "update tidegate.schema_stamp set content_hash = set_byte(content_hash, 31, 255 - get_byte(content_hash, 31))",
                Reason::OtherContent,
            ),
        ] {
            run(&db.pool, doubt).await;
            assert_eq!(connect_and_load(&db.pool).await.expect("load"), replayed(reason), "{doubt}");
            assert_eq!(connect_and_load(&db.pool).await.expect("load"), SKIPPED, "{doubt}");
        }
    }
);

const TABLES: &str = "create table public.list (id text primary key, name text);
    create table public.item (id bigint primary key, list_id text references public.list on delete cascade, title text);
    create table public.member (id int primary key, user_id text, team_id int)";

fn definitions() -> Definitions {
    toml::from_str(
        r#"
        [[table]]
        name = "public.list"
        [[table.scope]]
        name = "list:{id}"
        [[table]]
        name = "public.item"
        exclude = ["title"]
        write = "enabled"
        unrestricted = true
        [[table.scope]]
        name = "list:{list_id}"
        where = "id > 0"
        [[grant]]
        scope = "team:{member.team_id}"
        from = "public.member"
        where = "user_id = {subject.id}"
        [[grant]]
        scope = "catalog"
        anonymous = true
        "#,
    )
    .expect("definitions")
}

pg_test!(
    NoSlots,
    async fn l5_apply_of_a_file_registers_it_and_again_changes_nothing(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        let plan = apply(&db.pool, &definitions()).await.expect("apply");
        assert!(plan.entries.iter().all(|entry| entry.status == Status::New), "{plan:?}");
        let plan = apply(&db.pool, &definitions()).await.expect("apply");
        assert!(plan.is_unchanged(), "{plan:?}");
        assert_eq!(count(&db.pool, "select max(id)::bigint from tidegate.registry_generation").await, 4);
    }
);

/// Another session's ROW EXCLUSIVE on every table and view of the database.
async fn hold_everything(db: &LoadedDatabase) -> PgConnection {
    let mut holder = PgConnection::connect(&db.url()).await.expect("connect");
    sqlx::raw_sql(
        "begin; do $$ declare t text; begin
            for t in select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
                where c.relkind in ('r', 'v', 'p') and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
            loop execute format('lock table %s in row exclusive mode', t); end loop; end $$",
    )
    .execute(&mut holder)
    .await
    .expect("hold");
    holder
}

const SHORT: LoadOptions = LoadOptions {
    lock_timeout: Duration::from_secs(2),
    attempts: 1,
    load_lock_timeout: Duration::from_secs(2),
    gate: true,
};

pg_test!(
    NoSlots,
    async fn l5_start_and_apply_pass_while_everything_is_being_written(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        apply(&db.pool, &definitions()).await.expect("apply");
        let holder = hold_everything(&db).await;
        assert_eq!(load_schema(&db.pool, &Schema::full(), SHORT).await.expect("load"), SKIPPED);
        assert!(apply(&db.pool, &definitions()).await.expect("apply").is_unchanged());
        // The SQL door, under the same limit.
        let mut session = db.pool.acquire().await.expect("session");
        sqlx::raw_sql("set lock_timeout = '2s'; select tidegate.register_table('public.list', '{\"scopes\": [{\"name\": \"list:{id}\"}]}')")
        .execute(&mut *session).await.expect("register again");
        holder.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn l5_the_same_start_runs_into_the_lock_timeout_when_the_gate_is_off(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        apply(&db.pool, &definitions()).await.expect("apply");
        let holder = hold_everything(&db).await;
        let options = LoadOptions { gate: false, lock_timeout: Duration::from_millis(200), ..SHORT };
        let error = load_schema(&db.pool, &Schema::full(), options).await.expect_err("must wait");
        assert!(matches!(error, LoadError::LockTimeout { attempts: 1, .. }), "55P03: {error}");
        // L1, L4: the replay cut short left no stamp that vouches for anything.
        holder.close().await.expect("close");
        assert_eq!(connect_and_load(&db.pool).await.expect("load"), replayed(Reason::Cleared));
    }
);

/// The gate of registrations is that an equal definition is found unchanged before anything is locked.
const WITHOUT_GATE: &str = "do $$ declare gates text[]; f text; begin
    select array_agg(pg_get_functiondef(oid)) into gates from pg_proc
    where pronamespace = 'tidegate'::regnamespace and proname ~ '^(table|grant)_status' and prosrc like '%return ''unchanged''%';
    if cardinality(gates) <> 2 then raise exception 'where is the gate?'; end if;
    foreach f in array gates loop execute replace(f, 'return ''unchanged''', 'perform 1'); end loop; end $$";

pg_test!(
    NoSlots,
    async fn l5_the_same_apply_runs_into_the_lock_timeout_when_the_gate_is_off(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        apply(&db.pool, &definitions()).await.expect("apply");
        run(&db.pool, WITHOUT_GATE).await;
        let holder = hold_everything(&db).await;
        let once = ApplyOptions { lock_timeout: Duration::from_millis(200), attempts: 1 };
        let error = apply_with(&db.pool, &definitions(), once).await.expect_err("must wait");
        assert!(matches!(error, ApplyError::LockTimeout { attempts: 1 }), "{error}");
        // The SQL door.
        for call in [
            r#"select tidegate.register_table('public.list', '{"scopes": [{"name": "list:{id}"}]}')"#,
            r#"select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id}"}')"#,
        ] {
            let error = application::run(&db.pool, &format!("set lock_timeout = '200ms'; {call}")).await;
            failure(&error.expect_err("must wait"), "55P03");
        }
        holder.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn l5_a_changed_definition_waits_and_so_shows_that_the_locks_are_held(db: LoadedDatabase) {
        run(&db.pool, TABLES).await;
        apply(&db.pool, &definitions()).await.expect("apply");
        let holder = hold_everything(&db).await;
        let mut changed = definitions();
        changed.tables[0].scopes[0].name = "lists:{id}".to_owned();
        let once = ApplyOptions { lock_timeout: Duration::from_millis(200), attempts: 1 };
        let error = apply_with(&db.pool, &changed, once).await.expect_err("must wait");
        assert!(matches!(error, ApplyError::LockTimeout { attempts: 1 }), "{error}");
        assert!(apply_with(&db.pool, &definitions(), once).await.expect("apply").is_unchanged());
        holder.close().await.expect("close");
    }
);
