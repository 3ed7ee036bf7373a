//! F1, F9, DT-05: fences add time to the application's writes and refuse only what the contract refuses, whoever writes, with
//! whatever settings, keys and neighbours.

use crate::fence::Tables;
use crate::stream::{Stream, failure};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;

async fn copy(session: &mut PgConnection, statement: &str, data: &str) -> Result<u64, sqlx::Error> {
    let mut sink = session.copy_in_raw(statement).await?;
    sink.send(data.as_bytes()).await?;
    sink.finish().await
}

/// A role of this test's database without any right on our schema; dropped again by `drop_role`.
async fn role(t: &Stream, attributes: &str) -> String {
    let role = format!("{}_app", t.db.database.name());
    t.ok(&format!("create role {role} login nosuperuser {attributes}; grant all on all tables in schema public to {role}")).await;
    role
}

async fn drop_role(t: &Stream, role: &str) {
    t.ok(&format!("reassign owned by {role} to postgres; drop owned by {role}; drop role {role}")).await;
}

pg_test!(
    BriefSlots,
    async fn dd05_f1_a_role_without_rights_on_our_schema_writes(t: Tables) {
        let role = role(&t.0, "").await;
        t.0.fails("42501", &format!("set role {role}; select * from tidegate.row_version_2")).await;
        t.0.fails(
            "42501",
            &format!("set role {role}; select pg_logical_emit_message(true, 'tidegate.fence', 'x')"),
        )
        .await;
        t.0.ok(&format!("set role {role}; insert into item values (1, null, 'a'); update item set rev = 2; delete from item")).await;
        assert_eq!(t.0.check().await.len(), 3);
        drop_role(&t.0, &role).await;
    }
);

