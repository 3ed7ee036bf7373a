//! G1, F1: registration, its proofs and the fences say the same whatever the session's settings are.

use crate::application::{ok, text};
use crate::stream::Stream;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_migrations::testing::LoadedDatabase;
use tidegate_migrations::{connect_and_load, force_replay};

const TABLES: &str = "create table public.item (id bigint primary key, list_id text, note text); create table public.member (id text primary key, user_id text, team_id int)";
const REGISTER: &str = r#"select tidegate.register_table('public.item', '{"write": "enabled", "unrestricted": true, "exclude": ["note"], "scopes": [{"name": "list:{list_id}", "where": "id > 0 and list_id in (''a'', ''c'')"}]}');
    select tidegate.register_grant('{"scope": "team:{team_id}", "from": "public.member", "where": "user_id = {subject.id}"}')"#;
const WRITE: &str = "insert into public.item values (1, 'a', 'n'); update public.item set note = 'm'; delete from public.item; insert into public.member values ('u', 'u', 1)";
/// What stands in the registry and in the catalog, without anything that differs from one database to the next.
const REGISTERED: &str = "select string_agg(t, E'\\n' order by t) from (
    select regexp_replace(regexp_replace(snapshot::text, '\"oid\": [0-9]+', '', 'g'), '\"type_oid\": [0-9]+', '', 'g') as t from tidegate.registry_generation
    union all select prosrc from pg_proc where pronamespace = 'tidegate'::regnamespace and proname ~ '^(fence|guard|push_holds)_[0-9]'
    union all select tgname || ' ' || tgtype || ' ' || tgenabled::text from pg_trigger where tgname like '%tidegate%') q";

/// Settings that any role, or an `alter role` or `alter database` of long ago, may have made; those of a line at once.
const ODD: &[&[&str]] = &[
    &[
        "quote_all_identifiers = on",
        "search_path = ''",
        "plpgsql.variable_conflict = use_variable",
        "row_security = off",
        "bytea_output = escape",
    ],
    &[
        "standard_conforming_strings = off",
        "backslash_quote = on",
        "plpgsql.variable_conflict = use_column",
        "check_function_bodies = off",
    ],
    &[
        "session_replication_role = replica",
        "search_path = pg_temp, public",
        "plpgsql.extra_errors = 'all'",
        "plan_cache_mode = force_generic_plan",
    ],
    &[
        "transform_null_equals = on",
        "array_nulls = off",
        "datestyle = 'sql, dmy'",
        "intervalstyle = sql_standard",
        "timezone = 'Asia/Kathmandu'",
        "extra_float_digits = -10",
        "xmloption = document",
        "enable_seqscan = off",
        "enable_indexscan = off",
    ],
];

pg_test!(
    BriefSlots,
    async fn g1_f1_no_setting_of_the_session_changes_what_is_registered_proved_or_fenced(server: TestServer) {
        let plain = Stream::after(server.clone(), TABLES).await;
        ok(plain.pool(), REGISTER).await;
        let expected = text(plain.pool(), REGISTERED).await;
        force_replay(plain.pool()).await.expect("force");
        connect_and_load(plain.pool()).await.expect("load");
        let replayed = text(plain.pool(), REGISTERED).await;
        for settings in ODD {
            let t = Stream::after(server.clone(), TABLES).await;
            let pool = t.pool();
            for setting in *settings {
                ok(pool, &format!("alter database {} set {setting}", t.db.database.name())).await;
            }
            println!("{settings:?}");
            ok(pool, REGISTER).await;
            ok(pool, WRITE).await;
            assert_eq!(t.check().await, ["item I 1", "item U 1", "item D 1", "member I u"], "{settings:?}");
            ok(pool, REGISTER).await;
            for check in ["trigger_problems", "relation_problems", "publication_problems"] {
                let problems = format!(
                    "select coalesce(string_agg(format('%s: %s', relation, problem), ', '), '') from tidegate.{check}()"
                );
                assert_eq!(text(&fresh(&t.db), &problems).await, "", "{settings:?}: {check}");
            }
            // As a session without the setting sees it.
            assert!(text(pool, REGISTERED).await == expected, "{settings:?}");
            force_replay(pool).await.expect("force");
            connect_and_load(pool).await.expect("load");
            assert!(text(pool, REGISTERED).await == replayed, "{settings:?}: replayed");
            ok(pool, "select tidegate.uninstall()").await;
        }
    }
);

/// Sessions that the database's settings reach.
fn fresh(db: &LoadedDatabase) -> sqlx::PgPool {
    tidegate_migrations::testing::pool(&db.url())
}
