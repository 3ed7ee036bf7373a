//! The pure core of capture: pgoutput bytes in, decisions out. No async, no SQL client, no clock.
//!
//! ```text
//! bytes ─ decode ─ assemble ─ pair ─ [ project ─ membership ─ effects ] ─ Writes
//!                     │         │              Batch
//!                 Transaction  PairedTransaction ─ Piece
//! ```
//!
//! # Calling contract
//!
//! The core never reads or writes anything itself. It says what it needs, the caller fetches it and calls back.
//!
//! 1. **[`Assembler`]** takes messages one by one, in stream order: [`Assembler::frame`] for the data of an XLogData frame,
//!    [`Assembler::begin`], [`Assembler::commit`] and [`Assembler::logical`] where the transport surfaces those typed. Each call
//!    gives a [`Step`]:
//!    - [`Step::Continue`]: the next message, please.
//!    - [`Step::NeedsSnapshot`]: the message activates a registry generation (G3). Load it and call
//!      [`Assembler::provide_snapshot`] before the next message.
//!    - [`Step::Transaction`]: one whole source transaction, as a [`Transaction`].
//!
//!    After a reconnect call [`Assembler::reconnected`] with the registry in force at the durable boundary: a half-received
//!    transaction is forgotten whole and will come again (TX-06). [`Assembler::is_idle`] tells whether one is open (A3).
//! 2. **[`Transaction::pair`]** matches row changes with fences (F7, F8). If the transaction's identity is already durable,
//!    call [`PairedTransaction::verify_replay`] with the stored manifest (R3) and go on to the next; else materialize it.
//! 3. **[`Batch`]** takes pieces of transactions in stream order and gives the write lists for one database transaction:
//!
//!    ```text
//!    let mut batch = Batch::new();                     // or Batch::resume(carry)
//!    batch.push(piece) …                               // several whole transactions, or one piece of a large one
//!    let needs = batch.row_needs();                    // round 1: one query per relation
//!    batch.provide_row(relation, key_index, row) …     // those that exist; the others are absent
//!    let batch = batch.project()?;
//!    let needs = batch.needs();                        // round 2: one query for scopes, one for grant pairs
//!    let (writes, carry) = batch.finish(answers)?;     // execute every list, commit if carry.is_complete()
//!    ```
//!
//!    Transactions in one batch see each other's results in order, keep their own record, effects and ordinals, and are each
//!    evaluated at their own end (R2); physical row writes are the last state per key. If a stage fails for a batch of several
//!    transactions, run them one by one, so that exactly the bad one is quarantined.
//!
//! # A transaction larger than memory (R9)
//!
//! While it is received, row images and fences go to a [`Spool`] beyond [`Limits::memory_bytes`]; what stays in memory is 64
//! bytes per change. Once it is paired, its rows (not its events) are put in the order of the last event that touched each.
//! Folding a row's events needs nothing of any other row, and each net effect belongs to that last event (P5), so
//! [`PairedTransaction::next_piece`] can hand out the rows piece by piece, each row whole in one piece, and effects still come out in
//! position order. The caller runs one [`Batch`] per piece inside one database transaction and takes the [`Carry`] along:
//!
//! ```text
//! let mut carry = Carry::default();
//! while let Some(piece) = transaction.next_piece(&limits)? {
//!     let mut batch = Batch::resume(carry);
//!     batch.push(piece); …two rounds…
//!     let (writes, next) = batch.finish(answers)?;   // execute, do not commit yet
//!     carry = next;
//! }                                                  // commit
//! ```
//!
//! A transaction that fits into one piece takes the same path. When rules with joins arrive, membership of a row will depend
//! on other rows of the same transaction: the pieces must then be projected first, all of them, and evaluated in a second pass
//! over the rows so staged; that pass can be driven by the same pieces.
//! Above [`Limits::events_max`] or [`Limits::bytes_max`] the transaction blocks as `transaction_too_large`, with its size (TX-07).

pub mod decode;

mod assemble;
mod batch;
mod carry;
mod effects;
mod failure;
mod layout;
mod manifest;
mod membership;
mod needs;
mod pair;
mod project;
mod record;
mod spool;
mod transaction;
mod writes;

pub use assemble::{Assembler, Step};
pub use batch::{Batch, ProjectedBatch, projected_digest};
pub use carry::Carry;
pub use failure::{EXPLANATION_BYTES_MAX, Failure, FailureClass, NextAct, StreamError};
pub use manifest::{Manifest, Run, verify_replay};
pub use membership::{Membership, evaluate};
pub use needs::{
    GrantPair, NamedScope, OldRow, RelationRowNeeds, RowNeeds, ScopeAnswer, ScopeAnswers, ScopeNeeds,
    ScopeTotals,
};
pub use pair::{PairedTransaction, Piece, PieceLimits};
pub use spool::{FileSpool, MemorySpool, Spool, SpoolFactory};
pub use transaction::{Header, Limits, Transaction};
pub use writes::{
    ActivationColumns, EdgeColumns, EffectColumns, EffectOperation, FenceColumns, GrantColumns,
    GrantEffectColumns, GrantKeyColumns, Marker, NewScopeColumns, ProjectionWrites, RowColumns, ScopeColumns,
    TransactionColumns, Writes,
};
