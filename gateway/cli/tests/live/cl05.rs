//! CL-05: no hole between initial data and live stream, and no half transaction ever. A writer commits without pause; clients
//! subscribe, rebuild and resume meanwhile, with pages of three effects, transactions of ten rows that keep a sum, and sockets that
//! are cut after the second page of four. 500 clients under `TIDEGATE_SCALE=full`.

use super::client::Client;
use super::model_client::Seen;
use super::world::{Serving, World, scale};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_embedded::pg_test;

const ROWS: i64 = 10;
const SUM: i64 = 100;

/// What every notification must show: all rows, and their sum.
fn whole(client: &Client) {
    let list = client.list("L1");
    if client.model.is_joined("list:L1") {
        let sum: i64 = list.iter().filter_map(|(_, n, _)| n.map(i64::from)).sum();
        assert_eq!((list.len() as i64, sum), (ROWS, SUM), "CL-05: {list:?}");
    }
}

/// Reads one frame; after whatever an application would be notified of, the invariant holds.
async fn step(client: &mut Client) -> Seen {
    let seen = client.next().await.expect("the socket stays open");
    if matches!(seen, Seen::Cut | Seen::Joined { .. } | Seen::Page { .. }) && !client.model.staged() {
        whole(client);
    }
    seen
}

/// One client's life: it rebuilds, follows, is cut after the second page of a transaction's four, and resumes; and begins anew now
/// and then.
async fn live(mut client: Client, serving: Arc<Serving>, rounds: usize, writing: Arc<AtomicBool>) -> Client {
    for round in 0..rounds {
        client.connect(&serving).await;
        client.subscribe("list:L1").await;
        let how = client.answered("list:L1").await;
        assert!(matches!(how.as_str(), "new" | "continued" | "resume" | "cheaper"), "{how}");
        let mut pages = 0;
        loop {
            match step(&mut client).await {
                // Its position is inside of a transaction: what was staged is not shown, and comes again. In some rounds already
                // while it catches up.
                Seen::Page { .. } if client.model.is_joined("list:L1") || round % 2 == 1 => pages += 1,
                Seen::Rebuild { .. } if round % 3 == 1 => pages += 1,
                Seen::Cut => pages = 0,
                _ => {}
            }
            if pages == 2 || !writing.load(Ordering::Relaxed) {
                break;
            }
        }
        client.disconnect();
        if round % 3 == 0 {
            // An empty store: the next round rebuilds, and is cut after two of its pages.
            client.model.held.clear();
        }
    }
    client
}

pg_test!(
    Slots,
    async fn cl05_v4_v5_clients_that_come_and_go_under_a_writer_always_show_whole_transactions(world: World) {
        world.sql("insert into members select n, 'user' || n, 'L1' from generate_series(0, 500) n").await;
        world
            .sql(&format!(
                "insert into items select n, 'L1', {}, 'x' from generate_series(1, {ROWS}) n",
                SUM / ROWS
            ))
            .await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.page_effects_max, config.limits.rebuild_rows_max) = (3, 3);
        // Few pages at a time. Whoever falls out of the window reads three effects per query, and would not catch up with this writer.
        config.limits.outbox_bytes_max = 8000;
        // These clients say nothing.
        config.limits.heartbeat = Duration::from_secs(600);
        (config.limits.beginning_max, config.limits.reads_max) = (64, 4);
        let serving = Arc::new(world.gateway_with(config).await);
        let writing = Arc::new(AtomicBool::new(true));
        let (clients, rounds) = (scale(500, 24), scale(40, 20));
        let lives: Vec<_> = (0..clients)
            .map(|index| {
                let client = Client::new(Some(&format!("user{index}")));
                tokio::spawn(live(client, serving.clone(), rounds, writing.clone()))
            })
            .collect();
        let over = async {
            let mut ended = Vec::new();
            for life in lives {
                ended.push(life.await.expect("no client saw half of anything"));
            }
            ended
        };
        let writer = async {
            let mut round = 0;
            loop {
                // Ten rows in one transaction, in and out of the list by two, and the sum stays.
                round += 1;
                let shift = round % 50;
                let statement = format!(
                    "update items set n = {} + case when id % 2 = 0 then {shift} else -{shift} end, body = '{round}'",
                    SUM / ROWS
                );
                world.sql(&statement).await;
                tokio::time::sleep(Duration::from_millis(scale(1, 4) as u64)).await;
            }
        };
        let mut ended = tokio::select! {
            ended = over => ended,
            () = writer => unreachable!("it writes for as long as anybody reads"),
        };
        writing.store(false, Ordering::Relaxed);
        world.settle().await;
        for client in ended.iter_mut().take(50) {
            client.connect(&serving).await;
            client.join("list:L1").await;
            client.until_list(&world, "L1").await;
            whole(client);
        }
        drop(ended);
        Arc::into_inner(serving).expect("nobody else holds it").stop().await;
        worker.stop().await;
    }
);
