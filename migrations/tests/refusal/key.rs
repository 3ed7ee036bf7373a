//! K1, K2: keys that would not identify a row, the same for SQL, WAL and clients.

use super::{refuse_table, refused_tables};
use crate::application::{ok, refused, text};
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

const NONE: &str = "Give it a primary key of one column.";
const ONE: &str = "Give it a primary key of one column, and make the others a unique constraint.";
const TYPES: &str =
    "A key is text, varchar, uuid, smallint, integer or bigint (or a domain over one of them).";
const DETERMINISTIC: &str = "Use a deterministic collation.";
/// A collation that folds case; where the server was built without ICU, one that only says that it may.
pub const COLLATION: &str = "do $$ begin create collation public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
    exception when feature_not_supported then
        create collation public.ci (provider = libc, locale = 'C'); perform set_config('allow_system_table_mods', 'on', true);
        update pg_collation set collisdeterministic = false where collname = 'ci';
    end $$;";

refused_tables! {
    k1_a_table_without_a_primary_key_is_refused: "create table public.t (a int)", "public.t", "{}"
        => "public.t has no primary key", NONE;
    k1_a_unique_column_that_is_not_the_primary_key_is_refused: "create table public.t (a int not null unique)", "public.t", "{}"
        => "public.t has no primary key", NONE;
    k1_a_unique_column_that_may_be_null_is_refused: "create table public.t (a int unique)", "public.t", "{}"
        => "public.t has no primary key", "Its unique column may be null. Make a column not null and the primary key.";
    k1_a_composite_primary_key_is_refused: "create table public.t (a int, \"B c\" int, primary key (a, \"B c\"))", "public.t", "{}"
        => "public.t has a composite primary key (a, \"B c\")", ONE;
    k1_a_deferrable_primary_key_is_refused: "create table public.t (a int primary key deferrable)", "public.t", "{}"
        => "the primary key of public.t is deferrable", "Create the constraint again without DEFERRABLE.";
    k1_a_primary_key_that_is_deferred_is_refused: "create table public.t (a int primary key deferrable initially deferred)", "public.t", "{}"
        => "the primary key of public.t is deferrable", "Create the constraint again without DEFERRABLE.";
    k1_a_primary_key_whose_index_is_not_valid_is_refused:
        "create table public.t (a int primary key); set allow_system_table_mods = on; update pg_index set indisvalid = false where indexrelid = 'public.t_pkey'::regclass", "public.t", "{}"
        => "the index of the primary key of public.t is not valid", "Rebuild it: reindex index concurrently.";
    k1_a_generated_key_is_refused: "create table public.t (b int, a int generated always as (b * 2) stored primary key)", "public.t", "{}"
        => "the key column \"a\" of public.t is generated", "Use an ordinary or an identity column.";
    k1_a_text_key_of_a_non_deterministic_collation_is_refused:
        format!("{COLLATION} create table public.t (a text collate public.ci primary key)").as_str(), "public.t", "{}"
        => "the key column \"a\" of public.t has a non-deterministic collation", DETERMINISTIC;
    k1_a_varchar_key_of_a_non_deterministic_collation_is_refused:
        format!("{COLLATION} create table public.t (a varchar(10) collate public.ci primary key)").as_str(), "public.t", "{}"
        => "the key column \"a\" of public.t has a non-deterministic collation", DETERMINISTIC;
    k1_a_domain_key_of_a_non_deterministic_collation_is_refused:
        format!("{COLLATION} create domain public.name as text collate public.ci; create table public.t (a public.name primary key)").as_str(), "public.t", "{}"
        => "the key column \"a\" of public.t has a non-deterministic collation", DETERMINISTIC;
    k1_a_key_that_is_left_out_is_refused: "create table public.t (a int primary key, b int)", "public.t", r#"{"columns": ["b"]}"#
        => "public.t: the key column \"a\" is left out", "The key is always captured.";
    k1_a_key_that_is_excluded_is_refused: "create table public.t (a int primary key, b int)", "public.t", r#"{"exclude": ["a"]}"#
        => "public.t: the key column \"a\" is left out", "The key is always captured.";
    k2_replica_identity_full_is_refused: "create table public.t (a int primary key); alter table public.t replica identity full", "public.t", "{}"
        => "public.t has replica identity FULL", "Run: alter table public.t replica identity default";
    k2_replica_identity_nothing_is_refused: "create table public.t (a int primary key); alter table public.t replica identity nothing", "public.t", "{}"
        => "public.t has replica identity NOTHING", "Run: alter table public.t replica identity default";
    k2_replica_identity_using_index_is_refused:
        "create table public.t (a int primary key, b int not null unique); alter table public.t replica identity using index t_b_key", "public.t", "{}"
        => "public.t has replica identity USING INDEX", "Run: alter table public.t replica identity default";
    k2_replica_identity_using_the_primary_keys_index_is_refused:
        "create table public.t (a int primary key); alter table public.t replica identity using index t_pkey", "public.t", "{}"
        => "public.t has replica identity USING INDEX", "Run: alter table public.t replica identity default";
}

