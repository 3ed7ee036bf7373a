//! K: what registration refuses, and in which words.

use crate::application::{ok, refused};
use crate::register::{TABLES, snapshot};
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

pg_test!(
    NoSlots,
    async fn k_tables_that_cannot_work_are_refused_with_what_to_change(db: LoadedDatabase) {
        let pool = &db.pool;
        ok(pool, "create schema other;
        create domain public.odd as numeric;
        create collation public.ci (provider = libc, locale = 'C');
        create table public.two (a int, b int, primary key (a, b));
        create table public.keyless (a int);
        create table public.maybe (a int unique);
        create table public.late (a int primary key deferrable initially deferred);
        create table public.float_key (a float8 primary key);
        create table public.char_key (a char(5) primary key);
        create table public.odd_key (a public.odd primary key);
        create table public.full_identity (a int primary key); alter table public.full_identity replica identity full;
        create table public.no_identity (a int primary key); alter table public.no_identity replica identity nothing;
        create table public.index_identity (a int primary key, b int not null unique); alter table public.index_identity replica identity using index index_identity_b_key;
        create unlogged table public.fleeting (a int primary key);
        create table public.parent (a int primary key); create table public.child (b int primary key) inherits (public.parent);
        create table public.parts (a int primary key) partition by range (a); create table public.part partition of public.parts for values from (0) to (9);
        create view public.seen as select 1 as a;
        create foreign data wrapper fdw; create server far foreign data wrapper fdw; create foreign table public.foreign_one (a int) server far;
        create sequence public.counter;
        create table public.computed (a int primary key, b int generated always as (a * 2) stored, m money, p point, r inet[]);
        create table public.key_computed (b int, a int generated always as (b * 2) stored primary key);
        create table public.open (a int primary key);").await;
        ok(pool, "set allow_system_table_mods = on; update pg_collation set collisdeterministic = false where collname = 'ci'; create table public.loose_key (a text collate public.ci primary key)").await;
        for (table, definition, message, hint) in [
            ("two", "{}", "public.two has a composite primary key (a, b)", "primary key of one column"),
            ("keyless", "{}", "public.keyless has no primary key", "Give it a primary key"),
            ("maybe", "{}", "public.maybe has no primary key", "unique column may be null"),
            ("late", "{}", "the primary key of public.late is deferrable", "without DEFERRABLE"),
            (
                "float_key",
                "{}",
                "the key column \"a\" of public.float_key has type double precision",
                "text, varchar, uuid, smallint, integer or bigint",
            ),
            (
                "char_key",
                "{}",
                "the key column \"a\" of public.char_key has type character(5)",
                "text, varchar",
            ),
            ("odd_key", "{}", "the key column \"a\" of public.odd_key has type", "domain over one of them"),
            (
                "loose_key",
                "{}",
                "the key column \"a\" of public.loose_key has a non-deterministic collation",
                "deterministic",
            ),
            (
                "full_identity",
                "{}",
                "public.full_identity has replica identity FULL",
                "alter table public.full_identity replica identity default",
            ),
            (
                "no_identity",
                "{}",
                "public.no_identity has replica identity NOTHING",
                "replica identity default",
            ),
            (
                "index_identity",
                "{}",
                "public.index_identity has replica identity USING INDEX",
                "replica identity default",
            ),
            ("fleeting", "{}", "public.fleeting is unlogged: its changes are not in the WAL", "set logged"),
            ("parent", "{}", "public.parent has child tables that inherit from it", "without inheritance"),
            ("child", "{}", "public.child inherits from another table", "without inheritance"),
            ("parts", "{}", "public.parts is partitioned, which is not supported yet", "without partitions"),
            ("part", "{}", "public.part is a partition, which is not supported yet", "without partitions"),
            ("seen", "{}", "public.seen is a view", "tables that it reads"),
            (
                "foreign_one",
                "{}",
                "public.foreign_one is a foreign table: its changes are not in this server's WAL",
                "ordinary table",
            ),
            ("counter", "{}", "public.counter is not a table", "ordinary table"),
            (
                "absent",
                "{}",
                "table \"public.absent\": table public.absent does not exist",
                "Create it first",
            ),
            (
                "key_computed",
                "{}",
                "the key column \"a\" of public.key_computed is generated",
                "identity column",
            ),
            (
                "computed",
                "{}",
                "public.computed: column \"b\" is generated, and its value is not part of the stream",
                "exclude = [\"b\"]",
            ),
            (
                "computed",
                r#"{"exclude": ["b"]}"#,
                "public.computed: column \"m\" has type money, which is not supported",
                "exclude = [\"m\"]",
            ),
            (
                "computed",
                r#"{"columns": ["a", "p"]}"#,
                "public.computed: column \"p\" has type point, which is not supported",
                "exclude = [\"p\"]",
            ),
            (
                "computed",
                r#"{"columns": ["a", "r"]}"#,
                "public.computed: column \"r\" has type inet[], which is not supported",
                "exclude = [\"r\"]",
            ),
            (
                "open",
                r#"{"columns": ["b"]}"#,
                "public.open: the key column \"a\" is left out",
                "always captured",
            ),
            (
                "open",
                r#"{"exclude": ["a"]}"#,
                "public.open: the key column \"a\" is left out",
                "always captured",
            ),
            ("open", r#"{"columns": ["a", "b"]}"#, "public.open: no column \"b\"", "Columns: a"),
            (
                "open",
                r#"{"exclude": ["b"]}"#,
                "public.open: \"exclude\" names a column that does not exist: \"b\"",
                "existing",
            ),
            (
                "open",
                r#"{"columns": ["a"], "exclude": ["b"]}"#,
                "table \"public.open\": both \"columns\" and \"exclude\" are given",
                "one of them",
            ),
            (
                "open",
                r#"{"columns": ["a", "a"]}"#,
                "table \"public.open\": \"columns\" names a column twice",
                "once",
            ),
            (
                "open",
                r#"{"columns": "a"}"#,
                "table \"public.open\": \"columns\" is not a list of column names",
                "columns = ",
            ),
            (
                "open",
                r#"{"writes": true}"#,
                "table \"public.open\": unknown key \"writes\"",
                "write, unrestricted",
            ),
            (
                "open",
                r#"{"write": "yes"}"#,
                "table \"public.open\": write = \"yes\" is not known",
                "read_only",
            ),
            (
                "open",
                r#"{"unrestricted": "yes"}"#,
                "table \"public.open\": \"unrestricted\" is neither true nor false",
                "true",
            ),
            (
                "open",
                r#"{"write": "enabled"}"#,
                "public.open: write = \"enabled\", but the table has no row-level security",
                "unrestricted = true",
            ),
            ("open", r#"{"scopes": {}}"#, "table \"public.open\": \"scopes\" is not a list", "Write"),
            (
                "open",
                r#"{"scopes": [{"name": "x", "when": "y"}]}"#,
                "table \"public.open\", scope: unknown key \"when\"",
                "name, where",
            ),
            (
                "open",
                r#"{"scopes": [{"name": "x", "join": ["a"]}]}"#,
                "table \"public.open\", scope: \"join\" is not supported yet",
                "in the table itself",
            ),
            (
                "open",
                r#"{"scopes": [{"name": "x"}, {"name": "x"}]}"#,
                "table \"public.open\": one scope is given twice",
                "once",
            ),
            (
                "open",
                r#"{"scopes": [{"name": "x:{a}", "where": "a >"}]}"#,
                "where of scope \"x:{a}\" of public.open, position 4: expected a column or a literal, found the end of the text",
                "language",
            ),
            ("open", "[]", "table \"public.open\" is not an object", "keys"),
        ] {
            let (found, given) = refused(
                pool,
                "TG001",
                &format!("select tidegate.register_table('public.{table}', '{definition}')"),
            )
            .await;
            assert!(found.starts_with(message), "{table} {definition}: {found}");
            assert!(given.contains(hint), "{table} {definition}: {given}");
        }
        for (name, message) in [
            ("list", "table \"list\": \"list\" is not a schema-qualified name"),
            ("a.b.c", "table \"a.b.c\": \"a.b.c\" is not a schema-qualified name"),
            ("public.", "table \"public.\": \"public.\" is not a schema-qualified name"),
            ("tidegate.audit", "tidegate.audit is a system table"),
            ("pg_catalog.pg_class", "pg_catalog.pg_class is a system table"),
        ] {
            assert_eq!(
                refused(pool, "TG001", &format!("select tidegate.register_table('{name}', '{{}}')")).await.0,
                message
            );
        }
        let (message, _) = refused(pool, "TG001", "create temp table t (id int primary key); select tidegate.register_table((select relnamespace::regnamespace::text || '.t' from pg_class where relname = 't'), '{}')").await;
        assert!(message.contains("system table") || message.contains("temporary"), "{message}");
        assert_eq!(snapshot(pool).await.generation.0, 0, "nothing was written");
    }
);

pg_test!(
    NoSlots,
    async fn k_uncaptured_columns_cannot_be_read_by_rules(db: LoadedDatabase) {
        ok(&db.pool, TABLES).await;
        for scope in [r#"{"name": "list:{list_id}"}"#, r#"{"name": "all", "where": "list_id is null"}"#] {
            let (message, hint) = refused(&db.pool, "TG001", &format!("select tidegate.register_table('public.item', '{{\"columns\": [\"id\", \"title\"], \"scopes\": [{scope}]}}')")).await;
            assert!(message.ends_with("column \"list_id\" is not captured"), "{message}");
            assert_eq!(hint, "Add \"list_id\" to the columns of the table.");
        }
    }
);

pg_test!(
    NoSlots,
    async fn k_grants_that_cannot_work_are_refused(db: LoadedDatabase) {
        ok(&db.pool, TABLES).await;
        for (grant, message) in [
            (r#"{}"#, "grant \"\": the scope name is empty"),
            (r#"{"scope": "x", "to": "y"}"#, "grant: unknown key \"to\""),
            (r#"{"scope": "x", "join": []}"#, "grant: \"join\" is not supported yet"),
            (r#"{"scope": "x", "where": "a = 1"}"#, "grant \"x\": \"where\" needs \"from\""),
            (r#"{"scope": "x:{id}"}"#, "grant \"x:{id}\": placeholder {id} needs \"from\""),
            (
                r#"{"scope": "u:{subject.id}", "anonymous": true}"#,
                "grant \"u:{subject.id}\": {subject.id} has no value without a token",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "anonymous": true, "where": "user_id = {subject.id}"}"#,
                "grant \"t:{team_id}\": \"anonymous\" and \"from\" exclude each other",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "member"}"#,
                "grant, from: \"member\" is not a schema-qualified name",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member"}"#,
                "grant \"t:{team_id}\": \"where\" needs exactly one condition of the form column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "active"}"#,
                "grant \"t:{team_id}\": \"where\" needs exactly one condition of the form column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "user_id = {subject.id} or active"}"#,
                "grant \"t:{team_id}\": \"where\" needs exactly one condition of the form column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "user_id = {subject.id} and (active or note = {subject.id})"}"#,
                "grant \"t:{team_id}\": {subject.id} may not appear under \"or\" or \"not\"",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "user_id = {subject.id} and note = {subject.id}"}"#,
                "grant \"t:{team_id}\": \"where\" needs exactly one condition of the form column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "user_id <> {subject.id}"}"#,
                "where of grant \"t:{team_id}\", position 1: {subject.id} can only be compared as column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "active = {subject.id}"}"#,
                "where of grant \"t:{team_id}\", position 1: {subject.id} can only be compared as column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "{subject.id} is null"}"#,
                "where of grant \"t:{team_id}\", position 1: {subject.id} can only be compared as column = {subject.id}",
            ),
            (
                r#"{"scope": "t:{team_id}", "from": "public.member", "where": "user_id in ({subject.id})"}"#,
                "where of grant \"t:{team_id}\", position 13: expected a literal, found \"{subject.id}\"",
            ),
        ] {
            let (found, _) =
                refused(&db.pool, "TG001", &format!("select tidegate.register_grant('{grant}')")).await;
            assert!(found.starts_with(message), "{grant}: {found}");
        }
    }
);
