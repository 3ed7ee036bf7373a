//! The statements of the effect log, and the way from their rows to values.

use bytes::{Bytes, BytesMut};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use tidegate_model::{Lsn, RegistryGeneration, ScopeId, ScopeName, StateId, Subject, TableId};

use super::{
    ANCHOR_ROW, ANCHOR_SQL, Anchor, ClientKey, Effect, EffectBatch, EffectLog, EffectLogError,
    EffectPosition, Fields, GrantChange, HeldGrant, Inside, Materialized, Pending, ScopeFacts, ScopeRead,
    ScopeState, TailPosition, Told, kind,
};
use crate::Bounds;

/// The statements' texts for one projected state. Only its number, an integer, is put in.
#[derive(Debug)]
pub(super) struct Statements {
    all: String,
    part: String,
    scope: String,
}

/// What tells a source transaction from another one that has taken its place: a database restored under a running gateway writes
/// other transactions at the same positions (P9). The commit time alone would nearly do.
const MARK: &str = "pg_catalog.pg_lsn_send(t.end_lsn) || pg_catalog.int8send(t.xid) || pg_catalog.timestamptz_send(t.committed_at)
       || pg_catalog.int8send(t.event_count) || pg_catalog.int8send(t.effect_bytes)";

/// Before every scope: where the first part of a large transaction begins.
const FIRST_SCOPE: i64 = i64::MIN;

impl Statements {
    pub fn new(state: StateId) -> Statements {
        let text = |body: &str| {
            format!("{ANCHOR_SQL}{body}")
                .replace("{anchor_row}", ANCHOR_ROW)
                .replace("{state}", &state.to_string())
                .replace("{mark}", MARK)
                .replace("{first_scope}", &format!("({FIRST_SCOPE})::int8"))
        };
        Statements {
            all: text(include_str!("sql/read_all.sql")),
            part: text(include_str!("sql/read_part.sql")),
            scope: text(include_str!("sql/read_scope.sql")),
        }
    }
}

/// Copies of keys and rows, joined in one allocation that the effects of one read share.
struct Arena {
    bytes: BytesMut,
}

impl Arena {
    fn for_rows(rows: &[PgRow]) -> Result<Arena, EffectLogError> {
        let mut total = 0;
        for row in rows {
            let fields = Fields(row);
            if fields.kind()? == kind::EFFECT {
                total += fields.key()?.len() + fields.row()?.map_or(0, <[u8]>::len);
            }
        }
        Ok(Arena { bytes: BytesMut::with_capacity(total) })
    }

    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        self.bytes.extend_from_slice(bytes);
        self.bytes.split().freeze()
    }

    fn effect(&mut self, fields: &Fields<'_>) -> Result<Effect, EffectLogError> {
        Ok(Effect {
            scope: ScopeId(fields.scope()?),
            position: fields.position()?,
            table: TableId(fields.table()?),
            key: self.copy(fields.key()?),
            version: fields.version()?,
            row: fields.row()?.map(|row| self.copy(row)),
            schema_version: RegistryGeneration(fields.sv()?),
            after: ScopeState { digest: fields.digest()?, row_count: fields.count()? as u64 },
        })
    }
}

/// All kinds of rows that one read may bring.
#[derive(Default)]
struct Parts {
    anchor: Option<Anchor>,
    through: Option<Lsn>,
    /// First extra number of the bounds: `large`, or the replay count.
    bounds_event: i64,
    complete: bool,
    bounds_scope: Option<i64>,
    effects: Vec<Effect>,
    grants: Vec<GrantChange>,
    materialized: Vec<Materialized>,
    pending: Vec<(ClientKey, u64)>,
    names: Vec<(ScopeId, [u8; 32])>,
    facts: Vec<([u8; 32], ScopeFacts)>,
    before: Option<(EffectPosition, ScopeState)>,
    held: Vec<HeldGrant>,
    marks: BTreeMap<Lsn, Vec<u8>>,
}

impl Parts {
    fn read(rows: &[PgRow], log: &EffectLog) -> Result<(Anchor, Parts), EffectLogError> {
        let mut parts = Parts::default();
        let mut arena = Arena::for_rows(rows)?;
        for row in rows {
            let fields = Fields(row);
            parts.take(&fields, &mut arena)?;
            // The anchor comes first: what belongs to another history is not even looked at.
            if fields.kind()? == kind::ANCHOR {
                log.lineage.check(&parts.anchor.expect("just read").lineage)?;
            }
        }
        let anchor = parts.anchor.ok_or(EffectLogError::NoGeneration)?;
        Ok((anchor, parts))
    }