pg_test!(
    NoSlots,
    async fn k1_a_key_of_any_other_type_is_refused(db: LoadedDatabase) {
        ok(&db.pool, "create type public.mood as enum ('a'); create domain public.amount as numeric; create domain public.mooddom as public.mood; create type public.pair as (a int, b int);
            create type public.span as range (subtype = int4)").await;
        for (given, shown) in [
            ("numeric", "numeric"),
            ("numeric(10,2)", "numeric(10,2)"),
            ("real", "real"),
            ("double precision", "double precision"),
            ("boolean", "boolean"),
            ("char(5)", "character(5)"),
            ("\"char\"", "\"char\""),
            ("name", "name"),
            ("bytea", "bytea"),
            ("jsonb", "jsonb"),
            ("date", "date"),
            ("time", "time without time zone"),
            ("timetz", "time with time zone"),
            ("timestamp", "timestamp without time zone"),
            ("timestamptz(3)", "timestamp(3) with time zone"),
            ("interval", "interval"),
            ("money", "money"),
            ("bit(4)", "bit(4)"),
            ("varbit", "bit varying"),
            ("inet", "inet"),
            ("cidr", "cidr"),
            ("macaddr", "macaddr"),
            ("oid", "oid"),
            ("regclass", "regclass"),
            ("xid8", "xid8"),
            ("pg_lsn", "pg_lsn"),
            ("tsvector", "tsvector"),
            ("int4range", "int4range"),
            ("int4multirange", "int4multirange"),
            ("int[]", "integer[]"),
            ("text[]", "text[]"),
            ("public.mood", "public.mood"),
            ("public.amount", "public.amount"),
            ("public.mooddom", "public.mooddom"),
            ("public.pair", "public.pair"),
            ("public.span", "public.span"),
        ] {
            let setup =
                format!("drop table if exists public.t; create table public.t (a {given} primary key)");
            let message = format!("the key column \"a\" of public.t has type {shown}");
            refuse_table(&db.pool, &setup, "public.t", "{}", &message, TYPES).await;
        }
    }
);

pg_test!(
    NoSlots,
    async fn k1_every_portable_key_is_registered_by_its_base_type(db: LoadedDatabase) {
        ok(&db.pool, "create domain public.code as varchar(9) check (value <> ''); create domain public.deep as public.code; create domain public.num as int check (value > 0);
            do $$ begin create collation public.strict (provider = icu, locale = 'und');
            exception when feature_not_supported then create collation public.strict (provider = libc, locale = 'C'); end $$").await;
        for (number, (given, key)) in [
            ("smallint", "int"),
            ("int", "int"),
            ("serial", "int"),
            ("public.num", "int"),
            ("bigint", "int64"),
            ("bigint generated always as identity", "int64"),
            ("text", "string"),
            ("text collate \"C\"", "string"),
            ("text collate public.strict", "string"),
            ("varchar", "string"),
            ("varchar(3)", "string"),
            ("uuid", "string"),
            ("public.code", "string"),
            ("public.deep", "string"),
        ]
        .into_iter()
        .enumerate()
        {
            ok(&db.pool, &format!("create table public.t{number} (a {given} primary key, b int)")).await;
            assert_eq!(
                text(&db.pool, &format!("select tidegate.register_table('public.t{number}', '{{}}')")).await,
                "new"
            );
            let registered = text(
                &db.pool,
                &format!("select key_type from tidegate.relation where table_name = 't{number}'"),
            )
            .await;
            assert_eq!(registered, key, "{given}");
        }
        ok(&db.pool, "create table public.covering (a int, b int, primary key (a) include (b)); select tidegate.register_table('public.covering', '{}')").await;
    }
);

pg_test!(
    NoSlots,
    async fn k1_k2_a_table_that_has_drifted_keeps_every_other_registration_from_being_activated(
        db: LoadedDatabase,
    ) {
        let pool = &db.pool;
        ok(pool, "create table public.item (id bigint primary key, n int not null unique, v text); create table public.next (id int primary key); select tidegate.register_table('public.item', '{}')").await;
        let next = "select tidegate.register_table('public.next', '{}')";
        let grant = "select tidegate.register_grant('{\"scope\": \"catalog\"}')";
        for (broken, problem, repaired) in [
            (
                "alter table item drop constraint item_pkey",
                "the table has no primary key",
                "alter table item add primary key (id)",
            ),
            (
                "alter table item drop constraint item_pkey, add primary key (id, n)",
                "the primary key was changed",
                "alter table item drop constraint item_pkey, add primary key (id)",
            ),
            (
                "alter table item drop constraint item_pkey, add primary key (n)",
                "the primary key was changed",
                "alter table item drop constraint item_pkey, add primary key (id)",
            ),
            (
                "alter table item drop constraint item_pkey, add primary key (id) deferrable",
                "the primary key was changed",
                "alter table item drop constraint item_pkey, add primary key (id)",
            ),
            (
                "alter table item replica identity full",
                "the replica identity is not DEFAULT",
                "alter table item replica identity default",
            ),
            (
                "alter table item replica identity nothing",
                "the replica identity is not DEFAULT",
                "alter table item replica identity default",
            ),
            (
                "alter table item replica identity using index item_n_key",
                "the replica identity is not DEFAULT",
                "alter table item replica identity default",
            ),
            (
                "alter table item alter column v type varchar(9)",
                "captured column v has another type",
                "alter table item alter column v type text",
            ),
        ] {
            ok(pool, broken).await;
            for call in [next, grant] {
                let expected = (
                    format!("registered table public.item has drifted: {problem}"),
                    "Undo that change first.".to_owned(),
                );
                assert_eq!(refused(pool, "TG002", call).await, expected, "{broken}");
            }
            ok(pool, repaired).await;
        }
        assert_eq!(text(pool, next).await, "new");
    }
);

pg_test!(
    NoSlots,
    async fn k1_a_text_column_of_a_non_deterministic_collation_is_refused_in_conditions_and_for_subjects(
        db: LoadedDatabase,
    ) {
        ok(
            &db.pool,
            &format!("{COLLATION} create table public.t (a int primary key, b text collate public.ci)"),
        )
        .await;
        let where_hint = refused(&db.pool, "TG001", r#"select tidegate.register_table('public.t', '{"scopes": [{"name": "x", "where": "b = ''A''"}]}')"#).await;
        assert_eq!(
            where_hint.0,
            "where of scope \"x\" of public.t, position 1: column \"b\" (text) cannot be compared in a condition"
        );
        let subject = refused(&db.pool, "TG001", r#"select tidegate.register_grant('{"scope": "x:{a}", "from": "public.t", "where": "b = {subject.id}"}')"#).await;
        assert_eq!(
            subject.0,
            "where of grant \"x:{a}\", position 1: column \"b\" (text) cannot be compared in a condition"
        );
        // Its bytes, which a scope's name is made of, are as good as any.
        assert_eq!(text(&db.pool, r#"select tidegate.register_table('public.t', '{"scopes": [{"name": "x:{b}", "where": "b is not null"}]}')"#).await, "new");
    }
);
