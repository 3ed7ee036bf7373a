//! F11, G5, H5, H6: the read-only checks see each way in which a database can drift, by name, and clear when it is repaired.

use crate::application::ok;
use crate::schemas::edited;
use sqlx::postgres::PgPool;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_migrations::{LoadOptions, connect_and_load, force_replay, load_schema};

struct Registered(LoadedDatabase);

impl TestContext for Registered {
    async fn prepare(server: TestServer) -> Self {
        let db = LoadedDatabase::new(&server).await;
        ok(
            &db.pool,
            "create table public.item (id bigint primary key, title varchar(10) not null, price numeric(10, 2), note text);
             create table public.other (id int primary key);
             select tidegate.register_table('public.item', '{\"exclude\": [\"note\"], \"write\": \"enabled\", \"unrestricted\": true}');
             select tidegate.register_table('public.other', '{}')",
        )
        .await;
        Registered(db)
    }
}

/// Everything that one of the checks says, as `relation: problem`.
async fn problems(pool: &PgPool, check: &str) -> Vec<String> {
    // Read-only is part of what they promise.
    let mut transaction = pool.begin().await.expect("begin");
    sqlx::raw_sql("set transaction read only").execute(&mut *transaction).await.expect("read only");
    let rows: Vec<(Option<String>, String)> = sqlx::query_as(AssertSqlSafe(format!(
        "select relation, problem from tidegate.{check}() order by relation, problem"
    )))
    .fetch_all(&mut *transaction)
    .await
    .expect(check);
    rows.into_iter()
        .map(|(relation, problem)| format!("{}: {problem}", relation.unwrap_or_default()))
        .collect()
}

/// Each step breaks something, names what the check must say, and repairs it.
async fn walk(pool: &PgPool, check: &str, steps: &[(&str, &[&str], &str)]) {
    assert_eq!(problems(pool, check).await, Vec::<String>::new());
    for (broken, expected, repaired) in steps {
        ok(pool, broken).await;
        assert_eq!(problems(pool, check).await, *expected, "{broken}");
        ok(pool, repaired).await;
        assert_eq!(problems(pool, check).await, Vec::<String>::new(), "{repaired}");
    }
}

const REINSTALL: &str = "select tidegate.install_fences(1)";

pg_test!(
    NoSlots,
    async fn f11_every_change_of_a_trigger_or_its_function_is_named(t: Registered) {
        walk(&t.0.pool, "trigger_problems", &[
        ("alter table item disable trigger \"!tidegate_fence\"", &["public.item: trigger \"!tidegate_fence\" is not enabled always"], REINSTALL),
        ("alter table item enable trigger \"~tidegate_guard\"", &["public.item: trigger \"~tidegate_guard\" is not enabled always"], REINSTALL),
        ("alter table item enable replica trigger \"!tidegate_truncate\"", &["public.item: trigger \"!tidegate_truncate\" is not enabled always"], REINSTALL),
        ("drop trigger \"!tidegate_truncate\" on item", &["public.item: trigger \"!tidegate_truncate\" is missing"], REINSTALL),
        ("drop trigger \"!tidegate_freeze\" on item", &["public.item: trigger \"!tidegate_freeze\" is missing"], REINSTALL),
        ("alter trigger \"!tidegate_fence\" on item rename to zzz", &["public.item: trigger \"!tidegate_fence\" is missing"], "alter trigger zzz on item rename to \"!tidegate_fence\""),
        ("drop trigger \"!tidegate_fence\" on item; create trigger \"!tidegate_fence\" after insert or update on item for each row execute function tidegate.fence_1(); alter table item enable always trigger \"!tidegate_fence\"",
            &["public.item: trigger \"!tidegate_fence\" has another timing, event or level"], REINSTALL),
        ("drop trigger \"!tidegate_fence\" on item; create trigger \"!tidegate_fence\" after insert or update or delete on item for each row when (true) execute function tidegate.fence_1(); alter table item enable always trigger \"!tidegate_fence\"",
            &["public.item: trigger \"!tidegate_fence\" has another condition"], REINSTALL),
        ("drop trigger \"!tidegate_freeze\" on item; create trigger \"!tidegate_freeze\" after insert on item for each row when (false) execute function tidegate.refuse_freeze(); alter table item enable always trigger \"!tidegate_freeze\"",
            &["public.item: trigger \"!tidegate_freeze\" has another condition"], REINSTALL),
        ("drop trigger \"!tidegate_fence\" on item; create trigger \"!tidegate_fence\" after insert or update of title or delete on item for each row execute function tidegate.fence_1(); alter table item enable always trigger \"!tidegate_fence\"",
            &["public.item: trigger \"!tidegate_fence\" has columns, arguments, a constraint or transition tables"], REINSTALL),
        ("drop trigger \"!tidegate_fence\" on item; create constraint trigger \"!tidegate_fence\" after insert or update or delete on item deferrable for each row execute function tidegate.fence_1(); alter table item enable always trigger \"!tidegate_fence\"",
            &["public.item: trigger \"!tidegate_fence\" has columns, arguments, a constraint or transition tables"], "drop trigger \"!tidegate_fence\" on item; select tidegate.install_fences(1)"),
        ("create function public.nothing() returns trigger language plpgsql as $$ begin return null; end $$;
          create or replace trigger \"!tidegate_fence\" after insert or update or delete on item for each row execute function public.nothing(); alter table item enable always trigger \"!tidegate_fence\"",
            &["public.item: trigger \"!tidegate_fence\" calls another function"], REINSTALL),
        ("create or replace function tidegate.fence_1() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin return null; end $$",
            &["public.item: function of trigger \"!tidegate_fence\" was changed"], REINSTALL),
        ("alter function tidegate.guard_1() security definer", &["public.item: function of trigger \"~tidegate_guard\" was changed"], REINSTALL),
        ("alter function tidegate.fence_1() set search_path = public", &["public.item: function of trigger \"!tidegate_fence\" was changed"], REINSTALL),
        ("create or replace function tidegate.refuse_truncate() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$ begin return null; end $$",
            &["public.item: function of trigger \"!tidegate_truncate\" was changed", "public.other: function of trigger \"!tidegate_truncate\" was changed"],
            "select tidegate.install_fences(1), tidegate.install_fences(2)"),
    ]).await;
    }
);

