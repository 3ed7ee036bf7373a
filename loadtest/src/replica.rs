//! What a client holds: scopes, rows, digests. Takes server frames, without I/O and clock, exactly as `PROTOCOL.md` says.
//!
//! It is stricter than an application's client: it counts what a correct server never sends.

use std::collections::HashMap;
use tidegate_protocol::{
    EffectOp, Page, Rebuild, RowDigest, RowKey, RowVersion, ScopeDigest, ScopeNumber, ServerFrame,
    SubscriptionMode, TableId, row_digest,
};

/// Identity of a row.
pub type RowId = (TableId, RowKey);

/// A row as it is held in one scope.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Its version.
    pub version: RowVersion,
    /// Its digest, made from the bytes as received.
    pub digest: RowDigest,
    /// Its wire form, where the replica keeps rows.
    pub row: Option<Box<[u8]>>,
}

/// Rows with their sum.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// By identity.
    pub held: HashMap<RowId, Held>,
    digest: ScopeDigest,
}

/// One scope of a client.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// What is shown.
    pub rows: Rows,
    /// Where it stands, to resume from.
    pub cursor: Option<Vec<u8>>,
    /// Whether it has reached the session's cut.
    pub joined: bool,
    number: Option<ScopeNumber>,
    /// The copy that a rebuild fills.
    rebuilding: Option<Rows>,
    staged: Vec<Page<'static>>,
}

/// What a correct server never causes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Faults {
    /// A page, join or rebuild whose digest or count was not that of the rows.
    pub digest_mismatches: u64,
    /// An effect that the client already held.
    pub duplicated: u64,
    /// A delete of a row that was not there.
    pub stray_deletes: u64,
    /// A frame for a scope that is not subscribed, or out of order.
    pub out_of_order: u64,
    /// A mutation announced as materialized twice, or never pushed.
    pub wrong_materialized: u64,
}

impl Faults {
    /// Adds another client's.
    pub fn merge(&mut self, other: &Faults) {
        self.digest_mismatches += other.digest_mismatches;
        self.duplicated += other.duplicated;
        self.stray_deletes += other.stray_deletes;
        self.out_of_order += other.out_of_order;
        self.wrong_materialized += other.wrong_materialized;
    }

    /// Whether there is none.
    pub fn is_clean(&self) -> bool {
        *self == Faults::default()
    }
}

/// A client's scopes.
#[derive(Debug, Default)]
pub struct Replica {
    /// By name.
    pub scopes: HashMap<String, Scope>,
    /// What went wrong so far.
    pub faults: Faults,
    /// Pages whose digest was checked.
    pub verified_pages: u64,
    /// Effects applied.
    pub effects: u64,
    names: HashMap<ScopeNumber, String>,
    keep_rows: bool,
}

/// What a frame meant for the application.
#[derive(Debug, PartialEq)]
pub enum Applied {
    /// Nothing that it would see.
    Nothing,
    /// A scope was swapped in or has resumed.
    Joined(String),
    /// Staged pages were applied: one consistent step.
    Step,
}

impl Replica {
    /// An empty replica; `keep_rows` holds the rows' bytes as well as their digests.
    pub fn new(keep_rows: bool) -> Replica {
        Replica { keep_rows, ..Replica::default() }
    }

    /// The connection is gone: numbers and staged frames mean nothing any more, rows and cursors stay.
    pub fn disconnected(&mut self) {
        self.names.clear();
        for scope in self.scopes.values_mut() {
            scope.number = None;
            scope.joined = false;
            scope.rebuilding = None;
            scope.staged.clear();
        }
    }

