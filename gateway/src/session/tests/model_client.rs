//! A client that does exactly what the protocol says, and checks everything that it is told. Used by the session's property tests and,
//! over real sockets, by the tests of the whole product.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_protocol::{
    Effect, EffectOp, Page, RowKey, RowVersion, ScopeDigest, ScopeNumber, ServerFrame, SubscriptionMode,
    TableId, row_digest,
};

pub type Rows = BTreeMap<(i32, RowKey), (RowVersion, Vec<u8>)>;

/// What the client holds of one scope.
#[derive(Clone, Debug, Default)]
pub struct Held {
    pub rows: Rows,
    pub digest: u128,
    pub cursor: Option<Vec<u8>>,
}

impl Held {
    fn put(&mut self, table: TableId, key: RowKey, version: RowVersion, row: Vec<u8>) {
        self.remove(table, &key);
        let digest = row_digest(table, &key, version, &row);
        self.digest = ScopeDigest(self.digest).plus(digest).0;
        self.rows.insert((table.0, key), (version, row));
    }

    fn remove(&mut self, table: TableId, key: &RowKey) {
        if let Some((version, row)) = self.rows.remove(&(table.0, key.clone())) {
            let digest = row_digest(table, key, version, &row);
            self.digest = ScopeDigest(self.digest).minus(digest).0;
        }
    }

    fn apply(&mut self, page: &StagedPage) {
        for effect in &page.effects {
            match &effect.row {
                Some(row) => self.put(effect.table, effect.key.clone(), effect.version, row.clone()),
                None => self.remove(effect.table, &effect.key),
            }
        }
        self.cursor = Some(page.cursor.clone());
    }

    /// V4: exactly the scope's rows.
    fn verify(&self, count: u64, digest: ScopeDigest, what: &str) {
        assert_eq!(self.rows.len() as u64, count, "V4: row count at {what}");
        assert_eq!(ScopeDigest(self.digest), digest, "V4: digest at {what}");
    }
}

/// One effect, in order of arrival.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrived {
    pub tx: u64,
    pub table: TableId,
    pub key: RowKey,
    pub version: RowVersion,
    pub row: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct StagedPage {
    effects: Vec<Arrived>,
    cursor: Vec<u8>,
    count: u64,
    digest: ScopeDigest,
    more: bool,
}

#[derive(Clone, Debug)]
struct Subscription {
    name: String,
    joined: bool,
    /// The staged copy of a rebuild.
    rebuilt: Option<Held>,
    /// Continuation of the rebuild.
    token: Option<Vec<u8>>,
    done: bool,
    pages: Vec<StagedPage>,
}

/// What a frame came to, for whoever tests.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Welcome {
        last: u64,
    },
    Subscribed {
        name: String,
        mode: SubscriptionMode,
        reason: Option<String>,
    },
    Rebuild {
        name: String,
    },
    /// Effects of a page, and its cursor, before they are applied.
    Page {
        name: String,
        joined: bool,
        effects: Vec<Arrived>,
        cursor: Vec<u8>,
    },
    Joined {
        name: String,
        cursor: Vec<u8>,
    },
    Cut,
    Materialized(Vec<u64>),
    CapturePending(Vec<u64>),
    Scopes {
        added: Vec<String>,
        removed: Vec<String>,
    },
    Outcome {
        reference: u64,
        results: Vec<(u64, String)>,
    },
    Error {
        code: String,
        reference: Option<u64>,
    },
    Pong(u64),
    Bye(String),
    /// A frame of a subscription that was given up while the frame was under way.
    UnderWay,
}

/// The client. `held` outlives its sockets; the rest is one socket's.
#[derive(Clone, Debug, Default)]
pub struct ModelClient {
    pub held: BTreeMap<String, Held>,
    /// Staged rebuilds whose socket went away, with their continuation.
    pub interrupted: BTreeMap<String, (Held, Vec<u8>)>,
    pub assigned: BTreeSet<String>,
    /// Numbers whose `materialized` came, on this socket.
    pub materialized: BTreeSet<u64>,
    scopes: BTreeMap<ScopeNumber, Subscription>,
    /// Subscriptions given up by an `unsubscribe` that the server may not have handled yet.
    leaving: BTreeMap<ScopeNumber, String>,
    schemas: BTreeSet<i32>,
    /// `materialized` was the last frame: what it belongs to must follow.
    owed: bool,
}

impl ModelClient {
    /// The socket is gone.
    pub fn disconnect(&mut self) {
        for subscription in std::mem::take(&mut self.scopes).into_values() {
            if let (Some(rows), Some(token), false) =
                (subscription.rebuilt, subscription.token, subscription.done)
            {
                self.interrupted.insert(subscription.name, (rows, token));
            }
        }
        self.schemas.clear();
        self.leaving.clear();
        self.materialized.clear();
        self.owed = false;
    }

