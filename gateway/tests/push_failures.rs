//! Pushes where something else fails or is full: timeouts, a killed server, limits, a registry that moves on.

use crate::fixture::{Fixture, Write, codes, insert, one, statuses, text, update};
use sqlx::{Connection, Executor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_embedded::testing::TestServer;
use tidegate_gateway::push::{PushConfig, PushStartError, Pusher};
use tidegate_model::RegistryGeneration;
use tidegate_protocol::{ErrorCode, MutationStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

pg_test!(
    NoSlots,
    async fn v3_a_statement_timeout_is_an_error_and_never_an_outcome(f: Fixture) {
        f.sql("create function public.slow() returns trigger language plpgsql as $$ begin \
                 if new.title = 'slow' and exists (select from public.word where id = 'slow') then perform pg_sleep(60); end if; return new; end $$; \
               create trigger slow before insert on public.item for each row execute function public.slow(); insert into public.word values ('slow'); \
               grant select on public.word to public; alter table public.word disable row level security")
            .await;
        let mut client = f.client("ann", true);
        let push = f.push(
            1,
            false,
            vec![insert(1, "ann", "quick"), insert(2, "ann", "slow"), insert(3, "ann", "after")],
        );
        let reply = client.push(&push).await;
        assert_eq!(statuses(&reply), ["accepted"], "what was quick is decided");
        let error = reply.error.expect("an error");
        assert_eq!((error.code, error.code.retryable()), (ErrorCode::Unavailable, true));
        f.sql("delete from public.word").await;
        assert_eq!(statuses(&client.push(&push).await), ["accepted"; 3]);
    }
);

pg_test!(
    NoSlots,
    async fn v2_too_many_unmaterialized_mutations_are_capture_behind(f: Fixture) {
        let mut client = f.client("ann", true);
        let many =
            |from: i64, count: i64| (from..from + count).map(|id| insert(id, "ann", "a")).collect::<Vec<_>>();
        for first in [1, 101, 201] {
            let reply = client.push(&f.push(first, false, many(first as i64, 100))).await;
            assert_eq!(reply.results.len(), 100, "{:?}", reply.error);
        }
        let push = f.push(301, false, many(301, 1));
        let reply = client.push(&push).await;
        let error = reply.error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::CaptureBehind, true));
        assert!(reply.results.is_empty());
        let again = client.push(&f.push(201, false, many(201, 100))).await;
        assert_eq!(statuses(&again), ["accepted"; 100], "stored outcomes are still told");
        f.sql("update tidegate.write_fence set generation = 1, materialized_commit_lsn = '0/1' where number <= 50").await;
        assert_eq!(statuses(&client.push(&push).await), ["accepted"]);
    }
);

pg_test!(
    NoSlots,
    async fn pushes_follow_the_registry(f: Fixture) {
        let mut client = f.client("ann", true);
        assert_eq!(codes(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await), [""]);
        f.sql("create table public.late (id bigint primary key, owner text); grant all on public.late to public; \
               select tidegate.register_table('public.late', '{\"write\": \"enabled\", \"unrestricted\": true, \"scopes\": [{\"name\": \"late\"}]}')")
            .await;
        let late = f.table("late").await;
        let mut push = f.push(2, false, vec![Write { table: Some(late), cols: vec![], ..insert(1, "", "") }]);
        push.sv = RegistryGeneration(f.generation().await);
        assert_eq!(
            codes(&client.push(&push).await),
            [""],
            "a push under a newer schema version makes us look"
        );
        f.sql("select tidegate.register_table('public.item', '{\"write\": \"read_only\", \"scopes\": [{\"name\": \"user:{owner}\"}]}')").await;
        let reply = client.push(&f.push(3, false, vec![insert(2, "ann", "a")])).await;
        assert_eq!(codes(&reply), ["not_writable"], "and the statement is never run under an older registry");
        let mut push = f.push(4, false, vec![update(1, "a")]);
        push.sv = RegistryGeneration(999);
        assert_eq!(client.push(&push).await.error.map(|error| error.code), Some(ErrorCode::SchemaUnknown));
    }
);

pg_test!(
    NoSlots,
    async fn a_push_is_judged_by_the_schema_version_it_was_written_under(f: Fixture) {
        let mut client = f.client("ann", true);
        let under = |sv: i32, first, write| {
            let mut push = f.push(first, false, vec![write]);
            push.sv = RegistryGeneration(sv);
            push
        };
        let early = under(0, 1, insert(1, "ann", "a"));
        assert_eq!(codes(&client.push(&early).await), ["unknown_table"]);
        assert_eq!(codes(&client.push(&early).await), ["unknown_table"], "its first outcome for ever");
        f.sql("alter table public.item add column late text; \
               select tidegate.register_table('public.item', '{\"write\": \"enabled\", \"columns\": [\"id\", \"owner\", \"title\", \"late\"], \"scopes\": [{\"name\": \"user:{owner}\"}]}')")
            .await;
        let late = |id| Write {
            cols: vec![("owner".into(), text("ann")), ("late".into(), text("x"))],
            ..insert(id, "", "")
        };
        assert_eq!(codes(&client.push(&under(f.sv.0, 2, late(2))).await), ["unknown_column"]);
        assert_eq!(codes(&client.push(&under(f.generation().await, 3, late(3))).await), [""]);
        assert_eq!(
            codes(&client.push(&under(f.sv.0, 4, insert(4, "ann", "a"))).await),
            [""],
            "nothing that it names has changed"
        );
        f.sql("alter table public.item drop column late; \
               select tidegate.register_table('public.item', '{\"write\": \"enabled\", \"scopes\": [{\"name\": \"user:{owner}\"}]}')")
            .await;
        let late = under(f.generation().await - 1, 5, late(5));
        assert_eq!(codes(&client.push(&late).await), ["schema_changed"]);
    }
);

