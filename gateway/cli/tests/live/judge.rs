//! What a test knows and a client does not: where cursors stand, which source transaction a mutation was, and what a scope is
//! according to plain SQL.

use super::client::Client;
use super::model_client::Rows;
use super::world::World;
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeMap;
use tidegate_model::{CursorKeys, Lsn, Point, RowKey, RowVersion, ScopeName};
use tidegate_protocol::{Limits, ScopeNumber, ServerFrame};
use uuid::Uuid;

/// Opens this database's cursors.
pub struct Judge {
    pub keys: CursorKeys,
}

impl Judge {
    pub async fn of(world: &World) -> Judge {
        let secret: Vec<u8> =
            world.scalar("select secret from tidegate.cursor_key order by key_id limit 1").await;
        let keys = CursorKeys::new([(1, secret.try_into().expect("32 bytes"))]).expect("a key");
        Judge { keys }
    }

    pub fn point(&self, scope: &str, cursor: &[u8]) -> Point {
        self.keys.open_cursor(&ScopeName(scope.to_owned()), cursor).expect("a cursor of ours").point
    }

    /// V6: on the client's socket this mutation was announced exactly once, directly before the first cut, `fin` page or `joined`
    /// that stands at or after its source transaction.
    pub async fn came_round_once(&self, world: &World, client: &Client, number: u64) {
        let at = Point::TransactionEnd { commit_lsn: fence(world, client, number).await };
        let mut names: BTreeMap<ScopeNumber, String> = BTreeMap::new();
        let mut joined: Vec<ScopeNumber> = Vec::new();
        // The newest cursor among pages of joined scopes since the last cut: where the cut stands, if it has pages.
        let mut staged: Option<Point> = None;
        let (mut announced, mut pending) = (0, false);
        for bytes in &client.frames {
            let frame = ServerFrame::decode(bytes, &Limits::FROM_SERVER).expect("a frame");
            let cut = match &frame {
                ServerFrame::Subscribed(subscribed) => {
                    names.insert(subscribed.scope, subscribed.name.to_string());
                    continue;
                }
                ServerFrame::Materialized(materialized) => {
                    pending = materialized.numbers.iter().any(|told| told.0 == number);
                    announced += usize::from(pending);
                    continue;
                }
                ServerFrame::Page(page) if joined.contains(&page.scope) => {
                    let point = self.point(&names[&page.scope], &page.cursor);
                    staged = staged.max(Some(point));
                    if !page.fin {
                        continue;
                    }
                    staged.take()
                }
                ServerFrame::Joined(ended) => {
                    joined.push(ended.scope);
                    Some(self.point(&names[&ended.scope], &ended.cursor))
                }
                ServerFrame::Cut(_) => staged.take(),
                _ => continue,
            };
            if let Some(cut) = cut {
                assert!(
                    cut < at || announced > 0,
                    "V6: a cut at {cut:?} passed {number} of {at:?} in silence"
                );
                assert!(!pending || cut >= at, "V6: {number} of {at:?} was announced with a cut at {cut:?}");
            }
            pending = false;
        }
        assert_eq!(announced, 1, "V6: {number} is announced once on this socket");
    }

    /// Where the newest frame stands that moved the client's copy of a scope.
    pub fn stands(&self, client: &Client, scope: &str) -> Point {
        self.point(scope, client.model.cursor(scope).expect("a cursor"))
    }
}

/// The source transaction that brought a client's mutation round.
pub async fn fence(world: &World, client: &Client, number: u64) -> Lsn {
    let lsn: Option<String> = world
        .scalar(&format!(
            "select max(materialized_commit_lsn)::text from tidegate.write_fence where client_id = '{}' and number = {number}",
            client.id.0
        ))
        .await;
    lsn.expect("it has come round").parse().expect("a position")
}

/// How often a mutation ran: what its transaction fenced, not counting that it was told.
pub async fn ran(world: &World, client: &Client, number: u64) -> i64 {
    world
        .scalar(&format!(
            "select count(distinct mutation_id) from tidegate.write_fence where client_id = '{}' and number = {number}",
            client.id.0
        ))
        .await
}

/// A list by plain SQL over the application's table: each row's values, encoded here, and the version that its fence gave it.
pub async fn list_by_sql(world: &World, list: &str) -> Rows {
    let table = world.table("items").await;
    let relation: i32 =
        world.scalar("select relation_id from tidegate.relation where table_name = 'items'").await;
    let sql = format!(
        "select i.id, i.list_id, i.n, i.body, v.version from public.items i
         left join tidegate.row_version_{relation} v on v.key = i.id where i.list_id = $1"
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(list).fetch_all(world.pool()).await.expect("rows");
    let encoded = rows.iter().map(|row| {
        let id: i64 = row.get(0);
        let mut image = vec![0x94];
        image.extend(RowKey::Int(id).wire());
        text(row.get(1), &mut image);
        match row.get::<Option<i32>, _>(2) {
            Some(n) => image.extend(RowKey::Int(n.into()).wire()),
            None => image.push(0xc0),
        }
        text(row.get(3), &mut image);
        let version: Option<Uuid> = row.get(4);
        ((table, RowKey::Int(id)), (RowVersion(version.unwrap_or_default()), image))
    });
    encoded.collect()
}

fn text(value: Option<String>, image: &mut Vec<u8>) {
    match value {
        Some(value) => image.extend(RowKey::Text(value).wire()),
        None => image.push(0xc0),
    }
}
