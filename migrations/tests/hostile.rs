//! DD-05, F1: nothing that a session, a schema or a temporary object is called by reaches into our functions.

use crate::fence::Tables;
use crate::stream::Stream;
use sqlx::Connection;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

/// Functions, operators, types, casts and tables with the names of what our functions use, which fail when they are reached.
fn shadows(schema: &str) -> String {
    let functions: String = [
        ("gen_random_uuid()", "uuid"),
        ("pg_current_xact_id()", "xid8"),
        ("transaction_timestamp()", "timestamptz"),
        ("pg_relation_filenode(regclass)", "oid"),
        ("pg_relation_filenode(oid)", "oid"),
        ("pg_current_wal_insert_lsn()", "pg_lsn"),
        ("pg_logical_emit_message(boolean, text, text)", "pg_lsn"),
        ("current_setting(text)", "text"),
        ("current_setting(text, boolean)", "text"),
        ("octet_length(text)", "int"),
        ("repeat(text, int)", "text"),
        ("encode(bytea, text)", "text"),
        ("sha256(bytea)", "bytea"),
        ("convert_to(text, name)", "bytea"),
        ("left(text, int)", "text"),
        ("concat(variadic \"any\")", "text"),
        ("format(text)", "text"),
        ("format(text, variadic \"any\")", "text"),
        ("quote_ident(text)", "text"),
    ]
    .iter()
    .map(|(signature, returns)| {
        // A variadic "any" cannot be declared in SQL; an array of texts shadows it as well.
        let signature = signature.replace("variadic \"any\"", "variadic text[]");
        format!("create function {schema}.{signature} returns {returns} language plpgsql as $$ begin raise exception 'shadowed'; end $$;")
    })
    .collect();
    format!(
        "{functions}
         create function {schema}.never(tid, tid) returns boolean language plpgsql as $$ begin raise exception 'shadowed'; end $$;
         create function {schema}.never(xid8, xid8) returns boolean language plpgsql as $$ begin raise exception 'shadowed'; end $$;
         create function {schema}.never(bigint, bigint) returns boolean language plpgsql as $$ begin raise exception 'shadowed'; end $$;
         create function {schema}.never(text, text) returns boolean language plpgsql as $$ begin raise exception 'shadowed'; end $$;
         create function {schema}.minus(pg_lsn, pg_lsn) returns numeric language plpgsql as $$ begin raise exception 'shadowed'; end $$;
         create operator {schema}.= (leftarg = tid, rightarg = tid, function = {schema}.never);
         create operator {schema}.<> (leftarg = xid8, rightarg = xid8, function = {schema}.never);
         create operator {schema}.= (leftarg = bigint, rightarg = bigint, function = {schema}.never);
         create operator {schema}.<> (leftarg = bigint, rightarg = bigint, function = {schema}.never);
         create operator {schema}.<> (leftarg = text, rightarg = text, function = {schema}.never);
         create operator {schema}.~ (leftarg = text, rightarg = text, function = {schema}.never);
         create operator {schema}.- (leftarg = pg_lsn, rightarg = pg_lsn, function = {schema}.minus);
         create domain {schema}.uuid as pg_catalog.text check (value = 'never'); create domain {schema}.tid as pg_catalog.text check (value = 'never');
         create domain {schema}.xid8 as pg_catalog.text check (value = 'never'); create domain {schema}.oid as pg_catalog.text check (value = 'never');
         create type {schema}.bigint as enum ('never'); create domain {schema}.text as pg_catalog.int4 check (value < 0);"
    )
}

const WRITES: &str = "insert into public.item (id, title) values (1, 'a'), (2, 'b'); update public.item set rev = rev + 1;
    insert into public.item (id) values (1) on conflict (id) do update set title = 'c'; delete from public.item where id = 2;
    insert into public.list values (repeat('l', 2000), 'x'); update public.list set name = 'y'; delete from public.list";
const WRITTEN: usize = 2 + 2 + 1 + 1 + 3;

pg_test!(
    BriefSlots,
    async fn dd05_f1_an_empty_search_path_changes_nothing(t: Tables) {
        t.0.ok(&format!(
            "select set_config('search_path', '', false); {}",
            WRITES.replace("repeat(", "pg_catalog.repeat(")
        ))
        .await;
        assert_eq!(t.0.check().await.len(), WRITTEN);
    }
);