pg_test!(
    NoSlots,
    async fn limits_are_named(f: Fixture) {
        let mut client = f.client("ann", true);
        let many = (1..=201).map(|id| insert(id, "ann", "a")).collect();
        let reply = client.push(&f.push(1, false, many)).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::BatchTooLarge));
        let reply = client.push(&f.push(1, false, vec![])).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::MalformedFrame));
        assert_eq!(f.count("select count(*) from tidegate.client").await, 0);
    }
);

pg_test!(
    Private,
    async fn wr01_a_push_survives_a_killed_server(server: TestServer) {
        let f = Fixture::on(&server).await;
        let mut client = f.client("ann", true);
        assert_eq!(
            statuses(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            ["accepted"]
        );
        server.kill().expect("kill");
        let push = f.push(2, false, vec![insert(2, "ann", "b")]);
        let reply = client.push(&push).await;
        assert_eq!(reply.error.map(|error| error.code), Some(ErrorCode::Unavailable));
        server.start().expect("start");
        assert_eq!(
            statuses(&client.push(&push).await),
            ["accepted"],
            "dead connections are replaced by themselves"
        );
        assert_eq!(
            one(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
            MutationStatus::Accepted
        );
        f.close().await;
    }
);

pg_test!(
    NoSlots,
    async fn a_full_queue_is_unavailable_with_a_hint(f: Fixture) {
        f.sql("insert into public.item (id, owner) values (1, 'ann')").await;
        let pusher = f.small_pusher().await;
        let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        writer.execute("begin; update public.item set rev = 2 where id = 1").await.expect("an update");
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut client = f.client_at(&pusher, Uuid::new_v4(), "ann", true);
            let push = f.push(1, false, vec![update(1, "x")]);
            runs.push(tokio::spawn(async move { client.push(&push).await }));
        }
        f.wait_until_a_push_waits_for_a_lock().await;
        // One runs and one waits for its place, or is about to: a third finds the queue full once it does.
        let refused = loop {
            let mut client = f.client_at(&pusher, Uuid::new_v4(), "ann", true);
            let mut probe = tokio::spawn({
                let push = f.push(1, false, vec![update(2, "x")]);
                async move { client.push(&push).await }
            });
            tokio::select! {
                reply = &mut probe => break reply.expect("no panic"),
                () = f.wait_until_a_push_waits_for_a_lock() => probe.abort(),
            }
        };
        let error = refused.error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::Unavailable, true));
        writer.execute("commit").await.expect("commit");
        for run in runs {
            assert_eq!(statuses(&run.await.expect("no panic")), ["accepted"]);
        }
    }
);

pg_test!(
    NoSlots,
    async fn v3_a_locked_row_is_a_named_error_and_never_an_outcome(f: Fixture) {
        f.sql("insert into public.item (id, owner) values (1, 'ann')").await;
        let pusher = f.pusher_with(|config| config.lock_timeout = Duration::from_millis(50)).await;
        let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        writer.execute("begin; update public.item set rev = 2 where id = 1").await.expect("an update");
        let mut client = f.client_at(&pusher, f.client_id, "ann", true);
        let push = f.push(1, false, vec![insert(2, "ann", "free"), update(1, "locked")]);
        let reply = client.push(&push).await;
        assert_eq!(statuses(&reply), ["accepted"], "what is not locked is decided");
        let error = reply.error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::Unavailable, true));
        assert!(error.message.contains("locked"), "{error}");
        writer.execute("commit").await.expect("commit");
        assert_eq!(statuses(&client.push(&push).await), ["accepted"; 2]);
    }
);