pg_test!(
    NoSlots,
    async fn f11_a_function_of_another_owner_or_a_dropped_one_is_named(t: Registered) {
        let pool = &t.0.pool;
        let role = format!("{}_thief", t.0.database.name());
        ok(pool, &format!("create role {role}; grant all on schema tidegate to {role}; alter function tidegate.fence_1() owner to {role}")).await;
        assert_eq!(
            problems(pool, "trigger_problems").await,
            ["public.item: function of trigger \"!tidegate_fence\" has another owner"]
        );
        ok(pool, &format!("select tidegate.install_fences(1); drop owned by {role}; drop role {role}; drop function tidegate.guard_1() cascade")).await;
        assert_eq!(
            problems(pool, "trigger_problems").await,
            [
                "public.item: function of trigger \"~tidegate_guard\" is missing",
                "public.item: trigger \"~tidegate_guard\" is missing"
            ]
        );
        ok(pool, REINSTALL).await;
        assert!(problems(pool, "trigger_problems").await.is_empty());
    }
);

pg_test!(
    NoSlots,
    async fn g1_h6_every_change_of_the_publication_is_named(t: Registered) {
        walk(
            &t.0.pool,
            "publication_problems",
            &[
                (
                    "alter publication tidegate drop table item",
                    &["public.item: the table is not in the publication"],
                    "alter publication tidegate add table item",
                ),
                (
                    "create table extra (a int); alter publication tidegate add table extra",
                    &["public.extra: the publication holds a table that is not registered"],
                    "drop table extra",
                ),
                (
                    "alter publication tidegate set (publish = 'insert, update, delete')",
                    &[": the publication tidegate does not publish insert, update, delete and truncate"],
                    "alter publication tidegate set (publish = 'insert, update, delete, truncate')",
                ),
                (
                    "alter publication tidegate set (publish_via_partition_root = true)",
                    &[": the publication tidegate publishes through partition roots"],
                    "alter publication tidegate set (publish_via_partition_root = false)",
                ),
                (
                    "alter publication tidegate set table item where (id > 0), other",
                    &["public.item: the publication filters rows of the table"],
                    "alter publication tidegate set table item, other",
                ),
                (
                    "alter publication tidegate set table item (id), other",
                    &["public.item: the publication has a column list for the table"],
                    "alter publication tidegate set table item, other",
                ),
                (
                    "alter publication tidegate add tables in schema public",
                    &[": the publication tidegate is for whole schemas"],
                    "alter publication tidegate drop tables in schema public",
                ),
                (
                    "drop publication tidegate",
                    &[": the publication tidegate is missing"],
                    "create publication tidegate for table item, other",
                ),
                (
                    "drop publication tidegate; create publication tidegate for all tables",
                    &[
                        "public.item: the table is not in the publication",
                        "public.other: the table is not in the publication",
                        ": the publication tidegate is for all tables",
                    ],
                    "drop publication tidegate; create publication tidegate for table item, other",
                ),
            ],
        )
        .await;
    }
);

