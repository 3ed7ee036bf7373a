//! Readiness against a real PostgreSQL: each check of H is broken alone, seen by its name, repaired, and seen to clear.
//!
//! The worker's rows are written here as a worker would; a running one is the CLI's to test.

use crate::fixture::Fixture;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_gateway::http::{Operations, router};
use tidegate_gateway::readiness::{Readiness, ReadinessConfig, ReadinessLimits, Report, look};
use tower::ServiceExt;

/// A stream at work, as far as the tables tell.
async fn start_stream(f: &Fixture) {
    f.sql("select pg_create_logical_replication_slot('tidegate_' || substr(md5(current_database()), 1, 8), 'pgoutput')").await;
    f.sql(include_str!("readiness_started.sql")).await;
}

fn config(f: &Fixture) -> ReadinessConfig {
    let limits =
        ReadinessLimits { heartbeat_age_max: Some(Duration::from_secs(3600)), ..ReadinessLimits::default() };
    // A busy machine is not what these tests are about.
    let timeout = Duration::from_secs(60);
    ReadinessConfig { limits, timeout, cache: Duration::ZERO, ..ReadinessConfig::new(f.db.database.name()) }
}

fn failing(report: &Report) -> Vec<&'static str> {
    report.checks.iter().filter(|check| !check.ok).map(|check| check.name).collect()
}

fn reason<'r>(report: &'r Report, check: &str) -> &'r str {
    report.check(check).and_then(|check| check.reason.as_deref()).unwrap_or_default()
}

/// Check, what breaks it alone, a part of the reason, and what repairs it.
const BREAKS: &[(&str, &str, &str, &str)] = &[
    (
        "database",
        "update tidegate.stream_generation set system_identifier = '1'",
        "another database cluster",
        "update tidegate.stream_generation set system_identifier = (select system_identifier::text from pg_control_system())",
    ),
    (
        "database",
        "update tidegate.stream_generation set database_oid = 1",
        "another database of this cluster",
        "update tidegate.stream_generation set database_oid = (select oid from pg_database where datname = current_database())",
    ),
    (
        "worker",
        "update tidegate.worker_heartbeat set beat_at = beat_at - interval '2 hours'",
        "heartbeat is 7",
        "update tidegate.worker_heartbeat set beat_at = clock_timestamp()",
    ),
    (
        "worker",
        "update tidegate.worker set epoch = epoch + 1",
        "lost the stream",
        "update tidegate.worker_heartbeat set epoch = epoch + 1",
    ),
    (
        "worker",
        "update tidegate.worker_heartbeat set state = 'retrying', reason = 'connection refused', since = clock_timestamp() - interval '1 minute'",
        "retrying for more than 30 s: connection refused",
        "update tidegate.worker_heartbeat set since = clock_timestamp()",
    ),
    (
        "worker",
        "update tidegate.worker_heartbeat set state = 'blocked', reason = 'slot mismatch'",
        "the worker is blocked: slot mismatch",
        "update tidegate.worker_heartbeat set state = 'streaming', reason = null",
    ),
    (
        "worker",
        "update tidegate.worker_heartbeat set processed_end_lsn = 'FFFFFFFF/0'",
        "lead what is durable",
        "update tidegate.worker_heartbeat set processed_end_lsn = null",
    ),
    (
        "worker",
        "update tidegate.worker_heartbeat set registry_generation = 999",
        "lead what is durable",
        "update tidegate.worker_heartbeat set registry_generation = 1",
    ),
    (
        "registry",
        "alter table public.item rename column body to text",
        "public.item: captured column",
        "alter table public.item rename column text to body",
    ),
    (
        "registry",
        "delete from tidegate.registry_activation",
        "no activation record",
        "insert into tidegate.registry_activation (stream_generation, registry_generation) select generation, registry_generation from tidegate.progress",
    ),
    (
        "registry",
        "update tidegate.registry_generation set snapshot = '{}' where id = (select registry_generation from tidegate.progress)",
        "cannot be used by this program",
        "update tidegate.registry_generation set snapshot = '{\"generation\": 4, \"relations\": [], \"grants\": []}' where snapshot = '{}'",
    ),
    (
        "triggers",
        "alter table public.item disable trigger \"!tidegate_fence\"",
        "public.item: trigger \"!tidegate_fence\" is not enabled always",
        "alter table public.item enable always trigger \"!tidegate_fence\"",
    ),
    (
        "triggers",
        "alter function tidegate.refuse_truncate() security invoker",
        "was changed",
        "alter function tidegate.refuse_truncate() security definer",
    ),
    (
        "publication",
        "alter publication tidegate drop table public.item",
        "public.item: the table is not in the publication",
        "alter publication tidegate add table public.item",
    ),
    (
        "publication",
        "alter publication tidegate set (publish = 'insert, update, delete')",
        "truncate",
        "alter publication tidegate set (publish = 'insert, update, delete, truncate')",
    ),
    (
        "publication",
        "alter publication tidegate set table public.item where (id > 0), public.word, public.open, public.typed",
        "filters rows",
        "alter publication tidegate set table public.item, public.word, public.open, public.typed",
    ),
    (
        "poison",
        "insert into tidegate.poison (generation, commit_lsn, failure_class, explanation, relation_id, first_at) \
         select 1, '0/ABC', 'truncate', 'x', relation_id, clock_timestamp() - interval '1 hour' from tidegate.relation where table_name = 'item'",
        "0/ABC blocks the stream: truncate in public.item",
        "update tidegate.poison set status = 'resolved'",
    ),
    (
        "ordering",
        "update tidegate.progress set acknowledged_end_lsn = '0/1'",
        "before the generation's start",
        "update tidegate.progress set acknowledged_end_lsn = null",
    ),
    (
        "ordering",
        "update tidegate.progress set processed_end_lsn = processed_end_lsn + 16, acknowledged_end_lsn = processed_end_lsn + 16",
        "the slot is behind",
        "update tidegate.progress set acknowledged_end_lsn = null",
    ),
    (
        "commit_lag",
        "update tidegate.worker_heartbeat set oldest_pending_commit_at = clock_timestamp() - interval '5 minutes'",
        "more than 60 s",
        "update tidegate.worker_heartbeat set oldest_pending_commit_at = null",
    ),
];