pg_test!(
    NoSlots,
    async fn one_subject_leaves_a_connection_and_half_of_the_queue_to_others(f: Fixture) {
        f.sql("insert into public.item (id, owner) values (1, 'ann')").await;
        let long = Duration::from_secs(60);
        let pusher = f
            .pusher_with(|config| {
                (config.connections_max, config.subject_running_max, config.queue_max) = (2, 4, 2);
                (config.timeout, config.lock_timeout, config.queue_wait) = (long, long, long);
            })
            .await;
        let mut writer = sqlx::PgConnection::connect(&f.db.url()).await.expect("a connection");
        writer.execute("begin; update public.item set rev = 2 where id = 1").await.expect("an update");
        let run = |subject: &str, write| {
            let mut client = f.client_at(&pusher, Uuid::new_v4(), subject, true);
            let push = f.push(1, false, vec![write]);
            tokio::spawn(async move { client.push(&push).await })
        };
        let first = run("ann", update(1, "a"));
        f.wait_until_a_push_waits_for_a_lock().await;
        // Of two more, one may wait.
        let (mut second, mut third) = (run("ann", update(1, "b")), run("ann", update(1, "c")));
        let (refused, waits) = tokio::select! {
            refused = &mut second => (refused, third),
            refused = &mut third => (refused, second),
        };
        let error = refused.expect("no panic").error.expect("an error");
        assert_eq!((error.code, error.retry_after_ms.is_some()), (ErrorCode::RateLimited, true));
        let bobs = run("bob", insert(2, "bob", "b")).await.expect("no panic");
        assert_eq!(statuses(&bobs), ["accepted"], "somebody else's push runs meanwhile");
        writer.execute("commit").await.expect("commit");
        for run in [first, waits] {
            assert_eq!(statuses(&run.await.expect("no panic")), ["accepted"]);
        }
    }
);

/// Stands between pusher and server, and loses the server's next answer, with the connection, whenever it is told to.
async fn lossy_link(server_port: u16, lose: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", server_port)).await.expect("the server");
            tokio::spawn(pass_on(client, server, lose.clone()));
        }
    });
    port
}

async fn pass_on(mut client: TcpStream, mut server: TcpStream, lose: Arc<AtomicBool>) {
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(count) if count > 0 && server.write_all(&up[..count]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut down) => match read {
                // The server answers a push when it has committed.
                Ok(count) if count > 0 && !lose.swap(false, Ordering::SeqCst) => {
                    if client.write_all(&down[..count]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

pg_test!(
    NoSlots,
    async fn wr01_a_lost_commit_answer_is_settled_by_the_stored_outcome(f: Fixture) {
        let lose = Arc::new(AtomicBool::new(false));
        let port = lossy_link(f.db.database.server().port(), lose.clone()).await;
        let pusher = f.pusher_through(port).await;
        let mut client = f.client_at(&pusher, f.client_id, "ann", true);
        // Twice: the second time its outcome is told. So both statements are prepared, and the next answer is that of a push.
        for _ in 0..2 {
            assert_eq!(
                statuses(&client.push(&f.push(1, false, vec![insert(1, "ann", "a")])).await),
                ["accepted"]
            );
        }
        let pushes = [
            (f.push(2, false, vec![insert(2, "ann", "a")]), "accepted"),
            (f.push(3, false, vec![insert(1, "ann", "again")]), "conflict"),
            (f.push(4, true, vec![insert(3, "ann", "a"), insert(4, "ann", "b")]), "accepted"),
            (f.push(6, false, vec![insert(5, "ann", "a"), insert(6, "ann", "b")]), "accepted"),
        ];
        for (push, expected) in &pushes {
            lose.store(true, Ordering::SeqCst);
            let reply = client.push(push).await;
            assert!(!lose.load(Ordering::SeqCst), "an answer was lost");
            assert!(reply.error.is_none(), "{:?}", reply.error);
            assert!(statuses(&reply).iter().all(|status| status == expected), "{reply:?}");
            assert_eq!(client.push(push).await.results, reply.results);
        }
        assert_eq!(f.count("select count(*) from public.item").await, 6);
        assert_eq!(f.count("select count(*) from tidegate.write_fence").await, 6, "nothing ran twice");
    }
);

pg_test!(
    NoSlots,
    async fn a_pusher_that_could_not_push_does_not_start(f: Fixture) {
        let start = async |login: &str, role: &str| Pusher::start(f.push_config(login, role)).await.map(drop);
        assert!(start(&f.login, &f.role).await.is_ok());
        let missing = start(&f.login, "no_such_role").await;
        assert!(matches!(missing, Err(PushStartError::Role(role)) if role == "no_such_role"));
        let other = format!("other_{}", f.db.database.name());
        f.sql(&format!("create role {other} nologin")).await;
        let stranger = start(&f.login, &other).await;
        assert!(matches!(stranger, Err(PushStartError::Role(role)) if role == other), "not a member");
        f.sql(&format!("grant {other} to {}", f.login)).await;
        let ungranted = start(&f.login, &other).await;
        let expected = format!("select tidegate.grant_push('{}', array['{other}'::name])", f.login);
        assert!(
            matches!(&ungranted, Err(PushStartError::Rights(statement)) if *statement == expected),
            "{ungranted:?}"
        );
        f.sql(&expected).await;
        assert!(start(&f.login, &other).await.is_ok());

        let config = f.push_config(&f.login, &f.role);
        for wrong in [
            PushConfig { connections_max: 0, ..config.clone() },
            PushConfig { batch_mutations_max: 301, ..config.clone() },
            PushConfig { subject_running_max: 0, ..config.clone() },
            PushConfig { lock_timeout: Duration::from_micros(1), ..config.clone() },
            PushConfig { timeout: Duration::ZERO, ..config },
        ] {
            assert!(matches!(Pusher::start(wrong).await, Err(PushStartError::Limits(_))));
        }
        f.sql(&format!("drop owned by {other}; drop role {other}")).await;
    }
);
