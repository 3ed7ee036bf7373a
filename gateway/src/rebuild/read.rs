//! The two statements behind a rebuild.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;
use tidegate_log::{ANCHOR_SQL, Anchor, EffectLogError};
use tidegate_model::{Point, RebuildToken, RelationId, RelationKind, RowReader, RowVersion};
use tidegate_protocol::RebuildPageBuilder;
use uuid::Uuid;

use super::{After, RebuildPage, Rebuilds, Run};
use crate::hub::Feed;
use crate::registry::RegistryError;

/// Why no page could be had.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The read failed, or belongs to another history.
    #[error("{0}")]
    Log(#[from] EffectLogError),
    /// The registry generation in force could not be read.
    #[error("{0}")]
    Registry(#[from] RegistryError),
    /// A run that has just begun begins before the grant that it was begun for: what it read is not the log that gave the grant.
    #[error("the log is behind the grant")]
    BeforeGrant,
    /// A token names a run that began at a transaction which is none of this history (P9), or so old that its record is gone.
    #[error("the run is of another history")]
    LostRun,
    /// A stored row does not have the shape that its registry generation says.
    #[error("a projected row of relation {0} is damaged")]
    Damaged(RelationId),
}

impl From<sqlx::Error> for RebuildError {
    fn from(error: sqlx::Error) -> RebuildError {
        RebuildError::Log(EffectLogError::Database(error))
    }
}

impl RebuildError {
    /// Whether the history has been left: asking again is useless.
    pub fn ends_history(&self) -> bool {
        matches!(self, RebuildError::Log(EffectLogError::LineageChanged(_) | EffectLogError::NoGeneration))
    }
}

const KIND: usize = 0;
const COMPLETE: usize = 3;
const RELATION: usize = 6;
const KEY: usize = 7;
const VERSION: usize = 8;
const ROW: usize = 9;

impl Rebuilds {
    fn anchor(&self, rows: &[PgRow]) -> Result<Anchor, EffectLogError> {
        Anchor::of_row(rows.first().ok_or(EffectLogError::NoGeneration)?, &self.press.lineage)
    }

    /// Looks which relations there are. `earliest`: a token's; else the run begins here and now.
    pub(super) async fn begin_run(
        &self,
        feed: &Feed,
        earliest: Option<Point>,
    ) -> Result<std::sync::Arc<Run>, RebuildError> {
        let _permit = self.reads.acquire().await;
        let state = self.press.lineage.state;
        let text = Anchor::statement("") + &include_str!("head.sql").replace("{state}", &state.to_string());
        let began_at = earliest.and_then(|point| point.commit_lsn());
        let mut registry = self.in_force().await?;
        let (rows, anchor) = loop {
            let synced: Vec<i32> = registry
                .relations
                .iter()
                .filter(|relation| relation.kind == RelationKind::Synced)
                .map(|relation| relation.relation_id.0)
                .collect();
            let rows = sqlx::query(AssertSqlSafe(text.clone()))
                .bind(feed.name.hash().to_vec())
                .bind(synced)
                .bind(began_at.map(|lsn| lsn.to_string()))
                .fetch_all(&self.pool)
                .await?;
            let anchor = self.anchor(&rows)?;
            // Whoever asks has seen the tail there.
            if began_at > anchor.tip {
                return Err(EffectLogError::LineageChanged("history").into());
            }
            if anchor.registry == registry.generation {
                break (rows, anchor);
            }
            // A table was registered in between: its rows belong to the run.
            registry = self.registries.load(&self.pool, anchor.registry).await?;
        };
        let mut relations = Vec::new();
        for row in &rows[1..] {
            match row.try_get::<i32, _>(KIND)? {
                1 => relations.push(RelationId(row.try_get(RELATION)?)),
                _ => return Err(RebuildError::LostRun),
            }
        }
        Ok(std::sync::Arc::new(Run {
            earliest: earliest.unwrap_or(anchor.tip_position().point()),
            relations,
            began: Instant::now(),
            pages: Mutex::new(HashMap::new()),
        }))
    }

    async fn in_force(&self) -> Result<std::sync::Arc<tidegate_model::Snapshot>, RebuildError> {
        let row = sqlx::query(AssertSqlSafe(Anchor::statement(""))).fetch_optional(&self.pool).await?;
        let row = row.ok_or(EffectLogError::NoGeneration)?;
        let anchor = Anchor::of_row(&row, &self.press.lineage)?;
        Ok(self.registries.load(&self.pool, anchor.registry).await?)
    }

    pub(super) async fn read_page(
        &self,
        feed: &Feed,
        run: &Run,
        after: &After,
    ) -> Result<RebuildPage, RebuildError> {
        let next_relation = |after: RelationId| run.relations.iter().copied().find(|r| *r > after);
        let (relation_id, key) = match after {
            Some((relation, key)) if run.relations.contains(relation) => (Some(*relation), key.clone()),
            Some((relation, _)) => (next_relation(*relation), Vec::new()),
            None => (run.relations.first().copied(), Vec::new()),
        };
        let Some(relation_id) = relation_id else {
            let sv = self.in_force().await?.generation;
            let token = self.token(feed, run, after, sv.0);
            let frame = RebuildPageBuilder::new(feed.number, sv).finish(&token, true);
            let read_at = Point::GenerationStart;
            return Ok(RebuildPage { frame, sv, read_at, after: after.clone(), done: true });
        };
        let text = format!("{ANCHOR_SQL}{}", include_str!("page.sql"))
            .replace("{anchor_row}", &anchor_row())
            .replace("{state}", &self.press.lineage.state.to_string())
            .replace("{relation}", &relation_id.to_string());
        let rows = sqlx::query(AssertSqlSafe(text))
            .bind(feed.name.hash().to_vec())
            .bind(key)
            .bind(i64::from(self.bounds.page_rows_max))
            .bind(self.bounds.page_bytes_max as i64)
            .fetch_all(&self.pool)
            .await?;
        let anchor = self.anchor(&rows)?;
        let registry = self.registries.load(&self.pool, anchor.registry).await?;
        let sv = registry.generation;
        let damaged = RebuildError::Damaged(relation_id);
        let Some((relation, table)) =
            registry.relation(relation_id).and_then(|relation| Some((relation, relation.table_id?)))
        else {
            return Err(damaged);
        };
        let mut builder = RebuildPageBuilder::new(feed.number, sv);
        let (mut complete, mut last) = (true, None);
        for row in &rows[1..] {
            let bytes = |column: usize| {
                let value = row.try_get_raw(column)?;
                value.as_bytes().map_err(sqlx::Error::Decode)
            };
            match row.try_get::<i32, _>(KIND)? {
                1 => complete = row.try_get::<i32, _>(COMPLETE)? == 1,
                _ => {
                    let image = bytes(ROW)?;
                    let key = RowReader::new(image).and_then(|mut row| row.nth_value(relation.key_index()));
                    let Some((_, key)) = key else { return Err(damaged) };
                    let version = RowVersion(row.try_get::<Uuid, _>(VERSION)?);
                    builder.row(table, key, version, image);
                    last = Some(bytes(KEY)?.to_vec());
                }
            }
        }
        let next = match (complete, last) {
            (false, Some(key)) => Some((relation_id, key)),
            // An empty key index comes before all.
            _ => next_relation(relation_id).map(|relation| (relation, Vec::new())),
        };
        let done = next.is_none();
        // A token of the last page names its last relation: going on from it finds nothing more.
        let after = next.or(Some((RelationId(i32::MAX), Vec::new())));
        let token = self.token(feed, run, &after, sv.0);
        let read_at = anchor.tip_position().point();
        Ok(RebuildPage { frame: builder.finish(&token, done), sv, read_at, after, done })
    }

    fn token(&self, feed: &Feed, run: &Run, after: &After, sv: i32) -> Vec<u8> {
        let token = RebuildToken {
            generation: self.press.lineage.stream,
            server: self.press.lineage.server,
            earliest: run.earliest,
            after: after.clone().map(|(relation, key)| (relation.0, key)),
            schema_version: sv,
        };
        self.press.keys.seal_rebuild(&feed.name, &token)
    }
}

/// The anchor's row alone: [`Anchor::statement`] without its `with`.
fn anchor_row() -> String {
    Anchor::statement("")[ANCHOR_SQL.len()..].to_owned()
}