    /// The subscription has ended: no frame of it comes any more.
    fn unsubscribe(&mut self, name: &str) {
        self.scopes.retain(|_, subscription| subscription.name != name);
    }

    /// `unsubscribe` is sent: frames of the subscription may be under way until [`Self::handled`].
    pub fn leave(&mut self, name: &str) {
        let left = self.scopes.extract_if(.., |_, subscription| subscription.name == name);
        self.leaving.extend(left.map(|(number, subscription)| (number, subscription.name)));
    }

    /// The answer to something sent after every `unsubscribe` has come.
    pub fn handled(&mut self) {
        self.leaving.clear();
    }

    pub fn cursor(&self, name: &str) -> Option<&[u8]> {
        self.held.get(name).and_then(|held| held.cursor.as_deref())
    }

    /// Scopes that have joined on this socket.
    pub fn joined(&self) -> impl Iterator<Item = &str> {
        self.scopes.values().filter(|subscription| subscription.joined).map(|s| s.name.as_str())
    }

    pub fn is_joined(&self, name: &str) -> bool {
        self.joined().any(|joined| joined == name)
    }

    /// Whether anything is staged for joined scopes: then the last cut is not the newest page.
    pub fn staged(&self) -> bool {
        self.scopes.values().any(|subscription| subscription.joined && !subscription.pages.is_empty())
    }

    /// Takes one frame.
    pub fn take(&mut self, frame: &ServerFrame<'_>) -> Seen {
        let settles = matches!(frame, ServerFrame::Cut(_) | ServerFrame::Joined(_))
            || matches!(frame, ServerFrame::Page(page) if page.fin);
        assert!(
            !self.owed || settles,
            "V6: materialized comes directly before its cut, got {}",
            frame.name()
        );
        self.owed = false;
        if self.is_left(frame) {
            return Seen::UnderWay;
        }
        match frame {
            ServerFrame::Welcome(welcome) => {
                self.schemas.insert(welcome.sv.0);
                self.assigned = welcome.assigned.iter().map(|name| name.to_string()).collect();
                Seen::Welcome { last: welcome.last.0 }
            }
            ServerFrame::Schema(schema) => {
                self.schemas.insert(schema.sv.0);
                // Says nothing by itself.
                Seen::Pong(u64::MAX)
            }
            ServerFrame::Subscribed(subscribed) => {
                let name = subscribed.name.to_string();
                let reason = subscribed.reason.as_ref().map(|reason| reason.to_string());
                let rebuilt = match (subscribed.mode, reason.as_deref()) {
                    (SubscriptionMode::Resume, _) => {
                        self.interrupted.remove(&name);
                        assert!(self.held.contains_key(&name), "a resume of what the client holds");
                        None
                    }
                    (SubscriptionMode::Rebuild, Some("continued")) => {
                        let staged = self.interrupted.remove(&name);
                        Some(staged.expect("a continuation of what was interrupted").0)
                    }
                    (SubscriptionMode::Rebuild, _) => {
                        self.interrupted.remove(&name);
                        Some(Held::default())
                    }
                };
                self.scopes.retain(|_, subscription| subscription.name != name);
                let subscription = Subscription {
                    name: name.clone(),
                    joined: false,
                    rebuilt,
                    token: None,
                    done: false,
                    pages: Vec::new(),
                };
                self.scopes.insert(subscribed.scope, subscription);
                Seen::Subscribed { name, mode: subscribed.mode, reason }
            }
            ServerFrame::Rebuild(rebuild) => {
                self.knows_schema(rebuild.sv.0);
                let subscription = self.scopes.get_mut(&rebuild.scope).expect("a subscribed scope");
                let rows = subscription.rebuilt.as_mut().expect("a rebuild was announced");
                assert!(!subscription.done, "no rows after the last");
                for row in &rebuild.rows {
                    let key = row.key.to_row_key();
                    assert!(
                        !rows.rows.contains_key(&(row.table.0, key.clone())),
                        "each key comes once in a run"
                    );
                    rows.put(row.table, key, row.version, row.row.to_vec());
                }
                subscription.token = Some(rebuild.token.to_vec());
                subscription.done = rebuild.done;
                Seen::Rebuild { name: subscription.name.clone() }
            }
            ServerFrame::Page(page) => self.take_page(page),
            ServerFrame::Joined(joined) => {
                assert!(!self.staged(), "V5: a scope joins at a cut");
                let subscription = self.scopes.get_mut(&joined.scope).expect("a subscribed scope");
                assert!(!subscription.joined, "it joins once");
                subscription.joined = true;
                let name = subscription.name.clone();
                if let Some(rebuilt) = subscription.rebuilt.take() {
                    assert!(subscription.done, "V4: a rebuild joins when its rows are complete");
                    self.held.insert(name.clone(), rebuilt);
                }
                let held = self.held.get_mut(&name).expect("a resume of what the client holds");
                for page in subscription.pages.drain(..) {
                    held.apply(&page);
                }
                held.verify(joined.count, joined.digest, &format!("joined of {name}"));
                held.cursor = Some(joined.cursor.to_vec());
                Seen::Joined { name, cursor: joined.cursor.to_vec() }
            }
            ServerFrame::Cut(_) => {
                self.cut();
                Seen::Cut
            }
            ServerFrame::Outcome(outcome) => Seen::Outcome {
                reference: outcome.reference,
                results: outcome.results.iter().map(|r| (r.number.0, r.status.as_str().to_owned())).collect(),
            },
            ServerFrame::CapturePending(pending) => {
                Seen::CapturePending(pending.numbers.iter().map(|number| number.0).collect())
            }
            ServerFrame::Materialized(materialized) => {
                self.owed = true;
                let numbers: Vec<u64> = materialized.numbers.iter().map(|number| number.0).collect();
                for number in &numbers {
                    assert!(self.materialized.insert(*number), "V6: {number} is materialized once");
                }
                Seen::Materialized(numbers)
            }
            ServerFrame::Scopes(scopes) => {
                let names = |names: &[std::borrow::Cow<'_, str>]| {
                    names.iter().map(|n| n.to_string()).collect::<Vec<_>>()
                };
                let (added, removed) = (names(&scopes.added), names(&scopes.removed));
                for name in &removed {
                    self.assigned.remove(name);
                    self.held.remove(name);
                    self.interrupted.remove(name);
                    self.unsubscribe(name);
                }
                self.assigned.extend(added.iter().cloned());
                Seen::Scopes { added, removed }
            }
            ServerFrame::ErrorFrame(error) => {
                Seen::Error { code: error.code.to_string(), reference: error.reference }
            }
            ServerFrame::Pong(pong) => Seen::Pong(pong.id),
            ServerFrame::Bye(bye) => Seen::Bye(bye.reason.to_string()),
        }
    }

