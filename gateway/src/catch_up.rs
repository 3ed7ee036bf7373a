//! Stretches of the log that many sessions read from the same place: after a gateway has gone, all of its clients come back with the
//! cursors of the same cut. Each stretch is read and encoded once for all who ask for it within a short time.
//!
//! What lies between two points of one history never changes, so a stretch that was read for one session is as good for another,
//! provided that it does not reach beyond what that one may be sent.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_model::Point;
use tidegate_protocol::ScopeNumber;
use tokio::sync::OnceCell;

use crate::session::ScopePages;

/// Bounds of what is shared.
#[derive(Clone, Copy, Debug)]
pub struct CatchUpBounds {
    /// Bytes of pages that are kept for others.
    pub bytes_max: usize,
    /// How long they are kept.
    pub age_max: Duration,
}

/// Where a stretch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Beginning {
    /// The feed that it is encoded for.
    pub number: ScopeNumber,
    /// Effects after here.
    pub after: Point,
    /// How far what is left is counted: asked for at a resume, 0 on the way on.
    pub replay_count_max: u64,
}

type Cell = Arc<OnceCell<Arc<ScopePages>>>;

/// The shared stretches of one lineage.
#[derive(Debug)]
pub struct CatchUps {
    bounds: CatchUpBounds,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// With the bytes that each has come to.
    cells: HashMap<Beginning, (Cell, usize)>,
    /// Those of `cells` in the order in which they were begun.
    order: VecDeque<(Instant, Beginning)>,
    bytes: usize,
}

impl CatchUps {
    /// Nothing is shared yet.
    pub fn new(bounds: CatchUpBounds) -> CatchUps {
        CatchUps { bounds, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stretch from `beginning` that ends at or before `through`: somebody else's, or what `read` brings, which reads through there.
    /// Who asks for what is being read waits for it.
    ///
    /// # Errors
    /// That of `read`. Nothing is kept of it.
    pub async fn get<E, Read>(
        &self,
        beginning: Beginning,
        through: Point,
        read: impl Fn() -> Read,
    ) -> Result<ScopePages, E>
    where
        Read: Future<Output = Result<ScopePages, E>>,
    {
        let cell = self.inner().cell(beginning, Instant::now(), self.bounds);
        let mut own = false;
        let shared = cell
            .get_or_try_init(|| async {
                own = true;
                read().await.map(Arc::new)
            })
            .await?;
        if own {
            self.inner().keep(beginning, &cell, self.bounds);
            metrics::counter!("tidegate_catch_up_reads_total").increment(1);
        } else if shared.reached <= through {
            metrics::counter!("tidegate_catch_up_shared_total").increment(1);
        } else {
            // It reaches beyond what this session may be sent.
            metrics::counter!("tidegate_catch_up_reads_total").increment(1);
            return read().await;
        }
        Ok(ScopePages::clone(shared))
    }
}

impl Inner {
    fn cell(&mut self, beginning: Beginning, now: Instant, bounds: CatchUpBounds) -> Cell {
        while self.order.front().is_some_and(|(began, _)| now.duration_since(*began) > bounds.age_max) {
            self.drop_oldest();
        }
        let order = &mut self.order;
        let (cell, _) = self.cells.entry(beginning).or_insert_with(|| {
            order.push_back((now, beginning));
            (Cell::default(), 0)
        });
        cell.clone()
    }

    /// Counts what has been read, if nobody has dropped it meanwhile.
    fn keep(&mut self, beginning: Beginning, read: &Cell, bounds: CatchUpBounds) {
        let Some((cell, bytes)) = self.cells.get_mut(&beginning) else { return };
        if Arc::ptr_eq(cell, read) {
            *bytes = read.get().map_or(0, |stretch| stretch.bytes());
            self.bytes += *bytes;
        }
        while self.bytes > bounds.bytes_max && !self.order.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, beginning)) = self.order.pop_front() else { return };
        if let Some((_, bytes)) = self.cells.remove(&beginning) {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Before;
    use std::cell::Cell as Count;
    use tidegate_log::ScopeState;
    use tidegate_model::Lsn;

    const BOUNDS: CatchUpBounds = CatchUpBounds { bytes_max: 1 << 20, age_max: Duration::from_secs(3600) };

    fn end(commit: u64) -> Point {
        Point::TransactionEnd { commit_lsn: Lsn(commit) }
    }

    fn from(number: u32, after: u64) -> Beginning {
        Beginning { number: ScopeNumber(number), after: end(after), replay_count_max: 0 }
    }

    fn through(reached: Point) -> ScopePages {
        ScopePages {
            pages: Vec::new(),
            reached,
            before: Before::State(ScopeState::EMPTY),
            row_count: 0,
            replay_count: 0,
        }
    }

    #[tokio::test]
    async fn whoever_reads_from_the_same_place_shares_and_nobody_gets_more_than_may_be_sent() {
        let (shared, reads) = (CatchUps::new(BOUNDS), Count::new(0));
        let read = async |limit: u64, beginning: Beginning| {
            let read = async || {
                reads.set(reads.get() + 1);
                tokio::task::yield_now().await;
                Ok::<_, ()>(through(end(limit)))
            };
            shared.get(beginning, end(limit), read).await.expect("a stretch").reached
        };
        // At the same time: one read.
        let (one, two) = tokio::join!(read(20, from(1, 10)), read(20, from(1, 10)));
        assert_eq!((one, two, reads.get()), (end(20), end(20), 1));
        // Who may be sent more goes on from there; who may be sent less reads alone.
        assert_eq!((read(30, from(1, 10)).await, reads.get()), (end(20), 1));
        assert_eq!((read(15, from(1, 10)).await, reads.get()), (end(15), 2));
        // Other places, feeds and questions are other stretches.
        read(30, from(1, 20)).await;
        read(20, from(2, 10)).await;
        read(20, Beginning { replay_count_max: 1, ..from(1, 10) }).await;
        assert_eq!(reads.get(), 5);
    }

    #[tokio::test]
    async fn a_failure_is_not_kept_and_nothing_is_kept_for_long() {
        let shared = CatchUps::new(BOUNDS);
        let failed = shared.get(from(1, 10), end(20), async || Err::<ScopePages, _>("down")).await;
        assert_eq!(failed.expect_err("a failure"), "down");
        let found = shared.get(from(1, 10), end(20), async || Ok::<_, &str>(through(end(20)))).await;
        assert_eq!(found.expect("a stretch").reached, end(20));
        let brief = CatchUps::new(CatchUpBounds { age_max: Duration::ZERO, ..BOUNDS });
        for n in 0..100 {
            brief
                .get(from(1, n), end(200), async || Ok::<_, ()>(through(end(200))))
                .await
                .expect("a stretch");
        }
        let inner = brief.inner();
        assert!(inner.cells.len() <= 2 && inner.order.len() == inner.cells.len(), "{}", inner.cells.len());
    }
}
