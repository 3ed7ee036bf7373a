//! DD-05, TX-03, OP-03: the application's writes where the database has come to another place or another hand: restored into
//! another cluster, promoted, written by a subscription, left by us.

use crate::application::{ok, refused, run, text};
use crate::fence::{SETUP, Tables};
use crate::stream::{Stream, failure};
use crate::wal::Event;
use sqlx::postgres::PgPool;
use std::collections::BTreeSet;
use tidegate_embedded::testing::{TestContext, TestDatabase, TestServer};
use tidegate_embedded::{Stop, pg_test};
use tidegate_migrations::testing::{LoadedDatabase, pool};
use tidegate_migrations::{Installed, connect_and_load, force_replay, installed};

const ROWS: &str = "insert into list values ('a'), ('b'); insert into item (id, list_id) select g, 'a' from generate_series(1, 50) g; update item set title = 'b'; delete from item where id > 40";
/// Every kind of write over [`ROWS`].
const WRITES: &str = "update item set title = 'c'; insert into item (id) select generate_series(41, 50); delete from item where id < 5; insert into item (id) values (1), (60) on conflict (id) do update set rev = 2; delete from list where id = 'a'";
const WRITTEN: usize = 40 + 10 + 4 + 2 + 1 + 36;

async fn problems(pool: &PgPool, check: &str) -> Vec<(Option<String>, String)> {
    sqlx::query_as(sqlx::AssertSqlSafe(format!(
        "select relation, problem from tidegate.{check}() order by 1, 2"
    )))
    .fetch_all(pool)
    .await
    .expect(check)
}

/// Dumps a whole database and restores it into an empty one of another server.
fn restore(from: &TestDatabase, into: &TestDatabase, options: &[&str]) {
    let file = std::env::temp_dir().join(format!("{}.dump", from.name()));
    let dump = from
        .server()
        .tool("pg_dump", from.name())
        .expect("pg_dump")
        .args(["-Fc", "-f"])
        .arg(&file)
        .output()
        .expect("dump");
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let restored = into
        .server()
        .tool("pg_restore", into.name())
        .expect("pg_restore")
        .args(["-e", "-d", into.name()])
        .args(options)
        .arg(&file)
        .output();
    std::fs::remove_file(&file).expect("remove the dump");
    let restored = restored.expect("restore");
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
}

pg_test!(
    NoSlots,
    async fn dd05_f9_a_database_restored_into_another_cluster_is_written_and_recognised(server: TestServer) {
        let source = LoadedDatabase::prepared(&server, SETUP).await;
        ok(&source.pool, ROWS).await;
        source.pool.close().await;
        let other = TestServer::private(server.major(), &[]).expect("another cluster");
        for options in [&[][..], &["--no-owner", "--no-privileges"], &["--disable-triggers"]] {
            let database = other.create_database().expect("an empty database");
            restore(&source.database, &database, options);
            let db = LoadedDatabase { pool: pool(&database.url()), database };
            let t = Stream::over(db, "").await;
            // Its tables have other identities than those that were registered: each is named, whatever has their OIDs now.
            let named: BTreeSet<_> = problems(t.pool(), "relation_problems")
                .await
                .into_iter()
                .map(|(relation, _)| relation.unwrap_or_default())
                .collect();
            assert_eq!(
                named.into_iter().collect::<Vec<_>>().join(" "),
                "public.item public.list public.member public.node public.person public.task"
            );
            // An operator who follows the advice on missing triggers does no harm.
            force_replay(t.pool()).await.expect("force");
            connect_and_load(t.pool()).await.expect("load");
            let wrong = "select count(*)::text from pg_trigger where tgname ~ 'tidegate_(fence|freeze|truncate|guard)$' and tgrelid::regclass::text !~ '^(item|list|member|node|person|task)$'";
            assert_eq!(text(t.pool(), wrong).await, "0", "only the application's tables have our triggers");
            let (message, hint) =
                refused(t.pool(), "TG002", "select tidegate.register_table('public.item', '{}')").await;
            assert_eq!(
                (message.as_str(), hint.as_str()),
                (
                    "public.item is registered, but the table of that name is now another one",
                    "Put the registered table back. Where that cannot be, leave and begin anew: tidegate uninstall, migrate, apply."
                )
            );
            // The stamp came along, and vouches for what is there.
            assert!(!connect_and_load(t.pool()).await.expect("load").replayed);
            ok(t.pool(), WRITES).await;
            let mut session = t.session().await;
            assert_eq!(installed(&mut session).await.expect("look"), Installed::Current);
            drop(session);
            // Fences are in order here too. The slot's publication names the tables of this database.
            assert_eq!(t.check_by_name().await.len(), WRITTEN, "{options:?}");
            // What leads out: everything of ours goes, and comes again.
            ok(t.pool(), "select tidegate.uninstall()").await;
            ok(t.pool(), "truncate item; insert into item (id) values (1); update item set id = 2").await;
            assert!(connect_and_load(t.pool()).await.expect("load").replayed);
            ok(t.pool(), "select tidegate.register_table('public.item', '{}'); update item set rev = 2")
                .await;
            assert!(problems(t.pool(), "relation_problems").await.is_empty());
        }
    }
);

pg_test!(
    NoSlots,
    async fn dd05_f8_the_right_to_emit_messages_is_revoked_in_a_restored_database_too(server: TestServer) {
        let source = LoadedDatabase::new(&server).await;
        source.pool.close().await;
        let database = server.create_database().expect("database");
        restore(&source.database, &database, &[]);
        let pool = pool(&database.url());
        assert_eq!(text(&pool, "select tidegate.emit_right_is_public()::text").await, "false");
        pool.close().await;
    }
);

