//! A feed: one scope that somebody here subscribes to, with a window of its recent pages.
//!
//! A window is a cache of the log. It says what it covers, and answers only for that; whoever asks for more reads the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_log::{ScopeFacts, ScopeState};
use tidegate_model::{Point, ScopeId, ScopeName};
use tidegate_protocol::ScopeNumber;

use super::page::Page;

/// Which feed. A number is never used for two subscriptions of one connection, and pages carry it: who begins again on a scope
/// gets the scope's next feed, shared with everybody who has begun as often.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedKey {
    /// The scope.
    pub scope: ScopeName,
    /// How often the connection had begun on it before.
    pub nth: u32,
}

/// One feed of one scope.
#[derive(Debug)]
pub struct Feed {
    /// Its number on the wire, for as long as this process follows it.
    pub number: ScopeNumber,
    /// The scope's name.
    pub name: ScopeName,
    /// See [`FeedKey`].
    pub nth: u32,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    /// Its id in the projected state; `None` while the scope does not exist.
    scope: Option<ScopeId>,
    /// Every effect after here that the tail has read is in `pages`.
    from: Point,
    pages: VecDeque<Arc<Page>>,
    /// The scope as it stood at some point, and unchanged from there until the window's first page after it.
    known: (Point, ScopeState),
}

/// What a window has of a stretch.
#[derive(Debug)]
pub enum Covered {
    /// All of it.
    Pages(Vec<Arc<Page>>),
    /// Not its beginning. Whoever has read the log through `until` may ask again.
    Not {
        /// Where the window goes on.
        until: Point,
    },
}

impl Feed {
    /// A feed that the tail follows from `from` on, of a scope that was `facts` in a snapshot at or after that.
    pub fn new(number: ScopeNumber, key: FeedKey, from: Point, facts: Option<&ScopeFacts>) -> Feed {
        let window = Window {
            scope: facts.map(|facts| facts.scope),
            from,
            pages: VecDeque::new(),
            known: match facts {
                Some(facts) => (facts.tail.map_or(Point::GenerationStart, |tail| tail.point()), facts.state),
                None => (Point::GenerationStart, ScopeState::EMPTY),
            },
        };
        Feed { number, name: key.scope, nth: key.nth, window: Mutex::new(window) }
    }

    /// Which feed it is.
    pub fn key(&self) -> FeedKey {
        FeedKey { scope: self.name.clone(), nth: self.nth }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its id in the projected state, if it exists.
    pub fn scope(&self) -> Option<ScopeId> {
        self.window().scope
    }

    /// The scope has come into being.
    pub(super) fn exists(&self, scope: ScopeId) {
        self.window().scope = Some(scope);
    }

    /// Adds pages that the tail has just read.
    pub(super) fn extend(&self, pages: &[Arc<Page>]) {
        self.window().pages.extend(pages.iter().cloned());
    }

    /// Lets go of the oldest page; gives back the memory that it held.
    pub(super) fn evict(&self) -> usize {
        let mut window = self.window();
        let Some(page) = window.pages.pop_front() else { return 0 };
        window.from = window.from.max(page.end);
        if page.last > window.known.0 {
            window.known = (page.last, page.state);
        }
        page.bytes()
    }

    /// The pages after `at` through `through`, a point that the tail has passed.
    pub fn read(&self, at: Point, through: Point) -> Covered {
        let window = self.window();
        let at = window.effective(at);
        if at < window.from {
            return Covered::Not { until: window.from };
        }
        let start = window.pages.partition_point(|page| page.last <= at);
        let wanted = || window.pages.iter().skip(start).take_while(|page| page.last <= through);
        match wanted().next() {
            // Some of the first page was delivered in another cut of pages.
            Some(page) if page.first <= at => Covered::Not { until: page.end },
            _ => Covered::Pages(wanted().cloned().collect()),
        }
    }

    /// The scope at `at`, a point that the tail has passed; `None` when this feed does not know.
    pub fn state_at(&self, at: Point) -> Option<ScopeState> {
        self.window().state_at(at)
    }
}

impl Window {
    fn state_at(&self, at: Point) -> Option<ScopeState> {
        let next = self.pages.partition_point(|page| page.last <= at);
        if self.pages.get(next).is_some_and(|page| page.first <= at) {
            return None;
        }
        let page = next.checked_sub(1).and_then(|last| self.pages.get(last));
        let known = (self.known.0 <= at).then_some(self.known);
        match (page, known) {
            (Some(page), Some((since, _))) if page.last >= since => Some(page.state),
            (Some(page), None) => Some(page.state),
            (_, known) => known.map(|(_, state)| state),
        }
    }

    /// A point before the window between which and the window nothing happened is as good as the window's beginning.
    fn effective(&self, at: Point) -> Point {
        if at < self.from && self.known.0 <= at { self.from } else { at }
    }
}
