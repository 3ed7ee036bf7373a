//! Rebuild pages: key ranges of a scope's rows, each read at its own position, encoded once and shared.
//!
//! A *run* is one walk through a scope. Its token says from where on effects must be replayed: the position at which its first
//! page was read. Whoever begins while a run is fresh joins it, so many clients read the database once; but a run that began before
//! the subject's grant shows what was there before the grant, so it is not for that subject (V7). Rows are read where the database
//! stands, which may be beyond what the tail has read: a page says how far, and a session sends it only when it knows its grants
//! there (V7). A token goes on at
//! any gateway, after eviction or restart: whoever holds the page's bytes is only faster.
//!
//! The cache holds no truth. Evicting a page costs a query.

mod read;

use bytes::Bytes;
use sqlx::PgPool;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_model::{Point, RebuildToken, RegistryGeneration, RelationId};
use tidegate_protocol::ScopeNumber;
use tokio::sync::{OnceCell, Semaphore};

use crate::hub::{Feed, Press};
use crate::registry::Registries;

pub use read::RebuildError;

/// Bounds of rebuilds.
#[derive(Clone, Copy, Debug)]
pub struct RebuildBounds {
    /// Most rows of a page.
    pub page_rows_max: u32,
    /// Most bytes of a page; a single row may be larger.
    pub page_bytes_max: u64,
    /// Bytes of pages that the cache holds.
    pub cache_bytes_max: usize,
    /// How long newcomers may join a run: the longer, the more effects they replay.
    pub run_age_max: Duration,
    /// Queries at the same time.
    pub reads_max: usize,
}

/// Where a page begins: relation and the key index of the row before it.
pub type After = Option<(RelationId, Vec<u8>)>;

/// One page of a run.
#[derive(Debug)]
pub struct RebuildPage {
    /// The frame.
    pub frame: Bytes,
    /// Registry generation of its rows.
    pub sv: RegistryGeneration,
    /// The newest transaction that its rows may show.
    pub read_at: Point,
    /// Where the next page begins.
    pub after: After,
    /// Whether it is the last one.
    pub done: bool,
}

/// One walk through a scope.
#[derive(Debug)]
pub struct Run {
    /// Effects after here are to be replayed.
    pub earliest: Point,
    /// Relations with rows in the scope when the run began here, in order.
    relations: Vec<RelationId>,
    began: Instant,
    pages: Mutex<HashMap<After, Arc<OnceCell<Arc<RebuildPage>>>>>,
}

/// Where one session stands in a run.
#[derive(Clone, Debug)]
pub struct RunPosition {
    /// The run.
    pub run: Arc<Run>,
    /// Where its next page begins.
    pub after: After,
}

/// A session's wish: where to go on.
#[derive(Clone, Debug)]
pub enum RebuildFrom {
    /// From the beginning, in any fresh run that began at or after the start of the subject's grant (V7).
    Start {
        /// The start of the grant.
        since: Point,
    },
    /// Where a token of some run, here or elsewhere, left off.
    Token(RebuildToken),
    /// The next page.
    Next(RunPosition),
}

type RunKey = (ScopeNumber, Point);
type Cell = OnceCell<Arc<Run>>;

/// The runs and pages of one lineage.
#[derive(Debug)]
pub struct Rebuilds {
    pool: PgPool,
    press: Arc<Press>,
    registries: Arc<Registries>,
    bounds: RebuildBounds,
    reads: Semaphore,
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// The run that newcomers join.
    fresh: HashMap<ScopeNumber, (Instant, Arc<Cell>)>,
    /// Runs that tokens name.
    runs: HashMap<RunKey, Arc<Cell>>,
    /// Pages in the order in which they were made.
    order: VecDeque<(Arc<Run>, After, usize)>,
    bytes: usize,
    /// Queries so far, for metrics.
    reads: u64,
}