pg_test!(
    BriefSlots,
    async fn f1_row_level_security_forced_on_everybody_hides_nothing_from_fences(t: Tables) {
        let role = role(&t.0, "").await;
        t.0.ok(&format!("alter table item owner to {role}; alter table item enable row level security, force row level security;
        create policy mine on item using (id % 2 = 1) with check (true)")).await;
        t.0.ok(&format!("set role {role}; insert into item values (1, null, 'a'), (2, null, 'b'); update item set rev = 2; delete from item")).await;
        assert_eq!(
            t.0.check().await,
            ["item I 1", "item I 2", "item U 1", "item D 1"],
            "row 2 is hidden from its writer, not from us"
        );
        t.0.ok("alter table item owner to postgres").await;
        drop_role(&t.0, &role).await;
    }
);

pg_test!(
    BriefSlots,
    async fn f9_copy_works_and_copy_freeze_is_refused(t: Tables) {
        let mut session = t.0.session().await;
        copy(&mut session, "copy item (id) from stdin", "1\n2\n3\n").await.expect("plain copy");
        assert_eq!(t.0.check().await.len(), 3);
        // FREEZE needs a file that its own transaction made.
        sqlx::raw_sql("begin; create table public.fresh (id int primary key, v int); select tidegate.register_table('public.fresh', '{}')")
        .execute(&mut session).await.expect("register in the creating transaction");
        copy(&mut session, "copy fresh from stdin", "1\t1\n2\t2\n")
            .await
            .expect("no false alarm for a plain copy into it");
        sqlx::raw_sql("insert into fresh values (3), (4); with new as (insert into fresh values (5) returning id) insert into fresh select id + 1 from new")
        .execute(&mut session).await.expect("no false alarm for inserts");
        let error = copy(&mut session, "copy fresh from stdin (freeze)", "7\t1\n").await.expect_err("freeze");
        let (message, hint) = failure(&error, "0A000");
        assert_eq!(
            (message.as_str(), hint.as_str()),
            (
                "COPY FREEZE into public.fresh is not supported: tidegate streams this table",
                "Use COPY without FREEZE."
            )
        );
        session.close().await.expect("close");
        assert!(t.0.check().await.is_empty());
    }
);

pg_test!(
    BriefSlots,
    async fn f9_copy_freeze_is_refused_in_a_file_that_a_truncate_made(t: Tables) {
        t.0.ok("insert into item values (1)").await;
        t.0.check().await;
        let mut session = t.0.session().await;
        let truncate = "begin; alter table item disable trigger \"!tidegate_truncate\"; truncate item";
        sqlx::raw_sql(truncate).execute(&mut session).await.expect("truncate");
        let error =
            copy(&mut session, "copy item (id) from stdin (freeze)", "1\n").await.expect_err("freeze");
        failure(&error, "0A000");
        sqlx::raw_sql("rollback").execute(&mut session).await.expect("rollback");
        // After any rewrite the check runs, and never gives a false alarm.
        sqlx::raw_sql("cluster item using item_pkey").execute(&mut session).await.expect("cluster");
        sqlx::raw_sql("begin isolation level repeatable read; insert into item values (2), (3)")
            .execute(&mut session)
            .await
            .expect("insert");
        copy(&mut session, "copy item (id) from stdin", "4\n5\n").await.expect("plain copy");
        sqlx::raw_sql("commit").execute(&mut session).await.expect("commit");
        session.close().await.expect("close");
        assert_eq!(t.0.check().await.len(), 4);
    }
);

pg_test!(
    BriefSlots,
    async fn f9_the_freeze_guard_gives_no_false_alarm_whatever_the_statement(t: Tables) {
        t.0.ok("insert into item (id) values (1)").await;
        // From now on the guard looks at every insert.
        t.0.ok("vacuum full item").await;
        t.0.check().await;
        t.0.ok("select app_trigger('z_more', 'after insert', 'item', 'for each row', 'if new.id < 100 then insert into item (id) values (new.id + 100); end if; return null;')").await;
        let statements = [
            "insert into item (id) values (2), (3)",
            "insert into item (id) select generate_series(4, 9)",
            "with n as (insert into item (id) values (10) returning id) insert into item (id) select id + 1 from n",
            "begin; savepoint s; insert into item (id) values (12); rollback to s; insert into item (id) values (12); release s; commit",
            "begin isolation level repeatable read; insert into item (id) values (13); insert into item (id) values (14); commit",
            "begin isolation level serializable; insert into item (id) values (15); commit",
            "do $$ begin for n in 16..19 loop insert into item (id) values (n); end loop; end $$",
            "begin; declare c cursor for select * from item; fetch 1 from c; insert into item (id) values (20); commit",
            "insert into item (id) values (21) on conflict (id) do update set rev = 2",
            "merge into item i using (values (22)) s (id) on i.id = s.id when not matched then insert (id) values (s.id)",
            "begin; cluster item using item_pkey; insert into item (id) values (23); commit",
        ];
        for sql in statements {
            t.0.ok(sql).await;
        }
        assert_eq!(t.0.check().await.len(), 22 * 2);
    }
);

pg_test!(
    BriefSlots,
    async fn g5_a_renamed_or_retyped_key_column_blocks_capture_not_the_application(t: Tables) {
        t.0.ok("alter table item rename column id to number; insert into item values (1, null, 'a'); update item set rev = 2; update item set number = 3; delete from item").await;
        t.0.ok("alter table person alter column id type bigint; insert into person values (1), (1000000000000); update person set id = id; delete from person").await;
        t.0.ok("alter table list rename to lists; insert into lists values ('a'); update lists set name = 'b'; delete from lists").await;
        let problems: Vec<(String, String)> = sqlx::query_as("select * from tidegate.relation_problems()")
            .fetch_all(t.0.pool())
            .await
            .expect("problems");
        for table in ["public.item", "public.person", "public.list"] {
            assert!(problems.iter().any(|problem| problem.0 == table), "{table}: {problems:?}");
        }
    }
);

pg_test!(
    BriefSlots,
    async fn f6_fifty_writers_on_the_same_keys_stay_in_order(t: Tables) {
        let writers = (0..50).map(|writer: u32| {
        let url = t.0.db.url();
        tokio::spawn(async move {
            let mut session = PgConnection::connect(&url).await.expect("connect");
            let mut done = 0;
            for round in 0..8u32 {
                // Two keys per transaction in key order, so that writers wait for each other and never deadlock.
                let (low, high) = (1 + (writer + round) % 3, 4 + (writer * round) % 3);
                let end = if round % 4 == 3 { "rollback" } else { "commit" };
                let sql = format!(
                    "begin; insert into item values ({low}, null, 'w') on conflict (id) do update set rev = item.rev + 1;
                     savepoint s; delete from item where id = {high}; {};
                     insert into item values ({high}, null, 'w') on conflict (id) do update set title = 'u'; {end}",
                    if writer.is_multiple_of(2) { "rollback to s" } else { "release s" }
                );
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.expect("write");
                done += usize::from(end == "commit");
            }
            session.close().await.expect("close");
            done
        })
    });
        let mut committed = 0;
        for writer in writers.collect::<Vec<_>>() {
            committed += writer.await.expect("writer");
        }
        assert!(t.0.check().await.len() >= 2 * committed);
    }
);

/// Writes as a role that owns its tables but neither our schema nor superuser rights.
async fn limited(server: TestServer) -> (Stream, String) {
    let stream = Stream::after(server, "create table public.item (id int primary key, v int)").await;
    let owner = role(&stream, "").await;
    stream.ok(&format!("alter table item owner to {owner}")).await;
    (stream, owner)
}

pg_test!(
    BriefSlots,
    async fn f1_a_table_of_another_owner_is_registered_by_a_superuser_and_written_by_its_owner(
        server: TestServer,
    ) {
        let (t, owner) = limited(server).await;
        let (message, hint) = t
            .fails(
                "42501",
                &format!("set role {owner}; select tidegate.register_table('public.item', '{{}}')"),
            )
            .await;
        assert!(message.contains("permission denied for schema tidegate"), "{message} {hint}");
        t.ok("select tidegate.register_table('public.item', '{}')").await;
        t.ok(&format!(
            "set role {owner}; insert into item values (1); update item set v = 2; delete from item"
        ))
        .await;
        assert_eq!(t.check().await.len(), 3);
        t.ok("alter table item owner to postgres").await;
        drop_role(&t, &owner).await;
    }
);
