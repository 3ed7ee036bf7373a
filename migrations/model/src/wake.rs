//! The wake hint that travels by NOTIFY. It promises nothing: correctness rests on the scan (S5).

use crate::{Lsn, StreamGeneration};

/// "Something at or before this commit is durable."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The stream's generation.
    pub generation: StreamGeneration,
    /// The newest durable source transaction that the sender knew of.
    pub commit_lsn: Lsn,
}

impl Wake {
    /// Channel name for LISTEN and NOTIFY.
    pub const CHANNEL: &'static str = "tidegate_wake";

    /// Reads a payload; `None` when it is not one of ours (the reader then scans as for any wake).
    pub fn parse(payload: &str) -> Option<Wake> {
        let (generation, lsn) = payload.split_once(':')?;
        Some(Wake { generation: StreamGeneration(generation.parse().ok()?), commit_lsn: lsn.parse().ok()? })
    }

    /// The payload to send.
    pub fn payload(&self) -> String {
        format!("{}:{}", self.generation, self.commit_lsn)
    }
}