    /// Applies one frame. `seen` is called for each upsert that becomes visible, with the row's bytes.
    pub fn apply(&mut self, frame: ServerFrame<'_>, seen: &mut dyn FnMut(&str, &[u8])) -> Applied {
        use tidegate_protocol::IntoOwned;
        match frame {
            ServerFrame::Subscribed(subscribed) => {
                let scope = self.scopes.entry(subscribed.name.clone().into_owned()).or_default();
                if let Some(old) = scope.number.replace(subscribed.scope) {
                    self.names.remove(&old);
                }
                scope.joined = false;
                scope.staged.clear();
                scope.rebuilding = (subscribed.mode == SubscriptionMode::Rebuild).then(Rows::default);
                self.names.insert(subscribed.scope, subscribed.name.into_owned());
                Applied::Nothing
            }
            ServerFrame::Rebuild(rebuild) => {
                self.rebuild(&rebuild);
                Applied::Nothing
            }
            ServerFrame::Page(page) => {
                let fin = page.fin;
                let Some(scope) = self.names.get(&page.scope).and_then(|name| self.scopes.get_mut(name))
                else {
                    self.faults.out_of_order += 1;
                    return Applied::Nothing;
                };
                let joined = scope.joined;
                scope.staged.push(page.into_owned());
                if fin && joined { self.cut(seen) } else { Applied::Nothing }
            }
            ServerFrame::Joined(joined) => {
                let Some(name) = self.names.get(&joined.scope).cloned() else {
                    self.faults.out_of_order += 1;
                    return Applied::Nothing;
                };
                self.apply_staged(&name, seen);
                let Some(scope) = self.scopes.get_mut(&name) else { return Applied::Nothing };
                if let Some(rows) = scope.rebuilding.take() {
                    for held in rows.held.values() {
                        if let Some(row) = &held.row {
                            seen(&name, row);
                        }
                    }
                    scope.rows = rows;
                }
                if scope.rows.held.len() as u64 != joined.count || scope.rows.digest != joined.digest {
                    self.faults.digest_mismatches += 1;
                }
                self.verified_pages += 1;
                scope.joined = true;
                scope.cursor = Some(joined.cursor.to_vec());
                Applied::Joined(name)
            }
            ServerFrame::Cut(_) => self.cut(seen),
            _ => Applied::Nothing,
        }
    }

    /// Applies what is staged for every joined scope, in one step (V5).
    fn cut(&mut self, seen: &mut dyn FnMut(&str, &[u8])) -> Applied {
        let ready: Vec<String> = self
            .scopes
            .iter()
            .filter(|(_, scope)| scope.joined && !scope.staged.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        for name in &ready {
            self.apply_staged(name, seen);
        }
        Applied::Step
    }

    fn rebuild(&mut self, rebuild: &Rebuild<'_>) {
        let keep = self.keep_rows;
        let rows = self
            .names
            .get(&rebuild.scope)
            .and_then(|name| self.scopes.get_mut(name))
            .and_then(|scope| scope.rebuilding.as_mut());
        let Some(rows) = rows else {
            self.faults.out_of_order += 1;
            return;
        };
        for row in &rebuild.rows {
            let id = (row.table, row.key.to_row_key());
            if rows.put(id, row.version, &row.row, keep).is_some() {
                self.faults.duplicated += 1;
            }
        }
    }

    fn apply_staged(&mut self, name: &str, seen: &mut dyn FnMut(&str, &[u8])) {
        let Some(scope) = self.scopes.get_mut(name) else { return };
        let live = scope.rebuilding.is_none();
        for page in std::mem::take(&mut scope.staged) {
            let rows = scope.rebuilding.as_mut().unwrap_or(&mut scope.rows);
            for effect in page.txs.iter().flat_map(|transaction| &transaction.effects) {
                self.effects += 1;
                let id = (effect.table, effect.key.to_row_key());
                match (effect.op, &effect.row) {
                    (EffectOp::Upsert, Some(row)) => {
                        let before = rows.put(id, effect.version, row, self.keep_rows);
                        // A rebuild replays effects from before its later pages: there, repetition is right.
                        if live && before.is_some_and(|before| before.version == effect.version) {
                            self.faults.duplicated += 1;
                        }
                        if live {
                            seen(name, row);
                        }
                    }
                    (EffectOp::Delete, None) => {
                        if rows.remove(&id).is_none() && live {
                            self.faults.stray_deletes += 1;
                        }
                    }
                    _ => self.faults.out_of_order += 1,
                }
            }
            if live {
                if rows.digest != page.digest || rows.held.len() as u64 != page.count {
                    self.faults.digest_mismatches += 1;
                }
                self.verified_pages += 1;
                scope.cursor = Some(page.cursor.to_vec());
            }
        }
    }
}

impl Rows {
    /// The sum of the rows' digests, as the server stores it.
    pub fn digest_bytes(&self) -> [u8; 16] {
        self.digest.0.to_be_bytes()
    }

    fn put(&mut self, id: RowId, version: RowVersion, row: &[u8], keep: bool) -> Option<Held> {
        let digest = row_digest(id.0, &id.1, version, row);
        let before = self.held.insert(id, Held { version, digest, row: keep.then(|| row.into()) });
        if let Some(before) = &before {
            self.digest = self.digest.minus(before.digest);
        }
        self.digest = self.digest.plus(digest);
        before
    }

    fn remove(&mut self, id: &RowId) -> Option<Held> {
        let before = self.held.remove(id)?;
        self.digest = self.digest.minus(before.digest);
        Some(before)
    }
}
