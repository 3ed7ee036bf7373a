//! Layouts that change while frames are queued: each page names its own schema version, whose manifest came before it on the same
//! socket, however slowly the socket is read (G3, V5).

use super::client::{Client, Write, text};
use super::model_client::Seen;
use super::world::{MEMBERS, World};
use std::collections::BTreeMap;
use tidegate_embedded::pg_test;
use tidegate_protocol::{Limits, ServerFrame, decode_row};

/// Columns by schema version and table, as the socket was told.
type Told = BTreeMap<(i32, i32), Vec<String>>;

/// Walks through every frame of the client's socket: each row has exactly the columns of the manifest that its page names. Gives the
/// schema versions of its pages, in order of first use.
fn check_layouts(client: &Client) -> Vec<i32> {
    let mut told = Told::new();
    let mut used = Vec::new();
    for bytes in &client.frames {
        let frame = ServerFrame::decode(bytes, &Limits::FROM_SERVER).expect("a frame");
        let (sv, rows): (i32, Vec<(i32, &[u8])>) = match &frame {
            ServerFrame::Welcome(welcome) => {
                tell(&mut told, welcome.sv.0, welcome.schema.as_ref().expect("a manifest"));
                continue;
            }
            ServerFrame::Schema(schema) => {
                tell(&mut told, schema.sv.0, &schema.schema);
                continue;
            }
            ServerFrame::Page(page) => {
                let effects = page.txs.iter().flat_map(|tx| &tx.effects);
                (page.sv.0, effects.filter_map(|e| Some((e.table.0, e.row.as_ref()?.as_ref()))).collect())
            }
            ServerFrame::Rebuild(rebuild) => {
                (rebuild.sv.0, rebuild.rows.iter().map(|row| (row.table.0, row.row.as_ref())).collect())
            }
            _ => continue,
        };
        for (table, row) in &rows {
            let columns =
                told.get(&(sv, *table)).unwrap_or_else(|| panic!("schema {sv} comes before its first use"));
            assert_eq!(
                decode_row(row).expect("a row").len(),
                columns.len(),
                "table {table} under schema {sv}"
            );
        }
        if !rows.is_empty() && used.last() != Some(&sv) {
            used.push(sv);
        }
    }
    used
}

fn tell(told: &mut Told, sv: i32, manifest: &tidegate_protocol::Manifest<'_>) {
    for table in &manifest.tables {
        let columns = table.cols.iter().map(|column| column.name.to_string()).collect();
        told.insert((sv, table.id.0), columns);
    }
}

