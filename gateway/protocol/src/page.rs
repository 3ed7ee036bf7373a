//! Builders of the two frames that carry rows. Rows and keys are spliced in as the bytes that capture wrote; a page is encoded
//! once and then shared by every socket that gets it, so its bytes have nothing of any one socket.

use crate::opaque::Bin;
use crate::server::EffectOp;
use crate::wire::{ScopeNumber, Wire};
use crate::write;
use bytes::Bytes;
use tidegate_model::{RegistryGeneration, RowVersion, ScopeDigest, TableId};

/// The frame `cut`: the same bytes for every socket.
pub const CUT: &[u8] = b"\x81\xa1t\xa3cut";

/// Bound on what surrounds a page's effects or rows, cursor and token aside: names, numbers at their widest, digest, flags.
const FRAME_BYTES_MAX: usize = 128;
/// Bound on the head of one transaction group: tuple, `tx`, effect count.
const GROUP_BYTES_MAX: usize = 15;

fn put_row(out: &mut Vec<u8>, table: TableId, key: &[u8], version: RowVersion, row: Option<&[u8]>) {
    table.put(out);
    out.extend_from_slice(key);
    version.put(out);
    row.map(Bin::from).put(out);
}

/// Builds a [`Page`](crate::Page) from effects in delivery order. Reusable: [`clear`](Self::clear) keeps the memory.
#[derive(Debug)]
pub struct PageBuilder {
    scope: ScopeNumber,
    sv: RegistryGeneration,
    /// Encoded effects of all groups.
    body: Vec<u8>,
    /// Transaction number, number of effects, and where the group ends in `body`.
    groups: Vec<(u64, usize, usize)>,
    effects: usize,
}

impl PageBuilder {
    /// An empty page of a scope. All rows of one page are of one schema version: a change of `sv` begins another page.
    pub fn new(scope: ScopeNumber, sv: RegistryGeneration) -> PageBuilder {
        PageBuilder { scope, sv, body: Vec::new(), groups: Vec::new(), effects: 0 }
    }

    /// Begins anew, as an empty page of another scope or schema version.
    pub fn clear(&mut self, scope: ScopeNumber, sv: RegistryGeneration) {
        self.scope = scope;
        self.sv = sv;
        self.body.clear();
        self.groups.clear();
        self.effects = 0;
    }

    /// Begins the group of a source transaction; `tx` must be above that of the group before.
    pub fn transaction(&mut self, tx: u64) {
        debug_assert!(self.groups.last().is_none_or(|(last, ..)| *last < tx), "groups come in commit order");
        self.groups.push((tx, 0, self.body.len()));
    }

    /// Adds "the row is in the scope, with this content" to the current group. `key` is the key's wire form, `row` the row's.
    pub fn upsert(&mut self, table: TableId, key: &[u8], version: RowVersion, row: &[u8]) {
        self.effect(EffectOp::Upsert, table, key, version, Some(row));
    }

    /// Adds "the row leaves the scope" to the current group. `key` is the key's wire form.
    pub fn delete(&mut self, table: TableId, key: &[u8], version: RowVersion) {
        self.effect(EffectOp::Delete, table, key, version, None);
    }

    fn effect(&mut self, op: EffectOp, table: TableId, key: &[u8], version: RowVersion, row: Option<&[u8]>) {
        write::array(&mut self.body, 5);
        op.put(&mut self.body);
        put_row(&mut self.body, table, key, version, row);
        let (_, effects, end) =
            self.groups.last_mut().expect("an effect belongs to a transaction that was begun");
        *effects += 1;
        *end = self.body.len();
        self.effects += 1;
    }

    /// Effects so far.
    pub fn effects(&self) -> usize {
        self.effects
    }

    /// Whether no effect was added.
    pub fn is_empty(&self) -> bool {
        self.effects == 0
    }

    /// Upper bound of the frame's size if it were finished now with a cursor of `cursor_bytes`.
    pub fn bytes_max(&self, cursor_bytes: usize) -> usize {
        FRAME_BYTES_MAX + GROUP_BYTES_MAX * self.groups.len() + self.body.len() + cursor_bytes
    }

    /// The frame. `cursor`, `count` and `digest` are those after its last effect; `more`: the last transaction goes on in the
    /// scope's next page; `fin`: the page is its own cut.
    pub fn finish(&self, more: bool, cursor: &[u8], count: u64, digest: ScopeDigest, fin: bool) -> Bytes {
        let mut out = Vec::with_capacity(self.bytes_max(cursor.len()));
        write::map(&mut out, 9);
        write::str(&mut out, "t");
        write::str(&mut out, "page");
        write::str(&mut out, "scope");
        self.scope.put(&mut out);
        write::str(&mut out, "sv");
        self.sv.put(&mut out);
        write::str(&mut out, "txs");
        write::array(&mut out, self.groups.len());
        let mut begin = 0;
        for (tx, effects, end) in &self.groups {
            write::array(&mut out, 2);
            write::uint(&mut out, *tx);
            write::array(&mut out, *effects);
            out.extend_from_slice(&self.body[begin..*end]);
            begin = *end;
        }
        write::str(&mut out, "more");
        more.put(&mut out);
        write::str(&mut out, "cursor");
        write::bin(&mut out, cursor);
        write::str(&mut out, "count");
        count.put(&mut out);
        write::str(&mut out, "digest");
        digest.put(&mut out);
        write::str(&mut out, "fin");
        fin.put(&mut out);
        debug_assert!(out.len() <= self.bytes_max(cursor.len()));
        Bytes::from(out)
    }
}

/// Builds a [`Rebuild`](crate::Rebuild) page. May be finished several times with different tokens.
#[derive(Debug)]
pub struct RebuildPageBuilder {
    scope: ScopeNumber,
    sv: RegistryGeneration,
    body: Vec<u8>,
    rows: usize,
}

impl RebuildPageBuilder {
    /// An empty page of a scope. All rows of one page are of one schema version.
    pub fn new(scope: ScopeNumber, sv: RegistryGeneration) -> RebuildPageBuilder {
        RebuildPageBuilder { scope, sv, body: Vec::new(), rows: 0 }
    }

    /// Adds a row. `key` is the key's wire form, `row` the row's.
    pub fn row(&mut self, table: TableId, key: &[u8], version: RowVersion, row: &[u8]) {
        write::array(&mut self.body, 4);
        put_row(&mut self.body, table, key, version, Some(row));
        self.rows += 1;
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether no row was added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Upper bound of the frame's size if it were finished now with a token of `token_bytes`.
    pub fn bytes_max(&self, token_bytes: usize) -> usize {
        FRAME_BYTES_MAX + self.body.len() + token_bytes
    }

    /// The frame. `done`: these were the last rows of the run.
    pub fn finish(&self, token: &[u8], done: bool) -> Bytes {
        let mut out = Vec::with_capacity(self.bytes_max(token.len()));
        write::map(&mut out, 6);
        write::str(&mut out, "t");
        write::str(&mut out, "rebuild");
        write::str(&mut out, "scope");
        self.scope.put(&mut out);
        write::str(&mut out, "sv");
        self.sv.put(&mut out);
        write::str(&mut out, "rows");
        write::array(&mut out, self.rows);
        out.extend_from_slice(&self.body);
        write::str(&mut out, "token");
        write::bin(&mut out, token);
        write::str(&mut out, "done");
        done.put(&mut out);
        debug_assert!(out.len() <= self.bytes_max(token.len()));
        Bytes::from(out)
    }
}