/// Breaks what the table has for this check, one thing at a time, and repairs it.
async fn fails_alone_and_clears(f: &Fixture, check: &str) {
    start_stream(f).await;
    let readiness = Readiness::new(f.db.pool.clone(), config(f));
    let report = readiness.report().await;
    assert_eq!(failing(&report), [] as [&str; 0], "{report:?}");
    let of_it: Vec<_> = BREAKS.iter().filter(|(name, ..)| *name == check).collect();
    assert!(!of_it.is_empty(), "nothing breaks {check}");
    for (_, broken, part, repair) in of_it {
        f.sql(broken).await;
        let report = readiness.report().await;
        assert_eq!(failing(&report), [check], "after: {broken}\n{report:?}");
        assert!(reason(&report, check).contains(part), "after: {broken}\n{}", reason(&report, check));
        let found = report.check(check).expect("the check");
        assert!(found.advice.is_some() && found.since.is_some(), "{found:?}");
        f.sql(repair).await;
        let report = readiness.report().await;
        assert_eq!(failing(&report), [] as [&str; 0], "repaired by: {repair}\n{report:?}");
    }
}

pg_test!(
    Slots,
    async fn h2_the_one_database_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "database").await;
    }
);

pg_test!(
    Slots,
    async fn h3_the_worker_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "worker").await;
    }
);

pg_test!(
    Slots,
    async fn h4_the_registry_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "registry").await;
    }
);

pg_test!(
    Slots,
    async fn h5_the_triggers_fail_alone_by_name_and_clear(f: Fixture) {
        fails_alone_and_clears(&f, "triggers").await;
    }
);

pg_test!(
    Slots,
    async fn h6_the_publication_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "publication").await;
    }
);

pg_test!(
    Slots,
    async fn h8_poison_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "poison").await;
    }
);

pg_test!(
    Slots,
    async fn h9_the_ordering_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "ordering").await;
    }
);

pg_test!(
    Slots,
    async fn h11_the_commit_lag_fails_alone_by_name_and_clears(f: Fixture) {
        fails_alone_and_clears(&f, "commit_lag").await;
    }
);

pg_test!(
    Slots,
    async fn h_every_check_is_in_the_report_in_this_order(f: Fixture) {
        let report = look(&f.db.pool, &config(&f)).await;
        let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
        assert_eq!(
            names,
            [
                "database",
                "worker",
                "registry",
                "triggers",
                "publication",
                "slot",
                "poison",
                "ordering",
                "wal_lag",
                "commit_lag"
            ]
        );
    }
);

pg_test!(
    Slots,
    async fn h7_a_slot_that_is_gone_or_of_another_kind_is_named(f: Fixture) {
        start_stream(&f).await;
        let config = config(&f);
        f.sql("select pg_drop_replication_slot(slot_name) from tidegate.stream_generation").await;
        let report = look(&f.db.pool, &config).await;
        // Its confirmed position is unknown with it (H1).
        assert_eq!(failing(&report), ["slot", "ordering"]);
        assert!(reason(&report, "slot").contains("does not exist"));
        f.sql("select pg_create_logical_replication_slot(slot_name, 'test_decoding') from tidegate.stream_generation").await;
        let report = look(&f.db.pool, &config).await;
        assert_eq!(failing(&report), ["slot"]);
        assert!(reason(&report, "slot").contains("not one of pgoutput"));
        f.sql(
            "select pg_drop_replication_slot(slot_name) from tidegate.stream_generation; \
             select pg_create_logical_replication_slot(slot_name, 'pgoutput') from tidegate.stream_generation",
        )
        .await;
        assert_eq!(failing(&look(&f.db.pool, &config).await), [] as [&str; 0]);
    }
);

