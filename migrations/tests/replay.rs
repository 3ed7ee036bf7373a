//! L1–L4, L8: replays over populated databases, by other loaders, cut short, and under load.

use crate::application::{ok, text};
use crate::schemas::edited;
use sqlx::{ConnectOptions, Connection};
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestDatabase, TestServer};
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tidegate_migrations::{
    File, GENERATION, LoadError, LoadOptions, Reason, Schema, connect_and_load, force_replay, load_schema,
};

/// Registered tables with rows, live and dead.
pub const POPULATED: &str = r#"
    create table public.item (id bigint primary key, list_id text, title text);
    create table public.member (id text primary key, user_id text, team_id int);
    select tidegate.register_table('public.item', '{"scopes": [{"name": "list:{list_id}"}]}');
    select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id}"}');
    insert into item select g, 'l', 't' from generate_series(1, 20) g; update item set title = 'u' where id < 5; delete from item where id > 15;
    insert into member values ('m', 'u', 1);"#;

/// Every row of ours that a replay must not touch, as one text.
const CONTENT: &str = "select string_agg(part, E'\\n' order by part) from (
    select 'v1 ' || v::text as part from tidegate.row_version_1 v union all select 'v2 ' || v::text from tidegate.row_version_2 v
    union all select 'relation ' || r::text from tidegate.relation r union all select 'grant ' || g::text from tidegate.grant_rule g
    union all select 'generation ' || g::text from tidegate.registry_generation g union all select 'audit ' || a::text from tidegate.audit a
    union all select 'key ' || k::text from tidegate.cursor_key k union all select 'worker ' || w::text from tidegate.worker w
    union all select 'fence object ' || o::text from tidegate.fence_object o
    union all select 'trigger ' || oid || tgname from pg_trigger where not tgisinternal
    union all select 'published ' || p::text from pg_publication_rel p) q";

pg_test!(
    NoSlots,
    async fn l1_a_replay_over_a_populated_database_changes_no_row(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let before = text(&db.pool, CONTENT).await;
        for _ in 0..2 {
            force_replay(&db.pool).await.expect("force");
            assert!(connect_and_load(&db.pool).await.expect("load").replayed);
            assert!(text(&db.pool, CONTENT).await == before, "a replay changed a row");
        }
        ok(&db.pool, "update item set title = 'again'; insert into item values (20, 'l', 'back')").await;
        for check in ["trigger_problems", "relation_problems", "publication_problems"] {
            assert_eq!(
                text(&db.pool, &format!("select count(*)::text from tidegate.{check}()")).await,
                "0",
                "{check}"
            );
        }
    }
);

pg_test!(
    NoSlots,
    async fn l1_every_earlier_state_is_brought_up_to_date(server: TestServer) {
        let full = Schema::full();
        for count in 1..full.files.len() {
            let database = server.create_database().expect("database");
            let pool = pool(&database.url());
            let earlier = Schema { generation: 1, files: full.files[..count].to_vec(), ..full.clone() };
            load_schema(&pool, &earlier, LoadOptions::default()).await.expect("the first files alone");
            assert_eq!(connect_and_load(&pool).await.expect("all").reason, Some(Reason::OtherGeneration));
            ok(&pool, POPULATED).await;
            pool.close().await;
        }
    }
);

pg_test!(
    NoSlots,
    async fn l2_a_changed_function_text_reaches_every_registered_relation(db: LoadedDatabase) {
        ok(&db.pool, POPULATED).await;
        let schema = edited("v uuid := gen_random_uuid();", "v uuid := gen_random_uuid(); -- edited");
        // Writers of the application's tables neither wait nor are waited for: functions are replaced, triggers stay.
        let mut writer = db.pool.connect_options().connect().await.expect("connect");
        sqlx::raw_sql("begin; update item set title = 'w'; insert into member values ('n')")
            .execute(&mut writer)
            .await
            .expect("write");
        let once =
            LoadOptions { attempts: 1, lock_timeout: Duration::from_millis(500), ..LoadOptions::default() };
        assert_eq!(
            load_schema(&db.pool, &schema, once).await.expect("load").reason,
            Some(Reason::OtherContent)
        );
        sqlx::raw_sql("update item set title = 'x'; commit").execute(&mut writer).await.expect("go on");
        writer.close().await.expect("close");
        let edited = "select count(*)::text from pg_proc where proname in ('fence_1', 'fence_2') and prosrc like '%-- edited%'";
        assert_eq!(text(&db.pool, edited).await, "2");
        assert_eq!(text(&db.pool, "select count(*)::text from tidegate.trigger_problems()").await, "0");
    }
);

