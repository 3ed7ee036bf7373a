//! What sessions ask of the database, carried out: reads of one scope, rebuild pages, look-ups of mutations, pushes.
//!
//! A read that fails is tried again until it succeeds or its history has ended: the session has nothing better to do, and the
//! socket's end drops the future.

use sqlx::PgPool;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidegate_log::{Bounds, ClientKey, EffectLogError, EffectPosition, ScopeState};
use tidegate_model::{GenerationId, Lsn, Point};

use crate::catch_up::Beginning;
use crate::hub::{Epoch, Feed, Stretch};
use crate::rebuild::{RebuildError, RebuildFrom, RebuildPage, RunPosition};
use crate::registry::RegistryError;
use crate::session::{Before, ScopePages, Settled};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
enum WorkError {
    #[error("{0}")]
    Log(#[from] EffectLogError),
    #[error("{0}")]
    Registry(#[from] RegistryError),
    #[error("{0}")]
    Rebuild(#[from] RebuildError),
    #[error("look up mutations: {0}")]
    Settle(#[from] sqlx::Error),
}

impl WorkError {
    fn ends_history(&self) -> bool {
        match self {
            WorkError::Log(EffectLogError::LineageChanged(_) | EffectLogError::NoGeneration) => true,
            WorkError::Rebuild(error) => error.ends_history(),
            _ => false,
        }
    }
}

/// Between attempts.
struct Patience {
    what: &'static str,
    pause: Duration,
}

impl Patience {
    fn new(what: &'static str) -> Patience {
        Patience { what, pause: PAUSE_MIN }
    }

    /// Waits before another attempt; false if none would help.
    async fn after(&mut self, error: WorkError) -> bool {
        if error.ends_history() {
            return false;
        }
        let (what, pause) = (self.what, self.pause);
        tracing::warn!(%error, what, retry_ms = pause.as_millis() as u64, "a session's read failed");
        tokio::time::sleep(pause).await;
        self.pause = (pause * 2).min(PAUSE_MAX);
        true
    }
}

/// One stretch of a scope, shared with whoever asks from the same place.
pub(super) async fn read_scope(
    epoch: &Epoch,
    feed: &Feed,
    after: Point,
    through: Lsn,
    replay_count_max: u64,
    bounds: Bounds,
) -> Option<ScopePages> {
    let mut patience = Patience::new("scope");
    let beginning = Beginning { number: feed.number, after, replay_count_max };
    let end = Point::TransactionEnd { commit_lsn: through };
    let read = || read_scope_once(epoch, feed, after, through, replay_count_max, bounds);
    loop {
        match epoch.catch_ups.get(beginning, end, &read).await {
            Ok(pages) => return Some(pages),
            Err(error) => {
                if !patience.after(error).await {
                    return None;
                }
            }
        }
    }
}

async fn read_scope_once(
    epoch: &Epoch,
    feed: &Feed,
    after: Point,
    through: Lsn,
    replay_count_max: u64,
    bounds: Bounds,
) -> Result<ScopePages, WorkError> {
    let end = Point::TransactionEnd { commit_lsn: through };
    let nothing = ScopePages {
        pages: Vec::new(),
        reached: end,
        before: Before::State(ScopeState::EMPTY),
        row_count: 0,
        replay_count: 0,
    };
    let Some(scope) = feed.scope() else { return Ok(nothing) };
    let from = EffectPosition::after(after);
    let read = epoch.reader.read_scope(scope, from, through, bounds, replay_count_max).await?;
    let Some(facts) = read.facts else { return Ok(nothing) };
    let before = match (facts.floor, read.before) {
        (Some((floor, _)), _) if floor.point() > after => Before::BelowFloor,
        (_, Some((_, state))) | (Some((_, state)), None) => Before::State(state),
        // No effect was ever removed and none lies before: the baseline's content, recorded only while there is no effect at all.
        (None, None) if facts.tail.is_none() => Before::State(facts.state),
        (None, None) => Before::Unrecorded,
    };
    let versions: BTreeSet<_> = read.effects.iter().map(|effect| effect.schema_version).collect();
    for sv in versions {
        epoch.registries.load(epoch.reader.pool(), sv).await?;
    }
    let reached = match (read.complete, read.effects.last()) {
        (false, Some(last)) if read.more => last.position.point(),
        (false, Some(last)) => Point::TransactionEnd { commit_lsn: last.position.commit_lsn },
        _ => end,
    };
    let stretch = Stretch {
        number: feed.number,
        name: &feed.name,
        effects: &read.effects,
        through: Some(reached),
        more: read.more,
    };
    Ok(ScopePages {
        pages: epoch.press.pages(stretch, false),
        reached,
        before,
        row_count: facts.state.row_count,
        replay_count: read.replay_count,
    })
}

/// The token's run is of another history.
pub(super) struct LostRun;

/// One page of a rebuild.
pub(super) async fn read_rebuild(
    epoch: &Epoch,
    feed: &Feed,
    from: RebuildFrom,
) -> Option<Result<(RunPosition, Arc<RebuildPage>), LostRun>> {
    let mut patience = Patience::new("rebuild");
    loop {
        match epoch.rebuilds.page(feed, from.clone()).await {
            Ok(page) => return Some(Ok(page)),
            Err(RebuildError::LostRun) => return Some(Err(LostRun)),
            Err(error) => {
                if !patience.after(error.into()).await {
                    return None;
                }
            }
        }
    }
}

/// What became of mutations.
pub(super) async fn settle(
    pool: &PgPool,
    client: &ClientKey,
    generation: GenerationId,
    numbers: &[u64],
) -> Option<Vec<(u64, Settled)>> {
    let mut patience = Patience::new("mutations");
    loop {
        match settle_once(pool, client, generation, numbers).await {
            Ok(settled) => return Some(settled),
            Err(error) => {
                if !patience.after(error.into()).await {
                    return None;
                }
            }
        }
    }
}

type SettleRow = (i64, Option<String>, bool, i64, i64, Option<String>);

async fn settle_once(
    pool: &PgPool,
    client: &ClientKey,
    generation: GenerationId,
    numbers: &[u64],
) -> Result<Vec<(u64, Settled)>, sqlx::Error> {
    let numbers: Vec<i64> = numbers.iter().filter_map(|number| i64::try_from(*number).ok()).collect();
    let rows: Vec<SettleRow> = sqlx::query_as(include_str!("settle.sql"))
        .bind(&client.subject.0)
        .bind(client.client.0)
        .bind(numbers)
        .bind(generation.0)
        .fetch_all(pool)
        .await?;
    let settled = rows.into_iter().map(|(number, status, settled, fences, pending, materialized)| {
        let materialized = materialized.and_then(|lsn| lsn.parse().ok());
        let fate = match (status.as_deref(), pending, materialized) {
            (_, 1.., _) => Settled::Pending,
            (_, _, Some(commit_lsn)) => Settled::Materialized(commit_lsn),
            // Covered by a baseline, of an earlier generation, or its fences are pruned.
            (Some("accepted"), _, None) => Settled::Past,
            (None, _, None) if fences > 0 || settled => Settled::Past,
            _ => Settled::NotAccepted,
        };
        (number as u64, fate)
    });
    Ok(settled.collect())
}