pg_test!(
    NoSlots,
    async fn f1_g1_g5_k1_k2_every_drift_of_a_relation_is_named_and_harmless_changes_are_not(t: Registered) {
        walk(&t.0.pool, "relation_problems", &[
        ("alter table item rename to item2", &["public.item: the registered table is now public.item2"], "alter table item2 rename to item"),
        ("create schema archive; alter table item set schema archive", &["public.item: the registered table is now archive.item"], "alter table archive.item set schema public"),
        ("alter publication tidegate drop table item; alter table item set unlogged", &["public.item: the table is not logged"], "alter table item set logged; alter publication tidegate add table item"),
        ("alter table item replica identity full", &["public.item: the replica identity is not DEFAULT"], "alter table item replica identity default"),
        ("create table child () inherits (item)", &["public.item: other tables inherit from the table"], "drop table child"),
        ("create table parent (id bigint not null); alter table item inherit parent", &["public.item: the table was attached to a parent"], "alter table item no inherit parent; drop table parent"),
        ("create table parts (like item) partition by range (id); alter table parts attach partition item for values from (0) to (9)", &["public.item: the table was attached to a parent"], "alter table parts detach partition item; drop table parts"),
        ("alter table item drop constraint item_pkey", &["public.item: the table has no primary key"], "alter table item add primary key (id)"),
        ("alter table item drop constraint item_pkey; alter table item add primary key (id, title)", &["public.item: the primary key was changed"], "alter table item drop constraint item_pkey; alter table item add primary key (id)"),
        ("alter table item drop constraint item_pkey; alter table item add primary key (id) deferrable", &["public.item: the primary key was changed"], "alter table item drop constraint item_pkey; alter table item add primary key (id)"),
        ("alter table item rename column title to name", &["public.item: captured column title was renamed to name"], "alter table item rename column name to title"),
        ("alter table item alter column price type numeric(10, 4)", &["public.item: captured column price has another type"], "alter table item alter column price type numeric(10, 2)"),
        ("alter table item alter column title type text", &["public.item: captured column title has another type"], "alter table item alter column title type varchar(10)"),
        ("alter table item alter column title drop not null", &["public.item: captured column title may be null now"], "alter table item alter column title set not null"),
        ("update tidegate.relation set resolved = jsonb_set(resolved, '{unrestricted}', 'false')", &["public.item: clients may write, and row-level security is off"], "alter table item enable row level security"),
    ]).await;
        for harmless in [
            "alter table item add column prio int not null default 7",
            "alter table item drop column note",
            "alter table item alter column price set default 1",
            "create index on item (title)",
            "vacuum full item",
            "alter table item add check (id > 0)",
            "comment on table item is 'x'",
        ] {
            ok(&t.0.pool, harmless).await;
            assert!(problems(&t.0.pool, "relation_problems").await.is_empty(), "{harmless}");
        }
        ok(&t.0.pool, "alter table item drop column price").await;
        assert_eq!(
            problems(&t.0.pool, "relation_problems").await,
            ["public.item: captured column price was dropped"]
        );
        ok(&t.0.pool, "create table item2 (like item including all); drop table item; alter table item2 rename to item; drop table other").await;
        assert_eq!(
            problems(&t.0.pool, "relation_problems").await,
            [
                "public.item: the registered table was replaced by another one of its name",
                "public.other: the registered table was dropped"
            ]
        );
    }
);

pg_test!(
    NoSlots,
    async fn f8_the_right_to_emit_messages_is_revoked_from_public_and_reported_where_it_is_not(
        t: Registered,
    ) {
        let public = async || {
            sqlx::query_scalar::<_, bool>("select tidegate.emit_right_is_public()")
                .fetch_one(&t.0.pool)
                .await
                .expect("ask")
        };
        assert!(!public().await);
        let any =
            "do $$ begin execute (select format('grant execute on function %s to public', oid::regprocedure)
        from pg_proc where proname = 'pg_logical_emit_message' limit 1); end $$";
        ok(&t.0.pool, any).await;
        assert!(public().await);
    }
);

