//! What a socket may do, and how it is closed.

use super::client::Client;
use super::model_client::Seen;
use super::world::World;
use std::time::Duration;
use tidegate_embedded::pg_test;
use tidegate_protocol::{ClientFrame, Hello, MutationNumber, Ping, Secret};

async fn refusal(client: &mut Client) -> (String, u16) {
    match client.next().await {
        Some(Seen::Error { code, .. }) => (code, client.close_code().await),
        other => panic!("expected an error, got {other:?}"),
    }
}

pg_test!(
    Slots,
    async fn a_first_frame_that_is_no_good_hello_is_refused_by_name(world: World) {
        let (worker, serving) = world.start().await;
        let hello = |versions: Vec<u32>, token: Option<&'static str>| {
            ClientFrame::from(Hello {
                versions,
                token: token.map(|token| Secret(token.into())),
                user: None,
                client: Client::new(None).id,
                new: true,
                sv: None,
                awaited: Vec::new(),
                acked: MutationNumber(0),
            })
            .encode()
        };
        let cases = [
            (ClientFrame::from(Ping { id: 1 }).encode(), ("hello_required", 4001)),
            (vec![0xc1, 0xff], ("malformed_frame", 4001)),
            (hello(vec![2], None), ("unsupported_version", 4001)),
            (hello(vec![3], Some("not a token")), ("auth_invalid", 4002)),
        ];
        for (bytes, expected) in cases {
            let mut client = Client::new(None);
            client.open(&serving).await;
            client.send_bytes(bytes).await;
            let (code, close) = refusal(&mut client).await;
            assert_eq!((code.as_str(), close), expected);
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a_frame_that_is_too_large_is_refused_by_name_before_and_after_hello(world: World) {
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.frame_bytes_max = 2000;
        let serving = world.gateway_with(config).await;
        // A little more than the limit is read and judged; much more is not even read.
        for bytes in [2001, 60_000, 300_000] {
            let mut first = Client::new(None);
            first.open(&serving).await;
            first.send_bytes(vec![0x81; bytes]).await;
            assert_eq!(refusal(&mut first).await, ("frame_too_large".to_owned(), 4005));
            let mut anna = Client::connected(&serving, Some("anna")).await;
            anna.send_bytes(vec![0x81; bytes]).await;
            assert_eq!(refusal(&mut anna).await, ("frame_too_large".to_owned(), 4005));
            assert_eq!(anna.seen.last(), Some(&Seen::Bye("limit".into())));
        }
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn limits_answer_by_name_and_unknown_frames_do_no_harm(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1')").await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.scopes_max = 1;
        config.limits.subject_sockets_max = 1;
        config.limits.hello_timeout = Duration::from_millis(300);
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.subscribe("news").await;
        let seen = anna.until_seen("a refusal", |seen| matches!(seen, Seen::Error { .. })).await;
        assert!(matches!(seen, Seen::Error { code, .. } if code == "scope_limit"));
        anna.send_bytes(b"\x81\xa1t\xa7unheard".to_vec()).await;
        let seen = anna.until_seen("an answer", |seen| matches!(seen, Seen::Error { .. })).await;
        assert!(matches!(seen, Seen::Error { code, .. } if code == "unknown_frame"));
        let mut second = Client::new(Some("anna"));
        second.open(&serving).await;
        second.hello().await;
        assert_eq!(refusal(&mut second).await, ("connection_limit".to_owned(), 4005));
        let mut silent = Client::new(None);
        silent.open(&serving).await;
        assert_eq!(refusal(&mut silent).await, ("hello_required".to_owned(), 4001));
        // The first socket is still well.
        anna.ping().await;
        // Subscribing and unsubscribing many times leaves nothing behind and ends well.
        for _ in 0..50 {
            anna.unsubscribe("list:L1").await;
            anna.join("list:L1").await;
        }
        world.sql("insert into items values (1, 'L1', 1, 'x')").await;
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn a_drain_says_when_to_come_back(world: World) {
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        let mut ben = Client::connected(&serving, Some("ben")).await;
        let stopped = tokio::spawn(serving.stop());
        for client in [&mut anna, &mut ben] {
            assert_eq!(client.close_code().await, 4000);
            assert_eq!(client.seen.last(), Some(&Seen::Bye("going_away".into())));
        }
        stopped.await.expect("stopped");
        worker.stop().await;
    }
);

pg_test!(
    Slots,
    async fn cl01_a_client_that_does_not_read_is_closed_and_resumes_later(world: World) {
        world.sql("insert into members values (1, 'anna', 'L1'), (2, 'ben', 'L1')").await;
        let worker = world.worker().await;
        let mut config = world.config();
        config.limits.send_timeout = Duration::from_millis(500);
        config.limits.heartbeat = Duration::from_millis(400);
        config.limits.mailbox_batches_max = 4;
        let serving = world.gateway_with(config).await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        // Far more than the sockets' buffers hold, and nobody reads.
        for round in 0..40 {
            world.sql(&format!("insert into items select {round} * 100 + n, 'L1', n, repeat('x', 10000) from generate_series(1, 50) n")).await;
        }
        world.settle().await;
        let closed =
            tokio::time::timeout(Duration::from_secs(30), async { while anna.next().await.is_some() {} })
                .await;
        assert!(closed.is_ok(), "the socket was closed");
        let mut ben = Client::connected(&serving, Some("ben")).await;
        ben.join("list:L1").await;
        anna.connect(&serving).await;
        anna.subscribe("list:L1").await;
        anna.until_list(&world, "L1").await;
        worker.stop().await;
        serving.stop().await;
    }
);