    /// Whether a frame is of a subscription that is being left.
    fn is_left(&mut self, frame: &ServerFrame<'_>) -> bool {
        let number = match frame {
            ServerFrame::Rebuild(rebuild) => rebuild.scope,
            ServerFrame::Page(page) => page.scope,
            ServerFrame::Joined(joined) => joined.scope,
            ServerFrame::Subscribed(again) if again.reference.is_none() => {
                let name = again.name.as_ref();
                let of_it = |left: &String| left == name;
                if self.scopes.values().all(|held| held.name != name) && self.leaving.values().any(of_it) {
                    self.leaving.insert(again.scope, name.to_owned());
                }
                again.scope
            }
            _ => return false,
        };
        self.leaving.contains_key(&number)
    }

    fn knows_schema(&self, sv: i32) {
        assert!(self.schemas.contains(&sv), "schema {sv} comes before its first use");
    }

    fn take_page(&mut self, page: &Page<'_>) -> Seen {
        self.knows_schema(page.sv.0);
        let Some(subscription) = self.scopes.get_mut(&page.scope) else {
            panic!("V7: a page of a scope that is not subscribed");
        };
        let arrived = |tx: u64, effect: &Effect<'_>| {
            assert_eq!(effect.op == EffectOp::Upsert, effect.row.is_some(), "a delete has no row");
            Arrived {
                tx,
                table: effect.table,
                key: effect.key.to_row_key(),
                version: effect.version,
                row: effect.row.as_ref().map(|row| row.to_vec()),
            }
        };
        assert!(page.txs.windows(2).all(|pair| pair[0].tx < pair[1].tx), "tx grows within a page");
        let effects: Vec<Arrived> = page
            .txs
            .iter()
            .flat_map(|tx| tx.effects.iter().map(move |effect| arrived(tx.tx, effect)))
            .collect();
        assert!(!effects.is_empty(), "a page has effects");
        subscription.pages.push(StagedPage {
            effects: effects.clone(),
            cursor: page.cursor.to_vec(),
            count: page.count,
            digest: page.digest,
            more: page.more,
        });
        let seen = Seen::Page {
            name: subscription.name.clone(),
            joined: subscription.joined,
            effects,
            cursor: page.cursor.to_vec(),
        };
        if page.fin && subscription.joined {
            self.cut();
        }
        seen
    }

    fn cut(&mut self) {
        for subscription in self.scopes.values_mut().filter(|subscription| subscription.joined) {
            let Some(held) = self.held.get_mut(&subscription.name) else { continue };
            let pages = std::mem::take(&mut subscription.pages);
            assert!(pages.last().is_none_or(|page| !page.more), "V5: no cut inside a source transaction");
            for page in pages {
                held.apply(&page);
                held.verify(page.count, page.digest, &format!("page of {}", subscription.name));
            }
        }
    }
}
