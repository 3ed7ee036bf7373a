//! Second stage. Takes decoded messages in stream order, gives whole [`Transaction`]s: rows numbered (P4), encoded once, checked
//! against the registry in force at their place (G3, G5); fences parsed; everything that does not apply dropped. The caller supplies
//! registry snapshots and spools; nothing here waits for anything.

use crate::decode::{
    Begin, Commit, LogicalMessage, Message, RelationMetadata, RowMessage, Truncate, Value, decode,
};
use crate::layout::{Completeness, Described, Layout};
use crate::manifest::ManifestBuilder;
use crate::record::{put_event_identity, put_event_payload, put_fence};
use crate::spool::{RecordWriter, SpoolFactory};
use crate::transaction::{Entry, Header, Identity, Limits, Transaction};
use crate::{Failure, FailureClass, StreamError};
use std::collections::HashMap;
use std::sync::Arc;
use tidegate_model::{
    FENCE_PREFIX, FenceMessage, Lsn, MARKER_PREFIX, REGISTRY_PREFIX, RegistryGeneration, Relation,
    RelationId, RowVersion, Snapshot, parse_marker, parse_registry_activation,
};
use uuid::Uuid;

/// What the caller does next.
pub enum Step {
    /// Hand over the next message.
    Continue,
    /// Load this registry generation and call [`Assembler::provide_snapshot`] before the next message. The transaction that
    /// announces it has committed, but its own tables may show it only a moment later; `xid` (without epoch) says which one it is.
    NeedsSnapshot {
        /// The generation.
        generation: RegistryGeneration,
        /// The announcing transaction.
        xid: u32,
    },
    /// A source transaction is complete.
    Transaction(Box<Transaction>),
}

/// Assembles source transactions. One per replication connection, or [`Assembler::reconnected`] in between.
pub struct Assembler {
    limits: Limits,
    open_spool: SpoolFactory,
    /// In force after the last complete transaction.
    registry: Arc<Snapshot>,
    described: HashMap<u32, DescribedRelation>,
    open: Option<Open>,
    /// Of the last complete transaction on this connection.
    last_commit_lsn: Option<Lsn>,
    awaited: Option<RegistryGeneration>,
    /// Of the record being written; kept to save allocations.
    scratch: Vec<u8>,
    /// Distinguishes transactions, so that layouts cached for an earlier one are noticed.
    serial: u64,
}

/// A relation as described, and what the registry in force makes of it.
struct DescribedRelation {
    description: Described,
    /// The generation that `layout` was resolved under.
    resolved: Option<RegistryGeneration>,
    /// `None`: not registered.
    layout: Option<Arc<Layout>>,
    /// Index in the layouts of the transaction with this serial.
    slot: (u64, usize),
}

/// A transaction being received.
struct Open {
    begin: Begin,
    registry: Arc<Snapshot>,
    /// Ordinal of the next row change (P4).
    next_ordinal: u64,
    events: Vec<Entry>,
    fences: Vec<Entry>,
    fence_ids: Vec<u64>,
    records: RecordWriter,
    layouts: Vec<Arc<Layout>>,
    activations: Vec<(RegistryGeneration, u64)>,
    markers: Vec<Uuid>,
    manifest: ManifestBuilder,
    /// Beyond a hard limit: counted to its end, so that its size is known, and no longer kept (TX-07).
    excess: Option<Excess>,
}

/// Size of a transaction beyond the limits.
#[derive(Clone, Copy, Default)]
struct Excess {
    events: u64,
    bytes: u64,
}

impl Assembler {
    /// An assembler that starts under `registry`, the one in force at the durable boundary where the stream starts.
    pub fn new(registry: Arc<Snapshot>, limits: Limits, open_spool: SpoolFactory) -> Assembler {
        Assembler {
            limits,
            open_spool,
            registry,
            described: HashMap::new(),
            open: None,
            last_commit_lsn: None,
            awaited: None,
            scratch: Vec::new(),
            serial: 0,
        }
    }