pg_test!(
    Private,
    async fn h10_wal_beyond_the_limit_is_not_ready(server: TestServer) {
        let f = Fixture::on(&server).await;
        start_stream(&f).await;
        let limits = ReadinessLimits { wal_lag_bytes_max: Some(4 << 20), ..config(&f).limits };
        let config = ReadinessConfig { limits, ..config(&f) };
        assert_eq!(failing(&look(&f.db.pool, &config).await), [] as [&str; 0]);
        f.sql("select pg_logical_emit_message(false, 'other', repeat('x', 1000000)) from generate_series(1, 5); checkpoint").await;
        let report = look(&f.db.pool, &config).await;
        assert_eq!(failing(&report), ["wal_lag"]);
        assert!(
            report.measures.wal_lag_bytes.is_some_and(|bytes| bytes > 5_000_000),
            "{:?}",
            report.measures
        );
        assert!(report.measures.wal_retained_bytes >= report.measures.wal_lag_bytes);
        f.sql("update tidegate.progress set processed_end_lsn = pg_current_wal_lsn()").await;
        assert_eq!(failing(&look(&f.db.pool, &config).await), [] as [&str; 0]);
    }
);

pg_test!(
    NoSlots,
    async fn h1_nothing_started_is_not_ready_and_every_check_says_what_it_lacks(f: Fixture) {
        let report = look(&f.db.pool, &config(&f)).await;
        assert_eq!(failing(&report), ["worker", "registry", "slot", "ordering", "wal_lag", "commit_lag"]);
        assert_eq!(reason(&report, "slot"), "no stream was ever started");
        assert_eq!(reason(&report, "worker"), "no worker has a heartbeat");
        assert_eq!(report.check("worker").and_then(|check| check.advice), Some("Start `tidegate capture`."));
        assert_eq!(report.first.as_deref(), Some("nothing has started yet: run `tidegate capture`"));
        // A role that may not even use the schema is told which right it lacks.
        let name = format!("stranger_{}", f.db.database.name());
        f.sql(&format!("create role {name} login password 'x'")).await;
        let options = f.db.pool.connect_options().as_ref().clone().username(&name).password("x");
        let stranger = sqlx::PgPool::connect_lazy_with(options);
        let report = look(&stranger, &config(&f)).await;
        assert_eq!(reason(&report, "database"), "the role lacks usage on schema tidegate");
        assert!(report.first.as_deref().is_some_and(|first| first.contains("usage on schema tidegate")));
        stranger.close().await;
        f.sql(&format!("drop role {name}")).await;
        f.sql("select tidegate.uninstall()").await;
        let report = look(&f.db.pool, &config(&f)).await;
        assert_eq!(failing(&report).len(), 10, "{report:?}");
        assert_eq!(
            report.first.as_deref(),
            Some("Tidegate's schema is not in this database: run `tidegate migrate`")
        );
        f.sql("create schema tidegate").await;
        let report = look(&f.db.pool, &config(&f)).await;
        assert_eq!(failing(&report).len(), 10, "{report:?}");
        assert_eq!(
            reason(&report, "database"),
            "Tidegate's schema in this database is older than this program"
        );
    }
);

pg_test!(
    Private { "wal_level" = "replica" },
    async fn h7_a_server_without_logical_wal_is_named_before_anything_else(server: TestServer) {
        let f = Fixture::on(&server).await;
        let report = look(&f.db.pool, &config(&f)).await;
        assert_eq!(reason(&report, "slot"), "wal_level is replica, not logical");
        assert!(report.first.as_deref().is_some_and(|first| first.contains("set wal_level = logical")));
        f.close().await;
    }
);

