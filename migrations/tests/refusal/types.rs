//! DT-03: column types whose values we would not carry exactly are refused, by the column's name, kind by kind.

use super::refuse_table;
use crate::application::{ok, run, text};
use crate::stream::failure;
use sqlx::postgres::PgPool;
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

/// A captured column of each of these types is refused; left out, it is not.
async fn refuse_types(pool: &PgPool, types: &[(&str, &str)]) {
    for (given, shown) in types {
        let setup =
            format!("drop table if exists public.t; create table public.t (id int primary key, c {given})");
        let message = format!("public.t: column \"c\" has type {shown}, which is not supported");
        refuse_table(pool, &setup, "public.t", "{}", &message, "Leave it out: exclude = [\"c\"].").await;
    }
    assert_eq!(
        text(pool, r#"select tidegate.register_table('public.t', '{"exclude": ["c"]}')"#).await,
        "new"
    );
    ok(pool, "insert into public.t (id) values (1); update public.t set id = 1; delete from public.t").await;
}

macro_rules! refused_types {
    ($($test:ident: $setup:expr => $types:expr;)*) => {
        $(pg_test!(
            NoSlots,
            async fn $test(db: LoadedDatabase) {
                let setup: &str = $setup;
                if !setup.is_empty() { ok(&db.pool, setup).await; }
                refuse_types(&db.pool, $types).await;
            }
        );)*
    };
}

refused_types! {
    dt03_a_composite_type_is_refused: "create type public.pair as (a int, b text); create table public.r (x int); create domain public.pairs as public.pair check ((value).a > 0)"
        => &[("public.pair", "public.pair"), ("public.r", "public.r"), ("public.pairs", "public.pairs"), ("public.pair[]", "public.pair[]")];
    dt03_a_range_type_is_refused: "create type public.span as range (subtype = text); create domain public.days as daterange"
        => &[("int4range", "int4range"), ("int8range", "int8range"), ("numrange", "numrange"), ("tsrange", "tsrange"), ("tstzrange", "tstzrange"), ("daterange", "daterange"),
            ("public.span", "public.span"), ("public.days", "public.days"), ("daterange[]", "daterange[]")];
    dt03_a_multirange_type_is_refused: "create type public.span as range (subtype = text, multirange_type_name = public.spans)"
        => &[("int4multirange", "int4multirange"), ("tstzmultirange", "tstzmultirange"), ("public.spans", "public.spans")];
    dt03_a_domain_over_an_unsupported_type_is_refused: "create domain public.a as money; create domain public.b as public.a; create domain public.c as inet[]; create domain public.d as xml"
        => &[("public.a", "public.a"), ("public.b", "public.b"), ("public.c", "public.c"), ("public.d", "public.d"), ("public.b[]", "public.b[]")];
    dt03_an_array_of_an_unsupported_type_is_refused: ""
        => &[("inet[]", "inet[]"), ("money[]", "money[]"), ("point[]", "point[]"), ("xml[]", "xml[]"), ("oid[]", "oid[]"), ("bit(3)[]", "bit(3)[]"), ("tsvector[][]", "tsvector[]")];
    dt03_xml_is_refused: "" => &[("xml", "xml")];
    dt03_a_text_search_type_is_refused: "" => &[("tsvector", "tsvector"), ("tsquery", "tsquery")];
    dt03_a_geometric_type_is_refused: ""
        => &[("point", "point"), ("line", "line"), ("lseg", "lseg"), ("box", "box"), ("path", "path"), ("polygon", "polygon"), ("circle", "circle")];
    dt03_a_network_type_is_refused: "" => &[("inet", "inet"), ("cidr", "cidr"), ("macaddr", "macaddr"), ("macaddr8", "macaddr8")];
    dt03_money_is_refused: "" => &[("money", "money")];
    dt03_a_bit_string_is_refused: "" => &[("bit", "bit(1)"), ("bit(8)", "bit(8)"), ("bit varying", "bit varying"), ("bit varying(5)", "bit varying(5)")];
    dt03_an_object_identifier_is_refused: ""
        => &[("oid", "oid"), ("regclass", "regclass"), ("regproc", "regproc"), ("regprocedure", "regprocedure"), ("regoper", "regoper"), ("regoperator", "regoperator"), ("regtype", "regtype"),
            ("regrole", "regrole"), ("regnamespace", "regnamespace"), ("regconfig", "regconfig"), ("regdictionary", "regdictionary"), ("regcollation", "regcollation")];
    dt03_a_type_of_the_servers_inner_workings_is_refused: ""
        => &[("\"char\"", "\"char\""), ("name", "name"), ("xid", "xid"), ("xid8", "xid8"), ("cid", "cid"), ("tid", "tid"), ("pg_lsn", "pg_lsn"), ("pg_snapshot", "pg_snapshot"), ("txid_snapshot", "txid_snapshot"),
            ("aclitem", "aclitem"), ("refcursor", "refcursor"), ("jsonpath", "jsonpath"), ("int2vector", "int2vector"), ("oidvector", "oidvector"), ("gtsvector", "gtsvector")];
    dt03_a_type_with_the_name_of_a_supported_one_is_refused:
        "create type public.text; create function public.text_in(cstring) returns public.text language internal immutable strict as 'textin'; create function public.text_out(public.text) returns cstring language internal immutable strict as 'textout';
         create type public.text (input = public.text_in, output = public.text_out, like = pg_catalog.text); create type public.int4 as range (subtype = pg_catalog.int4)"
        => &[("public.text", "public.text"), ("public.text[]", "public.text[]"), ("public.int4", "public.int4")];
}

pg_test!(
    NoSlots,
    async fn dt03_a_type_of_an_extension_is_refused(db: LoadedDatabase) {
        let mut tried = 0;
        for (extension, given) in [
            ("citext", "citext"),
            ("hstore", "hstore"),
            ("ltree", "ltree"),
            ("cube", "cube"),
            ("isn", "isbn"),
            ("seg", "seg"),
        ] {
            // Packages differ in which they bring.
            let there = format!(
                "select exists (select from pg_available_extensions where name = '{extension}')::text"
            );
            if text(&db.pool, &there).await == "false" {
                println!("{extension} is not available");
                continue;
            }
            tried += 1;
            ok(
                &db.pool,
                &format!("create schema if not exists ext; create extension {extension} schema ext"),
            )
            .await;
            let named = format!("ext.{given}");
            let setup = format!(
                "drop table if exists public.t; create table public.t (id int primary key, c {named})"
            );
            let message = format!("public.t: column \"c\" has type {named}, which is not supported");
            refuse_table(&db.pool, &setup, "public.t", "{}", &message, "Leave it out: exclude = [\"c\"].")
                .await;
            let keyed =
                format!("drop table if exists public.k; create table public.k (c {named} primary key)");
            if run(&db.pool, &keyed).await.is_ok() {
                let message = format!("the key column \"c\" of public.k has type {named}");
                let hint = "A key is text, varchar, uuid, smallint, integer or bigint (or a domain over one of them).";
                refuse_table(&db.pool, "", "public.k", "{}", &message, hint).await;
            }
        }
        println!("{tried} extensions tried");
    }
);

pg_test!(
    NoSlots,
    async fn dt03_postgresql_itself_has_no_column_of_a_pseudo_type(db: LoadedDatabase) {
        for given in ["record", "anyelement", "cstring", "internal", "void", "trigger", "record[]", "unknown"]
        {
            let error = run(&db.pool, &format!("create table public.t (id int primary key, c {given})"))
                .await
                .expect_err(given);
            let code = error.as_database_error().and_then(|error| error.code()).expect("a code").into_owned();
            assert!(code == "42P16" || code == "42704" || code == "42601", "{given}: {code}");
        }
    }
);

pg_test!(
    NoSlots,
    async fn dt03_a_generated_column_is_refused_stored_or_virtual(db: LoadedDatabase) {
        let message = "public.t: column \"c\" is generated, and its value is not part of the stream";
        let hint = "Leave it out: exclude = [\"c\"].";
        let stored = "create table public.t (id int primary key, c int generated always as (id * 2) stored)";
        refuse_table(&db.pool, stored, "public.t", "{}", message, hint).await;
        refuse_table(&db.pool, "", "public.t", r#"{"columns": ["id", "c"]}"#, message, hint).await;
        for (what, definition) in
            [("scope \"x:{c}\" of public.t", r#"{"exclude": ["c"], "scopes": [{"name": "x:{c}"}]}"#)]
        {
            let (given, _) = crate::application::refused(
                &db.pool,
                "TG001",
                &format!("select tidegate.register_table('public.t', '{definition}')"),
            )
            .await;
            assert_eq!(given, format!("{what}: column \"c\" is not captured"));
        }
        if db.database.server().major() >= 18 {
            let virtual_one = "drop table public.t; create table public.t (id int primary key, c int generated always as (id * 2) virtual)";
            refuse_table(&db.pool, virtual_one, "public.t", "{}", message, hint).await;
        }
        assert_eq!(
            text(&db.pool, r#"select tidegate.register_table('public.t', '{"exclude": ["c"]}')"#).await,
            "new"
        );
    }
);

pg_test!(
    NoSlots,
    async fn dt03_a_column_that_becomes_unsupported_is_drift(db: LoadedDatabase) {
        ok(&db.pool, "create table public.t (id int primary key, c text); select tidegate.register_table('public.t', '{}'); alter table public.t alter column c type inet using c::inet").await;
        let problems = "select string_agg(problem, ', ') from tidegate.relation_problems()";
        assert_eq!(text(&db.pool, problems).await, "captured column c has another type");
        let error =
            run(&db.pool, "select tidegate.register_table('public.t', '{}')").await.expect_err("refused");
        assert_eq!(
            failure(&error, "TG001").0,
            "public.t: column \"c\" has type inet, which is not supported"
        );
    }
);