pg_test!(
    BriefSlots,
    async fn dd05_f1_a_schema_first_in_the_path_that_shadows_everything_changes_nothing(t: Tables) {
        t.0.ok(&format!("create schema evil; {}", shadows("evil"))).await;
        t.0.ok("create schema trap; create table trap.item (like public.item); create table trap.row_version_2 (x int); create table trap.write_fence (x int); create table trap.client_mutation (x int)").await;
        // The application's own statements qualify what they mean, as they must under such a path.
        let writes = WRITES
            .replace("rev + 1", "rev operator(pg_catalog.+) 1")
            .replace("id = 2", "id operator(pg_catalog.=) 2")
            .replace("repeat(", "pg_catalog.repeat(");
        t.0.ok(&format!("set search_path = evil, trap, pg_catalog, public; {writes}")).await;
        assert_eq!(t.0.check().await.len(), WRITTEN);
    }
);

pg_test!(
    BriefSlots,
    async fn dd05_f1_temporary_objects_that_shadow_everything_change_nothing(t: Tables) {
        let writes = WRITES
            .replace("rev + 1", "rev operator(pg_catalog.+) 1")
            .replace("id = 2", "id operator(pg_catalog.=) 2")
            .replace("repeat(", "pg_catalog.repeat(");
        let tables = "create temp table registry (x int); create temp table row_version_2 (x int); create temp table row_version_1 (x int); create temp table write_fence (x int); create temp table client_mutation (x int);
            create temp table relation (x int); create temp table pg_class (x int); create temp table pg_trigger (x int); create temp table pg_proc (x int); create temp view pg_type as select 1;";
        for path in ["pg_temp, pg_catalog, public", "pg_temp, public", "public, pg_temp"] {
            let mut session = t.0.session().await;
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{tables} {}", shadows("pg_temp"))))
                .execute(&mut session)
                .await
                .expect("temporary shadows");
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
                "set search_path = {path}; {writes}; delete from public.item"
            )))
            .execute(&mut session)
            .await
            .expect(path);
            session.close().await.expect("close");
            assert_eq!(t.0.check().await.len(), WRITTEN + 1, "{path}");
        }
    }
);

pg_test!(
    BriefSlots,
    async fn dd05_g1_registration_under_a_hostile_search_path_registers_the_same(server: TestServer) {
        let t = Stream::after(server, "create table public.item (id bigint primary key, list_id text, title text); create table public.list (id text primary key, name text)").await;
        t.ok(&format!("create schema evil; {} create table evil.relation (x int)", shadows("evil"))).await;
        let register = r#"select tidegate.register_table('public.item', '{"scopes": [{"name": "list:{list_id}", "where": "id > 0"}]}'); select tidegate.register_table('public.list', '{}')"#;
        t.ok(&format!(
            "{} set search_path = pg_temp, evil, pg_catalog, public; {register}",
            shadows("pg_temp")
        ))
        .await;
        t.ok(&format!("set search_path = evil, pg_catalog, public; {register}")).await;
        t.ok("insert into item values (1, 'l', 't'); update item set title = 'u'; insert into list values ('a')").await;
        assert_eq!(t.check().await, ["item I 1", "item U 1", "list I a"]);
        for check in ["trigger_problems", "relation_problems", "publication_problems"] {
            t.ok(&format!("set search_path = evil, pg_catalog; do $$ begin perform * from tidegate.{check}(); if found then raise exception 'it says something'; end if; end $$")).await;
        }
    }
);

pg_test!(
    BriefSlots,
    async fn f1_settings_of_the_writer_change_nothing(t: Tables) {
        let parallel = if t.0.db.database.server().major() >= 16 {
            "debug_parallel_query"
        } else {
            "force_parallel_mode"
        };
        t.0.ok(&format!("set plpgsql.variable_conflict = 'use_variable'; set plpgsql.extra_errors = 'all'; set plpgsql.check_asserts = off; set standard_conforming_strings = off; set quote_all_identifiers = on;
        set row_security = off; set datestyle = 'sql, dmy'; set bytea_output = escape; set default_transaction_deferrable = on; set {parallel} = on; set jit = on; set jit_above_cost = 0;
        set lc_messages = 'C'; set timezone = 'Asia/Kathmandu'; set check_function_bodies = off; set transform_null_equals = on; set plan_cache_mode = force_generic_plan; set array_nulls = off;
        set constraint_exclusion = on; set enable_indexscan = off; set enable_seqscan = off; set enable_bitmapscan = off; set extra_float_digits = -15; set intervalstyle = sql_standard;
        set client_encoding = latin1; set synchronous_commit = off; set work_mem = '64kB'; set xmloption = document; set default_toast_compression = pglz;
        insert into item (id) values (1); update item set rev = 2; delete from item")).await;
        t.0.ok("begin isolation level serializable; insert into item (id) values (1); update item set rev = 2; commit").await;
        t.0.ok("begin isolation level repeatable read; update item set rev = 2; commit").await;
        assert_eq!(t.0.check().await.len(), 6);
    }
);