pg_test!(
    NoSlots,
    async fn dd05_f1_uninstall_leaves_nothing_and_writes_go_on(t: Registered) {
        let pool = &t.0.pool;
        ok(pool, "insert into item values (1, 'a')").await;
        let slots: Vec<String> = sqlx::query_scalar("select * from tidegate.uninstall()")
            .fetch_all(pool)
            .await
            .expect("uninstall");
        assert!(slots.is_empty());
        ok(pool, "insert into item values (2, 'b'); update item set id = id + 10; delete from item where id = 11; truncate item; insert into other values (1)").await;
        let left: i64 = sqlx::query_scalar("select (select count(*) from pg_namespace where nspname like 'tidegate%') + (select count(*) from pg_publication)
            + (select count(*) from pg_trigger where tgname like '%tidegate%')
            + (select count(*) from pg_proc where proname = 'pg_logical_emit_message' and not has_function_privilege('public', oid, 'execute'))")
        .fetch_one(pool).await.expect("count");
        assert_eq!(left, 0);
    }
);

pg_test!(
    NoSlots,
    async fn dd05_f1_a_dropped_schema_of_ours_leaves_writes_working(t: Registered) {
        ok(&t.0.pool, "insert into item values (1, 'a'); drop schema tidegate cascade").await;
        ok(
            &t.0.pool,
            "update item set title = 'b'; insert into item values (2, 'b'); delete from item; truncate item",
        )
        .await;
    }
);

pg_test!(
    NoSlots,
    async fn f9_the_freeze_guard_is_renewed_after_a_rewrite_when_nobody_has_to_wait(t: Registered) {
        let pool = &t.0.pool;
        let costly = async || -> bool {
            sqlx::query_scalar(
            "select condition not like format('%%(%s)::oid%%', pg_relation_filenode('public.item')) from tidegate.fence_object
             where relation_id = 1 and trigger_name = '!tidegate_freeze'",
        )
        .fetch_one(pool)
        .await
        .expect("ask")
        };
        assert!(!costly().await);
        ok(pool, "vacuum full item").await;
        assert!(costly().await);
        let mut writer = pool.connect_options().connect().await.expect("connect");
        sqlx::raw_sql("begin; insert into item values (1, 'a')").execute(&mut writer).await.expect("write");
        ok(pool, REINSTALL).await;
        assert!(costly().await, "the writer goes first");
        writer.close().await.expect("close");
        ok(pool, REINSTALL).await;
        assert!(!costly().await);
        assert!(problems(pool, "trigger_problems").await.is_empty());
    }
);

pg_test!(
    NoSlots,
    async fn g1_a_replay_puts_no_trigger_on_a_table_that_only_has_the_oid_of_a_registered_one(t: Registered) {
        let pool = &t.0.pool;
        ok(pool, "create table public.stranger (id bigint primary key)").await;
        // As in a restored database, where OIDs are given anew.
        ok(
            pool,
            "update tidegate.relation set relation_oid = 'public.stranger'::regclass where relation_id = 1",
        )
        .await;
        force_replay(pool).await.expect("force");
        connect_and_load(pool).await.expect("load");
        let triggers = "select count(*) from pg_trigger where tgrelid = 'public.stranger'::regclass";
        let count: i64 = sqlx::query_scalar(triggers).fetch_one(pool).await.expect("count");
        assert_eq!(count, 0);
        ok(pool, "insert into stranger values (1); update stranger set id = 2; truncate stranger").await;
        assert!(
            problems(pool, "relation_problems")
                .await
                .contains(&"public.item: the registered table is now public.stranger".to_owned())
        );
    }
);

pg_test!(
    NoSlots,
    async fn g1_g5_a_replay_reaches_a_registered_table_under_its_new_name(t: Registered) {
        let pool = &t.0.pool;
        ok(pool, "alter table item rename to renamed").await;
        let schema = edited("v uuid := gen_random_uuid();", "v uuid := gen_random_uuid(); -- edited");
        load_schema(pool, &schema, LoadOptions::default()).await.expect("load");
        assert!(problems(pool, "trigger_problems").await.is_empty());
        ok(pool, "insert into renamed values (1, 'a'); alter table renamed rename to item; update item set title = 'b'").await;
        assert!(problems(pool, "relation_problems").await.is_empty());
    }
);