pg_test!(
    BriefSlots,
    async fn dd05_f9_rows_restored_over_installed_triggers_are_fenced(t: Tables) {
        // As into an empty copy of the application's schema, registered already.
        let source = LoadedDatabase::prepared(t.0.db.database.server(), SETUP).await;
        ok(&source.pool, "insert into item (id) select generate_series(1, 40); delete from item where id > 30; insert into person values (1)").await;
        source.pool.close().await;
        restore(&source.database, &t.0.db.database, &["--data-only", "--table=item", "--table=person"]);
        assert_eq!(t.0.check().await.len(), 31);
        t.0.ok("update item set rev = 2; delete from item where id = 1; insert into item (id) values (1)")
            .await;
        assert_eq!(t.0.check().await.len(), 30 + 1 + 1);
    }
);

pg_test!(
    BriefSlots,
    async fn tx03_f11_a_restore_that_disables_triggers_is_named_and_its_rows_have_no_fences(t: Tables) {
        let source = LoadedDatabase::prepared(t.0.db.database.server(), SETUP).await;
        ok(&source.pool, "insert into item (id) values (1), (2)").await;
        source.pool.close().await;
        restore(&source.database, &t.0.db.database, &["--data-only", "--table=item", "--disable-triggers"]);
        let events: Vec<Event> = t.0.decode().await.into_iter().flatten().collect();
        assert!(events.len() == 2 && events.iter().all(|event| matches!(event, Event::Row(_))), "{events:?}");
        // The tool enabled them again, as it thinks that they were.
        let named = problems(t.0.pool(), "trigger_problems").await;
        assert_eq!(named.len(), 4, "{named:?}");
        assert!(named.iter().all(|(_, problem)| problem.ends_with("is not enabled always")), "{named:?}");
        t.0.ok("select tidegate.install_fences(2); update item set rev = 2; delete from item where id = 2; insert into item (id) values (2)").await;
        assert!(problems(t.0.pool(), "trigger_problems").await.is_empty());
        let events =
            t.0.decode().await.into_iter().flatten().filter(|event| matches!(event, Event::Fence(_))).count();
        assert_eq!(events, 4, "and nothing that was left behind fails a write");
    }
);

pg_test!(
    Private,
    async fn dd05_a_promoted_standby_is_written_and_fenced(server: TestServer) {
        let t = Tables::on(&server).await;
        t.0.ok(ROWS).await;
        t.0.check().await;
        let url = t.0.db.url();
        ok(t.0.pool(), "select pg_drop_replication_slot(slot_name) from pg_replication_slots").await;
        drop(t);
        server.stop(Stop::Fast).expect("stop");
        let data = server.cluster().dir().join("data");
        std::fs::write(data.join("standby.signal"), "").expect("make it a standby");
        server.start().expect("start");
        let standby = pool(&url);
        let error = run(&standby, "insert into item (id) values (900)").await.expect_err("read-only");
        failure(&error, "25006");
        // What readiness asks is asked of a standby too.
        for check in ["trigger_problems", "relation_problems", "publication_problems"] {
            assert!(problems(&standby, check).await.is_empty(), "{check}");
        }
        ok(&standby, "select pg_promote()").await;
        standby.close().await;
        let database = TestDatabase::existing(&server, url.rsplit('/').next().expect("a name"));
        let db = LoadedDatabase { pool: pool(&url), database };
        let t = Stream::over(db, "").await;
        t.ok(WRITES).await;
        assert_eq!(t.check().await.len(), WRITTEN);
    }
);

struct Replicated {
    source: PgPool,
    t: Stream,
}

impl TestContext for Replicated {
    async fn prepare(server: TestServer) -> Self {
        let plain = server.create_database().expect("database");
        let source = pool(&plain.url());
        ok(&source, "create table public.item (id bigint primary key, list_id text, title text, rev int not null default 1); insert into item (id, title) values (1, 'copied'), (2, 'copied'); create publication everything for all tables").await;
        ok(&source, "select pg_create_logical_replication_slot('subscribed', 'pgoutput')").await;
        let t = Tables::on(&server).await.0;
        // Synchronous: what is not flushed is visible, but not decoded yet.
        let connection = format!(
            "host=127.0.0.1 port={} user={} password={} dbname={}",
            server.port(),
            server.user(),
            server.password(),
            plain.name()
        );
        t.ok(&format!("create subscription everything connection '{connection}' publication everything with (create_slot = false, slot_name = 'subscribed', synchronous_commit = on)")).await;
        std::mem::forget(plain);
        Replicated { source, t }
    }
}

pg_test!(
    Private,
    async fn tx03_f11_rows_that_a_subscription_copies_and_applies_are_fenced(r: Replicated) {
        let arrived = async |condition: &str| {
            let asked = format!("select ({condition})::text from item");
            while text(r.t.pool(), &asked).await != "true" {
                tokio::task::yield_now().await;
            }
        };
        arrived("count(*) = 2").await;
        ok(&r.source, "begin; update item set rev = 2; update item set rev = 3; delete from item where id = 1; insert into item (id) values (1), (3); update item set title = 'applied'; commit").await;
        arrived("count(*) = 3 and bool_and(title = 'applied')").await;
        assert_eq!(r.t.check().await.len(), 2 + 2 + 2 + 1 + 2 + 3);
        // The guard holds for it as for everybody: a key change on the other side stops it, and is told in its log.
        ok(&r.source, "update item set id = 9 where id = 3").await;
        let told = "select count(*)::text from pg_stat_subscription_stats where apply_error_count > 0";
        while text(r.t.pool(), told).await == "0" {
            tokio::task::yield_now().await;
        }
        assert!(r.t.check().await.is_empty());
        r.t.ok("alter subscription everything disable; alter subscription everything set (slot_name = none); drop subscription everything").await;
    }
);