    /// Forgets what the old connection said: a half-received transaction, whole (TX-06), and all relation descriptions, which the
    /// server sends again. `registry` is the one in force at the durable boundary where the stream starts again (G4).
    pub fn reconnected(&mut self, registry: Arc<Snapshot>) {
        self.registry = registry;
        self.described.clear();
        self.open = None;
        self.last_commit_lsn = None;
        self.awaited = None;
    }

    /// Whether no transaction is open (A3).
    pub fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// The registry in force after the last complete transaction.
    pub fn registry(&self) -> &Arc<Snapshot> {
        &self.registry
    }

    /// Takes the data of one XLogData frame.
    ///
    /// # Errors
    /// A blocking failure, placed where the transaction is known; or the spool's.
    pub fn frame(&mut self, data: &[u8]) -> Result<Step, StreamError> {
        let message = decode(data).map_err(|error| {
            self.placed(
                Failure::new(FailureClass::FrameMalformed, format!("decode a message: {error}")).into(),
            )
        })?;
        self.message(message)
    }

    /// Takes one decoded message.
    ///
    /// # Errors
    /// A blocking failure, placed where the transaction is known; or the spool's.
    pub fn message(&mut self, message: Message<'_>) -> Result<Step, StreamError> {
        match message {
            Message::Begin(begin) => return self.begin(begin),
            Message::Commit(commit) => return self.commit(commit),
            Message::Logical(message) => return self.logical(message),
            Message::Relation(metadata) => self.relation(&metadata),
            Message::Row(row) => self.row(&row).map_err(|error| self.placed(error))?,
            Message::Truncate(truncate) => {
                self.truncate(&truncate).map_err(|error| self.placed(error.into()))?
            }
            Message::Origin | Message::Type => {}
        }
        Ok(Step::Continue)
    }

    /// A source transaction begins.
    ///
    /// # Errors
    /// A blocking failure when one is open already, or when this one comes out of commit order.
    pub fn begin(&mut self, begin: Begin) -> Result<Step, StreamError> {
        if self.open.is_some() {
            let failure =
                Failure::new(FailureClass::MessageUnexpected, "a transaction begins inside of another");
            return Err(self.placed(failure.into()));
        }
        // R5: positions rest on it, so it is checked rather than believed.
        if self.last_commit_lsn.is_some_and(|last| begin.commit_lsn <= last) {
            let failure =
                Failure::new(FailureClass::MessageUnexpected, "a transaction comes out of commit order");
            return Err(failure.at(begin.commit_lsn, None).into());
        }
        self.serial += 1;
        self.open = Some(Open {
            begin,
            registry: self.registry.clone(),
            next_ordinal: 0,
            events: Vec::new(),
            fences: Vec::new(),
            fence_ids: Vec::new(),
            records: RecordWriter::new(),
            layouts: Vec::new(),
            activations: Vec::new(),
            markers: Vec::new(),
            manifest: ManifestBuilder::default(),
            excess: None,
        });
        Ok(Step::Continue)
    }

    /// The open transaction ends.
    ///
    /// # Errors
    /// A blocking failure when none is open, when it is another one, or when it exceeds a limit; or the spool's.
    pub fn commit(&mut self, commit: Commit) -> Result<Step, StreamError> {
        self.settled().map_err(|error| self.placed(error.into()))?;
        let Some(open) = self.open.take() else {
            let failure =
                Failure::new(FailureClass::MessageUnexpected, "a transaction ends that has not begun");
            return Err(failure.at(commit.commit_lsn, Some(commit.end_lsn)).into());
        };
        if open.begin.commit_lsn != commit.commit_lsn {
            let what = format!("the transaction ends as {}", commit.commit_lsn);
            return Err(Failure::new(FailureClass::MessageUnexpected, what)
                .at(open.begin.commit_lsn, None)
                .into());
        }
        if let Some(excess) = open.excess {
            let what = format!(
                "{} row changes and fences, {} bytes; the limits are {} row changes, {} bytes",
                excess.events, excess.bytes, self.limits.events_max, self.limits.bytes_max
            );
            let failure = Failure::new(FailureClass::TransactionTooLarge, what);
            return Err(failure.at(commit.commit_lsn, Some(commit.end_lsn)).into());
        }
        self.registry = open.registry.clone();
        self.last_commit_lsn = Some(commit.commit_lsn);
        Ok(Step::Transaction(Box::new(Transaction {
            header: Header {
                commit_lsn: commit.commit_lsn,
                end_lsn: commit.end_lsn,
                xid: open.begin.xid,
                committed_at_pg_micros: open.begin.committed_at_pg_micros,
                event_count: open.next_ordinal,
            },
            events: open.events,
            fences: open.fences,
            fence_ids: open.fence_ids,
            bytes: open.records.bytes(),
            records: open.records.finish()?,
            layouts: open.layouts,
            activations: open.activations,
            markers: open.markers,
            manifest: open.manifest.finish(),
            registry: open.registry,
        })))
    }

