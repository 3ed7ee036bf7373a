//! Which failures of PostgreSQL and the network pass by themselves: the closed list of Q4, in one place.

use std::fmt;

/// An SQLSTATE.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// Reads five letters or digits.
    pub fn parse(text: &str) -> Option<SqlState> {
        let code: [u8; 5] = text.as_bytes().try_into().ok()?;
        code.iter().all(u8::is_ascii_alphanumeric).then_some(SqlState(code))
    }

    /// The five characters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a failure calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Passes by itself: blocked meanwhile, retried with backoff.
    Transient,
    /// An administrator must change a right, a password or a database: named in readiness, retried with backoff (Q4).
    Configuration,
    /// An internal error of the server that may or may not pass: three tries, then poison.
    Internal,
    /// The same transaction will fail again: poison.
    Poison,
}

impl Disposition {
    /// Whether it passes by itself, or by the act of an administrator, without anybody acting on the stream.
    pub fn passes(self) -> bool {
        matches!(self, Disposition::Transient | Disposition::Configuration)
    }
}

/// Tries of an [`Disposition::Internal`] failure before it counts as poison.
pub const INTERNAL_TRIES: u32 = 3;

/// The closed list (POSTGRES.md). Everything not named is poison.
pub fn classify(code: SqlState) -> Disposition {
    let text = code.as_str();
    match &text[..2] {
        "08" | "53" => return Disposition::Transient,
        "28" => return Disposition::Configuration,
        _ => {}
    }
    match text {
        // serialization_failure, deadlock_detected, lock_not_available, object_in_use
        "40001" | "40P01" | "55P03" | "55006" => Disposition::Transient,
        // admin_shutdown, crash_shutdown, cannot_connect_now, database_dropped, idle_session_timeout
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Disposition::Transient,
        // query_canceled, io_error, read_only_sql_transaction (a standby), idle_in_transaction_session_timeout
        "57014" | "58030" | "25006" | "25P03" => Disposition::Transient,
        // insufficient_privilege, invalid_catalog_name
        "42501" | "3D000" => Disposition::Configuration,
        // data_corrupted, index_corrupted
        "XX001" | "XX002" => Disposition::Poison,
        _ if text.starts_with("XX") => Disposition::Internal,
        _ => Disposition::Poison,
    }
}

/// An error reduced to what may be shown and decided on: no message, no DETAIL (Q1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it calls for.
    pub disposition: Disposition,
    /// The server's code, when the server answered.
    pub code: Option<SqlState>,
    /// Our words for it.
    pub what: &'static str,
    /// The size of what was too large for us, where that was it.
    pub too_large_bytes: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.too_large_bytes) {
            (Some(code), _) => write!(f, "{} (SQLSTATE {code})", self.what),
            (None, Some(bytes)) => write!(f, "{}: {bytes} bytes", self.what),
            (None, None) => f.write_str(self.what),
        }
    }
}

impl Fault {
    /// One that no code of the server tells.
    pub(crate) const fn ours(disposition: Disposition, what: &'static str) -> Fault {
        Fault { disposition, code: None, what, too_large_bytes: None }
    }

    fn server(code: &str) -> Fault {
        match SqlState::parse(code) {
            Some(code) => Fault { code: Some(code), ..Fault::ours(classify(code), what(code)) },
            None => Fault::ours(Disposition::Poison, "the server refused without a code"),
        }
    }
}

fn what(code: SqlState) -> &'static str {
    match code.as_str() {
        "40001" => "serialization failure",
        "40P01" => "deadlock detected",
        "55P03" => "lock not available",
        "55006" => "object in use",
        "57P01" | "57P02" => "the server is shutting down",
        "57P03" => "the server is starting up",
        "57014" => "canceled",
        "25006" => "the server is read-only",
        "25P03" => "the transaction idled too long",
        "42501" => "insufficient privilege",
        "42P01" => "a table is missing",
        "42704" => "an object is missing",
        "3D000" => "no such database",
        "23505" => "a key exists already",
        text => match &text[..2] {
            "08" => "connection failure",
            "28" => "authentication failed",
            "53" => "the server is out of resources",
            "23" => "a constraint was violated",
            "XX" => "internal error of the server",
            _ => "the server refused",
        },
    }
}

impl From<&sqlx::Error> for Fault {
    fn from(error: &sqlx::Error) -> Fault {
        let transient = |what| Fault::ours(Disposition::Transient, what);
        let poison = |what| Fault::ours(Disposition::Poison, what);
        match error {
            sqlx::Error::Database(error) => Fault::server(error.code().as_deref().unwrap_or_default()),
            sqlx::Error::Io(_) => transient("the connection broke"),
            sqlx::Error::Tls(_) => Fault::ours(Disposition::Configuration, "TLS could not be set up"),
            // Both come from a stream cut in the middle of a message.
            sqlx::Error::Protocol(_) => transient("the connection lost step"),
            sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut => {
                transient("the connection is gone")
            }
            sqlx::Error::RowNotFound => poison("a row that must exist is missing"),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                poison("a stored value has another form than expected")
            }
            _ => poison("the SQL client refused"),
        }
    }
}

impl From<&pgwire_replication::PgWireError> for Fault {
    fn from(error: &pgwire_replication::PgWireError) -> Fault {
        use pgwire_replication::PgWireError as E;
        let transient = |what| Fault::ours(Disposition::Transient, what);
        let configuration = |what| Fault::ours(Disposition::Configuration, what);
        match error {
            E::Io(_) => transient("the replication connection broke"),
            E::Task(_) | E::Internal(_) => transient("the replication client ended"),
            E::Protocol(_) => transient("the replication connection lost step"),
            E::Auth(_) => configuration("authentication of the replication connection failed"),
            E::Tls(_) => configuration("TLS of the replication connection could not be set up"),
            // The client renders "message (SQLSTATE code)".
            E::Server(text) => {
                let code = text.rsplit_once("(SQLSTATE ").and_then(|(_, rest)| rest.strip_suffix(')'));
                Fault::server(code.unwrap_or_default())
            }
            E::MessageTooLarge { payload_bytes, .. } => Fault {
                too_large_bytes: Some(*payload_bytes as u64),
                ..Fault::ours(Disposition::Poison, "one message exceeds message_bytes_max")
            },
            _ => transient("the replication client failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_the_transient_list_is_closed() {
        use Disposition::*;
        for (code, expected) in [
            ("08006", Transient),
            ("40001", Transient),
            ("40P01", Transient),
            ("53100", Transient),
            ("53300", Transient),
            ("55P03", Transient),
            ("55006", Transient),
            ("55000", Poison),
            ("57P01", Transient),
            ("57P05", Transient),
            ("57014", Transient),
            ("57000", Poison),
            ("58030", Transient),
            ("58P01", Poison),
            ("25006", Transient),
            ("25P02", Poison),
            ("25P03", Transient),
            ("42501", Configuration),
            ("42P01", Poison),
            ("28P01", Configuration),
            ("3D000", Configuration),
            ("22021", Poison),
            ("23505", Poison),
            ("XX000", Internal),
            ("XX001", Poison),
            ("XX002", Poison),
            ("0A000", Poison),
            ("P0001", Poison),
        ] {
            assert_eq!(SqlState::parse(code).map(classify), Some(expected), "{code}");
        }
    }

    #[test]
    fn q1_a_fault_repeats_nothing_that_the_server_said() {
        let error = pgwire_replication::PgWireError::Server("no SECRET-7f3a (SQLSTATE 42704)".into());
        assert_eq!(Fault::from(&error).to_string(), "an object is missing (SQLSTATE 42704)");
    }
}
