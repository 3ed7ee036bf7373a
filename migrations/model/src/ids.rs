//! Identities that must never trade places, each a type of its own.

use std::fmt;
use uuid::Uuid;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Immutable logical id of a registered relation (G1); never reused.
    RelationId(i32)
);
number!(
    /// The id by which clients know a synced table; never reused (F10), never derived from a [`RelationId`] (F4).
    TableId(i32)
);
number!(
    /// Number of one validated state of the registrations; on the wire `sv`.
    RegistryGeneration(i32)
);
number!(
    /// Compact form of a stream generation, as other tables carry it. Opaque to clients: they see [`StreamGeneration`].
    GenerationId(i32)
);
number!(
    /// A projected state: the set of tables `tidegate_projection.s<state>_…`.
    StateId(i32)
);
number!(
    /// A scope's row in its projected state. Not the number that a gateway gives a scope on the wire.
    ScopeId(i64)
);
number!(
    /// One mutation of one client, as the fence refers to it (F5).
    MutationId(i64)
);
token!(
    /// One lineage of the stream (P1): opaque, changed only by an authorized reset.
    StreamGeneration
);
token!(
    /// Unique id of one fence (F2).
    FenceId
);
token!(
    /// A client installation, chosen by the client; unique together with its subject.
    ClientId
);
token!(
    /// Opaque equality token of one state of one row (F10). No order, no meaning, and so no `Ord`.
    RowVersion
);

impl RowVersion {
    /// The version `0` of a row that no fence has touched yet (F10).
    pub const UNFENCED: RowVersion = RowVersion(Uuid::nil());
}

/// Who a session acts for: the token's `sub`, or nobody (anonymous).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(pub String);

impl Subject {
    /// The subject of sockets without a token.
    pub fn anonymous() -> Subject {
        Subject(String::new())
    }

    /// Whether nobody is signed in.
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty()
    }
}
