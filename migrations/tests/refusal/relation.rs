//! F1, G1, TX-03: what is no ordinary, logged table of the application's.

use super::refused_tables;
use crate::application::{ok, refused};
use crate::stream::{Stream, failure};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;

const OURS: &str = "Register tables of your application.";
const ALONE: &str = "Register tables without inheritance.";
const WHOLE: &str = "Register a table without partitions.";
const TABLE: &str = "Register an ordinary table.";

refused_tables! {
    tx03_an_unlogged_table_is_refused: "create unlogged table public.t (id int primary key, v text)", "public.t", "{}"
        => "public.t is unlogged: its changes are not in the WAL", "Run: alter table public.t set logged";
    tx03_a_foreign_table_is_refused:
        "create foreign data wrapper fdw; create server far foreign data wrapper fdw; create foreign table public.t (id int) server far", "public.t", "{}"
        => "public.t is a foreign table: its changes are not in this server's WAL", TABLE;
    f1_a_partitioned_table_is_refused: "create table public.t (id int primary key) partition by range (id)", "public.t", "{}"
        => "public.t is partitioned, which is not supported yet", WHOLE;
    f1_a_leaf_of_a_partitioned_table_is_refused:
        "create table public.p (id int primary key) partition by range (id); create table public.t partition of public.p for values from (0) to (9)", "public.t", "{}"
        => "public.t is a partition, which is not supported yet", WHOLE;
    f1_a_partition_that_is_partitioned_itself_is_refused:
        "create table public.p (id int primary key) partition by range (id); create table public.t partition of public.p for values from (0) to (9) partition by range (id)", "public.t", "{}"
        => "public.t is partitioned, which is not supported yet", WHOLE;
    f1_a_table_with_inheriting_children_is_refused: "create table public.t (id int primary key); create table public.c () inherits (public.t)", "public.t", "{}"
        => "public.t has child tables that inherit from it", ALONE;
    f1_a_table_that_inherits_is_refused: "create table public.p (id int); create table public.t (primary key (id)) inherits (public.p)", "public.t", "{}"
        => "public.t inherits from another table", ALONE;
    g1_a_view_is_refused: "create view public.t as select 1 as id", "public.t", "{}"
        => "public.t is a view", "Register the tables that it reads.";
    g1_a_materialized_view_is_refused: "create materialized view public.t as select 1 as id; create unique index on public.t (id)", "public.t", "{}"
        => "public.t is a view", "Register the tables that it reads.";
    g1_a_sequence_is_refused: "create sequence public.t", "public.t", "{}" => "public.t is not a table", TABLE;
    g1_an_index_is_refused: "create table public.x (id int primary key)", "public.x_pkey", "{}" => "public.x_pkey is not a table", TABLE;
    g1_a_composite_type_is_refused: "create type public.t as (id int)", "public.t", "{}" => "public.t is not a table", TABLE;
    g1_a_table_that_does_not_exist_is_refused: "", "public.t", "{}"
        => "table \"public.t\": table public.t does not exist", "Create it first, or correct the name.";
    g1_a_table_of_the_catalog_is_refused: "", "pg_catalog.pg_class", "{}" => "pg_catalog.pg_class is a system table", OURS;
    g1_a_table_of_the_information_schema_is_refused: "", "information_schema.sql_features", "{}"
        => "information_schema.sql_features is a system table", OURS;
    g1_a_table_of_ours_is_refused: "", "tidegate.audit", "{}" => "tidegate.audit is a system table", OURS;
    g1_a_projection_of_ours_is_refused: "select tidegate.create_state(7)", "tidegate_projection.s7_scope", "{}"
        => "tidegate_projection.s7_scope is a system table", OURS;
}