    /// A logical message. Messages that are not transactional, or whose prefix is not ours, are ignored.
    ///
    /// # Errors
    /// A blocking failure when the message is ours and malformed; or the spool's.
    pub fn logical(&mut self, message: LogicalMessage<'_>) -> Result<Step, StreamError> {
        if !message.transactional {
            return Ok(Step::Continue);
        }
        self.logical_inner(&message).map_err(|error| self.placed(error))
    }

    fn logical_inner(&mut self, message: &LogicalMessage<'_>) -> Result<Step, StreamError> {
        self.settled()?;
        match message.prefix {
            FENCE_PREFIX => self.fence(message.content)?,
            REGISTRY_PREFIX => {
                let malformed = || {
                    Failure::new(
                        FailureClass::RegistryMessageMalformed,
                        "an activation message does not parse",
                    )
                };
                let generation = parse_registry_activation(message.content).ok_or_else(malformed)?;
                let open = self.open.as_mut().ok_or_else(outside)?;
                if generation < open.registry.generation {
                    let what = format!(
                        "generation {generation} is announced while {} is in force",
                        open.registry.generation
                    );
                    return Err(Failure::new(FailureClass::RegistryGenerationBackwards, what).into());
                }
                if generation > open.registry.generation {
                    self.awaited = Some(generation);
                    return Ok(Step::NeedsSnapshot { generation, xid: open.begin.xid });
                }
            }
            MARKER_PREFIX => {
                let malformed =
                    || Failure::new(FailureClass::MarkerMalformed, "a marker message does not parse");
                let nonce = parse_marker(message.content).ok_or_else(malformed)?;
                self.open.as_mut().ok_or_else(outside)?.markers.push(nonce);
            }
            _ => {}
        }
        Ok(Step::Continue)
    }

    /// Answers [`Step::NeedsSnapshot`]: later events of this and of later transactions use this generation (G3). A caller that
    /// cannot load it blocks with [`FailureClass::RegistryGenerationMissing`].
    ///
    /// # Errors
    /// A blocking failure when it is not the one asked for.
    pub fn provide_snapshot(&mut self, snapshot: Arc<Snapshot>) -> Result<(), StreamError> {
        let awaited = self.awaited.take();
        match &mut self.open {
            Some(open) if awaited == Some(snapshot.generation) => {
                open.activations.push((snapshot.generation, open.next_ordinal));
                open.registry = snapshot;
                Ok(())
            }
            _ => {
                let what =
                    format!("generation {} is stored where another was announced", snapshot.generation);
                Err(self.placed(Failure::new(FailureClass::RegistryGenerationMissing, what).into()))
            }
        }
    }

    /// The snapshot that was asked for has come.
    fn settled(&self) -> Result<(), Failure> {
        match self.awaited {
            None => Ok(()),
            Some(generation) => Err(Failure::new(
                FailureClass::RegistryGenerationMissing,
                format!("generation {generation} was announced and has not been provided"),
            )),
        }
    }