pg_test!(
    NoSlots,
    async fn l1_a_replay_cut_short_vouches_for_nothing(db: LoadedDatabase) {
        let mut broken = Schema::full();
        broken.files.push(File { name: "9999_broken.sql", text: "select 1 / 0" });
        let error = load_schema(&db.pool, &broken, LoadOptions::default()).await.expect_err("broken");
        assert!(matches!(error, LoadError::File { file: "9999_broken.sql", .. }), "{error}");
        assert_eq!(connect_and_load(&db.pool).await.expect("load").reason, Some(Reason::Cleared));
    }
);

pg_test!(
    NoSlots,
    async fn l3_after_a_partial_loader_the_full_one_replays(db: LoadedDatabase) {
        let full = Schema::full();
        let partial = Schema { loader: "partial", files: full.files[..2].to_vec(), ..full };
        assert_eq!(
            load_schema(&db.pool, &partial, LoadOptions::default()).await.expect("load").reason,
            Some(Reason::OtherLoader)
        );
        assert_eq!(connect_and_load(&db.pool).await.expect("load").reason, Some(Reason::OtherLoader));
        assert!(!connect_and_load(&db.pool).await.expect("load").replayed);
        // A partial loader that left the full one's hash behind.
        ok(&db.pool, "update tidegate.schema_stamp set loader = 'partial'").await;
        assert_eq!(connect_and_load(&db.pool).await.expect("load").reason, Some(Reason::OtherLoader));
    }
);

pg_test!(
    NoSlots,
    async fn l6_an_older_program_refuses_a_newer_schema(db: LoadedDatabase) {
        ok(&db.pool, &format!("update tidegate.schema_stamp set generation = {}", GENERATION + 1)).await;
        let error = connect_and_load(&db.pool).await.expect_err("downgrade");
        assert!(matches!(error, LoadError::Downgrade { ours: GENERATION, .. }), "{error}");
        // Also after a replay cut short.
        force_replay(&db.pool).await.expect("force");
        let error = connect_and_load(&db.pool).await.expect_err("downgrade");
        assert!(matches!(error, LoadError::Downgrade { .. }), "{error}");
    }
);

pg_test!(
    NoSlots,
    async fn l6_a_loader_that_holds_the_lock_too_long_is_named(db: LoadedDatabase) {
        let mut other = db.pool.connect_options().connect().await.expect("connect");
        sqlx::raw_sql("select pg_advisory_lock(hashtextextended('tidegate load', 0))")
            .execute(&mut other)
            .await
            .expect("lock");
        let options = LoadOptions { load_lock_timeout: Duration::from_millis(100), ..LoadOptions::default() };
        let error = load_schema(&db.pool, &Schema::full(), options).await.expect_err("busy");
        assert!(matches!(error, LoadError::Busy), "{error}");
        other.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn l1_a_role_without_superuser_rights_loads_registers_and_is_told_what_it_could_not_do(
        database: TestDatabase,
    ) {
        let admin = pool(&database.url());
        let role = format!("{}_installer", database.name());
        ok(
            &admin,
            &format!(
                "create role {role} login password 'x'; alter database {} owner to {role}",
                database.name()
            ),
        )
        .await;
        let owned =
            pool(&format!("postgres://{role}:x@127.0.0.1:{}/{}", database.server().port(), database.name()));
        assert!(connect_and_load(&owned).await.expect("load").replayed);
        ok(&owned, "create schema app; create table app.item (id int primary key, v text); select tidegate.register_table('app.item', '{}');
        insert into app.item values (1, 'a'); update app.item set v = 'b'; delete from app.item").await;
        assert_eq!(text(&owned, "select tidegate.emit_right_is_public()::text").await, "true");
        assert_eq!(text(&owned, "select count(*)::text from tidegate.trigger_problems()").await, "0");
        // A table of somebody else: named, with what to grant.
        ok(&admin, "create table app.foreign_owned (id int primary key)").await;
        let plan = text(
            &owned,
            r#"select reason from tidegate.definition_plan('{"tables": [{"name": "app.foreign_owned"}]}')"#,
        )
        .await;
        assert_eq!(
            plan,
            format!("role {role}, which owns the schema tidegate, may not read app.foreign_owned")
        );
        owned.close().await;
        ok(&admin, &format!("alter database {} owner to postgres; reassign owned by {role} to postgres; drop owned by {role}; drop role {role}", database.name())).await;
        admin.close().await;
    }
);
