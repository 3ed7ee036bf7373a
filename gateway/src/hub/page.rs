//! Pages: stretches of one scope, encoded once as the bytes that every socket gets.

use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use tidegate_log::{Effect, Lineage, ScopeState};
use tidegate_model::{Cursor, Lsn, Point, RegistryGeneration, ScopeName};
use tidegate_protocol::{PageBuilder, ScopeNumber};

use super::KeyRing;

/// Bytes of a sealed cursor, at most: see `tidegate_model::CursorKeys`.
const CURSOR_BYTES_MAX: usize = 128;

/// Bounds of one page. A page has at least one effect, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageBounds {
    /// Most effects.
    pub effects_max: usize,
    /// Most bytes.
    pub bytes_max: usize,
}

/// What all pages of one lineage are made with.
#[derive(Debug)]
pub struct Press {
    /// The history that cursors are bound to.
    pub lineage: Lineage,
    /// Keys that seal cursors.
    pub keys: KeyRing,
    /// Bounds of a page.
    pub bounds: PageBounds,
    /// A commit position before which nothing of this lineage lies. Numbers of transactions on the wire count from here: they
    /// grow in commit order and are the same in every page that this process encodes, and mean nothing elsewhere.
    pub base: Lsn,
}

/// One page.
#[derive(Debug)]
pub struct Page {
    /// The scope's number on the wire.
    pub scope: ScopeNumber,
    /// Its first effect.
    pub first: Point,
    /// Its last effect.
    pub last: Point,
    /// Everything of the scope through here has been sent once the page has: what its cursor says.
    pub end: Point,
    /// The scope after it.
    pub state: ScopeState,
    /// Registry generation of its rows.
    pub sv: RegistryGeneration,
    /// Whether it is its own cut.
    pub fin: bool,
    frame: Bytes,
    plain: OnceLock<Bytes>,
}

impl Page {
    /// The frame as it goes out live, with `fin` where it is set.
    pub fn frame(&self) -> &Bytes {
        &self.frame
    }

    /// The frame without `fin`, for a session that gets it among others of an older stretch.
    pub fn plain_frame(&self) -> Bytes {
        if !self.fin {
            return self.frame.clone();
        }
        let without = || {
            let mut bytes = self.frame.to_vec();
            // `fin` is the frame's last field, and true and false are one byte each.
            if let Some(last) = bytes.last_mut() {
                *last = 0xc2;
            }
            Bytes::from(bytes)
        };
        self.plain.get_or_init(without).clone()
    }

    /// Memory that it holds, about.
    pub fn bytes(&self) -> usize {
        self.frame.len() + size_of::<Page>()
    }
}

/// One scope's stretch of the log, to be made into pages.
#[derive(Clone, Copy, Debug)]
pub struct Stretch<'e> {
    /// The scope's number on the wire.
    pub number: ScopeNumber,
    /// Its name: cursors are bound to it.
    pub name: &'e ScopeName,
    /// Its effects, in order.
    pub effects: &'e [Effect],
    /// Through where the stretch has all effects of the scope; `None`: only through the last one, whose transaction may go on.
    pub through: Option<Point>,
    /// Whether the last effect's transaction goes on beyond the stretch.
    pub more: bool,
}

impl Press {
    /// Seals a cursor.
    pub fn cursor(&self, name: &ScopeName, point: Point, state: ScopeState) -> Vec<u8> {
        let cursor = Cursor {
            generation: self.lineage.stream,
            server: self.lineage.server,
            point,
            digest: state.digest,
            row_count: state.row_count,
        };
        self.keys.seal_cursor(name, &cursor)
    }

    /// The number of a transaction on the wire.
    fn transaction_number(&self, commit: Lsn) -> u64 {
        // A uint of the wire has 53 bits; a lineage that has written 9 petabytes of WAL would start to repeat its last number.
        commit.bytes_since(self.base).min(tidegate_protocol::UINT_MAX)
    }

    /// The pages of a stretch. `fin`: if it makes a single page, that page is its own cut.
    pub fn pages(&self, stretch: Stretch<'_>, fin: bool) -> Vec<Arc<Page>> {
        let Stretch { number, name, effects, .. } = stretch;
        let mut pages = Vec::new();
        let mut rest = effects;
        while let Some(first) = rest.first() {
            let mut builder = PageBuilder::new(number, first.schema_version);
            let mut transaction = None;
            let mut taken = 0;
            for effect in rest {
                let size = effect.key.len() + effect.row.as_ref().map_or(0, Bytes::len) + 48;
                let full = builder.effects() >= self.bounds.effects_max
                    || builder.bytes_max(CURSOR_BYTES_MAX) + size > self.bounds.bytes_max
                    || effect.schema_version != first.schema_version;
                if taken > 0 && full {
                    break;
                }
                if transaction != Some(effect.position.commit_lsn) {
                    transaction = Some(effect.position.commit_lsn);
                    builder.transaction(self.transaction_number(effect.position.commit_lsn));
                }
                match &effect.row {
                    Some(row) => builder.upsert(effect.table, &effect.key, effect.version, row),
                    None => builder.delete(effect.table, &effect.key, effect.version),
                }
                taken += 1;
            }
            let last = &rest[taken - 1];
            rest = &rest[taken..];
            let commit_lsn = last.position.commit_lsn;
            let (more, end) = match rest.first() {
                Some(next) if next.position.commit_lsn == commit_lsn => (true, last.position.point()),
                Some(_) => (false, Point::TransactionEnd { commit_lsn }),
                None => (stretch.more, stretch.through.unwrap_or(last.position.point())),
            };
            let fin = fin && pages.is_empty() && rest.is_empty();
            let cursor = self.cursor(name, end, last.after);
            let frame = builder.finish(more, &cursor, last.after.row_count, last.after.digest, fin);
            pages.push(Arc::new(Page {
                scope: number,
                first: first.position.point(),
                last: last.position.point(),
                end,
                state: last.after,
                sv: first.schema_version,
                fin,
                frame,
                plain: OnceLock::new(),
            }));
        }
        pages
    }
}