pg_test!(
    Slots,
    async fn h1_absent_infinite_and_zero_limits_are_not_ready(f: Fixture) {
        start_stream(&f).await;
        let good = config(&f);
        let none = ReadinessLimits {
            heartbeat_age_max: None,
            retrying_max: None,
            wal_lag_bytes_max: None,
            commit_lag_max: None,
        };
        let infinite = ReadinessLimits {
            heartbeat_age_max: Some(Duration::MAX),
            retrying_max: Some(Duration::MAX),
            wal_lag_bytes_max: Some(u64::MAX),
            commit_lag_max: Some(Duration::MAX),
        };
        let zero = ReadinessLimits {
            heartbeat_age_max: Some(Duration::ZERO),
            retrying_max: Some(Duration::ZERO),
            wal_lag_bytes_max: Some(0),
            commit_lag_max: Some(Duration::ZERO),
        };
        for limits in [none, infinite, zero] {
            let report = look(&f.db.pool, &ReadinessConfig { limits, ..good.clone() }).await;
            assert_eq!(failing(&report), ["worker", "wal_lag", "commit_lag"], "{limits:?}");
            assert!(reason(&report, "wal_lag").contains("no finite limit"));
        }
        let unnamed = ReadinessConfig { database: None, ..good.clone() };
        assert_eq!(failing(&look(&f.db.pool, &unnamed).await), ["database"]);
        let other = ReadinessConfig { database: Some("other".to_owned()), ..good };
        assert_eq!(failing(&look(&f.db.pool, &other).await), ["database"]);
    }
);

pg_test!(
    Slots,
    async fn h8_a_blocked_worker_is_told_by_its_poison_since_when(f: Fixture) {
        start_stream(&f).await;
        f.sql(
            "update tidegate.worker_heartbeat set state = 'blocked'; insert into tidegate.poison \
             (generation, commit_lsn, failure_class, explanation, first_at) values (1, '0/1', 'decode', 'x', '2026-11-30 18:55:34Z')",
        )
        .await;
        let report = look(&f.db.pool, &config(&f)).await;
        assert_eq!(failing(&report), ["poison"]);
        let json = serde_json::to_value(&report).expect("json");
        let poison = json["checks"]
            .as_array()
            .and_then(|checks| checks.iter().find(|c| c["name"] == "poison"))
            .cloned();
        assert_eq!(poison.expect("the check")["since"], "2026-11-30T18:55:34Z");
    }
);

pg_test!(
    Private,
    async fn h2_a_database_that_is_down_is_not_ready_and_nothing_of_it_is_told(server: TestServer) {
        let f = Fixture::on(&server).await;
        start_stream(&f).await;
        let pool = tidegate_migrations::testing::pool(&f.db.url());
        let readiness = Readiness::new(pool, config(&f));
        assert!(readiness.report().await.ready());
        server.stop(tidegate_embedded::Stop::Immediate).expect("stop");
        let before = SystemTime::now();
        let report = readiness.report().await;
        assert_eq!(failing(&report).len(), 10);
        let json = serde_json::to_string(report.as_ref()).expect("json");
        for secret in [server.password(), "127.0.0.1", &server.port().to_string()] {
            assert!(!json.contains(secret), "{json}");
        }
        let since = report.check("database").and_then(|check| check.since).expect("a time");
        assert!(since >= before);
        // A later look remembers when it began.
        assert_eq!(readiness.report().await.check("database").and_then(|check| check.since), Some(since));
        server.start().expect("start");
        // The heartbeat is unlogged: a crash loses it, which rightly reads as unknown.
        let report = readiness.report().await;
        assert_eq!(failing(&report), ["worker", "commit_lag"], "{report:?}");
        f.close().await;
    }
);

pg_test!(
    Slots,
    async fn many_who_ask_at_once_make_one_look(f: Fixture) {
        start_stream(&f).await;
        let config = ReadinessConfig { cache: Duration::from_secs(3600), ..config(&f) };
        let readiness = Arc::new(Readiness::new(f.db.pool.clone(), config));
        let asking: Vec<_> = (0..100)
            .map(|_| {
                let readiness = readiness.clone();
                tokio::spawn(async move { readiness.report().await })
            })
            .collect();
        let mut reports = Vec::new();
        for ask in asking {
            reports.push(ask.await.expect("no panic"));
        }
        assert!(reports.iter().all(|report| Arc::ptr_eq(report, &reports[0])));
    }
);

pg_test!(
    Slots,
    async fn the_routes_answer_machines(f: Fixture) {
        let readiness = Arc::new(Readiness::new(f.db.pool.clone(), config(&f)));
        let metrics = tidegate_gateway::metrics::install().expect("the recorder");
        let routes = router(Operations { readiness, metrics });
        let get = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let response = routes.clone().oneshot(request).await.expect("an answer");
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            (status, String::from_utf8(body.to_vec()).expect("text"))
        };
        assert_eq!(get("/livez").await.0, StatusCode::OK);
        let (status, body) = get("/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains(r#""ready":false"#) && body.contains("no stream was ever started"), "{body}");
        start_stream(&f).await;
        let (status, body) = get("/readyz").await;
        assert_eq!((status, body.contains(r#""ready":true"#)), (StatusCode::OK, true), "{body}");
        let (status, body) = get("/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(
            body.contains("tidegate_ready 1") && body.contains("tidegate_check_ok{check=\"slot\"} 1"),
            "{body}"
        );
        assert!(body.contains("# HELP tidegate_wal_lag_bytes"), "{body}");
    }
);
