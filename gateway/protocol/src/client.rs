//! Frames that clients send. This is the table: names, order, types and meaning of every field, once.

use crate::declare::{frames, record, words};
use crate::opaque::{Bin, Secret};
use crate::value::{Base, Columns, Value};
use crate::wire::MutationNumber;
use std::borrow::Cow;
use tidegate_model::{ClientId, RegistryGeneration, TableId};
use uuid::Uuid;

words! {
    /// What a mutation does to its row.
    MutationOp {
        /// The row must not exist.
        "insert" Insert,
        /// The row must exist; omitted columns keep their values.
        "update" Update,
        /// Inserts the row, or updates the columns given.
        "upsert" Upsert,
        /// The row must exist and is deleted.
        "delete" Delete,
    }
}

words! {
    /// What is subscribed to.
    SubscriptionKind {
        /// A scope: a named set of rows.
        "scope" Scope,
    }
}

record! {
    /// One change of one row.
    Mutation<'a> {
        /// The client's number for it: one more than the one before, from 1, given at first send and never given again.
        "n" number: MutationNumber,
        /// Table id from the manifest.
        "table" table: TableId,
        /// What to do.
        "op" op: MutationOp,
        /// Primary key.
        "key" key: Value<'a>,
        /// Precondition: a version that the row must have, or `{after: n}`, the version that the client's own mutation n
        /// produced. Nil: none. An insert has none.
        "base" base: Base,
        /// Values by column name, in their wire form. Omitted columns stay as they are (or take their default in an insert); nil
        /// sets null. The key column need not be repeated. Absent for a delete.
        "cols" cols: Columns<'a>,
    }
}

frames! {
    /// A frame from a client.
    ToServer ClientFrame

    /// Opens the session. Must be the first frame, within 10 seconds, and comes once.
    "hello" Hello<'a> {
        /// Protocol versions that the client speaks.
        "v" versions: Vec<u32>,
        /// Access token; nil for an anonymous session.
        "token" token: Option<Secret<'a>>,
        /// The subject that the client believes it is, which owns its local store. Refused with `user_mismatch` if the token says
        /// otherwise.
        "user" user: Option<Cow<'a, str>>,
        /// Id of this client installation: 16 random bytes, kept with the local store, never shared by two stores.
        "client" client: ClientId,
        /// True until the first `welcome` for this client id: the server may make its record. An unknown id that is not new is
        /// `client_expired`.
        "new" new: bool,
        /// Schema version of the manifest that the client holds.
        "sv" sv: Option<RegistryGeneration>,
        /// Mutations that were accepted but not yet materialized as far as the client knows: it will be told of each.
        "await" awaited: Vec<MutationNumber>,
        /// Every outcome up to this number has been stored by the client and may be forgotten by the server.
        "acked" acked: MutationNumber,
    }

    /// Subscribes to a scope, or to all assigned ones. Subscribing again to a subscribed scope replaces the subscription.
    "subscribe" Subscribe<'a> {
        /// The client's number for this request; answers carry it.
        "ref" reference: u64,
        /// What is subscribed to.
        "kind" kind: SubscriptionKind,
        /// Scope name. Nil: every assigned scope, without cursors.
        "name" name: Option<Cow<'a, str>>,
        /// Where the client stands in this scope, as a page or `joined` gave it. Nil: nowhere, it holds nothing.
        "cursor" cursor: Option<Bin<'a>>,
        /// Instead of a cursor: the continuation token of an interrupted rebuild.
        "token" token: Option<Bin<'a>>,
        /// True when the client drops the scope because its digest did not match: the server counts it and rebuilds.
        "mismatch" mismatch: Option<bool>,
    }

    /// Ends a subscription. Has no answer; frames already under way for the scope are to be ignored.
    "unsubscribe" Unsubscribe<'a> {
        /// The client's number for this request.
        "ref" reference: u64,
        /// Scope name.
        "name" name: Cow<'a, str>,
    }

    /// Asks the server to apply mutations. Answered by `outcome`, or by `error` where nothing durable was decided.
    "push" Push<'a> {
        /// The client's number for this request.
        "ref" reference: u64,
        /// Id of the batch: 16 random bytes. Sent again, a batch keeps its id and its members.
        "batch" batch: Uuid,
        /// Whether all mutations must be accepted for any to be. Otherwise each stands alone.
        "atomic" atomic: bool,
        /// Schema version under which the values were written.
        "sv" sv: RegistryGeneration,
        /// As in `hello`.
        "acked" acked: MutationNumber,
        /// In ascending, gapless order of number.
        "mutations" mutations: Vec<Mutation<'a>>,
    }

    /// Settles mutations whose outcome is unknown: each is discarded if it never ran, else its first outcome is told.
    "void" Void {
        /// The client's number for this request; the `outcome` carries it.
        "ref" reference: u64,
        /// Mutation numbers, ascending.
        "numbers" numbers: Vec<MutationNumber>,
    }

    /// Brings a fresh token before the old one expires. The subject must stay the same. Silent on success.
    "auth" Auth<'a> {
        /// The client's number for this request.
        "ref" reference: u64,
        /// Access token.
        "token" token: Secret<'a>,
    }

    /// Asks for a `pong`.
    "ping" Ping {
        /// Comes back in the `pong`.
        "id" id: u64,
    }
}