    fn take(&mut self, fields: &Fields<'_>, arena: &mut Arena) -> Result<(), EffectLogError> {
        let state = |f: &Fields<'_>| {
            Ok::<_, EffectLogError>(ScopeState { digest: f.digest()?, row_count: f.count()? as u64 })
        };
        let client = |f: &Fields<'_>| {
            Ok::<_, EffectLogError>(ClientKey {
                subject: Subject(f.text1()?.to_owned()),
                client: f.client()?,
            })
        };
        match fields.kind()? {
            kind::ANCHOR => self.anchor = Some(Anchor::read(fields)?),
            kind::BOUNDS => {
                self.through = fields.lsn()?;
                self.bounds_event = fields.event().unwrap_or(0);
                self.complete = fields.effect()? == 1;
                self.bounds_scope = fields.optional_scope()?;
            }
            kind::EFFECT => self.effects.push(arena.effect(fields)?),
            kind::GRANT => self.grants.push(GrantChange {
                commit_lsn: fields.some_lsn()?,
                granted: fields.op()? == 1,
                subject: Subject(fields.text1()?.to_owned()),
                scope: ScopeName(fields.text2()?.to_owned()),
            }),
            kind::MATERIALIZED => self.materialized.push(Materialized {
                commit_lsn: fields.some_lsn()?,
                client: client(fields)?,
                number: fields.event()? as u64,
            }),
            kind::PENDING => self.pending.push((client(fields)?, fields.event()? as u64)),
            kind::NAME => self.names.push((ScopeId(fields.scope()?), fields.hash(false)?)),
            kind::FACTS => self.facts.push((
                fields.hash(true)?,
                ScopeFacts {
                    scope: ScopeId(fields.scope()?),
                    state: state(fields)?,
                    tail: fields.optional_position()?,
                    floor: None,
                },
            )),
            // Rows come by kind, then scope: a floor comes after all facts.
            kind::FLOOR => {
                let scope = ScopeId(fields.scope()?);
                let floor = (fields.position()?, state(fields)?);
                if let Some((_, facts)) = self.facts.iter_mut().find(|(_, facts)| facts.scope == scope) {
                    facts.floor = Some(floor);
                }
            }
            kind::HELD => self.held.push(HeldGrant {
                subject: Subject(fields.text1()?.to_owned()),
                scope: ScopeName(fields.text2()?.to_owned()),
                since: fields.lsn()?,
            }),
            kind::MARK => drop(self.marks.insert(fields.some_lsn()?, fields.key()?.to_vec())),
            kind::BEFORE => self.before = Some((fields.position()?, state(fields)?)),
            _ => return Err(EffectLogError::Malformed("a row of unknown kind")),
        }
        Ok(())
    }
}