impl Rebuilds {
    /// An empty cache.
    pub fn new(
        pool: PgPool,
        press: Arc<Press>,
        registries: Arc<Registries>,
        bounds: RebuildBounds,
    ) -> Rebuilds {
        let reads = Semaphore::new(bounds.reads_max);
        Rebuilds { pool, press, registries, bounds, reads, cache: Mutex::default() }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queries so far.
    pub fn reads(&self) -> u64 {
        self.cache().reads
    }

    /// The next page for a session, from the cache or the database. Every call gives one page.
    ///
    /// # Errors
    /// [`RebuildError`]; asking again from the same place is safe.
    pub async fn page(
        &self,
        feed: &Feed,
        from: RebuildFrom,
    ) -> Result<(RunPosition, Arc<RebuildPage>), RebuildError> {
        let RunPosition { run, after } = match from {
            RebuildFrom::Next(position) => position,
            RebuildFrom::Start { since } => {
                RunPosition { run: self.fresh_run(feed, since).await?, after: None }
            }
            RebuildFrom::Token(token) => {
                let after = token.after.map(|(relation, key)| (RelationId(relation), key));
                RunPosition { run: self.run_of_token(feed, token.earliest).await?, after }
            }
        };
        let cell = run.pages().entry(after.clone()).or_default().clone();
        let made = cell
            .get_or_try_init(|| async {
                let _permit = self.reads.acquire().await;
                let page = Arc::new(self.read_page(feed, &run, &after).await?);
                self.keep(&run, after.clone(), page.frame.len());
                Ok::<_, RebuildError>(page)
            })
            .await?;
        let page = made.clone();
        Ok((RunPosition { run, after: page.after.clone() }, page))
    }

    async fn fresh_run(&self, feed: &Feed, since: Point) -> Result<Arc<Run>, RebuildError> {
        let mut begun = false;
        loop {
            let cell = self.cache().fresh_cell(feed.number, Instant::now(), self.bounds.run_age_max);
            let begin = || {
                begun = true;
                self.begin_run(feed, None)
            };
            let run = cell.get_or_try_init(begin).await?.clone();
            if run.may_be_joined(since) {
                self.cache().runs.entry((feed.number, run.earliest)).or_insert(cell);
                return Ok(run);
            }
            self.cache().outdate(feed.number, &cell);
            // The grant was read from this log: a run that begins now and yet before it has read another one.
            if begun {
                return Err(RebuildError::BeforeGrant);
            }
        }
    }

    async fn run_of_token(&self, feed: &Feed, earliest: Point) -> Result<Arc<Run>, RebuildError> {
        let cell = self.cache().runs.entry((feed.number, earliest)).or_default().clone();
        Ok(cell.get_or_try_init(|| self.begin_run(feed, Some(earliest))).await?.clone())
    }

    /// Remembers a page's size, and lets go of the oldest pages beyond the budget. Whoever is inside an evicted run reads its next
    /// page anew.
    fn keep(&self, run: &Arc<Run>, after: After, bytes: usize) {
        let mut cache = self.cache();
        cache.reads += 1;
        cache.bytes += bytes;
        cache.order.push_back((run.clone(), after, bytes));
        while cache.bytes > self.bounds.cache_bytes_max {
            let Some((run, after, bytes)) = cache.order.pop_front() else { break };
            cache.bytes -= bytes;
            run.pages().remove(&after);
        }
        // A run without pages is only a position; those that nobody holds are dropped with the cells that name them.
        let age_max = self.bounds.run_age_max * 10;
        if cache.runs.len() > 1024 {
            cache.runs.retain(|_, cell| cell.get().is_none_or(|run| run.began.elapsed() < age_max));
        }
    }
}

impl Cache {
    /// The run that newcomers join, begun or to be begun.
    fn fresh_cell(&mut self, number: ScopeNumber, now: Instant, age_max: Duration) -> Arc<Cell> {
        self.fresh.retain(|_, (began, _)| now.duration_since(*began) < age_max);
        self.fresh.entry(number).or_insert_with(|| (now, Arc::default())).1.clone()
    }

    /// Somebody may not join this run: the next one who begins, begins another. Those inside it go on.
    fn outdate(&mut self, number: ScopeNumber, cell: &Arc<Cell>) {
        if self.fresh.get(&number).is_some_and(|(_, fresh)| Arc::ptr_eq(fresh, cell)) {
            self.fresh.remove(&number);
        }
    }
}

impl Run {
    /// V7: whether all that it shows was there at or after the start of a grant.
    pub(crate) fn may_be_joined(&self, since: Point) -> bool {
        self.earliest >= since
    }

    /// A run that only has its beginning.
    #[cfg(test)]
    pub(crate) fn beginning_at(earliest: Point) -> Arc<Run> {
        Arc::new(Run { earliest, relations: Vec::new(), began: Instant::now(), pages: Mutex::default() })
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<After, Arc<OnceCell<Arc<RebuildPage>>>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
