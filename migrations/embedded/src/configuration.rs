//! The server's configuration: a file of ours that includes the cluster's own.
//!
//! So nothing is written into the data folder, which belongs to the server's user, and `alter system` still wins.

use crate::error::Error;
use crate::options::Options;

pub(crate) fn text(port: u16, options: &Options) -> Result<String, Error> {
    let max_connections = options.max_connections.to_string();
    let port = port.to_string();
    let ours = [
        ("listen_addresses", "127.0.0.1"),
        ("port", port.as_str()),
        ("unix_socket_directories", ""),
        ("max_connections", max_connections.as_str()),
        ("wal_level", "logical"),
        ("max_wal_senders", "32"),
        ("max_replication_slots", "32"),
        ("log_destination", "stderr"),
        ("logging_collector", "off"),
        // Start-up failures are recognised by their English text.
        ("lc_messages", "C"),
        // Statements and DETAIL carry row values (Q1).
        ("log_min_error_statement", "panic"),
        ("log_error_verbosity", "terse"),
    ];
    let theirs = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut text = String::from("# Written at each start.\ninclude 'data/postgresql.conf'\n");
    for (name, value) in ours.into_iter().chain(theirs) {
        let bad = |why| Error::BadSetting { name: name.to_owned(), why };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.') {
            return Err(bad("a name has letters, digits, dots and underscores only"));
        }
        if value.contains(['\n', '\r', '\0']) {
            return Err(bad("a value cannot span lines"));
        }
        text.push_str(&format!("{name} = '{}'\n", value.replace('\\', "\\\\").replace('\'', "''")));
    }
    Ok(text)
}
