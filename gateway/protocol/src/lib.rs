//! Tidegate's wire protocol: frames, codes, golden vectors. Bytes in, frames out, and back; no I/O, no clock, no state.
//!
//! `client.rs` and `server.rs` are the frame table, the one place where the wire is defined. Rust types and codecs, the SDK's
//! TypeScript, the tables of `PROTOCOL.md` and the guard against unnoticed changes are all made from it.

mod client;
mod codes;
mod declare;
mod opaque;
mod page;
mod read;
mod server;
mod table;
mod value;
mod wire;
mod write;

pub use client::*;
pub use codes::{CloseCode, ErrorCode, RebuildReason, RejectionCode, Remedy};
pub use opaque::{Bin, Secret};
pub use page::{CUT, PageBuilder, RebuildPageBuilder};
pub use read::{Limits, Malformed, Reader, Reason};
pub use server::*;
pub use table::{DecodeError, Direction, Frame, FrameName, frame_name, frames};
pub use value::{Base, Columns, Elements, Invalid, InvalidReason, Key, Value, decode_row};
pub use wire::{Field, IntoOwned, MutationNumber, Record, ScopeNumber, Shape, UINT_MAX, Wire, Words};

pub use tidegate_model::{
    ClientId, RegistryGeneration, RowDigest, RowKey, RowVersion, ScopeDigest, TableId, row_digest,
};

/// The protocol's number. Numbering starts at 3.
pub const PROTOCOL_VERSION: u32 = 3;
/// The WebSocket subprotocol that both sides must agree on.
pub const SUBPROTOCOL: &str = "tidegate.v3.msgpack";
/// Path of the WebSocket endpoint.
pub const SOCKET_PATH: &str = "/v3/socket";
