//! G, B at registration: what is written, what waits for what, what needs a bootstrap.

use crate::application::{ok, refused, run, text};
use crate::stream::{Stream, failure};
use crate::wal::Event;
use serde_json::Value;
use sqlx::Connection;
use sqlx::postgres::{PgConnection, PgPool};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::definition::{ApplyError, Definitions, Status, apply, plan};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_model::Snapshot;

pub async fn snapshot(pool: &PgPool) -> Snapshot {
    let value: Value =
        sqlx::query_scalar("select snapshot from tidegate.registry_generation order by id desc limit 1")
            .fetch_one(pool)
            .await
            .expect("snapshot");
    Snapshot::from_json(&value.to_string()).expect("a snapshot that the model reads")
}

pub const TABLES: &str = "
    create table public.list (id text primary key, name text);
    create table public.item (id bigint primary key, list_id text, title text, rev int not null default 1);
    create table public.member (id uuid primary key, user_id text, team_id int, note text, active boolean);";

pg_test!(
    NoSlots,
    async fn g2_a_registration_writes_a_complete_generation(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        ok(pool, r#"create type public.mood as enum ('a'); create domain public.code as int;
        create table public.every (id public.code primary key, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, t text, v varchar(9), c char(2), e mood, u uuid,
            j json, jb jsonb, n numeric(10, 2), d date, ti time, tz timetz, ts timestamp, tt timestamptz, iv interval, by bytea, ta text[], ia int[], na numeric[], ea mood[])"#).await;
        ok(pool, "alter table item drop column title; alter table item add column title text").await;
        ok(pool, r#"select tidegate.register_table('public.every', '{"scopes": [{"name": "every"}]}')"#)
            .await;
        ok(pool, r#"select tidegate.register_table('public.item', '{"exclude": ["rev"], "write": "enabled", "unrestricted": true, "scopes": [{"name": "list:{list_id}", "where": "id > 0"}]}')"#).await;
        ok(pool, r#"select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id} and active"}')"#).await;
        ok(pool, r#"select tidegate.register_grant('{"scope": "user:{subject.id}"}'), tidegate.register_grant('{"scope": "catalog", "anonymous": true}')"#).await;
        let snapshot = snapshot(pool).await;
        assert_eq!(snapshot.generation.0, 5);
        let shown: Vec<String> = snapshot.relations[0]
            .columns
            .iter()
            .map(|column| {
                format!(
                    "{} {}",
                    column.name,
                    serde_json::to_value(column.wire).expect("wire").as_str().expect("text")
                )
            })
            .collect();
        assert_eq!(
            shown.join(", "),
            "id int, b bool, i2 int, i4 int, i8 int64, f4 float32, f8 float64, t string, v string, c string, e string, u uuid, j json, jb json, \
        n numeric, d date, ti time, tz timetz, ts timestamp, tt timestamptz, iv interval, by bytes, ta array:string, ia array:int, na array:numeric, ea array:string"
        );
        let item = &snapshot.relations[1];
        assert_eq!(
            item.columns.iter().map(|column| (column.name.as_str(), column.attnum)).collect::<Vec<_>>(),
            [("id", 1), ("list_id", 2), ("title", 5)]
        );
        assert_eq!((item.since.0, item.scopes.len(), item.scopes[0].name.as_str()), (2, 1, "list:{list_id}"));
        let member = &snapshot.relations[2];
        assert_eq!(
            member.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(),
            ["id", "user_id", "team_id", "active"],
            "only what the grant reads"
        );
        assert!(member.table_id.is_none());
        assert_eq!(snapshot.grants[0].subject_column.as_deref(), Some("user_id"));
        assert!(snapshot.grants[2].anonymous);
        // A dependency that clients get to see keeps its relation id and gets a table id.
        ok(pool, "select tidegate.register_table('public.member', '{\"exclude\": [\"note\"]}')").await;
        let synced = self::snapshot(pool).await;
        assert_eq!(
            (synced.relations[2].relation_id, synced.relations[2].table_id.is_some()),
            (member.relation_id, true)
        );
        let (message, _) = refused(
            pool,
            "TG001",
            "select tidegate.register_table('public.member', '{\"exclude\": [\"active\"]}')",
        )
        .await;
        assert_eq!(
            message,
            "table \"public.member\": a grant reads column \"active\", which is not captured"
        );
        let (message, _) = refused(pool, "TG001", r#"select tidegate.register_grant('{"scope": "n:{note}", "from": "public.member", "where": "user_id = {subject.id}"}')"#).await;
        assert!(message.contains("reads columns of public.member that are not captured"), "{message}");
    }
);

pg_test!(
    NoSlots,
    async fn l5_equal_definitions_are_unchanged_however_they_are_written(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        let register = async |definition: &str| {
            text(pool, &format!("select tidegate.register_table('public.item', '{definition}')")).await
        };
        assert_eq!(register(r#"{"exclude": ["rev", "title"], "scopes": [{"name": "b"}, {"name": "a", "where": "id > 0"}]}"#).await, "new");
        for same in [
            r#"{"exclude": ["title", "rev"], "scopes": [{"where": "id > 0", "name": "a"}, {"name": "b", "where": null}], "write": "read_only", "unrestricted": false, "columns": null}"#,
            r#"{"exclude": ["rev", "title"], "write": null, "scopes": [{"name": "b"}, {"name": "a", "where": "id > 0"}]}"#,
        ] {
            assert_eq!(register(same).await, "unchanged", "{same}");
        }
        assert_eq!(register(r#"{"exclude": ["rev", "title"], "scopes": [{"name": "b"}]}"#).await, "changed");
        // A column that is added later and not named does not change the definition.
        ok(pool, "alter table item add column later text").await;
        assert_eq!(
            register(r#"{"exclude": ["rev", "title"], "scopes": [{"name": "b"}]}"#).await,
            "unchanged"
        );
    }
);

/// A stream as its tables say it: enough for what registration asks.
const STREAM: &str = "insert into tidegate.stream_generation (id, reset_id, state_id, slot_name, consistent_lsn, barrier_end_lsn, system_identifier, timeline, database_oid)
        values (1, gen_random_uuid(), 1, 'x', '0/1', '0/1', '1', 1, 1);
    insert into tidegate.progress (generation, processed_end_lsn, registry_generation) values (1, '0/1', 0)";
const RESET: &str = "insert into tidegate.stream_reset (reset_id, kind, phase, slot_name, database_name, plugin, state_id) values (gen_random_uuid(), 'first_start', 'recorded', 'x', 'x', 'pgoutput', 1)";

pg_test!(
    NoSlots,
    async fn b13_a_table_with_rows_is_registered_only_before_the_stream(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        ok(pool, "insert into list values ('a'); insert into member values (gen_random_uuid(), 'u', 1)")
            .await;
        let list = "select tidegate.register_table('public.list', '{}')";
        let grant = r#"select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id}"}')"#;
        for (begin, end) in [
            (RESET, "update tidegate.stream_reset set phase = 'discarded'"),
            (STREAM, "delete from tidegate.progress"),
        ] {
            ok(pool, begin).await;
            let (message, hint) = refused(pool, "TG002", list).await;
            assert_eq!(
                message,
                "table \"public.list\" holds rows, and a stream is active: this needs a bootstrap"
            );
            assert!(hint.contains("before the first start of the stream"), "{hint}");
            let (message, _) = refused(pool, "TG002", grant).await;
            assert!(message.contains("public.member holds rows"), "{message}");
            ok(pool, end).await;
        }
        ok(pool, list).await;
        ok(pool, grant).await;
        ok(pool, "insert into tidegate.progress (generation, processed_end_lsn, registry_generation) values (1, '0/1', 0)").await;
        // Registered as it is: nothing to refuse. Empty tables and static grants work at any time; so does who may write.
        assert_eq!(text(pool, list).await, "unchanged");
        assert_eq!(text(pool, grant).await, "unchanged");
        assert_eq!(text(pool, "select tidegate.register_table('public.item', '{}')").await, "new");
        assert_eq!(text(pool, "select tidegate.register_grant('{\"scope\": \"catalog\"}')").await, "new");
        assert_eq!(text(pool, "select tidegate.register_table('public.list', '{\"write\": \"enabled\", \"unrestricted\": true}')").await, "changed");
        assert_eq!(
            text(pool, "select tidegate.register_table('public.item', '{\"columns\": [\"id\"]}')").await,
            "changed"
        );
        refused(
            pool,
            "TG002",
            "select tidegate.register_table('public.list', '{\"scopes\": [{\"name\": \"all\"}]}')",
        )
        .await;
        refused(pool, "TG002", "select tidegate.register_table('public.list', '{\"columns\": [\"id\"]}')")
            .await;
        ok(pool, "insert into item values (1)").await;
        refused(pool, "TG002", "select tidegate.register_table('public.item', '{}')").await;
    }
);

pg_test!(
    NoSlots,
    async fn b13_rows_that_only_row_level_security_hides_count(db: LoadedDatabase) {
        let role = format!("{}_owner", db.database.name());
        ok(&db.pool, TABLES).await;
        ok(&db.pool, &format!("{STREAM}; create role {role} nosuperuser; grant postgres to {role}; alter table list owner to {role};
        insert into list values ('a'); alter table list enable row level security, force row level security; create policy none on list using (false)")).await;
        // Hidden from the registering role: an error, never "empty".
        let error =
            run(&db.pool, &format!("set role {role}; select tidegate.register_table('public.list', '{{}}')"))
                .await
                .expect_err("hidden rows");
        failure(&error, "42501");
        ok(&db.pool, &format!("alter table list owner to postgres; drop owned by {role}; drop role {role}"))
            .await;
    }
);

pg_test!(
    NoSlots,
    async fn b13_emptiness_is_never_decided_by_an_old_snapshot(db: LoadedDatabase) {
        ok(&db.pool, TABLES).await;
        for level in ["repeatable read", "serializable"] {
            let (message, hint) = refused(
                &db.pool,
                "TG003",
                &format!(
                    "begin isolation level {level}; select tidegate.register_table('public.list', '{{}}')"
                ),
            )
            .await;
            assert_eq!(message, format!("registration runs in isolation level {level}"));
            assert!(hint.contains("READ COMMITTED"));
        }
        // A writer in flight: registration waits for it, then sees its row.
        ok(&db.pool, STREAM).await;
        let mut writer = PgConnection::connect(&db.url()).await.expect("connect");
        sqlx::raw_sql("begin; insert into list values ('a')").execute(&mut writer).await.expect("insert");
        let registering = tokio::spawn({
            let pool = db.pool.clone();
            async move { run(&pool, "select tidegate.register_table('public.list', '{}')").await }
        });
        wait_for_a_blocked_session(&db.pool).await;
        sqlx::raw_sql("commit").execute(&mut writer).await.expect("commit");
        let error = registering.await.expect("join").expect_err("it holds a row");
        failure(&error, "TG002");
        writer.close().await.expect("close");
    }
);

/// Until some session of this database waits for a lock.
async fn wait_for_a_blocked_session(pool: &PgPool) {
    while text(pool, "select count(*)::text from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0").await == "0" {
        tokio::task::yield_now().await;
    }
}

pg_test!(
    BriefSlots,
    async fn b1_a_slot_creation_that_begins_after_the_look_for_resets_waits_for_the_registration(
        server: TestServer,
    ) {
        let db = LoadedDatabase::new(&server).await;
        ok(&db.pool, TABLES).await;
        ok(&db.pool, "insert into list values ('a')").await;
        let mut registering = PgConnection::connect(&db.url()).await.expect("connect");
        sqlx::raw_sql("begin; select tidegate.register_table('public.list', '{}')")
            .execute(&mut registering)
            .await
            .expect("register");
        ok(&db.pool, RESET).await;
        let slot = format!("{}_slot", db.database.name());
        let creating = tokio::spawn({
            let pool = db.pool.clone();
            async move {
                run(&pool, &format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await
            }
        });
        wait_for_a_blocked_session(&db.pool).await;
        assert!(!creating.is_finished(), "its snapshot must hold the registration");
        sqlx::raw_sql("commit").execute(&mut registering).await.expect("commit");
        creating.await.expect("join").expect("slot");
        registering.close().await.expect("close");
    }
);

pg_test!(
    NoSlots,
    async fn g2_concurrent_registrations_serialise_and_never_deadlock(db: LoadedDatabase) {
        let names: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
        for name in &names {
            ok(&db.pool, &format!("create table public.{name} (id int primary key, user_id text)")).await;
        }
        let sessions = (0..6usize).map(|session| {
        let (pool, mut names) = (db.pool.clone(), names.clone());
        tokio::spawn(async move {
            names.rotate_left(session);
            if session % 2 == 1 { names.reverse(); }
            let calls: Vec<String> = names.iter().map(|name| format!("select tidegate.register_table('public.{name}', '{{}}'), tidegate.register_grant('{{\"scope\": \"{name}\"}}');
                select tidegate.register_grant('{{\"scope\": \"{name}:{{id}}\", \"from\": \"public.{name}\", \"where\": \"user_id = {{subject.id}}\"}}');")).collect();
            run(&pool, &format!("begin; {} commit", calls.concat())).await
        })
    });
        for session in sessions.collect::<Vec<_>>() {
            session.await.expect("join").expect("no deadlock");
        }
        let snapshot = snapshot(&db.pool).await;
        assert_eq!(
            (snapshot.relations.len(), snapshot.grants.len(), snapshot.generation.0),
            (8, 16, 24),
            "each exactly once"
        );
    }
);

pg_test!(
    BriefSlots,
    async fn g3_the_activation_comes_before_the_rows_that_follow_it_in_its_transaction(server: TestServer) {
        let t = Stream::after(server, TABLES).await;
        t.ok("begin; insert into item values (1); delete from item; select tidegate.register_table('public.item', '{}'); insert into item values (2); savepoint s;
        select tidegate.register_table('public.list', '{}'); rollback to s; commit").await;
        let transaction = t.decode().await.remove(0);
        let kinds: Vec<String> = transaction
            .iter()
            .map(|event| match event {
                Event::Row(row) => format!("row {}", row.key),
                Event::Fence(fence) => format!("fence {}", fence.key),
                Event::Activation(content) => format!("activation {content}"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(kinds, ["activation 1:1", "row 2", "fence 2"]);
    }
);

pg_test!(
    NoSlots,
    async fn g1_a_table_that_took_the_registered_ones_place_is_never_taken_for_it(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        ok(pool, "select tidegate.register_table('public.list', '{}')").await;
        ok(pool, "alter table list rename to list_old; create table list (like list_old including all)")
            .await;
        let (message, _) =
            refused(pool, "TG002", "select tidegate.register_table('public.list', '{}')").await;
        assert_eq!(message, "public.list is registered, but the table of that name is now another one");
        ok(pool, "drop table list").await;
        let (message, _) =
            refused(pool, "TG002", "select tidegate.register_table('public.list', '{}')").await;
        assert_eq!(message, "public.list is registered, but the table of that name is now gone");
    }
);

pg_test!(
    NoSlots,
    async fn f10_table_ids_are_never_reused(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        let error = run(pool, "begin; select tidegate.register_table('public.list', '{}'); select 1 / 0")
            .await
            .expect_err("division");
        failure(&error, "22012");
        ok(pool, "select tidegate.register_table('public.list', '{}')").await;
        assert_eq!(snapshot(pool).await.relations[0].table_id.expect("synced").0, 2);
    }
);

pg_test!(
    NoSlots,
    async fn g2_apply_is_all_or_nothing_and_names_what_is_refused(db: LoadedDatabase) {
        ok(&db.pool, TABLES).await;
        let definitions: Definitions = toml::from_str(r#"
        table = [{ name = "public.list" }, { name = "public.nowhere" }, { name = "public.item", scope = [{ name = "x", join = ["public.list on true"] }] }]
        grant = [{ scope = "catalog" }, { scope = "{id}" }]
    "#).expect("definitions");
        let error = apply(&db.pool, &definitions).await.expect_err("refused");
        assert_eq!(error.to_string(), "apply the definitions: 3 of 5 cannot be registered");
        let ApplyError::Refused(refused) = error else { panic!("{error}") };
        assert_eq!(refused, plan(&db.pool, &definitions).await.expect("plan"));
        let statuses: Vec<Status> = refused.entries.iter().map(|entry| entry.status).collect();
        assert_eq!(statuses, [Status::New, Status::Refused, Status::Refused, Status::New, Status::Refused]);
        assert_eq!(
            refused.entries[2].reason.as_deref(),
            Some("table \"public.item\", scope: \"join\" is not supported yet")
        );
        assert_eq!(snapshot(&db.pool).await.generation.0, 0);
        assert!(
            toml::from_str::<Definitions>("[[table]]\nname = 'a'\nnames = 'b'").is_err(),
            "unknown keys are refused with their line"
        );
    }
);

pg_test!(
    NoSlots,
    async fn g2_apply_registers_a_grant_on_a_column_that_the_same_file_adds(db: LoadedDatabase) {
        ok(&db.pool, TABLES).await;
        ok(
            &db.pool,
            "select tidegate.register_table('public.member', '{\"columns\": [\"id\", \"user_id\"]}')",
        )
        .await;
        let definitions: Definitions = toml::from_str(
            r#"
        table = [{ name = "public.member" }]
        grant = [{ scope = "team:{team_id}", from = "public.member", where = "user_id = {subject.id}" }]
    "#,
        )
        .expect("definitions");
        let applied = apply(&db.pool, &definitions).await.expect("apply");
        assert_eq!(
            applied.entries.iter().map(|entry| entry.status).collect::<Vec<_>>(),
            [Status::Changed, Status::New]
        );
    }
);

pg_test!(
    NoSlots,
    async fn g5_a_drifted_table_is_registered_anew_only_where_no_row_would_be_read_again(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, TABLES).await;
        let item = "select tidegate.register_table('public.item', '{}')";
        ok(pool, item).await;
        ok(pool, "alter table item alter column rev type bigint, alter column title type varchar(9)").await;
        // K1: no other registration activates a generation that holds a table which has drifted.
        let (message, hint) =
            refused(pool, "TG002", "select tidegate.register_table('public.list', '{}')").await;
        assert_eq!(
            (message.as_str(), hint.as_str()),
            (
                "registered table public.item has drifted: captured column title has another type",
                "Undo that change first."
            )
        );
        ok(pool, "insert into item values (1)").await;
        assert_eq!(text(pool, item).await, "changed", "the first baseline will read it as it is");
        assert_eq!(text(pool, item).await, "unchanged");
        ok(pool, &format!("{STREAM}; alter table item alter column title type text")).await;
        refused(pool, "TG002", item).await;
        ok(pool, "delete from item").await;
        assert_eq!(text(pool, item).await, "changed");
        ok(pool, "alter table item alter column id type int").await;
        let (message, _) = refused(pool, "TG002", item).await;
        assert_eq!(message, "table \"public.item\": the key column has changed since registration");
        ok(pool, "alter table item alter column id type bigint; alter table item rename to renamed").await;
        let (message, _) =
            refused(pool, "TG002", "select tidegate.register_table('public.renamed', '{}')").await;
        assert_eq!(message, "public.renamed is registered as public.item");
    }
);