    fn relation(&mut self, metadata: &RelationMetadata<'_>) {
        let description = Described::new(metadata);
        // Judged when a row of it comes, under the registry in force there.
        let fresh = DescribedRelation { description, resolved: None, layout: None, slot: (0, 0) };
        self.described.insert(metadata.oid, fresh);
    }

    fn truncate(&mut self, truncate: &Truncate<'_>) -> Result<(), Failure> {
        self.settled()?;
        let open = self.open.as_ref().ok_or_else(outside)?;
        for oid in truncate.relation_oids() {
            if let Some(relation) = open.registry.relation_by_oid(oid) {
                let what = format!("{}.{}: TRUNCATE of a registered table", relation.schema, relation.name);
                return Err(Failure::new(FailureClass::Truncate, what).of(relation.relation_id));
            }
        }
        Ok(())
    }

    fn row(&mut self, row: &RowMessage<'_>) -> Result<(), StreamError> {
        self.settled()?;
        let open = self.open.as_mut().ok_or_else(outside)?;
        // P4: counted before any filtering.
        let ordinal = open.next_ordinal;
        open.next_ordinal += 1;
        let Some(described) = self.described.get_mut(&row.relation_oid) else {
            let what = "a row of a table that this connection has not described";
            return Err(Failure::new(FailureClass::RelationUndescribed, what).into());
        };
        if described.resolved != Some(open.registry.generation) {
            described.layout = Layout::resolve(&described.description, &open.registry)?.map(Arc::new);
            described.resolved = Some(open.registry.generation);
            described.slot = (0, 0);
        }
        let Some(layout) = &described.layout else { return Ok(()) };
        if described.slot.0 != self.serial {
            described.slot = (self.serial, open.layouts.len());
            open.layouts.push(layout.clone());
        }
        let relation = layout.relation().relation_id;
        let key = key_of(row, layout)?;
        let malformed = || layout.failure(FailureClass::ValueMalformed, "a key is not a value of its type");
        let identity = Identity::new(relation, layout.relation().key.key_type, key).ok_or_else(malformed)?;

        put_event_identity(&mut self.scratch, row.operation, relation, ordinal, key.as_bytes());
        open.manifest.event(ordinal, relation, row.operation, &self.scratch);
        put_event_payload(&mut self.scratch, described.slot.1, |out| match &row.new {
            Some(tuple) => layout.encode(tuple, out),
            None => Ok(Completeness::Whole),
        })?;
        if open.keeps(&self.scratch, &self.limits) {
            let offset = open.records.push(&self.scratch);
            open.events.push(Entry::new(identity, ordinal, offset, row.operation));
            open.records.spill(self.limits.memory_bytes, &mut self.open_spool)?;
        }
        Ok(())
    }

    fn fence(&mut self, content: &[u8]) -> Result<(), StreamError> {
        let open = self.open.as_mut().ok_or_else(outside)?;
        let fence = FenceMessage::parse(content)
            .map_err(|error| Failure::new(FailureClass::FenceMalformed, format!("parse a fence: {error}")))?;
        // B13: a relation that is not in force is covered elsewhere; its fences do not apply, as its rows do not.
        let Some(relation) = open.registry.relation(fence.relation) else { return Ok(()) };
        check_fence(&fence, relation)?;
        let malformed = || {
            let what =
                format!("{}.{}: a fence's key is not a value of its type", relation.schema, relation.name);
            Failure::new(FailureClass::FenceMalformed, what).of(relation.relation_id)
        };
        let identity =
            Identity::new(relation.relation_id, relation.key.key_type, fence.key).ok_or_else(malformed)?;
        let length = put_fence(&mut self.scratch, &fence);
        open.manifest.fence(&self.scratch[..length]);
        if open.keeps(&self.scratch, &self.limits) {
            let offset = open.records.push(&self.scratch);
            open.fences.push(Entry::new(identity, fence.ordinal, offset, fence.operation));
            open.fence_ids.push(leading_half(fence.fence.0));
            open.records.spill(self.limits.memory_bytes, &mut self.open_spool)?;
        }
        Ok(())
    }