impl EffectLog {
    fn statement<'q>(&self, text: &'q str) -> Query<'q, Postgres, PgArguments> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // The text was made from our own files and an integer.
        sqlx::query(AssertSqlSafe(text.to_owned()))
    }

    /// A reset retires the projected state of the generation before it, tables and all: a statement that misses them asks for the
    /// anchor alone.
    async fn fetch(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>, EffectLogError> {
        const UNDEFINED_TABLE: &str = "42P01";
        match query.fetch_all(&self.pool).await {
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNDEFINED_TABLE) => {
                let alone =
                    sqlx::query(AssertSqlSafe(Anchor::statement(""))).fetch_optional(&self.pool).await?;
                Anchor::of_row(&alone.ok_or(EffectLogError::NoGeneration)?, &self.lineage)?;
                Err(sqlx::Error::Database(error).into())
            }
            fetched => Ok(fetched?),
        }
    }

    fn pending(&self, pairs: Vec<(ClientKey, u64)>) -> Pending {
        let truncated = pairs.len() > self.pending_max as usize;
        Pending::new(pairs, truncated)
    }

    /// P9: whether what was read is still the history in which the reader stands at `places`: the log reaches so far, and the
    /// transactions there are those that were there.
    fn check_places(
        &self,
        anchor: &Anchor,
        places: [Option<Lsn>; 2],
        marks: &mut BTreeMap<Lsn, Vec<u8>>,
    ) -> Result<(), EffectLogError> {
        // What lies between here and there is not all there any more.
        if anchor.removed > places[0] {
            return Err(EffectLogError::LineageChanged("kept part of the history"));
        }
        let mut known = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places.into_iter().flatten() {
            // A place whose record was never seen, such as the one that the log was opened at, has nothing to differ from.
            let same = known.get(&place).is_none_or(|mark| marks.get(&place) == Some(mark));
            if anchor.tip < Some(place) || !same {
                return Err(EffectLogError::LineageChanged("history"));
            }
        }
        *known = std::mem::take(marks);
        Ok(())
    }

    pub(super) async fn read_tail(
        &self,
        from: TailPosition,
        bounds: Bounds,
    ) -> Result<EffectBatch, EffectLogError> {
        if let Some(inside) = from.inside {
            return self.read_part(from, inside, bounds).await;
        }
        let interest = self.interest();
        let hashes = |hashes: &[[u8; 32]]| hashes.iter().map(|hash| hash.to_vec()).collect::<Vec<_>>();
        let query = self
            .statement(&self.statements.all)
            .bind(self.lineage.generation.0)
            .bind(from.end.unwrap_or(Lsn::ZERO).to_string())
            .bind(i64::from(bounds.units_max))
            .bind(i64::from(bounds.entries_max))
            .bind(bounds.bytes_max as i64)
            .bind(i64::from(self.pending_max))
            .bind(interest.names)
            .bind(hashes(&interest.scopes))
            .bind(hashes(&interest.subjects));
        let rows = self.fetch(query).await?;
        let (anchor, mut parts) = Parts::read(&rows, self)?;
        self.check_places(&anchor, [from.end, None], &mut parts.marks)?;
        if parts.bounds_event == 1 {
            let commit_lsn =
                parts.through.ok_or(EffectLogError::Malformed("no end of a large transaction"))?;
            let start =
                Inside { commit_lsn, scope: ScopeId(FIRST_SCOPE), event_ordinal: 0, effect_ordinal: 0 };
            return self.read_part(from, start, bounds).await;
        }
        let through = TailPosition { end: parts.through, inside: None };
        Ok(EffectBatch {
            anchor,
            after: from,
            through,
            at_tip: parts.complete,
            effects: parts.effects,
            continues: None,
            grants: parts.grants,
            materialized: parts.materialized,
            pending: self.pending(parts.pending),
            names: parts.names,
            told: Some(Told {
                scopes: interest.scopes.clone(),
                facts: parts.facts.into_iter().collect(),
                subjects: interest.subjects.clone(),
                held: parts.held,
            }),
        })
    }

    async fn read_part(
        &self,
        from: TailPosition,
        inside: Inside,
        bounds: Bounds,
    ) -> Result<EffectBatch, EffectLogError> {
        let query = self
            .statement(&self.statements.part)
            .bind(self.lineage.generation.0)
            .bind(inside.commit_lsn.to_string())
            .bind(inside.scope.0)
            .bind(inside.event_ordinal as i64)
            .bind(inside.effect_ordinal as i32)
            .bind(i64::from(bounds.entries_max.max(1)))
            .bind(bounds.bytes_max as i64)
            .bind(i64::from(self.pending_max))
            .bind(self.interest().names)
            .bind(from.end.unwrap_or(Lsn::ZERO).to_string());
        let rows = self.fetch(query).await?;
        let (anchor, mut parts) = Parts::read(&rows, self)?;
        self.check_places(&anchor, [from.end, Some(inside.commit_lsn)], &mut parts.marks)?;
        let through = match parts.effects.last() {
            Some(last) if !parts.complete => TailPosition {
                end: from.end,
                inside: Some(Inside {
                    commit_lsn: inside.commit_lsn,
                    scope: last.scope,
                    event_ordinal: last.position.event_ordinal,
                    effect_ordinal: last.position.effect_ordinal,
                }),
            },
            _ => TailPosition::end_of(inside.commit_lsn),
        };
        Ok(EffectBatch {
            at_tip: through.inside.is_none() && anchor.tip <= through.end,
            anchor,
            after: from,
            through,
            effects: parts.effects,
            continues: parts.bounds_scope.map(ScopeId),
            grants: parts.grants,
            materialized: parts.materialized,
            pending: self.pending(parts.pending),
            names: parts.names,
            told: None,
        })
    }

    /// One scope at and after `from` (inclusive) through the transaction at `through`, with what a resume is checked against.
    /// `replay_count_max`: how far to count the effects that remain; 0 not at all.
    pub async fn read_scope(
        &self,
        scope: ScopeId,
        from: EffectPosition,
        through: Lsn,
        bounds: Bounds,
        replay_count_max: u64,
    ) -> Result<ScopeRead, EffectLogError> {
        let query = self
            .statement(&self.statements.scope)
            .bind(self.lineage.generation.0)
            .bind(scope.0)
            .bind(from.commit_lsn.to_string())
            .bind(i64::try_from(from.event_ordinal).unwrap_or(i64::MAX))
            .bind(i32::try_from(from.effect_ordinal).unwrap_or(i32::MAX))
            .bind(through.to_string())
            .bind(i64::from(bounds.entries_max.max(1)))
            .bind(bounds.bytes_max as i64)
            .bind(replay_count_max as i64);
        let rows = self.fetch(query).await?;
        let (anchor, parts) = Parts::read(&rows, self)?;
        // Whoever asks has seen the tail there.
        if through > anchor.tip.unwrap_or(Lsn::ZERO) {
            return Err(EffectLogError::LineageChanged("history"));
        }
        Ok(ScopeRead {
            anchor,
            facts: parts.facts.first().map(|(_, facts)| *facts),
            before: parts.before,
            effects: parts.effects,
            complete: parts.complete,
            more: parts.bounds_scope == Some(1),
            replay_count: parts.bounds_event as u64,
        })
    }
}
