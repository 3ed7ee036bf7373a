//! Old rows and scopes from one commit to the next, so that hot ones are not read again. Written through after a commit, emptied
//! after any failure: what is in it is what is durable. Bounded in bytes.

use bytes::Bytes;
use std::collections::HashMap;
use std::hash::Hash;
use tidegate_model::{RelationId, ScopeId};
use tidegate_stream::{OldRow, ScopeTotals};

/// What an entry costs besides its own bytes: hash table slot, key, vectors.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// Two generations: entries are put into the young one; when that is full it becomes the old one, whose entries go unless they
/// have been used since. About as good as least-recently-used, without a list.
struct Generations<K, V> {
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    young_bytes: usize,
    half_bytes_max: usize,
}

impl<K: Eq + Hash, V: Clone> Generations<K, V> {
    fn new(bytes_max: usize) -> Self {
        Generations {
            young: HashMap::new(),
            old: HashMap::new(),
            young_bytes: 0,
            half_bytes_max: bytes_max / 2,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, (value, bytes)) = self.old.remove_entry(key)?;
        let found = value.clone();
        self.put(key, value, bytes);
        Some(found)
    }

    fn put(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.half_bytes_max {
            // Neither generation has room for it: it is read again when it is needed.
            self.remove(&key);
            return;
        }
        self.old.remove(&key);
        self.young_bytes += bytes;
        if let Some((_, before)) = self.young.insert(key, (value, bytes)) {
            self.young_bytes -= before;
        }
        if self.young_bytes > self.half_bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some((_, bytes)) = self.young.remove(key) {
            self.young_bytes -= bytes;
        }
        self.old.remove(key);
    }

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.young_bytes = 0;
    }
}

/// The cache of one projected state.
pub(crate) struct Cache {
    rows: Generations<(RelationId, Bytes), OldRow>,
    ids: Generations<ScopeId, ScopeTotals>,
    names: Generations<[u8; 32], ScopeId>,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Cache {
        // Scopes are few beside rows, and each serves many.
        Cache {
            rows: Generations::new(bytes_max / 2),
            ids: Generations::new(bytes_max / 4),
            names: Generations::new(bytes_max / 4),
        }
    }

    pub(crate) fn row(&mut self, relation: RelationId, key_index: &Bytes) -> Option<OldRow> {
        self.rows.get(&(relation, key_index.clone()))
    }

    pub(crate) fn put_row(&mut self, relation: RelationId, key_index: Bytes, row: OldRow) {
        let bytes = ENTRY_OVERHEAD_BYTES
            + key_index.len()
            + row.row.len()
            + row.scopes.len() * 8
            + row.grants.len() * 96;
        // A slice would keep the whole answer of a query alive.
        self.rows.put((relation, key_index), row, bytes);
    }

    pub(crate) fn remove_row(&mut self, relation: RelationId, key_index: &Bytes) {
        self.rows.remove(&(relation, key_index.clone()));
    }

    pub(crate) fn totals(&mut self, id: ScopeId) -> Option<ScopeTotals> {
        self.ids.get(&id)
    }

    pub(crate) fn put_totals(&mut self, id: ScopeId, totals: ScopeTotals) {
        self.ids.put(id, totals, ENTRY_OVERHEAD_BYTES);
    }

    pub(crate) fn scope(&mut self, name_hash: &[u8; 32]) -> Option<ScopeId> {
        self.names.get(name_hash)
    }

    pub(crate) fn put_scope(&mut self, name_hash: [u8; 32], id: ScopeId) {
        self.names.put(name_hash, id, ENTRY_OVERHEAD_BYTES);
    }

    /// After any failure.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.ids.clear();
        self.names.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_there_is_room_is_not_kept_and_neither_is_what_it_replaced() {
        let mut cache: Generations<u32, u32> = Generations::new(1000);
        cache.put(1, 1, 10);
        cache.put(2, 2, 10);
        cache.put(1, 3, 501);
        assert_eq!((cache.get(&1), cache.get(&2)), (None, Some(2)));
        assert_eq!(cache.young_bytes, 10);
        let mut none: Generations<u32, u32> = Generations::new(0);
        none.put(1, 1, 10);
        assert_eq!(none.get(&1), None, "no bytes, no entry");
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_what_is_used() {
        let mut cache: Generations<u32, u32> = Generations::new(1000);
        cache.put(0, 0, 10);
        for key in 1..10_000 {
            cache.put(key, key, 10);
            assert_eq!(cache.get(&0), Some(0), "used between every two puts");
            assert!(cache.young.len() + cache.old.len() <= 102);
        }
        assert_eq!(cache.get(&1), None);
        cache.remove(&9_999);
        assert_eq!(cache.get(&9_999), None);
    }
}
