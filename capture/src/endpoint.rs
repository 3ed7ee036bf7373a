//! Where the database is. Text is parsed once, here, into what both clients need: SQL and replication.

use crate::CaptureError;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// One database, for both kinds of connection. Has no `Debug`: it holds the password.
#[derive(Clone)]
pub(crate) struct Endpoint {
    options: PgConnectOptions,
    password: String,
}

impl Endpoint {
    pub(crate) fn parse(url: &str) -> Result<Endpoint, CaptureError> {
        // sqlx takes any scheme, and its errors would repeat parts of the string.
        let options: Option<PgConnectOptions> = match url.split_once("://") {
            Some(("postgres" | "postgresql", _)) => url.parse().ok(),
            _ => None,
        };
        let options = options.ok_or_else(|| {
            CaptureError::Config("DATABASE_URL is not a PostgreSQL connection string".into())
        })?;
        if options.get_database().is_none() {
            // H2: the one database is configured explicitly.
            return Err(CaptureError::Config("DATABASE_URL must name the database".into()));
        }
        let password = options.to_url_lossy().password().map(percent_decode).unwrap_or_default();
        Ok(Endpoint { options, password })
    }

    pub(crate) fn sql(&self) -> PgConnectOptions {
        self.options.clone()
    }

    pub(crate) fn database(&self) -> &str {
        self.options.get_database().unwrap_or_default()
    }

    /// Connection parameters of the replication client, without slot-specific ones.
    pub(crate) fn replication(
        &self,
        slot: &str,
    ) -> Result<pgwire_replication::ReplicationConfig, CaptureError> {
        let host = match self.options.get_socket() {
            Some(path) => path.to_string_lossy().into_owned(),
            None => self.options.get_host().to_owned(),
        };
        let mut config = pgwire_replication::ReplicationConfig::new(
            host,
            self.options.get_username(),
            self.password.clone(),
            self.database(),
            slot,
            crate::source::PUBLICATION,
        )
        .with_port(self.options.get_port());
        if !config.is_unix_socket() {
            config = config.with_tls(tls(self.options.get_ssl_mode())?);
        }
        Ok(config)
    }
}

#[cfg(feature = "tls")]
fn tls(mode: PgSslMode) -> Result<pgwire_replication::TlsConfig, CaptureError> {
    use pgwire_replication::{SslMode, TlsConfig};
    let mode = match mode {
        PgSslMode::Disable => SslMode::Disable,
        PgSslMode::Allow | PgSslMode::Prefer => SslMode::Prefer,
        PgSslMode::Require => SslMode::Require,
        PgSslMode::VerifyCa => SslMode::VerifyCa,
        PgSslMode::VerifyFull => SslMode::VerifyFull,
    };
    Ok(TlsConfig { mode, ..TlsConfig::default() })
}

#[cfg(not(feature = "tls"))]
fn tls(mode: PgSslMode) -> Result<pgwire_replication::TlsConfig, CaptureError> {
    match mode {
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer => Ok(pgwire_replication::TlsConfig::disabled()),
        _ => Err(CaptureError::Config(
            "DATABASE_URL requires TLS, which this build has not for replication: build with the feature `tls`".into(),
        )),
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_a_password_with_separators_reaches_the_replication_client_whole() {
        let endpoint =
            Endpoint::parse("postgres://me:p%40ss%3Aw%2Fd%25@db.example:6543/shop?sslmode=disable").ok();
        let config = endpoint.and_then(|endpoint| endpoint.replication("s").ok());
        let config = config.expect("a usable endpoint");
        assert_eq!((config.password.as_str(), config.host.as_str()), ("p@ss:w/d%", "db.example"));
        assert_eq!((config.port, config.database.as_str(), config.user.as_str()), (6543, "shop", "me"));
    }

    #[test]
    fn h2_a_connection_string_without_database_is_refused_without_repeating_it() {
        for url in ["postgres://me:secret@db.example", "mysql://me:secret@db/x", "secret"] {
            let error = Endpoint::parse(url).err().expect("refused").to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
