//! F1, F9: the fence runs with our rights inside of other people's statements. What they bring along must neither run with those
//! rights nor cost others their transactions.

use crate::stream::Stream;
use sqlx::{AssertSqlSafe, Connection, Executor};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

/// A type whose conversion into a key writes down as whom it ran.
const CAST: &str = "create table public.ran_as (who text); create type public.own as enum ('1', '2');
    create function public.convert(public.own) returns int language plpgsql as $$ begin insert into public.ran_as values (current_user); return 1; end $$;
    create cast (public.own as int) with function public.convert(public.own) as assignment;
    grant all on public.ran_as to public;";

pg_test!(
    BriefSlots,
    async fn f1_g5_a_drifted_keys_own_conversion_does_not_run_with_our_rights(server: TestServer) {
        let tables = "create table public.retyped (id int primary key, n int); create table public.renamed (id int primary key, n int)";
        let t = Stream::after(server, tables).await;
        let register = "select tidegate.register_table('public.retyped', '{}'); select tidegate.register_table('public.renamed', '{}');
            insert into retyped values (1, 1); insert into renamed values (1, 1);";
        t.ok(register).await;
        t.ok(CAST).await;
        t.ok("alter table retyped alter column id type public.own using '1'; alter table renamed rename id to id0; alter table renamed add column id public.own default '1'").await;
        // The application's writes go on (G5).
        t.ok("insert into retyped values ('2', 2); update retyped set n = 3; delete from retyped where id = '1'").await;
        t.ok("insert into renamed values (2, 2, '2'); update renamed set n = 3; delete from renamed where id = '1'")
            .await;
        let ran: i64 =
            sqlx::query_scalar("select count(*) from ran_as").fetch_one(t.pool()).await.expect("a count");
        assert_eq!(ran, 0, "our function converted the key");
    }
);

pg_test!(
    BriefSlots,
    async fn f1_names_that_look_like_the_quotes_of_a_body_are_names(server: TestServer) {
        let setup = r#"create table public."$fence$;$guard$" ("$fence$ $f$ $body$;" int primary key, "$guard$'\" text)"#;
        let t = Stream::after(server, setup).await;
        t.ok(r#"set check_function_bodies = off; select tidegate.register_table('public."$fence$;$guard$"', '{"scopes": [{"name": "a:{\"$guard$''\\\"}"}]}')"#).await;
        t.ok(r#"insert into "$fence$;$guard$" values (1, 'x'); update "$fence$;$guard$" set "$guard$'\" = 'y'; delete from "$fence$;$guard$""#).await;
        assert_eq!(t.check().await.len(), 3);
        t.fails("27000", r#"insert into "$fence$;$guard$" values (2, 'x'); update "$fence$;$guard$" set "$fence$ $f$ $body$;" = 3"#)
            .await;
    }
);

pg_test!(
    BriefSlots,
    async fn f9_serializable_writers_of_different_rows_both_commit_whatever_the_statistics_say(
        server: TestServer,
    ) {
        // Few versions of many rows, counted: a planner would rather scan the table of versions than use its index.
        let rows = "create table public.big (id int primary key, n int); insert into big select g, 0 from generate_series(1, 20000) g; analyze big";
        let t = Stream::after(server, rows).await;
        t.ok("select tidegate.register_table('public.big', '{}')").await;
        t.ok("update big set n = 1 where id % 100 = 0").await;
        t.ok("vacuum analyze tidegate.row_version_1").await;
        let (mut one, mut two) = (t.session().await, t.session().await);
        for (session, id) in [(&mut one, 100), (&mut two, 19000)] {
            let write =
                format!("begin isolation level serializable; update big set n = n + 1 where id = {id}");
            session.execute(AssertSqlSafe(write)).await.expect("a write");
        }
        one.execute("commit").await.expect("the first commits");
        two.execute("commit").await.expect("the second commits");
        one.close().await.expect("close");
        two.close().await.expect("close");
    }
);
