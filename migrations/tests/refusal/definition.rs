//! G2: definitions that say what we cannot do, or cannot mean what they say.

use super::{refuse_table, refused_tables};
use crate::application::{ok, refused};
use crate::register::TABLES;
use tidegate_embedded::pg_test;
use tidegate_migrations::testing::LoadedDatabase;

const OPEN: &str = "create table public.open (a int primary key)";

refused_tables! {
    g2_a_column_that_does_not_exist_is_refused: OPEN, "public.open", r#"{"columns": ["a", "b"]}"#
        => "public.open: no column \"b\"", "Columns: a.";
    g2_an_excluded_column_that_does_not_exist_is_refused: OPEN, "public.open", r#"{"exclude": ["b"]}"#
        => "public.open: \"exclude\" names a column that does not exist: \"b\"", "Name existing columns.";
    g2_columns_and_exclude_together_are_refused: OPEN, "public.open", r#"{"columns": ["a"], "exclude": ["b"]}"#
        => "table \"public.open\": both \"columns\" and \"exclude\" are given", "Give one of them.";
    g2_a_column_named_twice_is_refused: OPEN, "public.open", r#"{"columns": ["a", "a"]}"#
        => "table \"public.open\": \"columns\" names a column twice", "Name each column once.";
    g2_columns_that_are_no_list_are_refused: OPEN, "public.open", r#"{"columns": "a"}"#
        => "table \"public.open\": \"columns\" is not a list of column names", "Write columns = [\"a\", \"b\"].";
    g2_an_unknown_key_is_refused: OPEN, "public.open", r#"{"writes": true}"#
        => "table \"public.open\": unknown key \"writes\"", "Known keys: columns, exclude, write, unrestricted, scopes.";
    g2_an_unknown_way_to_write_is_refused: OPEN, "public.open", r#"{"write": "yes"}"#
        => "table \"public.open\": write = \"yes\" is not known", "Write \"enabled\" or \"read_only\".";
    g2_unrestricted_that_is_no_truth_value_is_refused: OPEN, "public.open", r#"{"unrestricted": "yes"}"#
        => "table \"public.open\": \"unrestricted\" is neither true nor false", "Write unrestricted = true or leave it out.";
    g2_a_writable_table_without_row_level_security_is_refused: OPEN, "public.open", r#"{"write": "enabled"}"#
        => "public.open: write = \"enabled\", but the table has no row-level security",
            "Run: alter table public.open enable row level security, with policies; or write unrestricted = true to let every client write every row.";
    g2_scopes_that_are_no_list_are_refused: OPEN, "public.open", r#"{"scopes": {}}"#
        => "table \"public.open\": \"scopes\" is not a list", "Write [{\"name\": \"list:{list_id}\"}].";
    g2_an_unknown_key_of_a_scope_is_refused: OPEN, "public.open", r#"{"scopes": [{"name": "x", "when": "y"}]}"#
        => "table \"public.open\", scope: unknown key \"when\"", "Known keys: name, where.";
    g2_a_join_is_refused: OPEN, "public.open", r#"{"scopes": [{"name": "x", "join": ["a"]}]}"#
        => "table \"public.open\", scope: \"join\" is not supported yet", "Store the column that names the scope in the table itself.";
    g2_a_scope_given_twice_is_refused: OPEN, "public.open", r#"{"scopes": [{"name": "x"}, {"name": "x"}]}"#
        => "table \"public.open\": one scope is given twice", "Give each scope once.";
    g2_a_definition_that_is_no_object_is_refused: OPEN, "public.open", "[]"
        => "table \"public.open\" is not an object", "Give an object with the keys columns, exclude, write, unrestricted, scopes.";
    g2_a_scope_name_from_a_column_that_is_not_captured_is_refused: TABLES, "public.item", r#"{"columns": ["id", "title"], "scopes": [{"name": "list:{list_id}"}]}"#
        => "scope \"list:{list_id}\" of public.item: column \"list_id\" is not captured", "Add \"list_id\" to the columns of the table.";
    g2_a_condition_on_a_column_that_is_not_captured_is_refused: TABLES, "public.item", r#"{"columns": ["id", "title"], "scopes": [{"name": "all", "where": "list_id is null"}]}"#
        => "where of scope \"all\" of public.item, position 1: column \"list_id\" is not captured", "Add \"list_id\" to the columns of the table.";
}

pg_test!(
    NoSlots,
    async fn g2_a_condition_that_does_not_parse_is_refused_with_its_position(db: LoadedDatabase) {
        ok(&db.pool, OPEN).await;
        let call = r#"select tidegate.register_table('public.open', '{"scopes": [{"name": "x:{a}", "where": "a >"}]}')"#;
        let (message, hint) = refused(&db.pool, "TG001", call).await;
        assert_eq!(
            message,
            "where of scope \"x:{a}\" of public.open, position 4: expected a column or a literal, found the end of the text"
        );
        assert!(hint.contains("language"), "{hint}");
    }
);

pg_test!(
    NoSlots,
    async fn g2_every_definition_that_is_refused_is_refused_by_the_plan_in_the_same_words(
        db: LoadedDatabase,
    ) {
        ok(&db.pool, OPEN).await;
        refuse_table(
            &db.pool,
            "create table public.keyless (a int)",
            "public.keyless",
            "{}",
            "public.keyless has no primary key",
            "Give it a primary key of one column.",
        )
        .await;
        let plan: Vec<(String, String, Option<String>, Option<String>)> = sqlx::query_as(
            r#"select name, status, reason, hint from tidegate.definition_plan('{"tables": [{"name": "public.open"}, {"name": "public.keyless"}], "grants": [{"scope": "{id}"}]}')"#,
        )
        .fetch_all(&db.pool)
        .await
        .expect("plan");
        let row = |name: &str, status: &str, reason: Option<&str>, hint: Option<&str>| {
            (name.to_owned(), status.to_owned(), reason.map(str::to_owned), hint.map(str::to_owned))
        };
        assert_eq!(
            plan,
            [
                row("public.open", "new", None, None),
                row(
                    "public.keyless",
                    "refused",
                    Some("public.keyless has no primary key"),
                    Some("Give it a primary key of one column.")
                ),
                row(
                    "{id}",
                    "refused",
                    Some("grant \"{id}\": placeholder {id} needs \"from\""),
                    Some("Name the table in \"from\", or use {subject.id}.")
                ),
            ]
        );
    }
);

pg_test!(
    NoSlots,
    async fn g2_grants_that_cannot_work_are_refused(db: LoadedDatabase) {
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
