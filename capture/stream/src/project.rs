//! Fourth stage. Folds the events of one row into a [`RowDelta`], and applies it to the row as the projection has it. Pure.
//!
//! A delta needs no old state to be built, so a row that one transaction changes a million times takes the memory of one
//! image. Omitted values are filled from the delta itself where the transaction wrote them, else from the projection, and from
//! nowhere else (R8, DT-01).

use crate::layout::{Completeness, Layout, complete, overlay};
use crate::{Failure, FailureClass};
use bytes::Bytes;
use std::sync::Arc;
use tidegate_model::{RowOperation, RowVersion};

/// One row change with what its fence says of it.
pub(crate) struct PairedEvent<'l> {
    pub(crate) operation: RowOperation,
    pub(crate) ordinal: u64,
    pub(crate) row: Bytes,
    pub(crate) completeness: Completeness,
    pub(crate) version: RowVersion,
    pub(crate) layout: &'l Arc<Layout>,
}

/// What one transaction did to one row, netted.
#[derive(Clone, Debug)]
pub(crate) struct RowDelta {
    /// Its first operation: an insert needs the row to be absent, the others need it to be there.
    pub(crate) first: RowOperation,
    /// Version of the first event, for the check against the projected one.
    first_version: RowVersion,
    /// The row after it.
    after: After,
    /// Ordinal of its last event: where its net effects belong (P5).
    pub(crate) last_ordinal: u64,
    /// Version of its last event: the row's, or its deletion's.
    pub(crate) version: RowVersion,
    /// Layout of its last event: says under which registry its image was encoded and is evaluated (G3).
    pub(crate) layout: Arc<Layout>,
}

#[derive(Clone, Debug)]
enum After {
    Gone,
    Whole(Bytes),
    /// Some values come from the projection.
    Partial(Bytes),
}

impl RowDelta {
    /// The delta of a single event.
    pub(crate) fn new(event: PairedEvent<'_>) -> Result<RowDelta, Failure> {
        Ok(RowDelta {
            first: event.operation,
            first_version: event.version,
            after: After::of(&event)?,
            last_ordinal: event.ordinal,
            version: event.version,
            layout: event.layout.clone(),
        })
    }

    /// Lays a later event of the same row over it.
    pub(crate) fn push(&mut self, event: PairedEvent<'_>) -> Result<(), Failure> {
        let layout = event.layout;
        if event.version == self.version {
            return Err(version_reused(layout));
        }
        match (&self.after, event.operation) {
            (After::Gone, RowOperation::Insert)
            | (After::Whole(_) | After::Partial(_), RowOperation::Update | RowOperation::Delete) => {}
            (After::Gone, RowOperation::Update) => return Err(update_on_missing(layout)),
            (After::Gone, RowOperation::Delete) => return Err(delete_on_missing(layout)),
            (_, RowOperation::Insert) => return Err(insert_on_existing(layout)),
        }
        let upper = After::of(&event)?;
        self.after = match (upper, &self.after) {
            (After::Partial(upper), lower @ (After::Whole(_) | After::Partial(_))) => {
                if !layout.same_columns(&self.layout) {
                    let what = "a row's columns changed inside of a transaction that omits a value";
                    return Err(layout.failure(FailureClass::LayoutChanged, what));
                }
                let columns = layout.relation().columns.len();
                match lower {
                    After::Whole(lower) => After::Whole(
                        complete(&upper, lower, columns).ok_or_else(|| misshapen(layout))?.into(),
                    ),
                    After::Partial(lower) => After::Partial(
                        overlay(&upper, lower, columns).ok_or_else(|| misshapen(layout))?.into(),
                    ),
                    After::Gone => After::Gone,
                }
            }
            (upper, _) => upper,
        };
        self.last_ordinal = event.ordinal;
        self.version = event.version;
        self.layout = layout.clone();
        Ok(())
    }

    /// The image after the transaction, given the version and image before it; `None` when the row is gone.
    pub(crate) fn apply(&self, old: Option<(RowVersion, &Bytes)>) -> Result<Option<Bytes>, Failure> {
        let layout = &self.layout;
        let old = match (self.first, old) {
            (RowOperation::Insert, None) => None,
            (RowOperation::Insert, Some(_)) => return Err(insert_on_existing(layout)),
            (RowOperation::Update, None) => return Err(update_on_missing(layout)),
            (RowOperation::Delete, None) => return Err(delete_on_missing(layout)),
            (RowOperation::Update | RowOperation::Delete, Some((version, row))) => {
                if version == self.first_version {
                    return Err(version_reused(layout));
                }
                Some(row)
            }
        };
        match (&self.after, old) {
            (After::Gone, _) => Ok(None),
            (After::Whole(row), _) => Ok(Some(row.clone())),
            (After::Partial(row), Some(old)) => {
                let columns = layout.relation().columns.len();
                Ok(Some(complete(row, old, columns).ok_or_else(|| misshapen(layout))?.into()))
            }
            (After::Partial(_), None) => Err(value_missing(layout)),
        }
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        match &self.after {
            After::Gone => 0,
            After::Whole(row) | After::Partial(row) => row.len(),
        }
    }
}

impl After {
    fn of(event: &PairedEvent<'_>) -> Result<After, Failure> {
        match (event.operation, event.completeness) {
            (RowOperation::Delete, _) => Ok(After::Gone),
            (_, Completeness::Whole) => Ok(After::Whole(event.row.clone())),
            (RowOperation::Update, Completeness::Partial) => Ok(After::Partial(event.row.clone())),
            (RowOperation::Insert, Completeness::Partial) => Err(value_missing(event.layout)),
        }
    }
}

fn insert_on_existing(layout: &Layout) -> Failure {
    layout.failure(FailureClass::InsertOnExisting, "an insert of a row that is already there")
}

fn update_on_missing(layout: &Layout) -> Failure {
    layout.failure(FailureClass::UpdateOnMissing, "an update of a row that is not there")
}

fn delete_on_missing(layout: &Layout) -> Failure {
    layout.failure(FailureClass::DeleteOnMissing, "a delete of a row that is not there")
}

fn version_reused(layout: &Layout) -> Failure {
    layout.failure(FailureClass::FenceVersionReused, "a fence gives a row the version that it already has")
}

fn value_missing(layout: &Layout) -> Failure {
    layout.failure(FailureClass::ValueMissing, "a value is omitted although nothing wrote it before")
}

fn misshapen(layout: &Layout) -> Failure {
    layout.failure(FailureClass::ProjectionInconsistent, "a row image has not the registered columns")
}