const WIDER: &str = "alter table items add column late text;
    select tidegate.register_table('public.items', '{\"write\": \"enabled\", \"unrestricted\": true,
        \"columns\": [\"id\", \"list_id\", \"n\", \"body\", \"late\"], \"scopes\": [{\"name\": \"list:{list_id}\"}]}')";
const ANOTHER: &str = "create table public.notes (id bigint primary key, list_id text, note text);
    select tidegate.register_table('public.notes', '{\"scopes\": [{\"name\": \"list:{list_id}\"}]}')";

pg_test!(
    Slots,
    async fn g3_v5_a_column_and_a_table_that_come_while_frames_are_queued_have_their_schema_first(
        world: World,
    ) {
        world.sql(MEMBERS).await;
        let worker = world.worker().await;
        let mut config = world.config();
        (config.limits.outbox_bytes_max, config.limits.page_effects_max) = (4000, 7);
        let serving = world.gateway_with(config).await;
        let mut slow = Client::connected(&serving, Some("anna")).await;
        let mut quick = Client::connected(&serving, Some("ben")).await;
        for client in [&mut slow, &mut quick] {
            client.join("list:L1").await;
        }
        // More than a socket's buffers hold, under the first layout; then the table is empty, so that it may be widened.
        for round in 0..12 {
            let rows = format!(
                "insert into items select {round} * 100 + n, 'L1', n, repeat('x', 8000) from generate_series(1, 60) n"
            );
            world.sql(&rows).await;
        }
        world.sql("delete from items").await;
        world.settle().await;
        world.sql(WIDER).await;
        world
            .sql("insert into items select n, 'L1', n, 'wide', 'late ' || n from generate_series(1, 20) n")
            .await;
        world.sql(ANOTHER).await;
        world
            .sql("insert into notes values (1, 'L1', 'a note'); update items set late = 'later' where id = 1")
            .await;
        world.settle().await;
        for client in [&mut quick, &mut slow] {
            let rows = |client: &Client| client.rows("list:L1").len();
            while rows(client) != 21 || client.model.staged() {
                assert!(client.next().await.is_some(), "the socket closed");
            }
            client.ping().await;
            let used = check_layouts(client);
            assert!(used.len() >= 3 && used.is_sorted(), "each layout in its turn: {used:?}");
        }
        // A socket that was away over all of it: by resume, and by rebuild.
        let mut away = quick.twin();
        away.connect(&serving).await;
        away.join("list:L1").await;
        assert_eq!(away.rows("list:L1"), quick.rows("list:L1"));
        check_layouts(&away);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g3_v5_one_transaction_over_two_layouts_comes_whole_in_one_cut(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        anna.seen.clear();
        // The activation is a message inside: what comes before it has the old layout, what comes after it the new one.
        world
            .sql(&format!(
                "begin; insert into items values (1, 'L1', 1, 'gone'); delete from items; insert into news values ('a', 'b'); {WIDER};
                 insert into items values (2, 'L1', 2, 'after', 'late'); {ANOTHER}; insert into notes values (1, 'L1', 'x');
                 update items set late = 'latest'; commit"
            ))
            .await;
        world.settle().await;
        while anna.rows("list:L1").len() != 2 || anna.model.staged() {
            assert!(anna.next().await.is_some(), "the socket closed");
        }
        anna.ping().await;
        let cuts = anna.seen.iter().filter(|seen| **seen == Seen::Cut).count();
        let pages = anna.seen.iter().filter(|seen| matches!(seen, Seen::Page { .. })).count();
        assert!(pages >= 1 && cuts <= 1, "V5: one source transaction, one cut: {:?}", anna.seen);
        check_layouts(&anna);
        worker.stop().await;
        serving.stop().await;
    }
);

pg_test!(
    Slots,
    async fn g3_a_client_that_writes_under_a_layout_that_is_gone_is_told_by_name(world: World) {
        world.sql(MEMBERS).await;
        let (worker, serving) = world.start().await;
        let mut anna = Client::connected(&serving, Some("anna")).await;
        anna.join("list:L1").await;
        let old = Client::batch(&world, 1, &[Write::insert(1, "under the old one")]).await;
        world.sql(WIDER).await;
        world.settle().await;
        let mut late = Client::batch(&world, 2, &[Write::insert(2, "x")]).await;
        late.mutations[0].cols.0.push(("late".into(), text("y")));
        // Nothing that it names has changed; one that names what its own schema does not have; and one of the future.
        anna.send(old.into()).await;
        assert_eq!(anna.outcome(1).await[0].code, None);
        let mut unknown = late.clone();
        unknown.sv.0 -= 1;
        anna.send(unknown.into()).await;
        assert_eq!(anna.outcome(2).await[0].code.as_deref(), Some("unknown_column"));
        let mut future = Client::batch(&world, 3, &[Write::insert(3, "x")]).await;
        future.sv.0 += 50;
        anna.send(future.into()).await;
        assert_eq!(anna.error().await, "schema_unknown");
        (late.reference, late.mutations[0].number.0) = (3, 3);
        anna.send(late.into()).await;
        assert_eq!(anna.outcome(3).await[0].code, None);
        anna.until_round(3).await;
        assert_eq!(anna.rows("list:L1").len(), 2);
        worker.stop().await;
        serving.stop().await;
    }
);
