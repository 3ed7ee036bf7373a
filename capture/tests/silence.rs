//! Q1, OP-10: a failure says what failed, and nothing of what was in it.

use crate::poison::SECRET;
use crate::world::heard::{heard, listen};
use crate::world::{ITEMS, LISTS_AND_ITEMS, World};
use sqlx::{ConnectOptions, Connection};
use std::str::FromStr;
use tidegate_capture::poison;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::{TestContext, TestServer};

/// Runs statements whose text holds the marker: on a connection that logs none of them, for this process listens to all that it says.
async fn secretly(world: &World, sql: &str) {
    let options = sqlx::postgres::PgConnectOptions::from_str(&world.db.url()).expect("an address");
    let mut connection =
        sqlx::PgConnection::connect_with(&options.disable_statement_logging()).await.expect("connect");
    let sql = sql.replace("SECRET", SECRET);
    if sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.is_err() {
        // Not repeated: the text holds the marker.
        panic!("a statement of this test failed");
    }
}

/// Every way in which a transaction fails, with the marker in whatever it is made of; the last step is the one that does.
const FAILURES: &[(&str, &[&str])] = &[
    // The server's message and DETAIL show the row; so would those of a trigger.
    (
        "database_refused",
        &[
            "alter table tidegate_projection.s1_p1 add constraint trap check (version is null) not valid",
            "insert into items values ('SECRET', 'SECRET', 1, 'SECRET')",
        ],
    ),
    (
        "database_refused",
        &[
            "create function public.trap() returns trigger language plpgsql as $f$
             begin raise exception 'SECRET' using errcode = '22000', detail = 'SECRET', hint = 'SECRET'; end $f$;
             create trigger trap before insert on tidegate_projection.s1_p1 for each row execute function public.trap()",
            "insert into items values ('SECRET', 'L1')",
        ],
    ),
    (
        "fence_missing",
        &["begin; alter table items disable trigger user; insert into items values ('SECRET', 'SECRET', 1, 'SECRET'); commit"],
    ),
    (
        "key_changed",
        &[
            "insert into items values ('SECRET', 'L1')",
            "begin; alter table items disable trigger user; update items set id = 'SECRET-2'; commit",
        ],
    ),
    ("fence_without_row", &["alter publication tidegate drop table items; insert into items values ('SECRET', 'SECRET')"]),
    ("fence_malformed", &["select pg_logical_emit_message(true, 'tidegate.fence', '1:s:1:1:12:public.items:I:SECRET')"]),
    ("fence_malformed", &["select pg_logical_emit_message(true, 'tidegate.fence', 'SECRET')"]),
    ("registry_message_malformed", &["select pg_logical_emit_message(true, 'tidegate.registry', '1:SECRET')"]),
    ("marker_malformed", &["select pg_logical_emit_message(true, 'tidegate.marker', 'SECRET')"]),
    (
        "update_on_missing",
        &[
            "insert into items values ('SECRET', 'L1')",
            "delete from tidegate_projection.s1_p1",
            "update items set body = 'SECRET'",
        ],
    ),
    (
        "insert_on_existing",
        &[
            "insert into items values ('SECRET', 'L1')",
            "alter publication tidegate drop table items",
            "begin; alter table items disable trigger user; delete from items;
             alter table items enable always trigger \"!tidegate_fence\"; commit",
            "alter publication tidegate add table items",
            "insert into items values ('SECRET', 'SECRET')",
        ],
    ),
    (
        "truncate",
        &["insert into items values ('SECRET', 'L1')", "begin; alter table items disable trigger user; truncate items; commit"],
    ),
    (
        "column_type_changed",
        &["alter table items add column more text default 'SECRET'; alter table items alter column n type bigint; insert into items values ('SECRET', 'L1')"],
    ),
];

pg_test!(
    Slots,
    async fn q1_op10_no_failure_says_anything_of_a_row(server: TestServer) {
        for (class, steps) in FAILURES {
            let world = World::prepare(server.clone()).await;
            world.sql(ITEMS).await;
            let mut config = world.config();
            // What the projection lacks is found missing there.
            config.limits.cache_bytes_max = 0;
            let worker = world.start_with(config);
            world.until_streaming().await;
            listen();
            let state: i32 = world.scalar("select state_id from tidegate.stream_generation").await;
            let (last, steps) = steps.split_last().expect("a step");
            for step in steps {
                secretly(&world, &step.replace(".s1_", &format!(".s{state}_"))).await;
                world.settle().await;
            }
            secretly(&world, last).await;
            world.until(class, "select exists (select from tidegate.poison where status = 'active')").await;
            let mut connection = world.pool().acquire().await.expect("connection");
            let record = poison::list(&mut connection, 10).await.expect("list").remove(0);
            assert_eq!(record.failure_class, *class, "{}", record.explanation);
            world.until("the state to show", "select state = 'blocked' from tidegate.worker_heartbeat").await;
            let shown = format!("{record:?}");
            assert!(!shown.contains("7f3a"), "{class}: {}", shown.replace("7f3a", "****"));
            for table in [
                "poison",
                "worker_heartbeat",
                "audit",
                "stream_reset",
                "source_transaction",
                "registry_activation",
            ] {
                let leaks: bool = world
                    .scalar(&format!(
                        "select coalesce(bool_or(t::text like '%7f' || '3a%'), false) from tidegate.{table} t"
                    ))
                    .await;
                assert!(!leaks, "{class}: {table}");
            }
            worker.stop().await;
        }
        let said = heard();
        assert!(said.matches("quarantined").count() >= FAILURES.len(), "it was listened to");
        let leak = said.lines().find(|line| line.contains("7f3a")).map(|line| line.replace("7f3a", "****"));
        assert_eq!(leak, None);
    }
);

pg_test!(
    Slots,
    async fn q1_no_password_and_no_address_is_said(server: TestServer) {
        let world = World::prepare(server).await;
        world.sql(LISTS_AND_ITEMS).await;
        listen();
        let (before, after) =
            world.db.url().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("an address");
        let rest = after.split_once('@').expect("a user").1.to_owned();
        for url in [
            format!("{before}://tidegate:{SECRET}@{rest}"),
            format!("{before}://{SECRET}:{SECRET}@{rest}"),
            format!("{before}://tidegate:{SECRET}@127.0.0.1:1/nowhere"),
            format!("{before}://tidegate:{SECRET}@{SECRET}.invalid/nowhere"),
        ] {
            let mut config = world.config();
            config.database_url = url;
            assert!(!format!("{config:?}").contains("7f3a"));
            let tries = heard().matches("trying again").count();
            let worker = world.start_with(config);
            crate::world::within("two failures", async {
                while heard().matches("trying again").count() < tries + 2 {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            })
            .await;
            worker.kill().await;
        }
        let said = heard();
        let leak = said.lines().find(|line| line.contains("7f3a")).map(|line| line.replace("7f3a", "****"));
        assert_eq!(leak, None);
    }
);