    /// Places an error in the open transaction.
    fn placed(&self, error: StreamError) -> StreamError {
        match &self.open {
            Some(open) => error.at(open.begin.commit_lsn, None),
            None => error,
        }
    }
}

impl Open {
    /// Whether one more record is kept; beyond a hard limit everything so far is let go and only counted.
    fn keeps(&mut self, record: &[u8], limits: &Limits) -> bool {
        let bytes = record.len() as u64;
        let full = self.events.len() > limits.events_max || self.fences.len() > limits.events_max;
        if self.excess.is_none() && (full || self.records.bytes() + bytes > limits.bytes_max) {
            let events = (self.events.len() + self.fences.len()) as u64;
            self.excess = Some(Excess { events, bytes: self.records.bytes() });
            (self.events, self.fences, self.fence_ids) = Default::default();
            self.records = RecordWriter::new();
        }
        match &mut self.excess {
            None => true,
            Some(excess) => {
                excess.events += 1;
                excess.bytes += bytes;
                false
            }
        }
    }
}

/// The key of the changed row. Keys cannot change, so old and new key are one (F1).
fn key_of<'f>(row: &RowMessage<'f>, layout: &Layout) -> Result<&'f str, Failure> {
    let old = row.old.as_ref().and_then(|old| old.key(layout.key_slot));
    let new = match row.new.as_ref().and_then(|new| new.values().nth(layout.key_slot)) {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    let key = match (old, new) {
        (Some(old), Some(new)) if old != new => {
            return Err(layout.failure(FailureClass::KeyChanged, "an update changes a row's key"));
        }
        (_, Some(key)) | (Some(key), None) => key,
        (None, None) => {
            return Err(layout.failure(FailureClass::ValueMalformed, "a row comes without its key"));
        }
    };
    std::str::from_utf8(key).map_err(|_| layout.failure(FailureClass::ValueMalformed, "a key is not UTF-8"))
}

/// F4, F7: what a fence says of its relation must be what the registry says.
fn check_fence(fence: &FenceMessage<'_>, relation: &Relation) -> Result<(), Failure> {
    let failed = |class, what: &str| {
        let what = format!("{}.{}: {what}", relation.schema, relation.name);
        Err(Failure::new(class, what).of(relation.relation_id))
    };
    if fence.version == RowVersion::UNFENCED {
        return failed(FailureClass::FenceMalformed, "a fence carries the reserved version 0");
    }
    if fence.kind != relation.kind || fence.table != relation.table_id {
        return failed(
            FailureClass::FenceRelationMismatch,
            "a fence names another registration kind or table id",
        );
    }
    if !names(fence.qualified_name, &relation.schema, &relation.name) {
        return failed(FailureClass::FenceRelationMismatch, "a fence names another table");
    }
    Ok(())
}

/// Whether `qualified`, made by `quote_ident`, is `schema.name`. Which words it quotes depends on the server's keywords, so the
/// quotes are taken off instead of put on.
fn names(qualified: &str, schema: &str, name: &str) -> bool {
    let after = |text: &'_ str, ident: &str| -> Option<usize> {
        let Some(quoted) = text.strip_prefix('"') else {
            return text.starts_with(ident).then_some(ident.len()).filter(|_| !ident.is_empty());
        };
        let escaped = ident.replace('"', "\"\"");
        quoted.strip_prefix(escaped.as_str())?.starts_with('"').then_some(escaped.len() + 2)
    };
    let rest = after(qualified, schema).and_then(|at| qualified[at..].strip_prefix('.'));
    rest.is_some_and(|rest| after(rest, name) == Some(rest.len()))
}

fn leading_half(id: Uuid) -> u64 {
    id.as_u64_pair().0
}

fn outside() -> Failure {
    Failure::new(FailureClass::MessageUnexpected, "a change or message outside of a transaction")
}

/// Name of a relation for explanations.
pub(crate) fn name_of(registry: &Snapshot, relation: RelationId) -> String {
    match registry.relation(relation) {
        Some(relation) => format!("{}.{}", relation.schema, relation.name),
        None => format!("relation {relation}"),
    }
}