pg_test!(
    NoSlots,
    async fn g1_a_toast_table_is_refused(db: LoadedDatabase) {
        ok(&db.pool, "create table public.t (id int primary key, v text)").await;
        let name = crate::application::text(
            &db.pool,
            "select reltoastrelid::regclass::text from pg_class where oid = 'public.t'::regclass",
        )
        .await;
        let call = format!("select tidegate.register_table('{name}', '{{}}')");
        assert_eq!(
            refused(&db.pool, "TG001", &call).await,
            (format!("{name} is a system table"), OURS.to_owned())
        );
    }
);

pg_test!(
    NoSlots,
    async fn tx03_a_temporary_table_is_refused(db: LoadedDatabase) {
        for name in [
            "'pg_temp.t'",
            "(select format('%I.%I', relnamespace::regnamespace, relname) from pg_class where oid = 'pg_temp.t'::regclass)",
        ] {
            let call = format!(
                "create temp table t (id int primary key); select tidegate.register_table({name}, '{{}}')"
            );
            let (message, hint) = refused(&db.pool, "TG001", &call).await;
            assert!(
                message.starts_with("pg_temp_")
                    && message.ends_with(".t is a temporary table: its changes are not in the WAL"),
                "{message}"
            );
            assert_eq!(hint, "Create it without TEMPORARY.");
        }
    }
);

pg_test!(
    NoSlots,
    async fn g1_a_bare_name_is_refused_whatever_the_search_path(db: LoadedDatabase) {
        ok(&db.pool, "create table public.t (id int primary key)").await;
        for (name, shown) in [
            ("t", "t"),
            ("a.b.c", "a.b.c"),
            ("public.", "public."),
            (".t", ".t"),
            ("", ""),
            ("public.t x", "public.t x"),
            ("\"public.t\"", "\"public.t\""),
        ] {
            let call = format!("set search_path = public; select tidegate.register_table('{name}', '{{}}')");
            let expected = (
                format!("table \"{shown}\": \"{shown}\" is not a schema-qualified name"),
                "Write schema.table, such as public.items.".to_owned(),
            );
            assert_eq!(refused(&db.pool, "TG001", &call).await, expected);
        }
        let (message, _) = refused(&db.pool, "TG001", "select tidegate.register_grant('{\"scope\": \"a:{id}\", \"from\": \"t\", \"where\": \"id = {subject.id}\"}')").await;
        assert_eq!(message, "grant, from: \"t\" is not a schema-qualified name");
    }
);

pg_test!(
    BriefSlots,
    async fn g1_of_two_tables_of_one_name_the_qualified_one_is_registered_and_fenced(server: TestServer) {
        let t = Stream::after(server, "create schema first; create table first.item (id int primary key); create table public.item (id int primary key); create table public.\"Item\" (id int primary key)").await;
        t.ok("set search_path = first, public; select tidegate.register_table('public.item', '{}')").await;
        t.ok("set search_path = first, public; insert into item values (1); insert into public.item values (2); insert into \"Item\" values (3); create temp table item (id int); insert into item values (4)").await;
        assert_eq!(t.check().await, ["item I 2"]);
        let published = "select string_agg(prrelid::regclass::text, ' ') from pg_publication_rel";
        assert_eq!(crate::application::text(t.pool(), published).await, "item");
        assert_eq!(crate::application::text(t.pool(), "select (resolved ->> 'oid' = 'public.item'::regclass::oid::text)::text from tidegate.relation").await, "true");
    }
);

pg_test!(
    BriefSlots,
    async fn tx03_a_registered_table_cannot_become_unlogged_while_it_is_published(server: TestServer) {
        let t = Stream::after(server, "create table public.item (id int primary key)").await;
        t.ok("select tidegate.register_table('public.item', '{}')").await;
        let error = t.run("alter table item set unlogged").await.expect_err("published");
        failure(&error, "55000");
        t.ok("alter publication tidegate drop table item; alter table item set unlogged").await;
        let problems: Vec<(String, String)> = sqlx::query_as("select * from tidegate.relation_problems()")
            .fetch_all(t.pool())
            .await
            .expect("problems");
        assert_eq!(problems, [("public.item".to_owned(), "the table is not logged".to_owned())]);
    }
);
